"""Who gets in: login, first password, sessions, forged forms, brakes, roles, one-time codes."""

from __future__ import annotations

import pyotp
import pytest

from server.admin.accounts import AccountFault, Role
from server.admin.sessions import LoginBrake, address_key
from tests.fakes_admin import (
    PASSWORD,
    Browser,
    FakeContext,
    MemoryAccounts,
    logged_in,
    make_fake,
    run,
)


def location(answer: object) -> str:
    return dict(answer.headers).get("location", "")  # type: ignore[attr-defined]


def test_a_stranger_sees_only_the_login() -> None:
    admin, context, _ = make_fake()
    browser = Browser(admin, context)
    for path in ("/", "/queue", "/policy", "/files", "/passes", "/log", "/account", "/live"):
        answer = browser.get(path)
        assert answer.status in (303, 401), path
        assert b"Goodput" not in answer.body
    assert browser.get("/api/v1/state").status == 401
    assert browser.get("/login").status == 200


def test_the_first_password_opens_once_and_must_be_changed() -> None:
    store = MemoryAccounts()
    admin, context, first = make_fake(store=store)
    assert first is not None
    browser = Browser(admin, context)
    assert location(browser.login("admin", first)) == "/account"
    assert location(browser.get("/queue")) == "/account"
    assert browser.get("/account").status == 200
    form = {"old": first, "password": PASSWORD, "again": PASSWORD}
    assert browser.post("/account/password", form).status == 303
    assert browser.get("/queue").status == 200
    again, _, second = make_fake(context, store)
    assert second is None
    other = Browser(again, context)
    assert other.login("admin", first).status == 401
    assert other.login("admin", PASSWORD).status == 303


def test_passwords_are_stored_as_argon2_hashes_and_tokens_as_digests() -> None:
    store = MemoryAccounts()
    admin, context, first = make_fake(store=store)
    secret, token = admin.accounts.issue_token("ci", Role.VIEWER, "admin", context.now_s, None)
    assert store.users["admin"].password_hash.startswith("$argon2id$")
    assert first is not None
    assert first not in repr(store)
    assert secret not in repr(store)
    assert token.digest in repr(store)


def test_login_makes_a_new_session_whatever_cookie_was_brought() -> None:
    browser = logged_in()
    old = browser.cookies["tidegate-admin"]
    browser.get("/login")
    victim = Browser(browser.admin, browser.context)
    victim.cookies["tidegate-admin"] = old
    victim.cookies.pop("tidegate-visitor", None)
    browser.post("/logout")
    assert victim.get("/").status == 303, "a session that ended elsewhere opens nothing"
    forged = Browser(browser.admin, browser.context)
    forged.cookies["tidegate-admin"] = "chosen-by-an-attacker"
    forged.login("admin", PASSWORD)
    assert forged.cookies["tidegate-admin"] != "chosen-by-an-attacker"


def test_cookies_are_out_of_reach_of_scripts_and_other_sites() -> None:
    admin, context, first = make_fake()
    browser = Browser(admin, context)
    assert first is not None
    answer = browser.login("admin", first)
    fields = [v for n, v in answer.headers if n == "set-cookie" and v.startswith("tidegate-admin")]
    assert fields
    assert all("HttpOnly" in field and "SameSite=Strict" in field for field in fields)


def test_changing_the_password_ends_all_other_sessions() -> None:
    browser = logged_in()
    other = Browser(browser.admin, browser.context)
    other.login("admin", PASSWORD)
    assert other.get("/queue").status == 200
    new = "another long password"
    browser.post("/account/password", {"old": PASSWORD, "password": new, "again": new})
    assert other.get("/queue").status == 303
    assert browser.get("/queue").status == 200


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_a_form_without_its_token_is_refused(token: str) -> None:
    browser = logged_in()
    answer = browser.ask("POST", "/queue/block", {"csrf": token, "network": "192.0.2.1"})
    assert answer.status == 403
    assert not browser.context.blocked


def test_a_form_token_of_another_session_is_refused() -> None:
    one = logged_in()
    other = Browser(one.admin, one.context)
    other.login("admin", PASSWORD)
    other.get("/account")
    answer = one.ask("POST", "/queue/block", {"csrf": other.token, "network": "192.0.2.1"})
    assert answer.status == 403


@pytest.mark.parametrize(
    ("name", "value"), [("origin", "https://evil.example"), ("sec_fetch_site", "cross-site")]
)
def test_a_request_from_another_site_is_refused_even_with_the_token(name: str, value: str) -> None:
    browser = logged_in()
    answer = browser.post("/queue/block", {"network": "192.0.2.1"}, **{name: value})
    assert answer.status == 403
    assert not browser.context.blocked


def test_an_api_call_with_a_cookie_needs_the_form_token_too() -> None:
    browser = logged_in()
    body = b'{"network": "192.0.2.1"}'
    sent = {"content_type": "application/json"}
    assert browser.ask("POST", "/api/v1/blocks", body=body, **sent).status == 403
    sent["x_csrf_token"] = browser.token
    assert browser.ask("POST", "/api/v1/blocks", body=body, **sent).status == 201


def test_guessing_is_slowed_for_one_address_and_told_when_to_try_again() -> None:
    admin, context, _ = make_fake()
    browser = Browser(admin, context)
    statuses = [browser.login("admin", f"wrong guess {i}").status for i in range(8)]
    assert statuses[:5] == [401] * 5
    assert statuses[-1] == 429
    answer = browser.login("admin", "wrong again")
    assert int(dict(answer.headers)["retry-after"]) >= 1
    # Somebody else, from elsewhere, still gets in.
    run(admin.accounts.set_password("admin", PASSWORD))
    assert Browser(admin, context, peer="198.51.100.1").login("admin", PASSWORD).status == 303


def test_the_brake_doubles_forgets_and_stays_small() -> None:
    brake = LoginBrake(limit=50)
    for i in range(7):
        brake.start("192.0.2.1", "a", float(i))
    first = brake.wait_s("192.0.2.1", "a", 7.0)
    brake.start("192.0.2.1", "a", 7.0)
    assert brake.wait_s("192.0.2.1", "a", 7.0) > first
    brake.start("192.0.2.1", "b", 10_000.0)
    assert brake.wait_s("192.0.2.1", "b", 10_000.0) == 0.0
    for i in range(500):
        brake.start(f"198.51.100.{i % 250}", f"user{i}", 0.0)
    assert len(brake._scores) <= 50
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff")
    assert address_key("::ffff:192.0.2.1") == "192.0.2.1"


def test_sessions_end_when_idle_or_old() -> None:
    browser = logged_in()
    browser.context.now_s += 11 * 3600
    assert browser.get("/queue").status == 200
    browser.context.now_s += 13 * 3600
    assert browser.get("/queue").status == 303
    browser.login("admin", PASSWORD)
    for _ in range(17):
        browser.context.now_s += 10 * 3600
        browser.get("/queue")
    assert browser.get("/queue").status == 303, "a session lives a week at most"


def viewer() -> Browser:
    operator = logged_in()
    run(operator.admin.accounts.add_user("eve", Role.VIEWER, "looks but never acts", 0.0))
    run(operator.admin.accounts.set_password("eve", "looks but never acts"))
    browser = Browser(operator.admin, operator.context)
    browser.login("eve", "looks but never acts")
    browser.get("/account")
    return browser


def test_a_viewer_sees_everything_and_changes_nothing() -> None:
    browser = viewer()
    for path in ("/", "/queue", "/policy", "/files", "/passes", "/waiting", "/network", "/log"):
        assert browser.get(path).status == 200, path
    for path in ("/policy", "/queue/block", "/passes", "/files/rule", "/waiting", "/account/users"):
        assert browser.post(path, {"network": "192.0.2.1", "policy": "fair"}).status == 403, path
    sent = {"content_type": "application/json", "x_csrf_token": browser.token}
    for method, path in (("PUT", "/settings"), ("POST", "/blocks"), ("POST", "/passes")):
        assert browser.ask(method, f"/api/v1{path}", body=b"{}", **sent).status == 403
    assert browser.post("/account/tokens", {"label": "x", "role": "operator"}).status == 403
    assert browser.context.current().number == 1


def test_one_time_codes_are_needed_once_set_up_and_never_good_twice() -> None:
    browser = logged_in()
    page = browser.post("/account/totp").body.decode()
    secret = page.split('name="secret" value="')[1].split('"')[0]
    totp = pyotp.TOTP(secret)
    wrong = browser.post("/account/totp/on", {"secret": secret, "code": "000000"})
    assert wrong.status == 422
    good = {"secret": secret, "code": totp.at(int(browser.context.now_s))}
    assert browser.post("/account/totp/on", good).status == 303
    browser.context.now_s += 60
    code = totp.at(int(browser.context.now_s))
    other = Browser(browser.admin, browser.context)
    assert other.login("admin", PASSWORD).status == 401
    assert other.login("admin", PASSWORD, code).status == 303
    third = Browser(browser.admin, browser.context)
    assert third.login("admin", PASSWORD, code).status == 401, "a code was good twice"


@pytest.mark.parametrize(
    "way", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb"]
)
def test_the_login_leads_nowhere_else(way: str) -> None:
    admin, context, _ = make_fake()
    run(admin.accounts.set_password("admin", PASSWORD))
    browser = Browser(admin, context)
    browser.get("/login")
    form = {"name": "admin", "password": PASSWORD, "next": way}
    assert location(browser.post("/login", form)) == "/"


def test_api_tokens_work_without_cookies_expire_and_are_revoked() -> None:
    admin, context, _ = make_fake()
    run(admin.accounts.set_password("admin", PASSWORD))
    secret, token = admin.accounts.issue_token(
        "ci", Role.OPERATOR, "admin", context.now_s, context.now_s + 100
    )
    program = Browser(admin, context)
    sent = {"authorization": f"Bearer {secret}"}
    assert program.get("/api/v1/state", **sent).status == 200
    block = {"content_type": "application/json", **sent}
    body = b'{"network": "192.0.2.1"}'
    assert program.ask("POST", "/api/v1/blocks", body=body, **block).status == 201
    assert program.get("/api/v1/state", authorization="Bearer nonsense").status == 401
    context.now_s += 101
    assert program.get("/api/v1/state", **sent).status == 401
    context.now_s -= 101
    admin.accounts.drop_token(token.serial)
    assert program.get("/api/v1/state", **sent).status == 401


def test_a_token_never_outranks_its_owner() -> None:
    admin, context, _ = make_fake()
    run(admin.accounts.add_user("eve", Role.OPERATOR, "an operator at first", 0.0))
    secret, _ = admin.accounts.issue_token("x", Role.OPERATOR, "eve", context.now_s, None)
    admin.accounts.set_role("eve", Role.VIEWER)
    sent = {"authorization": f"Bearer {secret}", "content_type": "application/json"}
    answer = Browser(admin, context).ask("POST", "/api/v1/blocks", body=b"{}", **sent)
    assert answer.status == 403


def test_the_last_operator_stays() -> None:
    admin, _, _ = make_fake()
    with pytest.raises(AccountFault):
        admin.accounts.drop_user("admin")
    with pytest.raises(AccountFault):
        admin.accounts.set_role("admin", Role.VIEWER)


def test_every_answer_has_a_strict_policy_and_no_page_breaks_it() -> None:
    browser = logged_in()
    for path in ("/", "/queue", "/policy", "/files", "/passes", "/waiting", "/account", "/log"):
        answer = browser.get(path)
        headers = dict(answer.headers)
        assert "unsafe" not in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        page = answer.body.decode()
        assert " style=" not in page
        assert " onclick=" not in page
        assert "<script>" not in page
        assert "<style" not in page


def test_metrics_are_free_here_and_need_a_token_from_elsewhere() -> None:
    admin, context, _ = make_fake()
    assert Browser(admin, context, peer="127.0.0.1").get("/metrics").status == 200
    assert Browser(admin, context).get("/metrics").status == 401
    proxied = Browser(admin, context, peer="127.0.0.1")
    assert proxied.get("/metrics", x_forwarded_for="192.0.2.1").status == 401
    assert Browser(admin, context, peer="10.9.8.7").get("/metrics").status == 200, "metrics_from"


def test_a_fault_is_said_and_never_shown_as_a_traceback() -> None:
    context = FakeContext()
    browser = logged_in(context)

    def broken() -> object:
        raise RuntimeError("secret detail")

    context.snapshot = broken  # type: ignore[assignment, method-assign]
    answer = browser.get("/")
    assert answer.status == 500
    assert b"secret detail" not in answer.body
