"""The seam between what is sent (site, senders) and who may send now (admission).

The site plans an answer completely, then asks an `Admission`. That starts it, now or
later, or answers the request itself; the site never learns why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..http.answers import Header
from ..http.request import Request
from .pacer import Share

#: Whether the file of this URL path and size (bytes) has a torrent.
HasTorrent = Callable[[str, int], bool]


def no_torrents(url_path: str, size_bytes: int) -> bool:
    """There are none: `HasTorrent` of most servers."""
    return False


class FileKey(NamedTuple):
    """What tells one content of a file from another without reading it.

    The inode's change time stands beside its modification time. A build may restore the
    modification time and the size over other bytes, but not the change time.
    """

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @property
    def text(self) -> bytes:
        """A name for it."""
        return b"%x.%x.%x.%x" % self


@dataclass(frozen=True, slots=True)
class Representation:
    """One file as clients see it, at one moment of its life.

    `path` is relative to the served directory, as the file system spells it; `url_path` is its
    percent-encoded form and starts with a slash. `etag` is strong, quotes included.
    """

    path: bytes
    url_path: str
    size_bytes: int
    mtime_s: float
    etag: str
    key: FileKey


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """An answer with a body, decided but not sent.

    `ranges` are half-open byte ranges of the representation, in the order of sending (one that
    spans it for a whole answer); `body_bytes` is the length of the body, multipart lines included.
    `held_status` is that of header lines which a waiting client gets before; 0: `status`.
    """

    status: int
    headers: tuple[Header, ...]
    ranges: tuple[tuple[int, int], ...]
    body_bytes: int
    held_status: int = 0


class TcpState(NamedTuple):
    """What the kernel says of a connection; as here where it says nothing."""

    #: For how long bytes have waited because the peer's window was shut, seconds in all.
    shut_s: float = 0.0
    #: What has arrived behind something that was lost, by selective acknowledgements. Whole packets
    #: are told, so this may be too much by a part of one.
    beyond_gaps_bytes: int = 0
    #: Whether packets were lost that have not arrived again.
    has_lost: bool = False
    #: Whether neither the peer nor the line limits it, but TCP: its window is used up, and doubles
    #: each round trip.
    in_slow_start: bool = False
    #: The shortest round trip of the last minutes, seconds; 0: none was measured.
    round_trip_s: float = 0.0


class Transfer(Protocol):
    """One response body on its way to a client. A body of which little is known inherits this."""

    __slots__ = ()
    sent_bytes: int
    total_bytes: int
    #: True while the peer's socket takes nothing more: the client is the limit right now, not us.
    blocked: bool

    def pause(self) -> None:
        """Send only what keeps the client from giving up, until `resume`. Harmless when over."""
        return None

    def resume(self) -> None:
        """Go on after `pause`. Harmless when running or over."""
        return None

    def abort(self, reason: str) -> None:
        """Cut the connection; `reason` goes to the log. Harmless when over."""

    def delivered_bytes(self) -> int:
        """How many bytes the peer has acknowledged (never more than `sent_bytes`)."""
        return self.sent_bytes

    def flying_bytes(self) -> int:
        """How many bytes were sent and not acknowledged, as far as that can be known.

        Once the transfer is over: as many as there were at its end.
        """
        return 0

    def missing_bytes(self) -> int:
        """How many bytes of a body that is over its peer has not acknowledged.

        What was under way as its connection broke counts for ever. 0 where that cannot be known.
        """
        return 0

    def tcp_state(self) -> TcpState:
        """What the kernel says of its connection while it runs."""
        return TcpState()

    def limit_unsent(self, most_bytes: int) -> None:
        """Let no more lie unsent in the kernel. Harmless when over."""
        return None

    def share_changed(self) -> None:
        """The share that it was started with runs in the background now, or in front again."""
        return None


class TransferListener(Protocol):
    """Hears of the end of a transfer that it started.

    `share` is what its download has of the link; None for a transfer that is one by itself.
    """

    share: Share | None

    def may_end(self, go_on: Callable[[], None]) -> bool:
        """Asked before the last bytes are handed over: that this ticket is used has to be safe.

        False: keep them, `go_on` is called within a second. It may be asked again meanwhile.
        """

    def moves(self) -> None:
        """Its peer takes bytes again after it took none."""

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        """Called exactly once; `complete` means that every byte was handed to the transport."""


class StartBody(Protocol):
    """Begins to send a planned body."""

    def __call__(self, listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
        """Send the header (with `headers` added) and then the body; tell `listener` of the end.

        Call at most once, and only while the request is alive. `transfer_done` may already have
        been called when this returns.
        """


class Admission(Protocol):
    """Decides when a planned body may be sent."""

    def admit_small(self, request: Request, rep: Representation, body_bytes: int) -> bool:
        """Whether a body that leaves in one write may go now: the whole file, or a part of it.

        Makes no lease, so it says no whenever there is more to judge: call `enter` then.
        """

    def is_plain(self, url_path: str) -> bool:
        """Whether nothing but slots restricts the file of this name.

        No rule does now: it needs no pass, and it is not hidden.
        """

    def admit_again(self, rep: Representation, body_bytes: int) -> bool:
        """`admit_small` for a request like one that was admitted, of a file that `is_plain`."""

    def has_lease(self, rep: Representation, address: str, agent: bytes | None) -> bool:
        """Whether a client, known by this program at this address, may have a lease of the file.

        That counts its parts then, so they go by `enter`. `agent` of None: it may be any client.
        """

    def count_again(self, rep: Representation, body_bytes: int, times: int) -> None:
        """Count bytes and answers of a file that were sent after `admit_again`."""

    def enter(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody
    ) -> None:
        """Take charge of a request: call `start` now or later, or answer the request yourself."""


class Visibility(Protocol):
    """Says who may learn of which path; URL paths are percent-encoded."""

    def hidden(self, url_path: str) -> bool:
        """Whether it is to look as if nothing were there (a release before its hour)."""

    def secret(self, url_path: str) -> bool:
        """Whether what describes many files at once leaves this one out: it needs a pass."""

    def opens_in_s(self, url_path: str) -> float | None:
        """In how many seconds something hidden opens that one may register for; None: it is not."""

    def turned_away(self, request: Request, url_path: str) -> bool:
        """Answer a request that may learn nothing about this path; False: it may."""

    def register(self, request: Request, rep: Representation) -> bool:
        """Answer a request for a hidden file that one may register for; False: there is none."""


def kept_from_all(look: Visibility, place: str | None) -> bool:
    """Whether what lists many files leaves out what was found at this place.

    A link may be moved between a look at the rules and the open, so what was opened is judged by
    where it lies, too; None: under the name that was judged already.
    """
    return place is not None and (look.hidden(place) or look.secret(place))


def kept_there(look: Visibility, url_path: str, place: str | None) -> bool:
    """The same of what was asked for by its name, which may be shown to those with a pass."""
    if place is None:
        return False
    return look.hidden(place) or (look.secret(place) and not look.secret(url_path))
