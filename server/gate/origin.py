"""Files that lie elsewhere: an origin is asked by HEAD for their sizes and tags.

What it said is remembered for a while, within a bound, and then asked again. A redirect of the
origin is never followed: it could name any address that this machine reaches.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import math
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...protocol.bounded_table import BoundedTable
from ...protocol.errors import ProtocolError
from ...protocol.headers import parse_etag
from ..files.paths import url_of
from ..files.transfer import FileKey, Representation
from ..http.clock import Clock, Waiters
from .check import connection_to
from .reports import LEASE_QUERY
from .signing import Signer, url_below

_log = Logger()


class OriginTuning(NamedTuple):
    """How long answers of the origin count, and how many questions wait."""

    #: How long an answer counts, and one that says that nothing is there.
    fresh_s: float = 30.0
    missing_s: float = 5.0
    #: When a body starts, an older answer is asked for again: its client may have waited meanwhile.
    start_fresh_s: float = 2.0
    #: While the origin fails, what it said last counts this long (RFC 5861, `stale-if-error`).
    stale_s: float = 3600.0
    #: An origin that takes longer is slow; clients of unknown files get 503.
    answer_s: float = 10.0
    threads: int = 8
    #: Questions that may wait for a thread: 20 s of them where each takes 0.1 s.
    most_waiting: int = 1600
    most_known: int = 20_000


TUNING = OriginTuning()
#: How a tag ends that stands for none or a weak one of the origin, which does not know it.
_OWN_TAG = '-w"'


class OriginFault(ProtocolError):
    """The origin did not say whether the file is there."""

    status = 503
    code = "origin-away"


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """What the origin said at `asked_s`; it counts from `held_s` on. No `rep`: nothing is there."""

    rep: Representation | None
    asked_s: float
    held_s: float


def ask(url: str, path: bytes) -> Representation | None:
    """What is at this URL, asked now; blocks. None: nothing. Raises OriginFault."""
    parts = urlsplit(url)
    with contextlib.closing(connection_to(parts, TUNING.answer_s)) as connection:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        try:
            fields = {"Accept-Encoding": "identity", "User-Agent": "Tidegate"}
            connection.request("HEAD", target, headers=fields)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as fault:
            raise OriginFault(f"it cannot be asked: {fault or type(fault).__name__}") from fault
    # 403 is what S3 says of a missing file to those who may not list the bucket.
    if answer.status in (403, 404, 410):
        return None
    if answer.status in range(300, 400):
        raise OriginFault("it redirects, which is not followed: name the place itself")
    if answer.status != 200:
        raise OriginFault(f"it answers {answer.status}")
    return _described(answer.headers, path)


def _described(headers: http.client.HTTPMessage, path: bytes) -> Representation:
    length = headers["Content-Length"] or ""
    if not length.isdecimal() or len(length) > 18 or "Content-Encoding" in headers:
        raise OriginFault("it does not tell how long the file is")
    size_bytes, mtime_s = int(length), 0.0
    with contextlib.suppress(ValueError, TypeError):
        mtime_s = parsedate_to_datetime(headers["Last-Modified"]).timestamp()
    tag = parse_etag(headers["ETag"] or "")
    etag = headers["ETag"]
    if tag is None or tag.weak:
        etag = f'"{int(mtime_s):x}-{size_bytes:x}{_OWN_TAG}'
    # Whatever tells two contents apart stands in the key.
    mark = int.from_bytes(hashlib.blake2b(etag.encode("latin-1"), digest_size=7).digest(), "big")
    key = FileKey(mark, size_bytes, int(mtime_s * 1e9), 0)
    return Representation(path, url_of(path), size_bytes, mtime_s, etag.strip(), key)


class OriginStore:
    """Asks an origin by `heads` (`ask` on a thread), at most once at a time for each file.

    `sign` makes the URLs, `now` is the time that these hold for. Clients' URLs have the lease where
    the origin's log `is_posted`.
    """

    def __init__(
        self,
        clock: Clock,
        sign: Signer,
        now: Callable[[], float],
        heads: Callable[[str, bytes], Deferred[Representation | None]],
        *,
        is_posted: bool = False,
    ) -> None:
        self._clock = clock
        self._sign = sign
        self._now = now
        self._heads = heads
        self._is_posted = is_posted
        self._known: BoundedTable[bytes, OriginAnswer] = BoundedTable(TUNING.most_known)
        self._asking: dict[bytes, Waiters[Representation | None]] = {}
        self._told = False

    def url_of(self, rep: Representation, lease: str) -> str:
        """Where a client gets this file now; `lease` is empty where a mover fetches it."""
        mark = f"{LEASE_QUERY}={lease}" if lease and self._is_posted else ""
        return self._sign("GET", rep.path, self._now(), mark)

    def place_of(self, rep: Representation) -> str:
        """By which path and query a mover asks for it, below the origin, as they were signed."""
        if rep.path not in self._known:
            return rep.url_path
        return url_below("/", rep.path, urlsplit(self.url_of(rep, "")).query)

    def tag_of(self, rep: Representation) -> str:
        """The tag by which the origin knows this content; empty if it has none."""
        known = rep.path in self._known and not rep.etag.endswith(_OWN_TAG)
        return rep.etag if known else ""

    def is_current(self, rep: Representation) -> bool:
        """Whether the origin has this content, as it said when bodies may start by it.

        After an older answer the next `look` asks again.
        """
        known = self._known.get(rep.path)
        if known is None or known.rep != rep or not self._is_fresh(known):
            return False
        if self._clock.seconds() - known.held_s < TUNING.start_fresh_s:
            return True
        self._known[rep.path] = OriginAnswer(rep, known.asked_s, -math.inf)
        return False

    def look_now(self, path: bytes) -> None:
        """Ask before anything else is done; for the start of the server. Blocks."""
        with contextlib.suppress(OriginFault):
            self._keep(path, ask(self._sign("HEAD", path, self._now()), path))

    def look(self, path: bytes) -> Deferred[Representation | None]:
        """What the origin has at this path: remembered, or asked. Fails with OriginFault."""
        known = self._known.use(path)
        if known is not None and self._is_fresh(known):
            return succeed(known.rep)
        if path in self._asking:
            return self._asking[path].wait()
        if len(self._asking) >= TUNING.most_waiting:
            detail = "The server asks its origin for too many files; come back soon."
            return fail(OriginFault(detail))
        waiters = self._asking[path] = Waiters()
        result = waiters.wait()
        self._heads(self._sign("HEAD", path, self._now()), path).addCallbacks(
            lambda rep: self._answered(path, rep), lambda fault: self._failed(path, fault)
        )
        return result

    def _is_fresh(self, known: OriginAnswer) -> bool:
        most_s = TUNING.missing_s if known.rep is None else TUNING.fresh_s
        return self._clock.seconds() - known.held_s < most_s

    def _keep(self, path: bytes, rep: Representation | None) -> None:
        now = self._clock.seconds()
        self._known[path] = OriginAnswer(rep, now, now)

    def _answered(self, path: bytes, rep: Representation | None) -> None:
        self._told = False
        self._keep(path, rep)
        self._asking.pop(path).tell(rep)

    def _failed(self, path: bytes, failure: Failure) -> None:
        if not self._told:
            self._told = True
            _log.warn("The origin has a fault: {fault}.", fault=failure.getErrorMessage())
        now, known = self._clock.seconds(), self._known.get(path)
        if known is not None and known.rep is not None and now - known.asked_s < TUNING.stale_s:
            self._known[path] = OriginAnswer(known.rep, known.asked_s, now)
            self._asking.pop(path).tell(known.rep)
        else:
            detail = "The server cannot ask its origin for this file now; come back soon."
            self._asking.pop(path).fail(OriginFault(detail))
