"""What a client reads that cannot start now: fields, a problem document, or the waiting page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from policies.job import Estimate, Wait
from protocol.headers import format_link
from protocol.manifest import Source
from protocol.units import format_duration, format_size
from server.http.answers import HTML, PROBLEM_JSON, Header, prefers_html, problem
from server.http.request import Request
from server.pages import SECURITY_HEADERS, Pages
from server.phrases import Phrases, phrases_for

_COMMON: tuple[Header, ...] = (
    (b"Cache-Control", b"no-store"),
    (b"Vary", b"Accept, Accept-Language, Cookie"),
    (b"X-Robots-Tag", b"noindex"),
)


@dataclass(frozen=True, slots=True)
class Notice:
    """Everything an answer says to a waiting client. Times in seconds."""

    file: str
    size_bytes: int
    wait: Wait
    token: str | None
    waited_s: float = 0.0
    closed: bool = False
    #: Before a release: seconds until it opens, and the id of the client's entry in the draw.
    opens_s: float | None = None
    entry: str = ""

    @property
    def retry_after_s(self) -> int:
        """Whole seconds, rounded up: never invite a client before its time."""
        return max(1, math.ceil(self.wait.retry_after_s))

    @property
    def status(self) -> str:
        """`ready` when the ticket may start as soon as a slot is free, else `waiting`."""
        return "ready" if self.wait.ready else "waiting"


class WaitingRoom:
    """Renders waiting pages and refusals. `heading` and `logo_url` are the operator's own."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self.heading = ""
        self.text = ""
        self.logo_url = ""
        #: Mirrors that would start a download of this URL path at once.
        self.elsewhere: Callable[[str], Sequence[Source]] = lambda url_path: ()
        #: How soon this client should ask again, whatever the queue says (multicast).
        self.hurry: Callable[[Request], float | None] = lambda request: None

    def answer(self, request: Request, notice: Notice) -> None:
        """Answer 503 in the form that this client understands."""
        soon_s = self.hurry(request)
        if soon_s is not None and soon_s < notice.wait.retry_after_s:
            notice = replace(notice, wait=replace(notice.wait, retry_after_s=soon_s))
        headers = [*_COMMON, *wait_fields(notice)]
        free = self.elsewhere(request.path.decode("latin-1"))
        if free:
            links = [format_link(m.url, rel="duplicate", pri=str(m.priority)) for m in free]
            headers.append((b"Link", ", ".join(links).encode("latin-1")))
        if prefers_html(request.header(b"accept")):
            phrases = phrases_for(request.header(b"accept-language"))
            headers += self._browser_fields(request, notice)
            headers += [(b"Content-Type", HTML), *SECURITY_HEADERS]
            headers.append((b"Content-Language", phrases("lang").encode("ascii")))
            request.respond(503, headers, self.page(notice, phrases))
        else:
            headers.append((b"Content-Type", PROBLEM_JSON))
            request.respond(503, headers, _document(notice))

    def refuse(
        self,
        request: Request,
        status: int,
        code: str,
        detail: str,
        *,
        retry_after_s: float | None = None,
        afresh: bool = False,
    ) -> None:
        """Refuse with the reason; `afresh` lets a browser forget its ticket and ask again."""
        headers: list[Header] = []
        if retry_after_s is not None:
            headers.append((b"Retry-After", b"%d" % max(1, math.ceil(retry_after_s))))
        if afresh and prefers_html(request.header(b"accept")):
            headers.append(clear_cookie(request))
            headers.append((b"Refresh", b"3; url=" + request.path))
        request.refuse(status, code, detail, headers)

    def page(self, notice: Notice, phrases: Phrases) -> bytes:
        """The waiting page as HTML."""
        wait = notice.wait
        estimate = wait.estimate
        name = unquote(notice.file.rpartition("/")[2])
        return self._pages.render(
            "waiting.html",
            t=phrases,
            title=_title(notice, phrases),
            lead=_lead(notice, phrases, name),
            name=name,
            estimate=estimate,
            expected=phrases.time(estimate.expected_s) if estimate else None,
            latest=phrases.time(estimate.p90_s) if estimate else None,
            waited=phrases.time(notice.waited_s),
            percent=_percent(notice.waited_s, estimate),
            next_visit=phrases.time(notice.retry_after_s),
            notice=notice,
            heading=self.heading,
            text=self.text,
            logo_url=self.logo_url,
        )

    def _browser_fields(self, request: Request, notice: Notice) -> list[Header]:
        target = request.path
        if notice.token is None:
            return [(b"Refresh", b"%d; url=%b" % (notice.retry_after_s, target))]
        # The cookie serves whoever opens the link again; the query serves those without cookies.
        token = notice.token.encode("ascii")
        url = b"%b?tidegate-ticket=%b" % (target, token)
        cookie = b"tidegate-ticket=%b; Path=%b; Max-Age=604800; HttpOnly; SameSite=Lax%b" % (
            token,
            cookie_path(target),
            b"; Secure" if request.is_tls else b"",
        )
        return [
            (b"Refresh", b"%d; url=%b" % (notice.retry_after_s, url)),
            (b"Set-Cookie", cookie),
        ]


def wait_fields(notice: Notice) -> list[Header]:
    """The header fields of a waiting answer (PROTOCOL.md, "Waiting")."""
    wait = notice.wait
    fields: list[Header] = [
        (b"Retry-After", b"%d" % notice.retry_after_s),
        (b"Tidegate-Status", notice.status.encode("ascii")),
    ]
    if notice.token is not None:
        fields.append((b"Tidegate-Ticket", notice.token.encode("ascii")))
    if notice.entry:
        fields.append((b"Tidegate-Entry", notice.entry.encode("ascii")))
    if wait.place is not None:
        fields.append((b"Tidegate-Place", b"%d" % wait.place))
    if wait.estimate is not None:
        fields.append((b"Tidegate-Wait-Expected", b"%d" % math.ceil(wait.estimate.expected_s)))
        fields.append((b"Tidegate-Wait-P90", b"%d" % math.ceil(wait.estimate.p90_s)))
    return fields


def cookie_path(path: bytes) -> bytes:
    """A path as a cookie may carry it (RFC 6265, 4.1.1 allows no `;`)."""
    return path.replace(b";", b"%3B")


def clear_cookie(request: Request) -> Header:
    """The field that makes a browser forget the ticket for this path."""
    path = cookie_path(request.path)
    return (b"Set-Cookie", b"tidegate-ticket=; Path=%b; Max-Age=0; HttpOnly; SameSite=Lax" % path)


def sentence(notice: Notice) -> str:
    """What a person should know, in one English sentence."""
    wait = notice.wait
    if notice.opens_s is not None:
        return (
            f"This file opens in {format_duration(notice.opens_s)} and you are registered; the "
            f"order is drawn at random then. Come back in {notice.retry_after_s} s."
        )
    if notice.closed:
        return f"The server is about to stop; come back in {notice.retry_after_s} s."
    if wait.place is None:
        return f"Every slot is taken; come back in {notice.retry_after_s} s."
    when = f" in about {format_duration(wait.estimate.expected_s)}" if wait.estimate else ""
    return (
        f"You are number {wait.place} in the queue and start{when}; come back with this ticket in "
        f"{notice.retry_after_s} s."
    )


def _document(notice: Notice) -> bytes:
    wait = notice.wait
    members = {
        "place": wait.place,
        "expected_wait_s": round(wait.estimate.expected_s, 1) if wait.estimate else None,
        "p90_wait_s": round(wait.estimate.p90_s, 1) if wait.estimate else None,
        "retry_after_s": notice.retry_after_s,
        "ticket": notice.token,
        "queue_status": notice.status,
        "opens_in_s": None if notice.opens_s is None else round(notice.opens_s, 1),
        "entry": notice.entry or None,
    }
    present = {name: value for name, value in members.items() if value is not None}
    return problem(503, "closed" if notice.closed else "waiting", sentence(notice), **present)


def _title(notice: Notice, phrases: Phrases) -> str:
    wait = notice.wait
    if notice.opens_s is not None:
        return phrases("title_prequeue", time=phrases.time(notice.opens_s))
    if notice.closed:
        return phrases("title_closed")
    if wait.place is None:
        return phrases("title_busy")
    if wait.place == 1:
        return phrases("title_next")
    if wait.ready:
        return phrases("title_ready")
    return phrases("title_place", place=f"{wait.place:,}".replace(",", phrases("thousands")))


def _lead(notice: Notice, phrases: Phrases, name: str) -> str:
    if notice.opens_s is not None:
        return phrases("lead_prequeue", file=name, size=format_size(notice.size_bytes))
    if notice.closed:
        return phrases("lead_closed")
    key = "lead" if notice.wait.place is not None else "lead_busy"
    return phrases(key, file=name, size=format_size(notice.size_bytes))


def _percent(waited_s: float, estimate: Estimate | None) -> int | None:
    if estimate is None:
        return None
    whole = waited_s + max(estimate.expected_s, 1.0)
    return min(99, max(1, round(100 * waited_s / whole)))
