"""A network for one owner that hears of the faults in its own callbacks.

An event loop logs an exception in a timer or a socket's callback. Here it ends the download that
lacks a step now, and no other one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .network import Cancellable, Endpoint, Network, Readable, Receiver, Transport

#: Hears of a fault; may raise it again if it is not its own.
OnFault = Callable[[Exception], None]


class GuardedNetwork:
    """A `Network` whose every call to its owner is guarded: `on_fault` gets what it raised."""

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
        """Call it, guarded."""
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
