"""Login through an OpenID Connect provider: the way there, and the page that it leads back to."""

from __future__ import annotations

import dataclasses

from ..accounts.oidc import TUNING, Attempts, Provider
from ..control.problems import Problem
from .account import asker_of, login_form, session_cookie, way_of
from .app import HandlerCall, cookie
from .router import Routes
from .web import Answer, redirect

pages = Routes()

#: The browser's half of a login that has begun.
ATTEMPT = "tidegate-login"
#: The name under which the brake counts tries. No account can have it.
_TRIED = "(provider)"


def _provider(ask: HandlerCall) -> Provider:
    if ask.admin.provider is None:
        raise Problem(404, "This server has no provider to log in with.")
    return ask.admin.provider


@pages.get("/login/oidc", public=True, again=login_form)
async def begin(ask: HandlerCall) -> Answer:
    """Lead to the provider."""
    provider, now = _provider(ask), ask.now
    held, attempt = Attempts(ask.admin.sessions.key).begin(way_of(ask.call.arg("next")), now)
    place = await provider.login_url(attempt, asker_of(ask, _TRIED), now)
    return redirect(place, _held(ask, held))


def _held(ask: HandlerCall, value: str) -> tuple[str, str]:
    # Lax: the provider's page leads back here.
    age_s = int(TUNING.login_s) if value else 0
    return cookie(ATTEMPT, value, secure=ask.call.secure, age_s=age_s, same_site=b"Lax")


@pages.get("/login/oidc/back", public=True, again=login_form)
async def back(ask: HandlerCall) -> Answer:
    """Take up the provider's answer."""
    provider, call, admin = _provider(ask), ask.call, ask.admin
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
