"""Who gets in: login, first password, sessions, forged forms, brakes, roles, one-time codes."""

from __future__ import annotations

import errno
import functools
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyotp
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed

from tests.admin_site import PASSWORD, Browser, Site, make_site, operator, stop
from tidegate.server.accounts.accounts import (
    AccountRows,
    Accounts,
    ApiToken,
    Role,
    Scope,
    User,
    digest,
)
from tidegate.server.accounts.hashing import Busy, Hashing
from tidegate.server.accounts.login_brake import LoginBrake
from tidegate.server.accounts.password_reset import forget_reset, leave_reset, read_reset
from tidegate.server.accounts.stored import Sealer
from tidegate.server.admin.web import Answer
from tidegate.server.app.cli.reset_password import login_link, reset_password
from tidegate.server.control.problems import Problem

WATCHER = "looks but never acts"
BLOCK = b'{"network": "192.0.2.1"}'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = make_site(tmp_path, monkeypatch)
    yield found
    stop(found)


def location(answer: Answer) -> str:
    return dict(answer.headers).get("location", "")


def api(browser: Browser, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    sent = {"content_type": "application/json", **headers}
    return browser.ask(method, f"/api/v1{path}", body=body, headers=sent)


def test_a_stranger_sees_only_the_login(site: Site) -> None:
    browser = Browser(site)
    for path in ("/", "/queue", "/policy", "/files", "/passes", "/log", "/account"):
        answer = browser.get(path)
        assert answer.status in (303, 401), path
        assert b"Goodput" not in answer.body
    assert browser.get("/api/v1/state").status == 401
    assert browser.get("/login").status == 200
    # A page that must not be seen, and that is the same for one that is not there.
    assert browser.post("/queue/block", {"network": "192.0.2.1"}).status == 401


def test_the_first_password_opens_once_and_must_be_changed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site.first_password
    browser = Browser(site)
    assert location(browser.login("admin", first)) == "/account"
    assert location(browser.get("/queue")) == "/account"
    assert browser.get("/api/v1/state").status == 403
    assert browser.get("/account").status == 200
    form = {"old": first, "password": PASSWORD, "again": PASSWORD}
    assert browser.post("/account/password", form).status == 303
    assert browser.get("/queue").status == 200
    stop(site)
    again = make_site(tmp_path, monkeypatch)
    try:
        assert again.service.admin.open_accounts().first_password is None
        other = Browser(again)
        assert other.login("admin", first).status == 401
        assert other.login("admin", PASSWORD).status == 303
        browser.site = again
        assert browser.get("/queue").status == 200, "a session survives a restart"
    finally:
        stop(again)


def test_the_database_holds_no_password_no_token_and_no_secret_of_codes(
    site: Site, tmp_path: Path
) -> None:
    browser = operator(site)
    secret, _ = site.admin.accounts.issue_token("ci", [Scope.READ], "admin", 0.0, None)
    page = browser.post("/account/totp").body.decode()
    totp = page.split('name="secret" value="')[1].split('"')[0]
    code = pyotp.TOTP(totp).at(int(site.server.now()))
    assert browser.post("/account/totp/on", {"secret": totp, "code": code}).status == 303
    stop(site)
    with closing(sqlite3.connect(tmp_path / "state" / "tidegate.db")) as database:
        rows = [
            str(row)
            for table in ("admin_users", "admin_tokens", "admin_sessions")
            for row in database.execute(f"SELECT * FROM {table}")
        ]
    assert any("$argon2id$" in row for row in rows)
    assert len(rows) >= 3
    key = browser.cookies["tidegate-admin"].partition(".")[0]
    for hidden in (PASSWORD, site.first_password, secret, totp, key):
        assert all(hidden not in row for row in rows)


def test_sealed_secrets_open_only_with_their_key_and_for_their_owner() -> None:
    sealer = Sealer(b"k" * 32)
    sealed = sealer.seal("JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP", "ann")
    assert len(sealed) <= 64, "the column's width"
    assert sealer.open(sealed, "ann") == "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
    assert sealer.open(sealed, "bob") is None
    assert Sealer(b"q" * 32).open(sealed, "ann") is None
    assert sealer.open("no base64!", "ann") is None


def test_codes_that_cannot_be_read_open_nothing_until_the_host_resets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch)
    browser = operator(site)
    page = browser.post("/account/totp").body.decode()
    secret = page.split('name="secret" value="')[1].split('"')[0]
    code = pyotp.TOTP(secret).at(int(site.server.now()))
    browser.post("/account/totp/on", {"secret": secret, "code": code})
    stop(site)
    (tmp_path / "state" / "admin.key").unlink()
    again = make_site(tmp_path, monkeypatch)
    try:
        again.wait(60)
        moment = int(again.server.now())
        for guess in (pyotp.TOTP(secret).at(moment), "000000", ""):
            assert Browser(again).login("admin", PASSWORD, guess).status == 401
        leave_reset(tmp_path / "state", "admin", "given on the host")
        assert location(Browser(again).login("admin", "given on the host")) == "/account"
    finally:
        stop(again)


def test_login_makes_a_new_session_whatever_cookie_was_brought(site: Site) -> None:
    browser = operator(site)
    old = browser.cookies["tidegate-admin"]
    victim = Browser(site, cookies={"tidegate-admin": old})
    browser.post("/logout")
    assert victim.get("/").status == 303, "a session that ended elsewhere opens nothing"
    forged = Browser(site, cookies={"tidegate-admin": "chosen-by-an-attacker"})
    forged.login("admin", PASSWORD)
    assert forged.cookies["tidegate-admin"] != "chosen-by-an-attacker"


def test_a_cookie_that_another_page_put_before_ours_locks_nobody_out(site: Site) -> None:
    """A page of another port, or a script of a file that this host serves, may set one."""
    browser = operator(site)
    own = browser.cookies.pop("tidegate-admin")
    shadow = Browser(site, cookies={"tidegate-admin": f"bad; tidegate-admin={own}"})
    assert shadow.get("/account").status == 200
    shadow.post("/account/tokens", {"label": "t", "role": "viewer", "days": "1"})
    assert len(site.admin.accounts.tokens) == 1
    many = "; ".join(["tidegate-admin=bad"] * 8)
    crowded = Browser(site, cookies={"x": f"y; {many}; tidegate-admin={own}"})
    assert crowded.get("/account").status == 303


def test_over_tls_no_login_counts_that_another_host_could_have_set(site: Site) -> None:
    """A viewer may give an operator his own login, so that what the operator does is his."""
    operator(site)
    own = Browser(site, secure=True)
    answer = own.login("admin", PASSWORD)
    fields = [value for name, value in answer.headers if name == "set-cookie"]
    assert len(fields) == 3
    for field in fields:
        assert field.startswith("__Host-tidegate-")
        assert "Secure" in field
        assert "Path=/" in field
        assert "Domain" not in field
    login = own.cookies["__Host-tidegate-admin"]
    assert own.get("/account").status == 200
    tossed = Browser(site, secure=True, cookies={"tidegate-admin": login})
    assert tossed.get("/account").status == 303
    plain = Browser(site, cookies={"__Host-tidegate-admin": login})
    assert plain.get("/account").status == 303


def test_cookies_are_out_of_reach_of_scripts_and_other_sites(site: Site) -> None:
    answer = Browser(site).login("admin", site.first_password)
    fields = [v for n, v in answer.headers if n == "set-cookie" and v.startswith("tidegate-admin")]
    assert fields
    assert all("HttpOnly" in field and "SameSite=Strict" in field for field in fields)


def test_changing_the_password_ends_all_other_sessions(site: Site) -> None:
    browser = operator(site)
    other = Browser(site)
    other.login("admin", PASSWORD)
    assert other.get("/queue").status == 200
    new = "another long password"
    browser.post("/account/password", {"old": PASSWORD, "password": new, "again": new})
    assert other.get("/queue").status == 303
    assert browser.get("/queue").status == 200


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_nothing_that_acts_is_done_without_the_form_token(site: Site, token: str) -> None:
    browser = operator(site)
    before = site.server.store.musts_total
    for route in site.admin.router.routes:
        if route.method != "GET" and not route.public:
            answer = browser.ask(route.method, some(route.path), {"csrf": token})
            assert answer.status == 403, route
    assert site.server.store.musts_total == before


def some(path: str) -> str:
    """A path that fits the route's pattern."""
    return re.sub(r"{\w+}", "1", path)


def test_a_form_token_of_another_session_is_refused(site: Site) -> None:
    one, other = operator(site), Browser(site)
    other.login("admin", PASSWORD)
    other.get("/account")
    answer = one.ask("POST", "/queue/block", {"csrf": other.token, "network": "192.0.2.1"})
    assert answer.status == 403


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("origin", "https://evil.example"),
        ("sec_fetch_site", "cross-site"),
        ("sec_fetch_site", "same-site"),
    ],
)
def test_a_request_from_another_site_is_refused_even_with_the_token(
    site: Site, name: str, value: str
) -> None:
    browser = operator(site)
    answer = browser.post("/queue/block", {"network": "192.0.2.1"}, **{name: value})
    assert answer.status == 403
    assert site.server.blocks.all() == []


def test_an_api_call_with_a_cookie_needs_the_form_token_too(site: Site) -> None:
    browser = operator(site)
    assert api(browser, "POST", "/blocks", BLOCK).status == 403
    assert api(browser, "POST", "/blocks", BLOCK, x_csrf_token=browser.token).status == 201


# -- guessing --------------------------------------------------------------------------------


def test_guessing_is_slowed_and_told_when_to_try_again(site: Site) -> None:
    operator(site)
    stranger = Browser(site, peer="198.51.100.9")
    statuses = [stranger.login("admin", f"wrong guess {i}").status for i in range(8)]
    assert statuses[:5] == [401] * 5
    assert statuses[-1] == 429
    assert int(dict(stranger.login("admin", "wrong again").headers)["retry-after"]) >= 1


def test_strangers_cannot_lock_the_operator_out(site: Site) -> None:
    operator(site)
    for number in range(40):
        stranger = Browser(site, peer=f"198.51.100.{number}")
        assert stranger.login("admin", "a guess").status == 401
    assert Browser(site, peer="192.0.2.9").login("admin", PASSWORD).status == 303


def stopped_hashing(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[Deferred[None]]:
    """No password is hashed from now on but those whose Deferreds here are called."""
    hashing = site.admin.accounts.hash
    assert isinstance(hashing, Hashing)
    jobs: list[Deferred[None]] = []

    def off(_work: object) -> Deferred[None]:
        jobs.append(Deferred())
        return jobs[-1]

    monkeypatch.setattr(hashing._turns, "_off", off)
    return jobs


def test_a_browser_that_logged_in_before_waits_for_no_stranger(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand networks kept the one room full: each of 40 right passwords was refused."""
    before = operator(site)
    before.ask("POST", "/logout", {"csrf": before.token})
    jobs = stopped_hashing(site, monkeypatch)

    def login(browser: Browser) -> list[Answer]:
        browser.get("/login")
        form = {"csrf": browser.token, "name": "admin", "password": PASSWORD}
        answers: list[Answer] = []
        call = browser.call("POST", "/login", form)
        Deferred.fromCoroutine(site.admin.answer(call)).addCallback(answers.append)
        site.reactor.advance(0.0)
        return answers

    for number in range(30):
        login(Browser(site, peer=f"{20 + number}.1.1.1"))
    forged = {"tidegate-known": site.admin.sessions.visitor()}
    stranger = Browser(site, peer="198.51.100.7", cookies=forged)
    assert [answer.status for answer in login(stranger)] == [503]
    # From another address than before.
    before.peer = "203.0.113.7"
    waits = login(before)
    assert not waits
    assert len(jobs) == 1
    jobs.pop().callback(None)
    site.reactor.advance(0.0)
    # The next one is its own, before all that came earlier.
    jobs.pop().callback(None)
    assert [answer.status for answer in waits] == [401]


def test_a_link_from_the_host_puts_a_new_browser_before_a_flood(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operator(site)
    (tmp_path / "admin.key").write_bytes(site.admin.sessions.key)
    made = CliRunner().invoke(login_link, ["--state", str(tmp_path)])
    assert (made.exit_code, made.output[:13]) == (0, "/login?known=")
    new, fooled = Browser(site, peer="203.0.113.7"), Browser(site, peer="203.0.113.8")
    new.get(made.output.strip())
    fooled.get("/login?known=" + site.admin.sessions.visitor())
    jobs = stopped_hashing(site, monkeypatch)
    answers: dict[str, Answer] = {}
    for browser in [Browser(site, peer=f"{20 + one}.1.1.1") for one in range(30)] + [fooled, new]:
        if browser not in (new, fooled):
            browser.get("/login")
        form = {"csrf": browser.token, "name": "admin", "password": PASSWORD}
        call = browser.call("POST", "/login", form)
        told = Deferred.fromCoroutine(site.admin.answer(call))
        told.addCallback(functools.partial(answers.__setitem__, browser.peer))
        site.reactor.advance(0.0)
    assert answers[fooled.peer].status == 503
    jobs.pop().callback(None)
    site.reactor.advance(0.0)
    jobs.pop().callback(None)
    assert answers[new.peer].status == 401, "its hash was the second one"
    (tmp_path / "admin.key").unlink()
    away = CliRunner().invoke(login_link, ["--state", str(tmp_path)])
    assert (away.exit_code, "No such file or directory" in away.output) == (4, True)


def test_a_slash_64_is_one_client_to_the_brake_and_doubles_its_pause() -> None:
    brake = LoginBrake(limit=50)
    for i in range(7):
        brake.start(f"2001:db8::{i}", "a", float(i))
    first = brake.wait_s("2001:db8::99", "a", 7.0)
    assert first > 0
    assert brake.wait_s("2001:db8:0:1::1", "a", 7.0) == 0.0
    brake.start("2001:db8::1", "a", 7.0)
    assert brake.wait_s("2001:db8::1", "a", 7.0) > first
    brake.start("2001:db8::1", "b", 10_000.0)
    assert brake.wait_s("2001:db8::1", "b", 10_000.0) == 0.0
    for i in range(500):
        brake.start(f"198.51.100.{i % 250}", f"user{i}", 0.0)
    assert len(brake._scores) <= 50


def test_one_client_cannot_go_through_many_names() -> None:
    brake = LoginBrake()
    for i in range(25):
        brake.start("192.0.2.1", f"name{i}", 0.0)
    assert brake.wait_s("192.0.2.1", "another", 0.0) > 0
    assert brake.wait_s("192.0.2.2", "another", 0.0) == 0.0


A_REST = st.sampled_from([0.0, 0.0, 0.0, 1.0, 700.0, 3601.0])


@given(st.lists(st.tuples(st.integers(0, 3), A_REST), min_size=1, max_size=6))
def test_who_guesses_as_fast_as_allowed_has_few_guesses_an_hour(
    moves: list[tuple[int, float]],
) -> None:
    """Over however many names, whatever rests there are, and with an account of one's own."""
    brake, now = LoginBrake(), 0.0
    guesses: list[float] = []
    for turn, (number, rest_s) in enumerate(moves * 50):
        # Number 0 is the client's own account, of which it knows the password.
        name = f"{number}.{turn // len(moves) % 20}" if number else "own"
        now += rest_s
        now += brake.wait_s("192.0.2.1", name, now)
        assert brake.wait_s("192.0.2.1", name, now) == 0.0, "what it says is enough"
        assert brake.wait_s("198.51.100.2", name, now) == 0.0, "nobody else waits"
        brake.start("192.0.2.1", name, now)
        if number:
            guesses.append(now)
        else:
            brake.succeeded("192.0.2.1", name)
    # Twenty are free, nine pauses double to 512 s, the others are of a quarter of an hour.
    assert all(later - first > 3600 for first, later in zip(guesses, guesses[32:], strict=False))


def test_a_login_while_too_many_wait_is_asked_to_come_back_and_is_no_wrong_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator(site)
    stranger = Browser(site, peer="198.51.100.9")
    brake, now = site.admin.brake, site.server.now()
    with monkeypatch.context() as patch:

        async def full(*_: object) -> None:
            raise Busy

        patch.setattr(site.admin.accounts, "hash", full)
        for _ in range(30):
            answer = stranger.login("admin", PASSWORD)
            assert answer.status == 503
    assert dict(answer.headers)["retry-after"] == "5"
    assert b"Too many people log in" in answer.body
    assert brake.wait_s(stranger.peer, "admin", now) == 0.0
    assert stranger.login("admin", PASSWORD).status == 303


def test_who_waits_is_refused_in_turn_once_there_were_too_many_wrong_ones(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of parallel tries only those that are free are checked, and only these count."""
    operator(site)
    stranger = Browser(site, peer="198.51.100.9")
    stranger.get("/login")
    jobs = stopped_hashing(site, monkeypatch)

    answers: list[Answer] = []
    for _ in range(12):
        call = stranger.call("POST", "/login", {"csrf": stranger.token, "name": "admin"})
        Deferred.fromCoroutine(site.admin.answer(call)).addCallback(answers.append)
    for _ in range(12):
        site.reactor.advance(0.0)
    for job in jobs:
        job.callback(None)
    assert len(jobs) == 5
    assert sorted(answer.status for answer in answers) == [401] * 5 + [429] * 7


def test_sessions_end_when_idle_or_old(site: Site) -> None:
    browser = operator(site)
    site.reactor.rightNow += 11 * 3600
    assert browser.get("/queue").status == 200
    site.reactor.rightNow += 13 * 3600
    assert browser.get("/queue").status == 303
    browser.login("admin", PASSWORD)
    for _ in range(17):
        site.reactor.rightNow += 10 * 3600
        browser.get("/queue")
    assert browser.get("/queue").status == 303, "a session lives a week at most"


def test_a_session_that_was_used_outlives_a_restart(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = operator(site)
    site.reactor.rightNow += 11 * 3600
    assert browser.get("/queue").status == 200
    stop(site)
    again = make_site(tmp_path, monkeypatch)
    again.reactor.rightNow = site.reactor.rightNow + 3 * 3600
    browser.site = again
    found = browser.get("/queue").status
    stop(again)
    assert found == 200


# -- roles, scopes, tokens -------------------------------------------------------------------


def viewer(site: Site) -> Browser:
    operator(site)
    site.run(site.admin.accounts.add_user("eve", Role.VIEWER, WATCHER, 0.0))
    site.run(site.admin.accounts.set_password("eve", WATCHER))
    browser = Browser(site)
    browser.login("eve", WATCHER)
    browser.get("/account")
    return browser


def test_the_password_of_a_new_user_keeps_the_blanks_that_were_typed(site: Site) -> None:
    new = {"name": "ann", "role": "viewer", "password": " twelve letters "}
    assert operator(site).post("/account/users", new).status == 303
    assert Browser(site).login("ann", "twelve letters").status == 401
    assert Browser(site).login("ann", " twelve letters ").status == 303


def test_a_viewer_sees_everything_and_changes_nothing(site: Site) -> None:
    browser = viewer(site)
    for path in ("/", "/queue", "/policy", "/files", "/passes", "/waiting", "/network", "/log"):
        assert browser.get(path).status == 200, path
    for path in ("/policy", "/queue/block", "/passes", "/files/rule", "/waiting", "/account/users"):
        assert browser.post(path, {"network": "192.0.2.1", "policy": "fair"}).status == 403, path
    for method, path in (("PUT", "/settings"), ("POST", "/blocks"), ("POST", "/passes")):
        assert api(browser, method, path, b"{}", x_csrf_token=browser.token).status == 403
    assert browser.post("/account/tokens", {"label": "x", "role": "operator"}).status == 403
    assert site.server.revisions.current.number == 1


def test_a_viewer_acts_nowhere_and_looking_changes_nothing(site: Site) -> None:
    browser = viewer(site)
    before = site.server.store.musts_total
    for route in site.admin.router.routes:
        path = some(route.path)
        if route.method == "GET":
            if "stream" not in route.media:
                assert browser.get(path).status < 500, path
        elif not route.public and route.scope is not Scope.READ:
            assert browser.post(path, {}).status in (403, 405), path
    assert site.server.store.musts_total == before


def token(site: Site, *scopes: Scope, owner: str = "admin", days: float | None = None) -> str:
    expires = None if days is None else site.server.now() + days * 86_400
    return site.admin.accounts.issue_token("ci", scopes, owner, site.server.now(), expires)[0]


def test_a_token_does_what_its_scopes_say_and_no_more(site: Site) -> None:
    operator(site)
    wanted = {
        Scope.QUEUE: ("POST", "/blocks", BLOCK, 201),
        Scope.POLICY: ("PATCH", "/settings", b'{"settings": {"slots": 9}}', 200),
        Scope.FILES: ("PUT", "/rules", b'{"path": "/x", "note": "n"}', 200),
        Scope.ACCOUNTS: ("GET", "/users", b"", 200),
    }
    for scope in Scope:
        sent = {"authorization": f"Bearer {token(site, Scope.READ, scope)}", "if_match": "*"}
        program = Browser(site)
        assert program.get("/api/v1/state", **sent).status == 200
        for needed, (method, path, body, good) in wanted.items():
            status = api(program, method, path, body, **sent).status
            assert status == (good if scope is needed else 403), (scope, path)


def test_a_viewers_token_touches_no_token_but_itself(site: Site) -> None:
    browser = operator(site)
    operators = site.admin.accounts.issue_token("op", Role.OPERATOR.scopes, "admin", 0.0, None)[1]
    secret, own = site.admin.accounts.issue_token("ro", [Scope.READ], "admin", 0.0, None)
    sent = {"authorization": f"Bearer {secret}"}
    assert api(browser, "DELETE", f"/tokens/{operators.serial}", **sent).status == 404
    child = b'{"label": "child", "role": "viewer"}'
    assert api(browser, "POST", "/tokens", child, **sent).status == 403
    assert api(browser, "DELETE", f"/tokens/{own.serial}", **sent).status == 204
    assert api(browser, "GET", "/state", **sent).status == 401


def test_a_narrow_token_makes_and_removes_nobody_who_may_more(site: Site) -> None:
    """It used to make an operator with a password of its own, and to remove its owner."""
    browser = operator(site)
    sent = {"authorization": f"Bearer {token(site, Scope.READ, Scope.ACCOUNTS)}"}
    for role, status in (("operator", 403), ("viewer", 201)):
        user = b'{"name": "%s", "role": "%s", "password": "evil evil evil"}'
        body = user % (role.encode(), role.encode())
        assert api(browser, "POST", "/users", body, **sent).status == status
    wide = {"authorization": f"Bearer {token(site, *Scope)}"}
    second = b'{"name": "second", "role": "operator", "password": "evil evil evil"}'
    assert api(browser, "POST", "/users", second, **wide).status == 201
    for name, status in (("admin", 403), ("second", 403), ("viewer", 204)):
        assert api(browser, "DELETE", f"/users/{name}", **sent).status == status
    assert sorted(site.admin.accounts.users) == ["admin", "second"]


def test_what_a_token_issued_ends_with_it_and_is_no_wider(site: Site) -> None:
    browser = operator(site)
    accounts = site.admin.accounts
    scopes = [Scope.READ, Scope.ACCOUNTS]
    ends = site.server.now() + 100
    secret, parent = accounts.issue_token("p", scopes, "admin", site.server.now(), ends)
    sent = {"authorization": f"Bearer {secret}"}
    wide = b'{"label": "child", "scopes": ["queue"]}'
    assert api(browser, "POST", "/tokens", wide, **sent).status == 403
    body = b'{"label": "child", "scopes": ["accounts"], "days": 90}'
    answer = api(browser, "POST", "/tokens", body, **sent)
    assert answer.status == 201
    child = next(t for t in accounts.tokens.values() if t.parent == parent.serial)
    assert child.expires_s == parent.expires_s
    grandchild, _ = accounts.issue_token("g", [Scope.READ], "admin", 0.0, None, child)
    assert accounts.by_token(grandchild, site.server.now()) is not None
    assert accounts.by_token(grandchild, ends) is None, "it ends when its grandparent does"
    assert api(browser, "DELETE", f"/tokens/{parent.serial}", **sent).status == 204
    assert [t.label for t in accounts.tokens.values()] == []


class Kept:
    """An account store that remembers which tokens it has."""

    def __init__(self) -> None:
        self.tokens: dict[str, ApiToken] = {}

    def load(self) -> AccountRows:
        return AccountRows([], list(self.tokens.values()), [])

    def put(self, one: object) -> None:
        assert isinstance(one, ApiToken)
        self.tokens[one.serial] = one

    def drop(self, one: object) -> None:
        assert isinstance(one, ApiToken)
        del self.tokens[one.serial]


def accounts_of(role: Role) -> tuple[Accounts, Kept]:
    """One user, `ann`, and no password that could be hashed."""
    kept = Kept()
    accounts = Accounts(kept, lambda *_: succeed(None))
    accounts.users["ann"] = User("ann", role, "", 0.0)
    return accounts, kept


A_TOKEN = st.tuples(
    st.integers(0, 9), st.frozensets(st.sampled_from(Scope)), st.none() | st.integers(1, 9)
)


@given(
    st.lists(A_TOKEN, min_size=1, max_size=10),
    st.sampled_from(Role),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_a_token_may_what_all_above_it_may_and_ends_with_the_first_of_them(
    made: list[tuple[int, frozenset[Scope], int | None]], role: Role, now: int, revoked: int
) -> None:
    accounts, kept = accounts_of(role)
    secrets: list[str] = []
    above: list[list[int]] = []
    for number, (parent, scopes, expires_s) in enumerate(made):
        parents = above[parent] if parent < number else []
        issuer = accounts.tokens[digest(secrets[parent])] if parents else None
        secret, _ = accounts.issue_token("x", scopes, "ann", 0.0, expires_s, issuer)
        secrets.append(secret)
        above.append([number, *parents])
    revoked %= len(made)
    serial = accounts.tokens[digest(secrets[revoked])].serial
    assert accounts.drop_token(serial)
    assert not accounts.drop_token(serial)
    for line, secret in zip(above, secrets, strict=True):
        ends = [made[one][2] for one in line]
        good = revoked not in line and all(end is None or end > now for end in ends)
        token = accounts.by_token(secret, float(now))
        assert (token is not None) == good
        if token is not None:
            may = role.scopes.intersection(*(made[one][1] for one in line))
            assert token.scopes == may
    left = {one.serial for one in accounts.tokens.values()}
    assert left == kept.tokens.keys()
    assert len(left) == sum(revoked not in line for line in above)


def test_a_long_line_of_tokens_that_issued_each_other_is_revoked_whole() -> None:
    accounts, kept = accounts_of(Role.OPERATOR)
    _, first = accounts.issue_token("x", Scope, "ann", 0.0, None)
    last = first
    for _ in range(1500):
        last = accounts.issue_token("x", Scope, "ann", 0.0, None, last)[1]
    assert accounts.drop_token(first.serial)
    assert not kept.tokens


def test_tokens_expire_are_revoked_and_never_outrank_their_owner(site: Site) -> None:
    operator(site)
    accounts = site.admin.accounts
    program = Browser(site)
    secret = token(site, *Scope, days=1)
    sent = {"authorization": f"Bearer {secret}"}
    assert program.get("/api/v1/state", **sent).status == 200
    assert program.get("/api/v1/state", authorization="Bearer nonsense").status == 401
    site.reactor.rightNow += 86_401
    assert program.get("/api/v1/state", **sent).status == 401
    site.run(accounts.add_user("eve", Role.OPERATOR, "an operator at first", 0.0))
    sent = {"authorization": f"Bearer {token(site, *Scope, owner='eve')}"}
    assert api(program, "POST", "/blocks", BLOCK, **sent).status == 201
    accounts.users["eve"] = replace(accounts.users["eve"], role=Role.VIEWER)
    assert api(program, "POST", "/blocks", BLOCK, **sent).status == 403
    accounts.drop_user("eve")
    assert program.get("/api/v1/state", **sent).status == 401
    # Somebody else who is called like that has no token yet.
    site.run(accounts.add_user("eve", Role.OPERATOR, "another operator of the name", 0.0))
    assert program.get("/api/v1/state", **sent).status == 401


def test_one_time_codes_are_needed_once_set_up_and_never_good_twice(site: Site) -> None:
    browser = operator(site)
    assert b"ne-time code" not in Browser(site).get("/login").body, "nobody has one"
    page = browser.post("/account/totp").body.decode()
    secret = page.split('name="secret" value="')[1].split('"')[0]
    totp = pyotp.TOTP(secret)
    wrong = browser.post("/account/totp/on", {"secret": secret, "code": "000000"})
    assert wrong.status == 422
    for none in ("", "no secret"):
        assert browser.post("/account/totp/on", {"secret": none, "code": "000000"}).status == 422
    good = {"secret": secret, "code": totp.at(int(site.server.now()))}
    assert browser.post("/account/totp/on", good).status == 303
    site.reactor.rightNow += 60
    code = totp.at(int(site.server.now()))
    other = Browser(site)
    assert b"One-time code" in other.get("/login").body
    assert other.login("admin", PASSWORD).status == 401
    assert other.login("admin", PASSWORD, code).status == 303
    assert Browser(site).login("admin", PASSWORD, code).status == 401, "a code was good twice"


@pytest.mark.parametrize(
    "way", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb"]
)
def test_the_login_leads_nowhere_else(site: Site, way: str) -> None:
    operator(site)
    browser = Browser(site)
    browser.get("/login")
    form = {"name": "admin", "password": PASSWORD, "next": way}
    assert location(browser.post("/login", form)) == "/"


def test_the_last_operator_stays(site: Site) -> None:
    with pytest.raises(Problem):
        site.admin.accounts.drop_user("admin")


# -- a password given on the host ------------------------------------------------------------


def test_a_password_reset_on_the_host_counts_at_the_next_login(site: Site, tmp_path: Path) -> None:
    browser = operator(site)
    state = tmp_path / "state"
    leave_reset(state, "admin", "given on the host")
    assert (state / "password-reset.json").stat().st_mode & 0o777 == 0o600
    assert "given on the host" not in (state / "password-reset.json").read_text()
    fresh = Browser(site)
    assert fresh.login("admin", PASSWORD).status == 401
    assert location(fresh.login("admin", "given on the host")) == "/account"
    assert browser.get("/queue").status == 303, "its sessions are over"
    site.settle()
    assert not (state / "password-reset.json").exists()
    assert "account" in site.kinds()


def test_a_reset_waits_on_the_disk_until_the_database_has_it(site: Site, tmp_path: Path) -> None:
    paper, store = tmp_path / "state" / "password-reset.json", site.service.store
    leave_reset(tmp_path / "state", "admin", "given on the host")
    store.stored = lambda: succeed(False)  # type: ignore[method-assign]
    browser, own = Browser(site), "my own, at last"
    assert location(browser.login("admin", "given on the host")) == "/account"
    assert paper.exists(), "a kill now must not lose it"
    browser.get("/account")
    form = {"old": "given on the host", "password": own, "again": own}
    assert browser.post("/account/password", form).status == 503
    del store.stored  # type: ignore[method-assign]
    # It is taken up once: what its owner has chosen since holds.
    assert location(Browser(site).login("admin", own)) == "/"
    site.settle()
    assert not paper.exists()


def test_a_reset_that_is_stored_takes_no_later_one_away(tmp_path: Path) -> None:
    leave_reset(tmp_path, "admin", "given on the host")
    first = read_reset(tmp_path)
    leave_reset(tmp_path, "admin", "given on the host")
    assert first is not None
    forget_reset(tmp_path, first)
    second = read_reset(tmp_path)
    assert second is not None
    forget_reset(tmp_path, second)
    assert read_reset(tmp_path) is None


def test_a_reset_that_anybody_could_have_written_is_ignored(tmp_path: Path) -> None:
    for mode in (0o640, 0o620, 0o604, 0o602):
        leave_reset(tmp_path, "admin", "given on the host")
        (tmp_path / "password-reset.json").chmod(mode)
        assert read_reset(tmp_path) is None
    (tmp_path / "password-reset.json").write_text("{}")
    (tmp_path / "password-reset.json").chmod(0o600)
    assert read_reset(tmp_path) is None
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "password-reset.json").symlink_to(tmp_path / "elsewhere")
    assert read_reset(tmp_path) is None
    (tmp_path / "password-reset.json").unlink()
    assert read_reset(tmp_path) is None


def test_a_reset_makes_no_user_beside_an_operator(site: Site, tmp_path: Path) -> None:
    leave_reset(tmp_path / "state", "mallory", "given on the host")
    assert Browser(site).login("mallory", "given on the host").status == 401
    assert list(site.admin.accounts.users) == ["admin"]


# -- what every answer carries ---------------------------------------------------------------


def test_every_answer_has_a_strict_policy_and_no_page_breaks_it(site: Site) -> None:
    browser = operator(site)
    for path in ("/", "/queue", "/policy", "/files", "/passes", "/waiting", "/account", "/log"):
        answer = browser.get(path)
        headers = dict(answer.headers)
        assert "unsafe" not in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        page = answer.body.decode()
        for bad in (" style=", " onclick=", "<script>", "<style"):
            assert bad not in page


def test_metrics_are_free_here_and_need_a_token_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch, metrics_from=["10.9.8.0/24"])
    try:
        for host in ("127.0.0.1:8081", "localhost", "[::1]:8081"):
            here = Browser(site, peer="127.0.0.1", host=host)
            assert here.get("/metrics").status == 200
        # The browser of this machine, for a page whose name was given this machine's address.
        for host in ("evil.example", "127.0.0.1.evil.example:8081", "[v7.a:b]", ""):
            rebound = Browser(site, peer="127.0.0.1", host=host)
            assert rebound.get("/metrics").status == 401, host
        assert Browser(site).get("/metrics").status == 401
        proxied = Browser(site, peer="127.0.0.1", host="localhost")
        assert proxied.get("/metrics", x_forwarded_for="192.0.2.1").status == 401
        assert Browser(site, peer="10.9.8.7").get("/metrics").status == 200, "metrics_from"
        secret = token(site, Scope.READ)
        assert Browser(site).get("/metrics", authorization=f"Bearer {secret}").status == 200
    finally:
        stop(site)


def test_behind_a_proxy_this_machine_is_not_trusted_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch, trusted_proxies=["127.0.0.1"])
    try:
        assert Browser(site, peer="127.0.0.1").get("/metrics").status == 401
        assert Browser(site, peer="").get("/metrics").status == 401
    finally:
        stop(site)


def test_the_command_on_the_host_ends_with_a_status_for_each_fault(tmp_path: Path) -> None:
    def run(*words: str) -> Result:
        return CliRunner().invoke(reset_password, [*words, "--state", str(tmp_path)])

    done = run("--password", "given on the host")
    assert (done.exit_code, read_reset(tmp_path) is not None) == (0, True)
    bad = run("--password", "short")
    assert bad.exit_code == 2
    assert bad.output.startswith("tidegate admin reset-password: ")
    (tmp_path / "password-reset.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidegate.server.accounts.password_reset.replacing", read_only)
        denied = run("--password", "given on the host")
    assert denied.exit_code == 4
    assert "run this as the server's user" in denied.output
    assert CliRunner().invoke(reset_password, ["--state", str(tmp_path / "away")]).exit_code == 2


def read_only(path: Path, mode: int) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
