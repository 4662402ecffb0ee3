"""The seam between what the client decides and the sockets it uses.

`client.net.sockets` implements it on asyncio; tests do on a clock of their own. All calls happen on
one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect; `tls_name` asks for TLS with a certificate for that name.

    `led_by`: the host that led there, unless the user named the place. See `near.may_lead`.
    """

    host: str
    port: int
    tls_name: str | None = None
    led_by: str = ""


class Transport(Protocol):
    """An open connection; `rtt_s` is its round trip where the system tells."""

    @property
    def rtt_s(self) -> float | None: ...

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None:
        """Close at once; `lost` is not called for it."""
        ...

    def release(self) -> None:
        """The owner needs it no more and no answer is outstanding: close it, or lend it on."""
        ...

    def pause(self) -> None:
        """Stop reading (the peer will notice in time)."""
        ...

    def resume(self) -> None: ...
    def expect(self, count: int) -> None:
        """`count` more bytes belong to the answer that is read: they may gather for a moment. Later
        bytes are passed on at once."""
        ...

    def start_tls(self, name: str) -> None:
        """Go on inside TLS; `Receiver.secured` follows, or `lost`."""
        ...


class Receiver(Protocol):
    """What the owner of a connection is told."""

    def connected(self, transport: Transport) -> None: ...
    def secured(self) -> None: ...
    def received(self, data: memoryview) -> None:
        """Bytes, valid during this call only."""
        ...

    def lost(self, text: str, permanent: bool) -> None:
        """The connection is gone, or never came to be. `permanent`: trying again is pointless."""
        ...


class Cancellable(Protocol):
    """A timer or a connection attempt."""

    def cancel(self) -> object: ...


class Readable(Protocol):
    """A socket of the caller's own, for datagrams."""

    def fileno(self) -> int: ...


class Network(Protocol):
    """Time, timers and connections."""

    def now(self) -> float:
        """Seconds on a clock that never runs backwards."""
        ...

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Cancellable: ...
    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Cancellable: ...

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run blocking `work` elsewhere; `then` gets its result, or its exception, here."""
        ...

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        """Call whenever the socket (which stays the caller's) can be read; None: no more."""
        ...
