"""The answer to a client that cannot start now: fields, a problem document or the waiting page."""

from __future__ import annotations

import functools
import json
import math
import re
import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from ...policies.contract import Estimate, Wait
from ...protocol import problems
from ...protocol.bounded_table import BoundedTable
from ...protocol.headers import format_link
from ...protocol.manifest import Source
from ...protocol.units import bound_of, format_duration
from ..files.pages import SECURITY_HEADERS, Pages
from ..files.transfer import HasTorrent, no_torrents
from ..http.answers import HTML, PROBLEM_JSON, Header, prefers_html
from ..http.cookies import set_cookie
from ..http.phrases import Phrases, phrases_for, told_size
from ..http.request import Request
from .client_keys import TICKET_FIELD, visitor_cookie
from .own_pages import OwnPages
from .page_patterns import PagePatterns, Pattern, blank, escaped

#: Where the waiting page asks how its ticket stands (`wait_status`).
STATUS_PREFIX = "/-/queue"


@dataclass(slots=True)
class Notice:
    """The content of an answer to a waiting client. Times in seconds."""

    file: str
    size_bytes: int
    wait: Wait
    token: str | None = field(repr=False)
    waited_s: float = 0.0
    closed: bool = False
    #: Before a release: seconds until it opens, and the id of the client's entry in the draw.
    opens_s: float | None = None
    entry: str = ""
    #: The visitor token that a browser is given with this answer.
    visitor: str | None = field(default=None, repr=False)

    @property
    def retry_after_s(self) -> int:
        """Whole seconds, rounded up: never invite a client before its time."""
        return max(1, math.ceil(self.wait.retry_after_s))

    @property
    def status(self) -> str:
        """`ready` when the ticket may start as soon as a slot is free, else `waiting`."""
        return "ready" if self.wait.ready else "waiting"


@dataclass(frozen=True, slots=True)
class Words:
    """The operator's heading and text, for pages of one state and language or (empty) of all."""

    state: str = ""
    language: str = ""
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Wording:
    """The operator's texts on waiting pages, and their look.

    `announcement` stands above all texts. Closed doors are expected to open at `resumes_s` (wall
    time).
    """

    words: tuple[Words, ...] = ()
    announcement: str = ""
    logo_url: str = ""
    style_url: str = ""
    resumes_s: float | None = None

    def words_for(self, state: str, language: str) -> Words:
        """The heading and the text of this page, each from the words that are most specific."""
        fitting = [
            words
            for words in self.words
            if words.state in ("", state) and words.language in ("", language)
        ]
        fitting.sort(key=lambda words: (not words.language, not words.state))
        title = next((words.title for words in fitting if words.title), "")
        text = next((words.text for words in fitting if words.text), "")
        return Words(state, language, title, text)


class RetryResponder:
    """Renders waiting pages and refusals.

    Each argument answers for a URL path: `elsewhere` names mirrors that would start a download at
    once, `has_torrent` and `has_mirrors` say where else the file is, `signatures` which endings of
    signatures lie beside it. `hurry` shortens the retry time of a client (multicast).
    `tells_places` is false where only a part of the queue is known: a told place must not grow.
    """

    def __init__(
        self,
        pages: Pages,
        elsewhere: Callable[[str], Sequence[Source]] = lambda url_path: (),
        hurry: Callable[[Request], float | None] = lambda request: None,
        own: OwnPages | None = None,
        has_torrent: HasTorrent = no_torrents,
        has_mirrors: Callable[[str], bool] = lambda url_path: False,
        signatures: Callable[[str], Sequence[str]] = lambda url_path: (),
        *,
        tells_places: bool = True,
    ) -> None:
        self._tells_places = tells_places
        self._page_patterns = PagePatterns(pages)
        self.own = own if own is not None else OwnPages(None)
        self._has_torrent = has_torrent
        self._has_mirrors = has_mirrors
        self._signatures = signatures
        self._elsewhere = elsewhere
        self._hurry = hurry
        self.wording = Wording()
        #: Waiting pages, each of one file in one language.
        self._patterns: BoundedTable[Hashable, Pattern] = BoundedTable(256)

    def answer(self, request: Request, notice: Notice) -> None:
        """Answer 503 in the form that the client understands."""
        if not self._tells_places:
            notice = replace(notice, wait=replace(notice.wait, place=None, estimate=None))
        soon_s = self._hurry(request)
        if soon_s is not None and soon_s < notice.wait.retry_after_s:
            notice = replace(notice, wait=replace(notice.wait, retry_after_s=soon_s))
        headers: list[Header] = [
            (b"Cache-Control", b"no-store"),
            (b"Vary", b"Accept, Accept-Language, Cookie"),
            (b"X-Robots-Tag", b"noindex"),
            *wait_fields(notice),
        ]
        free = self._elsewhere(request.path.decode("latin-1"))
        if free:
            links = [format_link(m.url, rel="duplicate", pri=str(m.priority)) for m in free]
            headers.append((b"Link", ", ".join(links).encode("latin-1")))
        if prefers_html(request.header(b"accept")):
            phrases = phrases_for(request.header(b"accept-language"))
            headers += self._browser_fields(request, notice)
            headers += [(b"Content-Type", HTML), *SECURITY_HEADERS]
            headers.append((b"Content-Language", phrases.tag.encode("ascii")))
            request.respond(
                503, headers, self.page(notice, phrases, request.origin.decode("latin-1"), free)
            )
        else:
            headers.append((b"Content-Type", PROBLEM_JSON))
            request.respond(503, headers, document_of(notice))

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
        if prefers_html(request.header(b"accept")):
            if afresh:
                headers += [clear_cookie(request), (b"Refresh", b"3; url=" + request.path)]
            elif retry_after_s is not None:
                again_s = max(1, math.ceil(retry_after_s))
                headers.append((b"Refresh", b"%d; url=%b" % (again_s, request.target)))
        request.refuse(status, code, detail, headers)

    def page(
        self, notice: Notice, phrases: Phrases, origin: str = "", free: Sequence[Source] = ()
    ) -> bytes:
        """The waiting page as HTML; `free` are mirrors that would start at once."""
        if self.own:
            own = self._own_page(notice, phrases, free)
            if own is not None:
                return own
        estimate = notice.wait.estimate
        token = notice.token if origin else None
        told = _told(notice, phrases)
        values = {name: _escaped(text) for name, text in told.items() if text is not None}
        values["visit"] = b"%d" % notice.retry_after_s
        if token is not None:
            values["token"] = escaped(token)
            values["place"] = b"%d" % (notice.wait.place or 0)
            values["waited_s"] = b"%d" % round(notice.waited_s)
            if estimate is not None:
                values["expected_s"] = b"%d" % round(estimate.expected_s)
                values["done_s"] = b"%d" % round((estimate.done or estimate).expected_s)
        return self._pattern(notice, phrases, origin, free).filled(values)

    def _pattern(
        self, notice: Notice, phrases: Phrases, origin: str, free: Sequence[Source]
    ) -> Pattern:
        """The waiting page of one file, with blanks for what differs from visit to visit."""
        live = notice.token is not None and bool(origin)
        magnet_url, metalink_url = self._ways(notice)
        signatures = tuple(self._signatures(notice.file)) if live else ()
        # All that decides the form of the page, without the texts of the file.
        shape = (
            phrases.language,
            tuple([mirror.url for mirror in free]),
            notice.wait.estimate is not None,
            notice.wait.estimate is not None and notice.wait.estimate.done is not None,
            notice.token is not None,
            live,
            bool(signatures),
            magnet_url is not None,
            metalink_url is not None,
            self.wording.words_for(_state(notice), phrases.language),
            self.wording,
        )
        lead = _lead_key(notice)
        key = (shape, lead, notice.file, notice.size_bytes, origin if live else "", signatures)
        pattern = self._patterns.get(key)
        if pattern is None:
            name = unquote(notice.file.rpartition("/")[2])
            url = f"{origin}{notice.file}"
            of_file = {
                "name": name,
                "lead": phrases(lead, file=name, size=told_size(notice.size_bytes)),
                "done": phrases("lead_done", file=name, size=told_size(notice.size_bytes)),
                "magnet_url": magnet_url,
                "metalink_url": metalink_url,
                "path": notice.file,
                "sums": f"{url.rpartition('/')[0]}/SHA256SUMS",
                "signed": "\n".join(_checks(url, signatures)),
            }
            pattern = self._page_patterns.pattern(
                "waiting.html", shape, lambda: self._blanks(notice, phrases, live, of_file, free)
            ).bound({key: escaped(value) for key, value in of_file.items()})
            self._patterns[key] = pattern
        return pattern

    def _blanks(
        self,
        notice: Notice,
        phrases: Phrases,
        live: bool,
        of_file: Mapping[str, object],
        free: Sequence[Source],
    ) -> dict[str, Any]:
        told = _told(notice, phrases)
        estimate, done = told["expected"] is not None, told["has"] is not None
        query = f"{blank('path')}?{TICKET_FIELD.decode('ascii')}={blank('token')}"
        return {
            **{key: None if text is None else blank(key) for key, text in told.items()},
            **{key: None if value is None else blank(key) for key, value in of_file.items()},
            **self._looks(notice, phrases),
            "t": phrases,
            "estimate": estimate,
            "notice": {"retry_after_s": blank("visit"), "token": bool(notice.token)},
            "elsewhere": _hosts(free),
            # For the page's script, which needs a ticket.
            "live": {
                "queue": f"{STATUS_PREFIX}{query}",
                "file": query,
                "path": blank("path"),
                "sums": blank("sums"),
                "signed": blank("signed") if of_file["signed"] else "",
                "place": blank("place"),
                "waited_s": blank("waited_s"),
                "expected_s": blank("expected_s") if estimate else "",
                "done_s": blank("done_s") if done else "",
                "words": _words(phrases.language),
                "done": blank("done"),
                "soon_s": round(SOON_S),
            }
            if live
            else None,
        }

    def _own_page(self, notice: Notice, phrases: Phrases, free: Sequence[Source]) -> bytes | None:
        """The operator's own page, if there is one for this state."""
        name, size = unquote(notice.file.rpartition("/")[2]), told_size(notice.size_bytes)
        magnet_url, metalink_url = self._ways(notice)
        return self.own.render(
            {
                **self._looks(notice, phrases),
                **_told(notice, phrases),
                "lead": phrases(_lead_key(notice), file=name, size=size),
                "state": _state(notice),
                "language": phrases.tag,
                "direction": phrases.direction,
                "file": name,
                "size": size,
                "size_bytes": notice.size_bytes,
                "place": notice.wait.place,
                "retry_after_s": notice.retry_after_s,
                "mirrors": _hosts(free),
                "magnet_url": magnet_url,
                "metalink_url": metalink_url,
            }
        )

    def _looks(self, notice: Notice, phrases: Phrases) -> dict[str, Any]:
        wording = self.wording
        own = wording.words_for(_state(notice), phrases.language)
        paragraphs = paragraphs_of("\n\n".join(filter(None, (wording.announcement, own.text))))
        if wording.resumes_s is not None:
            told = phrases("resumes", time=phrases.moment(wording.resumes_s))
            paragraphs.insert(0, [{"text": told}])
        return {
            "heading": own.title,
            "paragraphs": paragraphs,
            # The announcement of closed doors is over when the download starts.
            "announced": bool(wording.announcement) or wording.resumes_s is not None,
            "logo_url": wording.logo_url,
            "style_url": wording.style_url,
        }

    def _ways(self, notice: Notice) -> tuple[str | None, str | None]:
        """The links to the file's magnet link and Metalink; None where there is none."""
        has_torrent = self._has_torrent(notice.file, notice.size_bytes)
        return (
            f"/-/magnet{notice.file}" if has_torrent else None,
            f"{notice.file}.meta4" if self._has_mirrors(notice.file) else None,
        )

    def _browser_fields(self, request: Request, notice: Notice) -> list[Header]:
        target = request.path
        fields: list[Header] = []
        if notice.visitor is not None:
            fields.append(visitor_cookie(request, notice.visitor))
        if notice.token is None:
            return [*fields, (b"Refresh", b"%d; url=%b" % (notice.retry_after_s, target))]
        # The cookie is for visitors who open the link again, the query for those without cookies.
        token = notice.token.encode("ascii")
        url = b"%b?%b=%b" % (target, TICKET_FIELD, token)
        return [
            *fields,
            (b"Refresh", b"%d; url=%b" % (notice.retry_after_s, url)),
            ticket_cookie(request, token, 7 * 86_400),
        ]


#: "You are next" stands beside no longer wait than this, seconds.
SOON_S = 90.0


def paragraphs_of(text: str) -> list[list[dict[str, str]]]:
    """An operator's plain text as paragraphs (parted by empty lines) of text and links."""
    url_shape = r"https?://[^\s<>\"']+[^\s<>\"'.,;:!?)\]]"
    # `[words](URL)`, or the URL alone.
    link_shape = rf"\[(?P<words>[^\]\n]+)\]\((?P<target>{url_shape})\)|(?P<url>{url_shape})"
    found = []
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        if not block.strip():
            continue
        parts: list[dict[str, str]] = []
        end = 0
        for link in re.finditer(link_shape, block):
            url = link["target"] or link["url"]
            parts += [
                {"text": block[end : link.start()]},
                {"text": link["words"] or url, "url": url},
            ]
            end = link.end()
        found.append([*parts, {"text": block[end:]}])
    return found


def _hosts(sources: Sequence[Source]) -> list[dict[str, str]]:
    return [{"url": one.url, "host": urlsplit(one.url).hostname or one.url} for one in sources]


# Places and times, again and again.
@functools.lru_cache(8192)
def _escaped(text: str) -> bytes:
    return escaped(text)


@functools.cache
def _words(language: str) -> str:
    """What the page's script writes by itself."""
    phrases = Phrases(language)
    keys = (
        *("title_next", "title_place", "title_started", "title_done", "check_done"),
        *("notify_on", "expected_value", "latest", "next_visit"),
    )
    return json.dumps({key: phrases.plain(key) for key in keys})


def _checks(url: str, signatures: Sequence[str]) -> list[str]:
    """The commands of a shell that check who signed a file that was downloaded from a URL."""
    name = unquote(url.rpartition("/")[2])
    file, found = shlex.quote(name), []
    for ending in signatures:
        # curl -O would name it by the quoted name.
        signature = shlex.quote(name + ending)
        found.append(f"curl -fo {signature} {shlex.quote(url + ending)}")
        if ending in (".asc", ".sig"):
            found.append(f"gpg --verify {signature} {file}")
        elif ending == ".minisig":
            found.append(f"minisign -V -p minisign.pub -x {signature} -m {file}")
        else:
            found.append(
                f"cosign verify-blob --bundle {signature} --certificate-identity WHO "
                f"--certificate-oidc-issuer WHERE {file}"
            )
    return found


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
        done = wait.estimate.done
        if done is not None:
            fields.append((b"Tidegate-Done", b"%d" % math.ceil(done.expected_s)))
            fields.append((b"Tidegate-Done-P90", b"%d" % math.ceil(done.p90_s)))
    return fields


def ticket_cookie(request: Request, token: bytes, age_s: int) -> Header:
    """The field that keeps a ticket for this path in a browser; age 0 makes it forget."""
    return set_cookie(TICKET_FIELD, token, path=request.path, age_s=age_s, secure=request.is_tls)


def clear_cookie(request: Request) -> Header:
    """The field that makes a browser forget the ticket for this path."""
    return ticket_cookie(request, b"", 0)


def sentence(notice: Notice) -> str:
    """The state of a wait in one English sentence."""
    wait = notice.wait
    if notice.opens_s is not None and not notice.entry:
        return (
            f"This file opens in {format_duration(notice.opens_s)}. The draw has as many entries "
            f"of your network as it takes: come back in {notice.retry_after_s} s for a place "
            "behind those who are drawn."
        )
    if notice.opens_s is not None:
        return (
            f"This file opens in {format_duration(notice.opens_s)} and you are registered; the "
            f"order is drawn at random then. Come back in {notice.retry_after_s} s."
        )
    if notice.closed:
        return f"Downloads are paused; come back in {notice.retry_after_s} s."
    if wait.place is None:
        return f"Every slot is taken; come back in {notice.retry_after_s} s."
    when = f" in about {format_duration(wait.estimate.expected_s)}" if wait.estimate else ""
    if wait.estimate is not None and wait.estimate.done is not None:
        when += f" and have the file in about {format_duration(wait.estimate.done.expected_s)}"
    return (
        f"You are number {wait.place} in the queue and start{when}; come back with this ticket in "
        f"{notice.retry_after_s} s."
    )


def times_of(estimate: Estimate | None, done: Estimate | None) -> dict[str, float]:
    """The times of a start and of an end as documents tell them: bounds are rounded up."""
    found = {}
    for name, told in (("wait", estimate), ("done", done)):
        if told is not None:
            found[f"expected_{name}_s"] = round(told.expected_s, 1)
            found[f"p90_{name}_s"] = math.ceil(told.p90_s * 10) / 10
    return found


def document_of(notice: Notice) -> bytes:
    """The problem document of a waiting answer (PROTOCOL.md, "Waiting")."""
    wait = notice.wait
    members = {
        "place": wait.place,
        **times_of(wait.estimate, wait.estimate.done if wait.estimate else None),
        "retry_after_s": notice.retry_after_s,
        "ticket": notice.token,
        "queue_status": notice.status,
        "opens_in_s": None if notice.opens_s is None else round(notice.opens_s, 1),
        "entry": notice.entry or None,
    }
    present = {name: value for name, value in members.items() if value is not None}
    return problems.document(
        503, "closed" if notice.closed else "waiting", sentence(notice), **present
    )


def _state(notice: Notice) -> str:
    """One of `own_pages.STATES`."""
    if notice.opens_s is not None:
        return "pre-queue"
    if notice.closed:
        return "closed"
    if notice.wait.place is None:
        return "busy"
    return "ready" if notice.wait.ready else "waiting"


def _title(notice: Notice, phrases: Phrases) -> str:
    wait = notice.wait
    if notice.opens_s is not None:
        return phrases("title_prequeue", time=phrases.time(notice.opens_s))
    if notice.closed:
        return phrases("title_closed")
    if wait.place is None:
        return phrases("title_busy")
    soon = wait.estimate is None or wait.estimate.expected_s <= SOON_S
    if soon and wait.place == 1:
        return phrases("title_next")
    return phrases("title_place", place=phrases.number(wait.place))


def _told(notice: Notice, phrases: Phrases) -> dict[str, str | None]:
    """The texts of a page that differ from visit to visit."""
    estimate = notice.wait.estimate
    done = estimate.done if estimate else None
    return {
        "title": _title(notice, phrases),
        "waited": phrases.time(notice.waited_s),
        "next_visit": phrases.time(notice.retry_after_s),
        "expected": phrases.time(estimate.expected_s) if estimate else None,
        "latest": phrases.time(bound_of(estimate.p90_s)) if estimate else None,
        "has": phrases.time(done.expected_s) if done else None,
        "has_latest": phrases.time(bound_of(done.p90_s)) if done else None,
    }


def _lead_key(notice: Notice) -> str:
    if notice.opens_s is not None:
        return "lead_prequeue" if notice.entry else "lead_undrawn"
    if notice.closed and notice.token is not None:
        return "lead_closed"
    return "lead" if notice.wait.place is not None else "lead_busy"
