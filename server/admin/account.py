"""Login and logout, one's own account, API tokens and users: every act once, pages and API."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import segno
from markupsafe import Markup
from pydantic import Field

from protocol.units import whole_number
from server.admin.accounts import (
    NAME,
    PASSWORD_MAX,
    PASSWORD_MIN,
    AccountFault,
    ApiToken,
    Role,
    Scope,
    User,
    new_totp_secret,
    totp_uri,
)
from server.admin.app import COOKIE, VISITOR, ZONE, HandlerCall, cookie
from server.admin.render import zone_of
from server.admin.router import Operations, PageRoutes
from server.admin.sessions import LIFETIME_S
from server.admin.shapes import SerialPath, Shape, Text
from server.admin.web import Answer, Problem, checked, redirect

api = Operations("account", Scope.ACCOUNTS)
pages = PageRoutes(Scope.ACCOUNTS)

_DAY_S = 86_400.0
_YEAR_S = 365 * 86_400


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
    scopes: list[str]
    parent: str | None = Field(None, description="The token that issued it, and that it ends with.")
    secret: str | None = Field(None, repr=False, description="Only in the answer that issues it.")


class TokensOut(Shape):
    tokens: list[TokenOut]


class NamePath(Shape):
    name: str = Field(min_length=1, max_length=64, description="The user's name.")


class UserIn(Shape):
    name: str = Field(pattern=NAME, max_length=64)
    role: Literal["viewer", "operator"] = "viewer"
    password: str = Field(
        min_length=PASSWORD_MIN,
        max_length=PASSWORD_MAX,
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


# -- what can be done ------------------------------------------------------------------------


def tokens_of(ask: HandlerCall) -> list[ApiToken]:
    """The API tokens that this one may see, newest first: an operator all, others their own."""
    who = ask.principal
    held = ask.admin.accounts.tokens.values()
    seen = [t for t in held if who.may(Scope.ACCOUNTS) or t.owner == who.owner.name]
    return sorted(seen, key=lambda token: -token.created_s)


def issue_token(ask: HandlerCall, wanted: TokenIn) -> tuple[str, ApiToken]:
    """A token of one's own, which can do no more than oneself. Raises Problem 403."""
    who = ask.principal
    if who.token is not None and not who.may(Scope.ACCOUNTS):
        raise Problem(403, "An API token needs the scope accounts to issue others.", code="scope")
    role = Role(wanted.role)
    words = role.scopes if wanted.scopes is None else {Scope(word) for word in wanted.scopes}
    scopes = frozenset(words) | {Scope.READ}
    if not scopes <= who.scopes or not role.scopes <= who.role.scopes:
        raise Problem(403, "A token cannot do more than you.", code="scope")
    expires = None if wanted.days is None else ask.now + wanted.days * _DAY_S
    secret, token = ask.admin.accounts.issue_token(
        wanted.label, scopes, who.owner.name, ask.now, expires, who.token
    )
    allowed = " ".join(sorted(scopes))
    ask.log("account", f"issued API token {token.serial} ({token.label}: {allowed})")
    return secret, token


def drop_token(ask: HandlerCall, serial: str) -> None:
    """Revoke a token and all that it issued. Raises Problem 404.

    A person revokes their own (an operator every one); a token without the scope accounts only
    itself.
    """
    who, found = ask.principal, ask.admin.accounts.token(serial)
    may = found is not None and (
        who.may(Scope.ACCOUNTS)
        or (who.session is not None and found.owner == who.owner.name)
        or (who.token is not None and found.serial == who.token.serial)
    )
    if not may:
        raise Problem(404, f"There is no API token {serial[:80]} of yours.")
    ask.admin.accounts.drop_token(serial)
    ask.log("account", f"revoked API token {serial}")


async def add_user(ask: HandlerCall, wanted: UserIn) -> User:
    """Add a user with a first password. Raises AccountFault."""
    role = Role(wanted.role)
    user = await ask.admin.accounts.add_user(wanted.name, role, wanted.password, ask.now)
    ask.log("account", f"added user {user.name} ({user.role})")
    return user


def drop_user(ask: HandlerCall, name: str) -> None:
    """Remove a user with all sessions and tokens. Raises AccountFault."""
    ask.admin.accounts.drop_user(name)
    ask.admin.sessions.end_all(name)
    ask.log("account", f"removed user {name}")


def _token_out(token: ApiToken, secret: str | None = None) -> TokenOut:
    known = {name: getattr(token, name) for name in ("serial", "label", "owner", "parent")}
    return TokenOut(
        **known,
        role=token.role,
        scopes=sorted(token.scopes),
        created_s=token.created_s,
        expires_s=token.expires_s,
        used_s=token.used_s,
        secret=secret,
    )


def _user_out(user: User) -> UserOut:
    return UserOut(
        name=user.name,
        role=user.role,
        created_s=user.created_s,
        must_change=user.must_change,
        one_time_codes=user.totp_secret is not None,
    )


# -- the API ---------------------------------------------------------------------------------


@api.get("/tokens")
async def list_tokens(ask: HandlerCall) -> TokensOut:
    """API tokens."""
    return TokensOut(tokens=[_token_out(token) for token in tokens_of(ask)])


@api.post("/tokens", scope=Scope.READ, status=201)
async def issue_token_(ask: HandlerCall, body: TokenIn) -> TokenOut:
    """Issue an API token."""
    secret, token = issue_token(ask, body)
    return _token_out(token, secret)


@api.delete("/tokens/{serial}", scope=Scope.READ)
async def revoke_token(ask: HandlerCall, path: SerialPath) -> None:
    """Revoke an API token."""
    drop_token(ask, path.serial)


@api.get("/users", scope=Scope.ACCOUNTS)
async def list_users(ask: HandlerCall) -> UsersOut:
    """Users."""
    held = sorted(ask.admin.accounts.users.values(), key=lambda user: user.name)
    return UsersOut(users=[_user_out(user) for user in held])


@api.post("/users", status=201)
async def add_user_(ask: HandlerCall, body: UserIn) -> UserOut:
    """Add a user."""
    return _user_out(await add_user(ask, body))


@api.delete("/users/{name}")
async def remove_user(ask: HandlerCall, path: NamePath) -> None:
    """Remove a user."""
    drop_user(ask, path.name)


# -- login and logout ------------------------------------------------------------------------


def _way(text: str) -> str:
    """Where to go after the login: a path of ours, or the overview."""
    fine = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if fine and "\\" not in text else "/"


def _login_page(ask: HandlerCall, fault: str = "", status: int = 200, wait_s: int = 0) -> Answer:
    call, sessions = ask.call, ask.admin.sessions
    visitor = call.cookie(VISITOR)
    ident = sessions.ident(visitor)
    if ident is None or not ident.startswith("v."):
        visitor = sessions.visitor()
        ident = sessions.ident(visitor) or ""
    page = ask.page(
        "login.html",
        status,
        fault=fault,
        name=call.field("name")[:64],
        way=_way(call.field("next") or call.arg("next")),
        form_token=sessions.form_token(ident),
    )
    given = [cookie(VISITOR, visitor, secure=call.secure)]
    if wait_s:
        given.append(("retry-after", str(wait_s)))
    return dataclasses.replace(page, headers=(*page.headers, *given))


@pages.get("/login", public=True)
async def login_form(ask: HandlerCall) -> Answer:
    """The only page for strangers."""
    who = ask.call.who
    return redirect("/") if who is not None and who.session is not None else _login_page(ask)


@pages.post("/login", public=True)
async def login(ask: HandlerCall) -> Answer:
    """Try a password."""
    call, admin = ask.call, ask.admin
    name = call.field("name")
    wait = admin.brake.wait_s(call.peer, name, ask.now)
    if wait > 0:
        again = math.ceil(wait)
        return _login_page(ask, f"Too many tries. Try again in {again} s.", 429, again)
    admin.brake.start(call.peer, name, ask.now)
    admin.take_reset()
    user = await admin.accounts.login(name, call.raw("password"), call.field("code"), ask.now)
    events, place = ask.server.events, call.peer or "a local socket"
    if user is None:
        events.add("login-failed", f"failed login from {place}", who=name[:64] or "-")
        return _login_page(ask, "Name, password or code is wrong.", 401)
    admin.brake.succeeded(call.peer, name)
    if call.who is not None and call.who.session is not None:
        admin.sessions.end(call.who.session)
    events.add("login", f"logged in from {place}", who=user.name)
    way = "/account" if user.must_change else _way(call.field("next"))
    over = cookie(VISITOR, "", secure=call.secure, age_s=0)
    return redirect(way, _session_cookie(ask, user.name), over)


def _session_cookie(ask: HandlerCall, name: str) -> tuple[str, str]:
    value = ask.admin.sessions.begin(name, ask.now)
    return cookie(COOKIE, value, secure=ask.call.secure, age_s=int(LIFETIME_S))


@pages.post("/logout", scope=Scope.READ, own_account=True)
async def logout(ask: HandlerCall) -> Answer:
    """End this session."""
    if ask.principal.session is not None:
        ask.admin.sessions.end(ask.principal.session)
    return redirect("/login", cookie(COOKIE, "", secure=ask.call.secure, age_s=0))


@pages.post("/theme", scope=Scope.READ, own_account=True)
async def theme(ask: HandlerCall) -> Answer:
    """Light, dark, or as the system has it."""
    word = ask.call.field("theme")
    value = word if word in ("light", "dark") else ""
    age_s = _YEAR_S if value else 0
    chosen = cookie("tidegate-theme", value, secure=ask.call.secure, age_s=age_s)
    return redirect(_way(ask.call.field("back")), chosen)


@pages.post("/zone", scope=Scope.READ, own_account=True)
async def zone(ask: HandlerCall) -> Answer:
    """The time zone in which this browser shows and reads times."""
    word = ask.call.field("zone")
    if word and zone_of(word).key != word:
        return _account(
            ask, 422, fault=f"{word[:64]!r} is no time zone; write one like Europe/Oslo."
        )
    value = word.replace("/", "%2F")
    chosen = cookie(ZONE, value, secure=ask.call.secure, age_s=_YEAR_S if word else 0)
    return redirect("/account", chosen)


# -- the account page ------------------------------------------------------------------------


def _me(ask: HandlerCall) -> User:
    if ask.principal.session is None:
        raise Problem(403, "Log in as a user; an API token has no account.")
    return ask.principal.owner


def _account(ask: HandlerCall, status: int = 200, **values: object) -> Answer:
    user, accounts = _me(ask), ask.admin.accounts
    operator = ask.principal.may(Scope.ACCOUNTS)
    shown: dict[str, object] = {"fault": "", "said": "", "secret": "", "setup": None, **values}
    return ask.page(
        "account.html",
        status,
        user=accounts.users.get(user.name, user),
        users=sorted(accounts.users.values(), key=lambda u: u.name) if operator else [],
        tokens=tokens_of(ask),
        scopes=[scope.value for scope in Scope if ask.principal.may(scope)],
        password_min=PASSWORD_MIN,
        **shown,
    )


@pages.get("/account", own_account=True)
async def account(ask: HandlerCall) -> Answer:
    """One's own account; users for those who may."""
    said = {"password": "Your password is changed.", "totp": "One-time codes are on."}
    return _account(ask, said=said.get(ask.call.arg("said"), ""))


async def _password_refused(ask: HandlerCall, name: str) -> Answer | None:
    """The page that says why the password given in `old` does not count; None where it does."""
    call, admin = ask.call, ask.admin
    if admin.brake.wait_s(call.peer, name, ask.now) > 0:
        return _account(ask, 429, fault="Too many tries; wait a little.")
    admin.brake.start(call.peer, name, ask.now)
    if not await admin.accounts.check(name, call.raw("old")):
        return _account(ask, 403, fault="The present password is wrong.")
    admin.brake.succeeded(call.peer, name)
    return None


@pages.post("/account/password", scope=Scope.READ, own_account=True)
async def password(ask: HandlerCall) -> Answer:
    """Change one's own password; all other sessions end."""
    user, call, admin = _me(ask), ask.call, ask.admin
    refused = await _password_refused(ask, user.name)
    if refused is not None:
        return refused
    new = call.raw("password")
    if new != call.raw("again"):
        return _account(ask, 422, fault="The two new passwords differ.")
    if new == call.raw("old"):
        return _account(ask, 422, fault="The new password is the old one.")
    try:
        await admin.accounts.set_password(user.name, new)
    except AccountFault as fault:
        return _account(ask, 422, fault=str(fault))
    admin.sessions.end_all(user.name)
    ask.log("account", "changed the password")
    return redirect("/account?said=password", _session_cookie(ask, user.name))


@pages.post("/account/totp", scope=Scope.READ, own_account=True)
async def totp_start(ask: HandlerCall) -> Answer:
    """Show a fresh secret."""
    return _totp_page(ask, new_totp_secret())


def _totp_page(ask: HandlerCall, secret: str, fault: str = "") -> Answer:
    uri = totp_uri(secret, _me(ask).name, ask.call.headers.get("host", ""))
    # No XML head, no inline style: a picture that fits a strict policy.
    picture = segno.make(uri).svg_inline(omitsize=True, svgclass="qr", lineclass=None)
    setup = {"secret": secret, "uri": uri, "picture": Markup(picture)}
    return _account(ask, 422 if fault else 200, setup=setup, fault=fault)


@pages.post("/account/totp/on", scope=Scope.READ, own_account=True)
async def totp_finish(ask: HandlerCall) -> Answer:
    """Turn one-time codes on, if the code fits."""
    user, secret = _me(ask), ask.call.field("secret")
    if len(secret) != 32 or not secret.isalnum():
        raise Problem(422, "Start again: the secret is incomplete.")
    try:
        ask.admin.accounts.set_totp(user.name, secret, ask.call.field("code"), ask.now)
    except AccountFault as fault:
        return _totp_page(ask, secret, str(fault))
    ask.log("account", "turned one-time codes on")
    return redirect("/account?said=totp")


@pages.post("/account/totp/off", scope=Scope.READ, own_account=True)
async def totp_off(ask: HandlerCall) -> Answer:
    """Turn them off; the password is asked again."""
    user, admin = _me(ask), ask.admin
    refused = await _password_refused(ask, user.name)
    if refused is not None:
        return refused
    admin.accounts.clear_totp(user.name)
    ask.log("account", "turned one-time codes off")
    return redirect("/account")


@pages.post("/account/tokens", scope=Scope.READ)
async def token_issue(ask: HandlerCall) -> Answer:
    """Issue a token, and show it once."""
    call = ask.call
    _me(ask)
    chosen = [scope.value for scope in Scope if call.field(f"scope.{scope}")]
    days = call.field("days")
    if days and not 1 <= (whole_number(days) or 0) <= 3650:
        return _account(ask, 422, fault="The validity is 1 to 3650 days, or empty.")
    values = {
        "label": call.field("label")[:64] or "unnamed",
        "role": call.field("role") or "viewer",
        "days": int(days) if days else None,
        "scopes": chosen or None,
    }
    secret, _ = issue_token(ask, checked(TokenIn, values))
    return _account(ask, secret=secret)


@pages.post("/account/tokens/{serial}/revoke", scope=Scope.READ)
async def token_drop(ask: HandlerCall) -> Answer:
    """Revoke one."""
    _me(ask)
    drop_token(ask, ask.call.params["serial"])
    return redirect("/account")


@pages.post("/account/users")
async def user_add(ask: HandlerCall) -> Answer:
    """Add a user."""
    call = ask.call
    values = {"name": call.field("name"), "role": call.field("role") or "viewer"}
    try:
        await add_user(ask, checked(UserIn, {**values, "password": call.raw("password")}))
    except (AccountFault, Problem) as fault:
        return _account(ask, 422, fault=str(fault))
    return redirect("/account")


@pages.post("/account/users/{name}/remove")
async def user_drop(ask: HandlerCall) -> Answer:
    """Remove a user."""
    try:
        drop_user(ask, ask.call.params["name"])
    except AccountFault as fault:
        return _account(ask, 422, fault=str(fault))
    return redirect("/account")
