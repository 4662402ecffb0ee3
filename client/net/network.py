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
    `proxy_in`: the variable of the environment that makes this place the proxy.
    """

    host: str
    port: int
    tls_name: str | None = None
    led_by: str = ""
    proxy_in: str = ""


class Transport(Protocol):
    """An open connection; `rtt_s` is its round trip where the system tells."""

    @property
    def rtt_s(self) -> float | None: ...

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None:
        """Close at once; `lost` is not called for it."""

    def release(self) -> None:
        """The owner needs it no more and no answer is outstanding: close it, or lend it on."""

    def pause(self) -> None:
        """Stop reading (the peer will notice in time)."""

    def resume(self) -> None: ...
    def expect(self, count: int) -> None:
        """`count` more bytes belong to the answer that is read: they may gather for a moment. Later
        bytes are passed on at once."""

    def start_tls(self, name: str) -> None:
        """Go on inside TLS; `Receiver.secured` follows, or `lost`."""


class Receiver(Protocol):
    """What the owner of a connection is told."""

    def connected(self, transport: Transport) -> None: ...
    def secured(self) -> None: ...
    def received(self, data: memoryview) -> None:
        """Bytes, valid during this call only."""

    def lost(self, text: str, permanent: bool) -> None:
        """The connection is gone, or never came to be. `permanent`: trying again is pointless."""


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

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Cancellable: ...
    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Cancellable: ...

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run blocking `work` elsewhere; `then` gets its result, or its exception, here."""

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        """Call whenever the socket (which stays the caller's) can be read; None: no more."""


#: Hears of a fault; may raise it again if it is not its own.
OnFault = Callable[[Exception], None]


class GuardedNetwork:
    """A `Network` whose every call to its owner is guarded: `on_fault` gets what it raised.

    An event loop logs an exception in a timer or a socket's callback. Here it ends the download
    that lacks a step now, and no other one.
    """

    def __init__(self, network: Network, on_fault: OnFault) -> None:
        self._network = network
        self._on_fault = on_fault

    def now(self) -> float:
        return self._network.now()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Cancellable:
        return self._network.call_later(delay_s, lambda: self.run(call))

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._network.in_thread(work, lambda result: self.run(lambda: then(result)))

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        guarded = None if call is None else lambda: self.run(call)
        self._network.watch_reading(sock, guarded)

    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Cancellable:
        return self._network.connect(endpoint, _Guarded(self, receiver), timeout_s)

    def run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as fault:  # noqa: BLE001 - it is the owner's to tell
            self._on_fault(fault)


class _Guarded:
    """A receiver behind the guard."""

    __slots__ = ("_guard", "_receiver")

    def __init__(self, guard: GuardedNetwork, receiver: Receiver) -> None:
        self._guard = guard
        self._receiver = receiver

    def connected(self, transport: Transport) -> None:
        self._guard.run(lambda: self._receiver.connected(transport))

    def secured(self) -> None:
        self._guard.run(self._receiver.secured)

    def received(self, data: memoryview) -> None:
        self._guard.run(lambda: self._receiver.received(data))

    def lost(self, text: str, permanent: bool) -> None:
        self._guard.run(lambda: self._receiver.lost(text, permanent))
