"""Login and logout, and one's own account: password, one-time codes, API tokens, users."""

from __future__ import annotations

import dataclasses
import math

import segno
from markupsafe import Markup

from server.admin.accounts import (
    PASSWORD_MIN,
    AccountFault,
    Role,
    User,
    new_totp_secret,
    totp_uri,
)
from server.admin.app import COOKIE, VISITOR, Admin, Page, cookie
from server.admin.sessions import LIFETIME_S
from server.admin.web import Answer, Call, Problem, redirect

_DAY_S = 86_400.0


def _way(text: str) -> str:
    """Where to go after the login: a path of ours, or the overview."""
    fine = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if fine and "\\" not in text else "/"


async def login_form(admin: Admin, call: Call) -> Answer:
    if call.who is not None and call.who.session is not None:
        return redirect("/")
    return _door(admin, call)


def _door(
    admin: Admin, call: Call, fault: str = "", status: int = 200, *headers: tuple[str, str]
) -> Answer:
    visitor = call.cookies.get(VISITOR, "")
    ident = admin.sessions.ident(visitor)
    if ident is None or not ident.startswith("v."):
        visitor = admin.sessions.visitor()
        ident = admin.sessions.ident(visitor) or ""
    page = admin.page(
        call,
        "login.html",
        status,
        fault=fault,
        name=call.field("name")[:64],
        way=_way(call.field("next") or call.arg("next")),
        form_token=admin.sessions.form_token(ident),
    )
    given = cookie(VISITOR, visitor, secure=call.secure)
    return dataclasses.replace(page, headers=(*page.headers, given, *headers))


async def login(admin: Admin, call: Call) -> Answer:
    name, password = call.field("name"), _raw(call, "password")
    wait = admin.brake.wait_s(call.peer, name, call.now)
    if wait > 0:
        again = math.ceil(wait)
        text = f"Too many tries. Try again in {again} s."
        return _door(admin, call, text, 429, ("retry-after", str(again)))
    admin.brake.start(call.peer, name, call.now)
    user = await admin.accounts.login(name, password, call.field("code"), call.now)
    if user is None:
        admin.context.log("login-failed", name[:64] or "-", f"failed login from {call.peer}")
        return _door(admin, call, "Name, password or code is wrong.", 401)
    admin.brake.succeeded(call.peer, name)
    if call.who is not None and call.who.session is not None:
        admin.sessions.end(call.who.session)
    value = admin.sessions.begin(user.name, call.now)
    admin.context.log("login", user.name, f"logged in from {call.peer}")
    way = "/account" if user.must_change else _way(call.field("next"))
    return redirect(
        way,
        cookie(COOKIE, value, secure=call.secure, age_s=int(LIFETIME_S)),
        cookie(VISITOR, "", secure=call.secure, age_s=0),
    )


def _raw(call: Call, name: str) -> str:
    """A field as it was typed: blanks belong to a password."""
    values = call.form.get(name)
    return values[0].decode("utf-8", "replace") if values else ""


async def logout(admin: Admin, call: Call) -> Answer:
    if call.who is not None and call.who.session is not None:
        admin.sessions.end(call.who.session)
    return redirect("/login", cookie(COOKIE, "", secure=call.secure, age_s=0))


async def theme(admin: Admin, call: Call) -> Answer:
    word = call.field("theme")
    age = 365 * 86_400 if word in ("light", "dark") else 0
    value = word if age else ""
    back = _way(call.field("back"))
    return redirect(back, cookie("tidegate-theme", value, secure=call.secure, age_s=age))


def _me(call: Call) -> User:
    if call.who is None or call.who.user is None:
        raise Problem(403, "Log in as a user; an API token has no account.")
    return call.who.user


def _account(admin: Admin, call: Call, status: int = 200, **values: object) -> Answer:
    user = _me(call)
    mine = user.role is Role.OPERATOR
    tokens = sorted(admin.accounts.tokens.values(), key=lambda t: -t.created_s)
    defaults: dict[str, object] = {
        "fault": "",
        "said": "",
        "secret": "",
        "setup": None,
    }
    return admin.page(
        call,
        "account.html",
        status,
        user=admin.accounts.users.get(user.name, user),
        users=sorted(admin.accounts.users.values(), key=lambda u: u.name) if mine else [],
        tokens=[t for t in tokens if mine or t.owner == user.name],
        password_min=PASSWORD_MIN,
        **(defaults | values),
    )


async def account(admin: Admin, call: Call) -> Answer:
    said = {"password": "Your password is changed.", "totp": "One-time codes are on."}
    return _account(admin, call, said=said.get(call.arg("said"), ""))


async def password(admin: Admin, call: Call) -> Answer:
    user = _me(call)
    wait = admin.brake.wait_s(call.peer, user.name, call.now)
    if wait > 0:
        return _account(admin, call, 429, fault="Too many tries; wait a little.")
    admin.brake.start(call.peer, user.name, call.now)
    if not await admin.accounts.check(user.name, _raw(call, "old")):
        return _account(admin, call, 403, fault="The present password is wrong.")
    admin.brake.succeeded(call.peer, user.name)
    new = _raw(call, "password")
    if new != _raw(call, "again"):
        return _account(admin, call, 422, fault="The two new passwords differ.")
    if new == _raw(call, "old"):
        return _account(admin, call, 422, fault="The new password is the old one.")
    try:
        await admin.accounts.set_password(user.name, new)
    except AccountFault as fault:
        return _account(admin, call, 422, fault=str(fault))
    # Whoever else was logged in with the old password is out; this session gets a new id.
    admin.sessions.end_all(user.name)
    value = admin.sessions.begin(user.name, call.now)
    admin.context.log("account", user.name, "changed the password")
    fresh = cookie(COOKIE, value, secure=call.secure, age_s=int(LIFETIME_S))
    return redirect("/account?said=password", fresh)


async def totp_start(admin: Admin, call: Call) -> Answer:
    return _totp_page(admin, call, new_totp_secret())


def _totp_page(admin: Admin, call: Call, secret: str, fault: str = "") -> Answer:
    uri = totp_uri(secret, _me(call).name, call.headers.get("host", ""))
    # No XML head, no inline style: a picture that fits a strict policy.
    picture = segno.make(uri).svg_inline(omitsize=True, svgclass="qr", lineclass=None)
    setup = {"secret": secret, "uri": uri, "picture": Markup(picture)}
    return _account(admin, call, 422 if fault else 200, setup=setup, fault=fault)


async def totp_finish(admin: Admin, call: Call) -> Answer:
    user, secret = _me(call), call.field("secret")
    if len(secret) != 32 or not secret.isalnum():
        raise Problem(422, "Start again: the secret is incomplete.")
    try:
        admin.accounts.set_totp(user.name, secret, call.field("code"), call.now)
    except AccountFault as fault:
        return _totp_page(admin, call, secret, str(fault))
    admin.context.log("account", user.name, "turned one-time codes on")
    return redirect("/account?said=totp")


async def totp_off(admin: Admin, call: Call) -> Answer:
    user = _me(call)
    if not await admin.accounts.check(user.name, _raw(call, "old")):
        return _account(admin, call, 403, fault="The present password is wrong.")
    admin.accounts.clear_totp(user.name)
    admin.context.log("account", user.name, "turned one-time codes off")
    return redirect("/account")


async def token_issue(admin: Admin, call: Call) -> Answer:
    user = _me(call)
    label = call.field("label")[:64] or "unnamed"
    role = Role.OPERATOR if call.field("role") == Role.OPERATOR else Role.VIEWER
    if not user.role.may(role):
        raise Problem(403, "A token cannot do more than you.")
    days = call.field("days")
    if days and not (days.isascii() and days.isdigit() and 1 <= int(days) <= 3650):
        return _account(admin, call, 422, fault="The validity is 1 to 3650 days, or empty.")
    expires = call.now + int(days) * _DAY_S if days else None
    secret, token = admin.accounts.issue_token(label, role, user.name, call.now, expires)
    admin.context.log("account", user.name, f"issued API token {token.serial} ({label}, {role})")
    return _account(admin, call, secret=secret)


async def token_drop(admin: Admin, call: Call) -> Answer:
    user, serial = _me(call), call.params["serial"]
    found = next((t for t in admin.accounts.tokens.values() if t.serial == serial), None)
    if found is None or (found.owner != user.name and user.role is not Role.OPERATOR):
        raise Problem(404, f"There is no API token {serial}.")
    admin.accounts.drop_token(serial)
    admin.context.log("account", user.name, f"revoked API token {serial}")
    return redirect("/account")


async def user_add(admin: Admin, call: Call) -> Answer:
    role = Role.OPERATOR if call.field("role") == Role.OPERATOR else Role.VIEWER
    try:
        user = await admin.accounts.add_user(
            call.field("name"), role, _raw(call, "password"), call.now
        )
    except AccountFault as fault:
        return _account(admin, call, 422, fault=str(fault))
    admin.context.log("account", _me(call).name, f"added user {user.name} ({role})")
    return redirect("/account")


async def user_drop(admin: Admin, call: Call) -> Answer:
    name = call.params["name"]
    try:
        admin.accounts.drop_user(name)
    except AccountFault as fault:
        return _account(admin, call, 422, fault=str(fault))
    admin.sessions.end_all(name)
    admin.context.log("account", _me(call).name, f"removed user {name}")
    return redirect("/account")


def pages() -> list[Page]:
    operator = Role.OPERATOR
    return [
        Page("GET", "/login", login_form, public=True),
        Page("POST", "/login", login, public=True),
        Page("POST", "/logout", logout, own_account=True),
        Page("POST", "/theme", theme, own_account=True),
        Page("GET", "/account", account, own_account=True),
        Page("POST", "/account/password", password, own_account=True),
        Page("POST", "/account/totp", totp_start, own_account=True),
        Page("POST", "/account/totp/on", totp_finish, own_account=True),
        Page("POST", "/account/totp/off", totp_off, own_account=True),
        Page("POST", "/account/tokens", token_issue),
        Page("POST", "/account/tokens/{serial}/revoke", token_drop),
        Page("POST", "/account/users", user_add, operator),
        Page("POST", "/account/users/{name}/remove", user_drop, operator),
    ]
