"""Logins, also through a provider, one's own account, API tokens and users: every act once."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Literal

import segno
from markupsafe import Markup
from pydantic import BeforeValidator, Field

from ..accounts.accounts import (
    NAME,
    PASSWORD,
    ApiToken,
    Role,
    Scope,
    User,
    is_totp_secret,
    new_totp_secret,
    totp_uri,
)
from ..accounts.hashing import Asker
from ..accounts.oidc import TUNING, Attempts, Provider
from ..accounts.sessions import COOKIE, LIFETIME_S, known_browser
from ..control.problems import Problem
from ..http.proxies import prefixes_of
from .app import VISITOR, ZONE, HandlerCall, cookie
from .render import zone_of
from .router import Routes
from .shapes import SerialPath, Shape, Text
from .web import Answer, redirect

api = Routes(Scope.ACCOUNTS, "account")
pages = Routes(Scope.ACCOUNTS)


class TokenIn(Shape):
    label: Text = Field(min_length=1, max_length=64)
    role: Literal["viewer", "operator"] = "viewer"
    days: int | None = Field(90, ge=1, le=3650)
    scopes: list[Literal["read", "queue", "policy", "files", "accounts"]] | None = Field(
        None, description="What it may do; null: all that its role may."
    )


class TokenOut(Shape):
    serial: str
    label: str
    role: str
    owner: str
    created_s: float
    expires_s: float | None
    used_s: float | None
    scopes: Annotated[list[str], BeforeValidator(sorted)]
    parent: str | None = Field(None, description="The token that issued it, and that it ends with.")
    secret: str | None = Field(None, repr=False, description="Only in the answer that issues it.")


class TokensOut(Shape):
    tokens: list[TokenOut]


class NamePath(Shape):
    name: str = Field(min_length=1, max_length=64, description="The user's name.")


class UserIn(Shape):
    name: str = Field(
        pattern=NAME,
        max_length=64,
        description="Letters, digits and . _ @ -; it begins with a letter or a digit.",
    )
    role: Literal["viewer", "operator"] = "viewer"
    password: str = Field(
        min_length=PASSWORD[0],
        max_length=PASSWORD[1],
        repr=False,
        description="For the first login; they must change it then.",
    )


class UserOut(Shape):
    name: str
    role: str
    created_s: float
    must_change: bool
    one_time_codes: bool


class UsersOut(Shape):
    users: list[UserOut]


# -- login and logout ------------------------------------------------------------------------


def way_of(text: str) -> str:
    """Where to go after the login: a path of ours, or the overview."""
    fine = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if fine and "\\" not in text else "/"


def _provider_title(ask: HandlerCall) -> str:
    """What the OpenID Connect provider is called; empty where there is none."""
    return ask.admin.provider.settings.title if ask.admin.provider else ""


@pages.get("/login", public=True)
async def login_form(ask: HandlerCall) -> Answer:
    call, sessions = ask.call, ask.admin.sessions
    if ask.problem is None and call.who is not None and call.who.session is not None:
        return redirect("/")
    visitor = call.cookie(VISITOR)
    ident = sessions.ident(visitor)
    if ident is None or not ident.startswith("v."):
        visitor = sessions.visitor()
        ident = sessions.ident(visitor) or ""
    way = way_of(call.field("next") or call.arg("next"))
    page = ask.page(
        "login.html",
        way=way,
        form_token=sessions.form_token(ident),
        with_code=ask.admin.accounts.one_time_codes,
        provider=_provider_title(ask),
    )
    given = cookie(VISITOR, visitor, secure=call.secure)
    # From a link of `tidegate admin login-link`.
    known = call.arg("known")
    link = (_as_known(ask, known),) if sessions.is_known(known) else ()
    return dataclasses.replace(page, headers=(*page.headers, given, *link))


@pages.post("/login", public=True, again=login_form)
async def login(ask: HandlerCall) -> Answer:
    call, admin = ask.call, ask.admin
    name = call.field("name")
    asker = asker_of(ask, name)
    admin.take_reset()
    password, code = call.raw("password"), call.field("code")
    user = await admin.accounts.login(name, password, code, ask.now, asker)
    events, place = ask.server.events, call.peer or "a local socket"
    if user is None:
        events.add("login-failed", f"failed login from {place}", who=name[:64] or "-")
        given = "Name, password or code" if admin.accounts.one_time_codes else "Name or password"
        raise Problem(401, f"{given} is wrong.")
    admin.brake.succeeded(call.peer, name)
    if call.who is not None and call.who.session is not None:
        admin.sessions.end(call.who.session)
    events.add("login", f"logged in from {place}", who=user.name)
    way = "/account" if user.must_change else way_of(call.field("next"))
    over = cookie(VISITOR, "", secure=call.secure, age_s=0)
    known = _as_known(ask, known_browser(admin.sessions.key))
    return redirect(way, session_cookie(ask, user.name), over, known)


def asker_of(ask: HandlerCall, name: str) -> Asker:
    """Who tries a password. Raises Problem 429, now and in its turn, after too many tries.

    A try is counted in its turn: what found no place (`Busy`) or left it was none.
    """
    brake, call = ask.admin.brake, ask.call
    has_session = call.who is not None and call.who.session is not None
    if ask.admin.sessions.is_known(call.cookie("tidegate-known")):
        brake.remember(call.peer)

    def refuse_if_braked() -> None:
        wait_s = math.ceil(brake.wait_s(call.peer, name, ask.server.now()))
        if wait_s > 0:
            told = f"Too many tries. Try again in {wait_s} s."
            raise Problem(429, told, headers=(("retry-after", str(wait_s)),))

    def begin() -> None:
        refuse_if_braked()
        brake.start(call.peer, name, ask.server.now())

    refuse_if_braked()
    return Asker(prefixes_of(call.peer), has_session or brake.is_known(call.peer), begin)


def session_cookie(ask: HandlerCall, name: str) -> tuple[str, str]:
    value = ask.admin.sessions.begin(name, ask.now)
    return cookie(COOKIE, value, secure=ask.call.secure, age_s=int(LIFETIME_S))


@pages.post("/logout", scope=Scope.READ, own_account=True)
async def logout(ask: HandlerCall) -> Answer:
    if ask.principal.session is not None:
        ask.admin.sessions.end(ask.principal.session)
    return redirect("/login", cookie(COOKIE, "", secure=ask.call.secure, age_s=0))


@pages.post("/theme", scope=Scope.READ, own_account=True)
async def theme(ask: HandlerCall) -> Answer:
    """Light, dark, or as the system has it."""
    word = ask.call.field("theme")
    chosen = _choice(ask, "tidegate-theme", word if word in ("light", "dark") else "")
    return redirect(way_of(ask.call.field("back")), chosen)


def _choice(ask: HandlerCall, name: str, value: str) -> tuple[str, str]:
    """The cookie by which this browser keeps a choice for a year; an empty one is forgotten."""
    return cookie(name, value, secure=ask.call.secure, age_s=365 * 86_400 if value else 0)


def _as_known(ask: HandlerCall, browser: str) -> tuple[str, str]:
    return _choice(ask, "tidegate-known", browser)


# -- the account page ------------------------------------------------------------------------


def _me(ask: HandlerCall) -> User:
    if ask.principal.session is None:
        raise Problem(403, "Log in as a user; an API token has no account.")
    return ask.principal.owner


def _account(ask: HandlerCall, **values: Any) -> Answer:
    user, accounts = _me(ask), ask.admin.accounts
    # Several forms share names of fields; what is wrong is said above them.
    shown = {"outcome": "", "secret": "", "setup": None, "errors": {}, **values}
    return ask.page(
        "account.html",
        user=accounts.users.get(user.name, user),
        users=accounts.by_name() if ask.principal.may(Scope.ACCOUNTS) else [],
        tokens=_tokens(ask),
        scopes=[scope.value for scope in Scope if ask.principal.may(scope)],
        password_min=PASSWORD[0],
        provider=_provider_title(ask),
        **shown,
    )


@pages.get("/account", own_account=True)
async def account(ask: HandlerCall) -> Answer:
    """One's own account; users for those who may."""
    outcomes = {"password": "Your password is changed.", "totp": "One-time codes are on."}
    return _account(ask, outcome=outcomes.get(ask.call.arg("done"), ""))


@pages.post("/zone", scope=Scope.READ, own_account=True, again=account)
async def zone(ask: HandlerCall) -> Answer:
    """The time zone in which this browser shows and reads times."""
    word = ask.call.field("zone")
    if word and str(zone_of(word)) != word:
        raise Problem(422, f"{word[:64]!r} is no time zone; write one like Europe/Oslo.")
    return redirect("/account", _choice(ask, ZONE, word.replace("/", "%2F")))


async def _check_password(ask: HandlerCall) -> User:
    """Who sent the form, once its `old` is their password. Raises Problem 403 and 429."""
    user, admin = _me(ask), ask.admin
    asker = asker_of(ask, user.name)
    if not await admin.accounts.check(user.name, ask.call.raw("old"), asker):
        raise Problem(403, "The current password is wrong.")
    admin.brake.succeeded(ask.call.peer, user.name)
    return user


@pages.post("/account/password", scope=Scope.READ, own_account=True, again=account)
async def password(ask: HandlerCall) -> Answer:
    """Change one's own password; all other sessions end."""
    user, call, admin = await _check_password(ask), ask.call, ask.admin
    new = call.raw("password")
    if new != call.raw("again"):
        raise Problem(422, "The two new passwords differ.")
    if new == call.raw("old"):
        raise Problem(422, "The new password is the old one.")
    await admin.accounts.set_password(user.name, new)
    admin.sessions.end_all(user.name)
    ask.log("account", "changed the password")
    return redirect("/account?done=password", session_cookie(ask, user.name))


@pages.post("/account/totp", scope=Scope.READ, own_account=True)
async def totp_start(ask: HandlerCall) -> Answer:
    """Show a fresh secret, or again the one whose code did not fit."""
    given = ask.call.field("secret") if ask.problem else ""
    secret = given if is_totp_secret(given) else new_totp_secret()
    uri = totp_uri(secret, _me(ask).name, ask.call.headers.get("host", ""))
    # No XML head, no inline style: a picture that fits a strict policy.
    picture = segno.make(uri).svg_inline(omitsize=True, svgclass="qr", lineclass=None)
    return _account(ask, setup={"secret": secret, "uri": uri, "picture": Markup(picture)})


@pages.post("/account/totp/on", scope=Scope.READ, own_account=True, again=totp_start)
async def totp_finish(ask: HandlerCall) -> Answer:
    """Turn one-time codes on, if the code fits."""
    user, secret = _me(ask), ask.call.field("secret")
    ask.admin.accounts.set_totp(user.name, secret, ask.call.field("code"), ask.now)
    ask.log("account", "turned one-time codes on")
    return redirect("/account?done=totp")


@pages.post("/account/totp/off", scope=Scope.READ, then="/account", own_account=True, again=account)
async def totp_off(ask: HandlerCall) -> None:
    user = await _check_password(ask)
    ask.admin.accounts.clear_totp(user.name)
    ask.log("account", "turned one-time codes off")


# -- API tokens and users: by the API and by the forms of the page ---------------------------


def _tokens(ask: HandlerCall) -> list[ApiToken]:
    """The API tokens that this one may see, newest first: an operator all, others their own."""
    who = ask.principal
    held = ask.admin.accounts.tokens.values()
    seen = [t for t in held if who.may(Scope.ACCOUNTS) or t.owner == who.owner.name]
    return sorted(seen, key=lambda token: -token.created_s)


@api.get("/tokens")
async def list_tokens(ask: HandlerCall) -> TokensOut:
    """API tokens."""
    return TokensOut(tokens=[TokenOut.model_validate(token) for token in _tokens(ask)])


@api.post("/tokens", scope=Scope.READ, status=201)
async def issue_token(ask: HandlerCall, body: TokenIn) -> TokenOut:
    """Issue an API token."""
    who = ask.principal
    if who.token is not None and not who.may(Scope.ACCOUNTS):
        raise Problem(403, "An API token needs the scope accounts to issue others.", code="scope")
    role = Role(body.role)
    words = role.scopes if body.scopes is None else {Scope(word) for word in body.scopes}
    scopes = frozenset(words) | {Scope.READ}
    if not scopes <= who.scopes or not role.scopes <= who.role.scopes:
        raise Problem(403, "A token cannot do more than you.", code="scope")
    expires = None if body.days is None else ask.now + body.days * 86_400.0
    secret, token = ask.admin.accounts.issue_token(
        body.label, scopes, who.owner.name, ask.now, expires, who.token
    )
    allowed = " ".join(sorted(scopes))
    ask.log("account", f"issued API token {token.serial} ({token.label}: {allowed})")
    return TokenOut.model_validate(token).model_copy(update={"secret": secret})


@pages.post("/account/tokens", scope=Scope.READ, again=account)
async def token_issue(ask: HandlerCall, body: TokenIn) -> Answer:
    _me(ask)
    return _account(ask, secret=(await issue_token(ask, body)).secret)


@api.delete("/tokens/{serial}", scope=Scope.READ)
@pages.post("/account/tokens/{serial}/revoke", scope=Scope.READ, then="/account")
async def revoke_token(ask: HandlerCall, path: SerialPath) -> None:
    """Revoke an API token."""
    # A person revokes their own, with all that it issued (an operator every one); a token without
    # the scope accounts only itself.
    who, found = ask.principal, ask.admin.accounts.token(path.serial)
    may = found is not None and (
        who.may(Scope.ACCOUNTS)
        or (who.session is not None and found.owner == who.owner.name)
        or (who.token is not None and found.serial == who.token.serial)
    )
    if not may:
        raise Problem(404, f"There is no API token {path.serial} of yours.")
    ask.admin.accounts.drop_token(path.serial)
    ask.log("account", f"revoked API token {path.serial}")


def _reaches(ask: HandlerCall, role: Role) -> None:
    """Refuse what concerns users who may do more than who asks: a token's scopes are the bound."""
    if not role.scopes <= ask.principal.scopes:
        told = f"A token adds and removes no user ({role}) who may do more than it."
        raise Problem(403, told, code="scope")


@api.get("/users", scope=Scope.ACCOUNTS)
async def list_users(ask: HandlerCall) -> UsersOut:
    """Users."""
    return UsersOut(users=[UserOut.model_validate(user) for user in ask.admin.accounts.by_name()])


@api.post("/users", status=201)
@pages.post("/account/users", then="/account", again=account)
async def add_user(ask: HandlerCall, body: UserIn) -> UserOut:
    """Add a user."""
    accounts, role = ask.admin.accounts, Role(body.role)
    _reaches(ask, role)
    user = await accounts.add_user(body.name, role, body.password, ask.now)
    ask.log("account", f"added user {user.name} ({user.role})")
    return UserOut.model_validate(user)


@api.delete("/users/{name}")
@pages.post("/account/users/{name}/remove", then="/account", again=account)
async def remove_user(ask: HandlerCall, path: NamePath) -> None:
    """Remove a user."""
    user = ask.admin.accounts.users.get(path.name)
    if user is not None:
        _reaches(ask, user.role)
    ask.admin.accounts.drop_user(path.name)
    ask.admin.sessions.end_all(path.name)
    ask.log("account", f"removed user {path.name}")


# -- login through an OpenID Connect provider -------------------------------------------------

#: The browser's half of a login that has begun.
ATTEMPT = "tidegate-login"
#: The name under which the brake counts tries. No account can have it.
_TRIED = "(provider)"


def _own_provider(ask: HandlerCall) -> Provider:
    if ask.admin.provider is None:
        raise Problem(404, "This server has no provider to log in with.")
    return ask.admin.provider


@pages.get("/login/oidc", public=True, again=login_form)
async def login_begin(ask: HandlerCall) -> Answer:
    """Lead to the provider."""
    provider, now = _own_provider(ask), ask.now
    held, attempt = Attempts(ask.admin.sessions.key).begin(way_of(ask.call.arg("next")), now)
    place = await provider.login_url(attempt, asker_of(ask, _TRIED), now)
    return redirect(place, _held(ask, held))


def _held(ask: HandlerCall, value: str) -> tuple[str, str]:
    # Lax: the provider's page leads back here.
    age_s = int(TUNING.login_s) if value else 0
    return cookie(ATTEMPT, value, secure=ask.call.secure, age_s=age_s, same_site=b"Lax")


@pages.get("/login/oidc/back", public=True, again=login_form)
async def login_back(ask: HandlerCall) -> Answer:
    """Take up the provider's answer."""
    provider, call, admin = _own_provider(ask), ask.call, ask.admin
    held, state = call.cookie(ATTEMPT), call.arg("state")
    attempt = Attempts(admin.sessions.key).find(held, state, ask.now)
    events, place = ask.server.events, call.peer or "a local socket"
    try:
        person = await provider.person(call.query, attempt, asker_of(ask, _TRIED), ask.now)
        user = admin.accounts.login_by_provider(person, ask.now)
    except Problem as fault:
        if fault.status in (401, 403):
            events.add("login-failed", f"failed login from {place}: {fault.detail}", who="-")
        raise
    admin.brake.succeeded(call.peer, _TRIED)
    title = provider.settings.title
    events.add("login", f"logged in from {place} through {title}", who=user.name)
    # A browser sends the login's cookie only with what one of our pages led to.
    page = ask.page("logged_in.html", way="/account" if user.must_change else attempt.way)
    given = (_held(ask, ""), session_cookie(ask, user.name))
    return dataclasses.replace(page, headers=(*page.headers, *given))
