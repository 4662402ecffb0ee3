"""Logins through an OpenID Connect provider, and what attackers try with them."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from pydantic import ValidationError

from tests.admin_site import NOW, PASSWORD, Browser, Site, make_site, operator, stop
from tidegate.server.accounts.accounts import Role
from tidegate.server.accounts.oidc import TUNING
from tidegate.server.accounts.oidc_settings import OidcSettings
from tidegate.server.admin import site as admin_site
from tidegate.server.admin.web import Answer
from tidegate.server.app.confinement import needs_of
from tidegate.server.app.settings import ServerConfig

ISSUER = "https://id.example:8443/realm"
SETTINGS = {
    "issuer": ISSUER,
    "client_id": "tide",
    "client_secret": "s3cret",
    "url": "https://admin.example",
    "title": "Example ID",
    "operators": ["ops"],
    "viewers": ["staff"],
    "account_claim": "email",
}
ADA = {
    "sub": "1001",
    "preferred_username": "ada",
    "email": "ada@example.org",
    "email_verified": True,
    "groups": ["staff"],
}


@functools.cache
def made(name: str) -> RSAKey:
    """A key of this name. Each takes 0.2 s."""
    return RSAKey.generate_key(2048, {"kid": name})


@dataclass
class Provider:
    """A provider in memory: what it publishes, and what it gives for a code."""

    key: RSAKey = field(default_factory=lambda: made("one"))
    about: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=lambda: dict(ADA))
    #: Codes that were given out, with the nonce and the challenge of their login.
    codes: dict[str, tuple[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    #: Given in place of every document.
    instead: bytes = b""
    now: float = NOW
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.about = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/keys",
        } | self.about

    def fetch(self, url: str, form: Mapping[str, str] | None, fields: Mapping[str, str]) -> bytes:
        self.asked.append(url.removeprefix(ISSUER))
        if self.instead:
            return self.instead
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return json.dumps(self.about).encode()
        if url == f"{ISSUER}/keys":
            return json.dumps(KeySet([self.key]).as_dict(private=False)).encode()
        assert url == f"{ISSUER}/token"
        assert form is not None
        pair = base64.b64decode(fields["Authorization"].removeprefix("Basic ")).decode()
        assert pair == "tide:s3cret"
        nonce, challenge = self.codes.pop(form["code"], ("", ""))
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge:
            raise OSError("status 400, 'invalid_grant'")
        return json.dumps({"id_token": self.token(nonce)}).encode()

    def token(self, nonce: str) -> str:
        claims = {"iss": ISSUER, "aud": "tide", "nonce": nonce, "iat": self.now}
        claims |= {"exp": self.now + 300} | self.claims
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def authorize(self, place: str) -> str:
        """Log the person in at the page `place`; where the browser is sent back to."""
        assert place.startswith(f"{ISSUER}/authorize?")
        query = dict(parse_qsl(urlsplit(place).query))
        assert query["client_id"] == "tide"
        assert query["redirect_uri"] == "https://admin.example/login/oidc/back"
        assert query["scope"] == "openid profile email"
        assert query["code_challenge_method"] == "S256"
        code = f"code{next(self.numbers)}"
        self.codes[code] = query["nonce"], query["code_challenge"]
        return "/login/oidc/back?" + urlencode({"code": code, "state": query["state"]})


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    found = Provider()
    monkeypatch.setattr(admin_site, "fetch", found.fetch)
    return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: Provider) -> Iterator[Site]:
    found = make_site(tmp_path, monkeypatch, oidc=SETTINGS)
    yield found
    stop(found)


def location(answer: Answer) -> str:
    return dict(answer.headers).get("location", "")


def begun(browser: Browser, provider: Provider, way: str = "/") -> str:
    """Where the provider sends a browser that began a login."""
    answer = browser.get(f"/login/oidc?next={way}")
    assert answer.status == 303, answer.body
    return provider.authorize(location(answer))


def refusal(answer: Answer) -> str:
    """The sentence on the login page."""
    assert answer.status >= 400
    text = answer.body.decode()
    assert 'name="password"' in text
    found = re.search(r'role="alert"><p>(.*?)</p>', text)
    assert found is not None
    assert not any("tidegate-admin" in value for _, value in answer.headers)
    return found[1]


def test_a_group_gives_a_role_and_the_login_goes_on_where_it_was_asked_for(
    site: Site, provider: Provider
) -> None:
    browser = Browser(site)
    assert "Log in with Example ID" in browser.text("/login?next=/queue")
    answer = browser.get(begun(browser, provider, "/queue"))
    assert answer.status == 200
    assert b'content="0; url=/queue"' in answer.body
    page = browser.text("/account")
    assert "ada (viewer)" in page
    assert "You log in through Example ID" in page
    assert "Current password" not in page
    # The form logs nobody in who has no password.
    stranger = Browser(site)
    assert stranger.login("ada", "").status == 401
    assert stranger.login("ada", PASSWORD).status == 401
    assert "tidegate-login" not in browser.cookies
    assert site.kinds()[:1] == ["login-failed"]
    browser.post("/logout")
    assert browser.get("/queue").status == 303


def test_rights_follow_the_groups_of_each_login(site: Site, provider: Provider) -> None:
    browser = Browser(site)
    browser.get(begun(browser, provider))
    issued = browser.post("/account/tokens", {"label": "script", "scopes": "read", "days": "1"})
    secret = re.search(rb"tga_[\w-]+", issued.body)
    browser.text("/account")
    issued = browser.post("/account/tokens", {"label": "script", "scopes": "read", "days": "1"})
    secret = re.search(rb"tga_[\w-]+", issued.body)
    assert secret is not None
    provider.claims["groups"] = ["staff", "ops"]
    browser.get(begun(browser, provider))
    assert site.admin.accounts.users["ada"].role is Role.OPERATOR
    provider.claims["groups"] = ["cleaners"]
    assert "no rights" in refusal(browser.get(begun(browser, provider)))
    # Neither the open login nor the token outlives them.
    assert browser.get("/queue").status == 303
    bearer = {"authorization": f"Bearer {secret[0].decode()}"}
    assert Browser(site).ask("GET", "/api/v1/state", headers=bearer).status == 401
    assert "ada" not in site.admin.accounts.users


def test_an_account_alone_at_the_provider_gives_no_rights(site: Site, provider: Provider) -> None:
    for n, groups in enumerate(([], "cleaners", None, {"ops": True}, [["ops"]], ["OPS"])):
        provider.claims["groups"] = groups
        browser = Browser(site, peer=f"192.0.2.{n}")
        assert "you have no rights here" in refusal(browser.get(begun(browser, provider)))
        assert browser.get("/").status == 303
        assert list(site.admin.accounts.users) == ["admin"]


def test_an_account_here_is_found_by_a_verified_address_and_then_belongs_to_that_person(
    site: Site, provider: Provider
) -> None:
    owner = operator(site)
    owner.post(
        "/account/users", {"name": "ada@example.org", "role": "operator", "password": PASSWORD}
    )
    provider.claims["groups"] = []
    provider.claims["email_verified"] = "true"
    browser = Browser(site)
    assert "no rights" in refusal(browser.get(begun(browser, provider)))
    provider.claims["email_verified"] = True
    assert browser.get(begun(browser, provider)).status == 200
    assert "ada@example.org (operator)" in browser.text("/queue")
    # The first password was known to another person.
    assert Browser(site).login("ada@example.org", PASSWORD).status == 401
    # The address was given to another person since.
    provider.claims["sub"] = "2002"
    thief = Browser(site)
    assert "belongs to another person" in refusal(thief.get(begun(thief, provider)))
    # The person has another address since.
    provider.claims |= {"sub": "1001", "email": "ada@elsewhere.example"}
    assert "no rights" in refusal(browser.get(begun(browser, provider)))


def test_a_name_at_the_provider_takes_over_no_account(site: Site, provider: Provider) -> None:
    operator(site)
    provider.claims |= {"preferred_username": "admin", "groups": ["ops"]}
    browser = Browser(site)
    assert "belongs to another account" in refusal(browser.get(begun(browser, provider)))
    provider.claims["preferred_username"] = "<script>"
    assert "cannot be the name" in refusal(browser.get(begun(browser, provider)))
    assert list(site.admin.accounts.users) == ["admin"]


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "of another login"},
        {"aud": "another client"},
        {"aud": ["tide", "another client"]},
        {"aud": ["tide", "another client"], "azp": "another client"},
        {"azp": "another client"},
        {"iss": "https://evil.example"},
        {"iss": ISSUER + "/"},
        {"exp": NOW - TUNING.skew_s - 1},
        {"iat": NOW + TUNING.skew_s + 10},
        {"nbf": NOW + TUNING.skew_s + 10},
        {"sub": 7},
        {"sub": None},
        {"nonce": None},
        {"exp": None},
    ],
    ids=str,
)
def test_a_token_that_is_not_of_this_login_opens_nothing(
    site: Site, provider: Provider, claims: dict[str, Any]
) -> None:
    provider.claims |= claims
    browser = Browser(site)
    assert "ID token is" in refusal(browser.get(begun(browser, provider)))
    assert "ada" not in site.admin.accounts.users


def test_clocks_may_differ_a_little(site: Site, provider: Provider) -> None:
    browser = Browser(site)
    for now in (NOW - TUNING.skew_s - 295, NOW + TUNING.skew_s - 5):
        provider.now = now
        assert browser.get(begun(browser, provider)).status == 200


@pytest.mark.parametrize("kind", ["other key", "none", "secret", "public key as secret", "cut"])
def test_a_forged_token_opens_nothing(
    site: Site, provider: Provider, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = provider.token

    def forged(nonce: str) -> str:
        claims = jwt.decode(good(nonce), provider.key).claims
        if kind == "other key":
            return jwt.encode({"alg": "RS256", "kid": "one"}, claims, made("two"))
        if kind == "none":
            body = good(nonce).split(".")[1]
            return ".".join((_base64(b'{"alg":"none"}'), body, ""))
        if kind == "cut":
            return good(nonce).rpartition(".")[0] + "."
        secret = b"s3cret" if kind == "secret" else provider.key.as_pem(private=False)
        body = ".".join((_base64(b'{"alg":"HS256","kid":"one"}'), good(nonce).split(".")[1]))
        return f"{body}.{_base64(hmac.new(secret, body.encode(), hashlib.sha256).digest())}"

    monkeypatch.setattr(provider, "token", forged)
    browser = Browser(site)
    assert "ID token is not valid" in refusal(browser.get(begun(browser, provider)))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_a_login_ends_only_in_the_browser_that_began_it(site: Site, provider: Provider) -> None:
    """An attacker may send a link with a code of their own, or steal one with its state."""
    attacker, victim = Browser(site), Browser(site)
    stolen = begun(attacker, provider)
    assert "in another browser" in refusal(victim.get(stolen))
    begun(victim, provider)
    assert "in another browser" in refusal(victim.get(stolen))
    assert provider.asked.count("/token") == 0
    # Nor with a cookie of the attacker's making.
    forged = Browser(site, cookies={"tidegate-login": "WyJhIiwiLyIsMF0.forged"})
    assert "in another browser" in refusal(forged.get(stolen))
    assert attacker.get(stolen).status == 200


def test_a_code_counts_once_and_a_login_ends_in_time(site: Site, provider: Provider) -> None:
    browser = Browser(site)
    back = begun(browser, provider)
    held = browser.cookies["tidegate-login"]
    assert browser.get(back).status == 200
    replayed = Browser(site, cookies={"tidegate-login": held})
    assert "invalid_grant" in refusal(replayed.get(back))
    back = begun(browser, provider)
    site.wait(TUNING.login_s + 1)
    asked = len(provider.asked)
    assert "too long ago" in refusal(browser.get(back))
    assert len(provider.asked) == asked


def test_a_code_of_another_login_is_bound_to_its_verifier(site: Site, provider: Provider) -> None:
    """Code injection: the attacker's browser brings a code that was meant for the victim's."""
    victim, attacker = Browser(site), Browser(site)
    code = parse_qs(begun(victim, provider).partition("?")[2])["code"][0]
    state = parse_qs(begun(attacker, provider).partition("?")[2])["state"][0]
    mixed = "/login/oidc/back?" + urlencode({"code": code, "state": state})
    assert "invalid_grant" in refusal(attacker.get(mixed))


def test_an_answer_of_another_issuer_sends_its_code_nowhere(site: Site, provider: Provider) -> None:
    browser = Browser(site)
    back = begun(browser, provider)
    assert "another provider" in refusal(browser.get(f"{back}&iss=https://evil.example"))
    assert "a field twice" in refusal(browser.get(f"{back}&code=other"))
    provider.about["authorization_response_iss_parameter_supported"] = True
    site.wait(TUNING.documents_s + 1)
    provider.now += TUNING.documents_s + 1
    back = begun(browser, provider)
    assert "which provider" in refusal(browser.get(back))
    assert provider.asked.count("/token") == 0
    assert browser.get(f"{back}&{urlencode({'iss': ISSUER})}").status == 200


@pytest.mark.parametrize("way", ["https://evil.example", "//evil.example", "/\\evil.example", "x"])
def test_a_login_leads_to_no_other_site(site: Site, provider: Provider, way: str) -> None:
    browser = Browser(site)
    assert b'content="0; url=/"' in browser.get(begun(browser, provider, way)).body


def test_what_the_provider_refuses_is_said_in_words(site: Site, provider: Provider) -> None:
    browser = Browser(site)
    state = parse_qs(begun(browser, provider).partition("?")[2])["state"][0]

    def told(**query: str) -> str:
        return refusal(browser.get("/login/oidc/back?" + urlencode({"state": state, **query})))

    assert told(error="access_denied") == "The provider did not log you in: access_denied."
    # A link of an attacker must not put sentences on our page.
    assert told(error="Call 555-1234!") == "The provider did not log you in: a fault."
    assert "no code" in told()


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"issuer": "https://evil.example"}, "calls itself otherwise"),
        ({"token_endpoint": "https://id.example/token"}, "another port"),
        ({"token_endpoint": "http://id.example:8443/token"}, "may do without TLS"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "cannot be used"),
        ({"jwks_uri": None}, "cannot be used"),
    ],
    ids=lambda one: str(one)[:24],
)
def test_a_provider_that_cannot_be_used_is_told_of_and_passwords_remain(
    site: Site, provider: Provider, about: dict[str, Any], words: str
) -> None:
    owner = operator(site)
    owner.post("/logout")
    provider.about |= about
    assert words in refusal(owner.get("/login/oidc"))
    assert owner.login("admin", PASSWORD).status == 303


def test_a_provider_whose_document_is_a_tower_of_brackets_is_told_of(
    site: Site, provider: Provider
) -> None:
    provider.instead = b"[" * 100_000
    assert "no usable answer" in refusal(Browser(site).get("/login/oidc"))


def test_a_changed_key_is_asked_for_and_not_more_often_than_once_a_minute(
    site: Site, provider: Provider
) -> None:
    browser = Browser(site)
    assert browser.get(begun(browser, provider)).status == 200
    provider.key = made("two")
    assert "not valid" in refusal(browser.get(begun(browser, provider)))
    assert provider.asked.count("/keys") == 1
    site.wait(TUNING.new_key_s)
    provider.now += TUNING.new_key_s
    assert browser.get(begun(browser, provider)).status == 200
    assert provider.asked.count("/keys") == 2


def test_many_failed_logins_have_pauses(site: Site, provider: Provider) -> None:
    """Each costs the server a request to the provider."""
    browser = Browser(site, peer="198.51.100.7")
    back = begun(browser, provider).replace("code=", "code=forged")
    statuses = [browser.get(back).status for _ in range(12)]
    assert statuses[0] == 503
    assert statuses[-1] == 429
    assert provider.asked.count("/token") < 8
    other = Browser(site, peer="203.0.113.7")
    assert other.get(begun(other, provider)).status == 200


def test_a_server_without_provider_has_no_such_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = make_site(tmp_path, monkeypatch)
    try:
        browser = Browser(found)
        assert "Log in with" not in browser.text("/login")
        for path in ("/login/oidc", "/login/oidc/back?code=1&state=2"):
            assert "no provider" in refusal(browser.get(path))
    finally:
        stop(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"issuer": "http://id.example"}, "may do without TLS"),
        ({"issuer": "https://user:pw@id.example"}, "is not https://HOST"),
        ({"issuer": "https://id.example?x=1"}, "leave it out"),
        ({"url": None}, "needs oidc.url"),
        ({"operators": [], "viewers": [], "account_claim": None}, "nobody could log in"),
        ({"scopes": ["profile"]}, "openid is one of them"),
    ],
    ids=lambda one: str(one)[:24],
)
def test_settings_that_cannot_work_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        OidcSettings.model_validate(SETTINGS | change)


def test_a_confined_server_reaches_the_providers_port_and_no_other() -> None:
    needs = needs_of(ServerConfig.model_validate({"oidc": SETTINGS}), several=False)
    assert needs is not None
    assert needs.connects == {8443, 53}
    assert OidcSettings.model_validate(SETTINGS | {"issuer": "http://[::1]"}).ports() == {80}
