"""The administration as one function from `Call` to `Answer`: who asks, what may they, who answers.

Laws:
- Nothing but the login page, the static files and the probes is shown to strangers.
- What changes something is a POST (or PUT, PATCH, DELETE), needs its scope unless it concerns
  one's own account, and carries the form token when it comes with a cookie.
- Every answer has the same strict headers; no page needs a script or style of its own.
"""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pydantic import BaseModel
from twisted.logger import Logger

from ...protocol.errors import ProtocolError
from ..accounts.accounts import Accounts, Scope
from ..accounts.login_brake import LoginBrake
from ..accounts.oidc import Provider
from ..accounts.password_reset import Reset, forget_reset, read_reset
from ..accounts.sessions import COOKIE, Logins, api_token
from ..control.events import NotStored
from ..control.problems import Problem
from ..control.report import Reports
from ..control.server import Server
from ..files.pages import Pages
from ..http.cookies import host_name, set_cookie
from .previews import Previews
from .render import zone_of
from .router import Router
from .turns import LoopTurns
from .web import Answer, Call, Principal, html, problem_answer, redirect

VISITOR = "tidegate-browser"
ZONE = "tidegate-zone"
log = Logger()


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """A call with all that a handler needs to answer it."""

    admin: Admin
    call: Call
    problem: Problem | None = None

    def refused(self, problem: Problem) -> HandlerCall:
        """The same call, to show the page of its form again."""
        return dataclasses.replace(self, problem=problem)

    @property
    def server(self) -> Server:
        return self.admin.server

    @property
    def now(self) -> float:
        """When it was asked, Unix time in seconds."""
        return self.call.now

    @property
    def principal(self) -> Principal:
        """Who asks. Raises Problem 401 for a stranger."""
        if self.call.who is None:
            raise _unauthorized("Log in, or send an API token.")
        return self.call.who

    @property
    def who(self) -> str:
        """Their name, for the log."""
        return self.call.who.name if self.call.who else "-"

    @property
    def zone(self) -> tzinfo:
        """The time zone in which this person reads and writes times."""
        return zone_of(self.call.cookie(ZONE))

    def typed(self, name: str, value: object) -> object:
        """What was typed into the field of a form that was refused; else `value`."""
        return self.call.field(name) if self.problem and name in self.call.form else value

    def log(self, kind: str, text: str) -> None:
        """Write what they did into the operator's log."""
        self.server.events.add(kind, text, who=self.who)

    def page(self, template: str, status: int = 200, **values: Any) -> Answer:
        """A rendered page in the common frame, with what was refused if anything was."""
        problem = self.problem
        faults = problem.errors if problem else ()
        page = self.admin.pages.pieces(
            f"admin/{template}",
            call=self.call,
            who=self.call.who,
            health=self.server.vitals.read(),
            now=self.now,
            zone=self.zone,
            problem=problem,
            typed=self.typed,
            **{"errors": {str(one["field"]): str(one["message"]) for one in faults}, **values},
        )
        return html(page, problem.status, *problem.headers) if problem else html(page, status)

    def listing(self, template: str, query: BaseModel, **values: Any) -> Answer:
        """A page of a list; `base` is its address but for where the list begins."""
        shown = query.model_dump(exclude={"offset", "before"}, exclude_defaults=True)
        place = self.call.path.removesuffix("/part")
        base = f"{place}?{urlencode(shown)}&"
        return self.page(template, query=query, base=base, **values)


@dataclass(slots=True)
class Admin:
    """Everything the pages share. `close` ends what runs on their behalf."""

    server: Server
    accounts: Accounts
    sessions: Logins
    pages: Pages
    previews: Previews
    reports: Reports
    router: Router
    state: Path
    turns: LoopTurns
    close: Callable[[], None]
    provider: Provider | None = None
    brake: LoginBrake = field(default_factory=LoginBrake)
    #: The password from the host that was taken up last.
    taken: Reset | None = None

    async def answer(self, call: Call) -> Answer:
        """The answer to any request whatever; never raises."""
        await self.turns.turn()
        try:
            call = self._identified(call)
            self._same_site(call)
            found = await self._written(await self._dispatch(call))
        except Problem as problem:
            found = self._refusal(call, problem)
        except ProtocolError as error:
            found = self._refusal(call, Problem(error.status, str(error), code=error.code))
        except Exception:  # noqa: BLE001 - logged and counted, never shown
            log.failure("The administration failed at {path}", path=call.path, client=call.peer)
            found = self._refusal(call, Problem(500, "The page failed; the log says why."))
        return _with_headers(call, await self._written(found))

    async def _written(self, answer: Answer) -> Answer:
        """The answer with its page written out; requests of visitors have turns meanwhile."""
        if answer.pieces is None:
            return answer
        text = "".join(await self.turns.all_of(answer.pieces))
        return dataclasses.replace(answer, body=text.encode("utf-8", "replace"), pieces=None)

    async def _dispatch(self, call: Call) -> Answer:
        route, params = self.router.find(call.method, call.path)
        ask = HandlerCall(self, dataclasses.replace(call, params=params))
        user = call.who.owner if call.who and call.who.session else None
        if not route.public:
            if not ask.principal.may(route.scope):
                raise Problem(403, _needs(ask.principal, route.scope), code="scope")
            if user is not None and user.must_change and not route.own_account:
                if route.tag:
                    raise Problem(403, "Choose your own password first.", code="password-change")
                return redirect("/account")
        if call.only_reads:
            return await route(ask)
        self._check_form(call)
        store = self.server.store
        before = store.musts_total
        found = await route(ask)
        # A login to see what ails the server must not fail by what ails it.
        if store.musts_total != before and not route.public and not await store.stored():
            raise NotStored([pair for pair in found.headers if pair[0] == "set-cookie"])
        return found

    def _identified(self, call: Call) -> Call:
        secret = api_token(call.headers.get("authorization", ""))
        if secret is not None:
            token = self.accounts.by_token(secret, call.now)
            if token is None:
                raise _unauthorized("This API token is unknown or has expired.")
            owner = self.accounts.users[token.owner]
            name = f"{token.owner}/{token.label}"
            return dataclasses.replace(call, who=Principal(name, token.scopes, owner, token=token))
        # Without TLS a page of another port or a neighbouring domain may have put one before ours.
        found = ((one, self.sessions.find(one, call.now)) for one in call.cookies(COOKIE))
        cookie, session = next((one for one in found if one[1] is not None), ("", None))
        if session is None:
            return call
        user = self.accounts.users.get(session.user)
        if user is None:
            self.sessions.end(session)
            return call
        form_token = self.sessions.form_token(self.sessions.ident(cookie) or "")
        who = Principal(user.name, user.role.scopes, user, session, form_token=form_token)
        return dataclasses.replace(call, who=who)

    def take_reset(self) -> None:
        """Take up a password that was given anew on the host; its file stays until it is stored."""
        reset = read_reset(self.state)
        if reset is None:
            return
        # Its owner may have chosen another one since, while the database takes no writes.
        if reset != self.taken and self.accounts.reset_password(
            reset.name, reset.password_hash, self.server.now()
        ):
            self.sessions.end_all(reset.name)
            text = f"the password of {reset.name} was reset on the host, one-time codes are off"
            self.server.events.add("account", text, who="host")
        self.taken = reset

        def settle(stored: bool) -> None:
            if stored:
                forget_reset(self.state, reset)

        self.server.store.stored().addCallback(settle)

    def _same_site(self, call: Call) -> None:
        """Refuse what another site's page has sent, whatever the browser makes of cookies."""
        if call.only_reads:
            return
        origin, host = call.headers.get("origin"), call.headers.get("host", "")
        foreign = origin is not None and origin.partition("//")[2] != host
        if foreign or call.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Problem(403, "This request came from another site.", code="cross-site")

    def _check_form(self, call: Call) -> None:
        if call.who is not None and call.who.session is None:
            return
        given = call.headers.get("x-csrf-token") or call.field("csrf")
        if call.who is not None:
            fits = hmac.compare_digest(call.who.form_token.encode(), given.encode())
        else:
            ident = self.sessions.ident(call.cookie(VISITOR))
            fits = ident is not None and self.sessions.form_token_fits(ident, given)
        if not fits:
            raise Problem(403, "This form is out of date; load the page again.", code="form-token")

    def _refusal(self, call: Call, problem: Problem) -> Answer:
        wants_json = call.path.startswith("/api/") or "application/json" in call.headers.get(
            "accept", ""
        )
        if wants_json or call.path == "/metrics":
            return problem_answer(problem)
        if problem.status == 401 and call.method in ("GET", "HEAD"):
            way = "" if call.path == "/" else f"?next={quote(call.path)}"
            return redirect(f"/login{way}")
        return HandlerCall(self, call, problem).page("fault.html")


def _needs(who: Principal, scope: Scope) -> str:
    if who.token is not None and scope in who.role.scopes:
        return f"This needs the scope {scope}, which this API token does not have."
    return f"This needs the role operator; you are {who.role}."


def _unauthorized(detail: str) -> Problem:
    return Problem(401, detail, headers=(("www-authenticate", 'Bearer realm="tidegate"'),))


def _with_headers(call: Call, answer: Answer) -> Answer:
    given = {name for name, _ in answer.headers}
    framed = call.path.startswith("/waiting/preview")
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors " + ("'self'" if framed else "'none'")
    )
    standard = (
        ("content-security-policy", policy),
        ("x-frame-options", "SAMEORIGIN" if framed else "DENY"),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
    )
    added = tuple(pair for pair in standard if pair[0] not in given)
    return dataclasses.replace(answer, headers=(*answer.headers, *added))


def cookie(
    name: str, value: str, *, secure: bool, age_s: int | None = None, same_site: bytes = b"Strict"
) -> tuple[str, str]:
    """A Set-Cookie field no script and no other site can use.

    With `same_site` Lax another site can lead the browser here with it.
    """
    _, field = set_cookie(
        host_name(name, secure=secure).encode(),
        value.encode(),
        path=b"/",
        age_s=age_s,
        secure=secure,
        same_site=same_site,
    )
    return ("set-cookie", field.decode("latin-1"))
