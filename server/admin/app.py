"""The administration as one function from `Call` to `Answer`: who asks, what may they, who answers.

Laws:
- Nothing but the login page, the static files and the probes is shown to strangers.
- Whatever changes something is a POST (or PUT, PATCH, DELETE), needs the role operator unless it
  concerns one's own account, and carries the form token when it comes with a cookie.
- Every answer has the same strict headers; no page needs a script or style of its own.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import structlog
from jinja2 import Environment

from protocol.errors import ProtocolError
from server.admin.accounts import AccountFault, Accounts, Role
from server.admin.context import AdminContext, StaleRevision, StoreSilent
from server.admin.preview import Previews
from server.admin.router import Operation, Router
from server.admin.sessions import LoginBrake, Sessions
from server.admin.web import Answer, Call, Principal, Problem, html, problem_of, redirect

COOKIE = "tidegate-admin"
VISITOR = "tidegate-visitor"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors {ancestors}"
)
_HEADERS = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
)
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Page:
    """One page or form. `handler` gets the application and the call."""

    method: str
    path: str
    handler: Callable[[Admin, Call], Awaitable[Answer]]
    role: Role = Role.VIEWER
    public: bool = False
    own_account: bool = False


@dataclass(slots=True)
class Admin:
    """Everything the pages share."""

    context: AdminContext
    accounts: Accounts
    sessions: Sessions
    templates: Environment
    previews: Previews
    brake: LoginBrake = field(default_factory=LoginBrake)
    pages: Router[Page] = field(default_factory=Router)
    api: Router[Operation] = field(default_factory=Router)

    async def answer(self, call: Call) -> Answer:
        """The answer to any request whatever; never raises."""
        try:
            call = self._identified(call)
            self._same_site(call)
            found = await self._dispatch(call)
        except Problem as problem:
            found = self._refusal(call, problem)
        except ProtocolError as error:
            found = self._refusal(call, problem_of(error))
        except AccountFault as fault:
            errors = [{"field": fault.field, "message": str(fault)}]
            found = self._refusal(call, Problem(422, str(fault), code="account", errors=errors))
        except StaleRevision:
            found = self._refusal(call, stale())
        except StoreSilent:
            again = (("retry-after", "10"),)
            text = "The database does not answer. Downloads and the queue go on; try again later."
            found = self._refusal(call, Problem(503, text, code="store-silent", headers=again))
        except Exception:
            log.exception("admin_fault", path=call.path)
            found = self._refusal(call, Problem(500, "The page failed; the log says why."))
        return _with_headers(call, found)

    async def _dispatch(self, call: Call) -> Answer:
        if call.path.startswith("/api/"):
            operation, params = self.api.find(call.method, call.path)
            if not operation.public:
                self._require(call, operation.role)
            return await operation(dataclasses.replace(call, params=params))
        page, params = self.pages.find(call.method, call.path)
        if not page.public:
            self._require(call, page.role)
            user = call.who.user if call.who else None
            if user is not None and user.must_change and not page.own_account:
                return redirect("/account")
        if call.method not in _SAFE:
            self._check_form(call)
        return await page.handler(self, dataclasses.replace(call, params=params))

    # -- who asks
    def _identified(self, call: Call) -> Call:
        bearer = call.headers.get("authorization", "")
        if bearer[:7].lower() == "bearer ":
            token = self.accounts.by_token(bearer[7:].strip(), call.now)
            if token is None:
                raise _unauthorized("This API token is unknown or has expired.")
            who = Principal(f"{token.owner}/{token.label}", token.role)
            return dataclasses.replace(call, who=who)
        cookie = call.cookies.get(COOKIE)
        session = self.sessions.find(cookie, call.now) if cookie else None
        if session is None or cookie is None:
            return call
        user = self.accounts.users.get(session.user)
        if user is None:
            self.sessions.end(session)
            return call
        ident = self.sessions.ident(cookie) or ""
        who = Principal(user.name, user.role, user, session, self.sessions.form_token(ident))
        return dataclasses.replace(call, who=who)

    def _require(self, call: Call, role: Role) -> None:
        if call.who is None:
            raise _unauthorized("Log in, or send an API token.")
        if not call.who.role.may(role):
            raise Problem(403, f"This needs the role {role}; you are {call.who.role}.")
        if call.path.startswith("/api/") and call.who.user and call.who.user.must_change:
            raise Problem(403, "Choose your own password first.", code="password-change")
        if call.path.startswith("/api/") and call.method not in _SAFE:
            self._check_form(call)

    def _same_site(self, call: Call) -> None:
        """Refuse what another site's page has sent, whatever the browser makes of cookies."""
        if call.method in _SAFE:
            return
        origin = call.headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc != call.headers.get("host", "")
        if foreign or call.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Problem(403, "This request came from another site.", code="cross-site")

    def _check_form(self, call: Call) -> None:
        """The form token, for everybody who comes with a cookie."""
        who = call.who
        if who is not None and who.session is None:
            return
        given = call.headers.get("x-csrf-token") or call.field("csrf")
        if who is not None:
            ident = self.sessions.ident(call.cookies.get(COOKIE, "")) or ""
        else:
            ident = self.sessions.ident(call.cookies.get(VISITOR, "")) or ""
        if not ident or not self.sessions.form_token_fits(ident, given):
            raise Problem(403, "This form is out of date; load the page again.", code="form-token")

    # -- what they see
    def page(self, call: Call, template: str, status: int = 200, **values: object) -> Answer:
        """A rendered page in the common frame."""
        state = self.context.health()
        text = self.templates.get_template(f"admin/{template}").render(
            call=call, who=call.who, health=state, now=call.now, **values
        )
        return html(text, status)

    def _refusal(self, call: Call, problem: Problem) -> Answer:
        wants_json = call.path.startswith("/api/") or "application/json" in call.headers.get(
            "accept", ""
        )
        if wants_json or call.path in ("/metrics", "/live"):
            return problem.answer()
        if problem.status == 401 and call.method in ("GET", "HEAD"):
            way = "" if call.path == "/" else f"?next={quote(call.path)}"
            return redirect(f"/login{way}")
        found = self.page(call, "fault.html", problem.status, problem=problem.document())
        return dataclasses.replace(found, headers=(*found.headers, *problem.headers))


def _unauthorized(detail: str) -> Problem:
    return Problem(401, detail, headers=(("www-authenticate", 'Bearer realm="tidegate"'),))


def stale() -> Problem:
    return Problem(
        412, "The settings were changed meanwhile; read them again.", code="stale-settings"
    )


def is_loopback(call: Call) -> bool:
    """Whether this comes from a program on this machine, and not through a proxy on it."""
    if "x-forwarded-for" in call.headers or "forwarded" in call.headers:
        return False
    if not call.peer:  # a Unix socket
        return True
    try:
        return ipaddress.ip_address(call.peer).is_loopback
    except ValueError:
        return False


def _with_headers(call: Call, answer: Answer) -> Answer:
    given = {name for name, _ in answer.headers}
    framed = call.path.startswith("/waiting/preview")
    ancestors = "'self'" if framed else "'none'"
    standard = (
        ("content-security-policy", _CSP.format(ancestors=ancestors)),
        ("x-frame-options", "SAMEORIGIN" if framed else "DENY"),
        ("cache-control", "no-store"),
        *_HEADERS,
    )
    added = tuple(pair for pair in standard if pair[0] not in given)
    return dataclasses.replace(answer, headers=(*answer.headers, *added))


def cookie(name: str, value: str, *, secure: bool, age_s: int | None = None) -> tuple[str, str]:
    """A Set-Cookie field no script and no other site can use."""
    words = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Strict"]
    if age_s is not None:
        words.append(f"Max-Age={age_s}")
    if secure:
        words.append("Secure")
    return ("set-cookie", "; ".join(words))
