"""The seam between what is sent (site, senders) and who may send now (admission).

The site plans an answer completely, then asks an `Admission`. The admission starts it, now or
later, or answers the request itself; the site never learns why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.http.answers import Header
from server.http.request import Request


@dataclass(frozen=True, slots=True)
class FileKey:
    """What tells one content of a file from another without reading it.

    The inode's change time stands beside its modification time, because a build may restore the
    latter (and the size) over other bytes; nobody can restore the former.
    """

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


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
    """

    status: int
    headers: tuple[Header, ...]
    ranges: tuple[tuple[int, int], ...]
    body_bytes: int


class Transfer(Protocol):
    """One response body on its way to a client."""

    sent_bytes: int
    total_bytes: int
    #: True while the peer's socket takes nothing more: the client is the limit right now, not us.
    blocked: bool

    def pause(self) -> None:
        """Send nothing until `resume`; keeps the connection. Harmless when paused or over."""
        ...

    def resume(self) -> None:
        """Go on after `pause`. Harmless when running or over."""
        ...

    def abort(self, reason: str) -> None:
        """Cut the connection; `reason` goes to the log. Harmless when over."""
        ...

    def delivered_bytes(self) -> int:
        """How many bytes the peer has acknowledged (never more than `sent_bytes`)."""
        ...


class TransferListener(Protocol):
    """Whoever started a transfer hears of its end."""

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        """Called exactly once; `complete` means that every byte was handed to the transport."""
        ...


class Start(Protocol):
    """Begins to send a planned body."""

    def __call__(self, listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
        """Send the header (with `headers` added) and then the body; tell `listener` of the end.

        Call at most once, and only while the request is alive. `transfer_done` may already have
        been called when this returns.
        """
        ...


class Admission(Protocol):
    """Decides when a planned body may be sent."""

    def admit_small(self, request: Request, rep: Representation) -> bool:
        """Whether a body that leaves within this very reactor turn may go now; makes no lease."""
        ...

    def enter(self, request: Request, rep: Representation, plan: BodyPlan, start: Start) -> None:
        """Take charge of a request: call `start` now or later, or answer the request yourself."""
        ...


class _Silent:
    """A listener that does not care."""

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        """Nothing to do."""


SILENT: TransferListener = _Silent()


class AdmitAll:
    """Admission without admission: everybody starts at once. For tests and benchmarks."""

    def __init__(self, started: Callable[[Transfer], None] | None = None) -> None:
        self._started = started

    def admit_small(self, request: Request, rep: Representation) -> bool:
        """Always."""
        return True

    def enter(self, request: Request, rep: Representation, plan: BodyPlan, start: Start) -> None:
        """Start at once."""
        transfer = start(SILENT)
        if self._started is not None:
            self._started(transfer)
