"""Lends open connections of finished downloads to the next ones, so small files need no setup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .network import Cancellable, Endpoint, Network, Readable, Receiver, Transport

_MOST_IDLE = 8


class PooledNetwork:
    """A `Network` that keeps connections given back to it (see `Transport.release`)."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._idle: dict[Endpoint, list[_Shared]] = {}

    def now(self) -> float:
        return self._network.now()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Cancellable:
        return self._network.call_later(delay_s, call)

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._network.in_thread(work, then)

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        self._network.watch_reading(sock, call)

    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Cancellable:
        idle = self._idle.get(endpoint)
        if idle:
            shared = idle.pop()
            return self._network.call_later(0.0, lambda: shared.lend(receiver))
        shared = _Shared(self, endpoint, receiver)
        return self._network.connect(endpoint, shared, timeout_s)

    def take_back(self, endpoint: Endpoint, shared: _Shared) -> bool:
        """Keep a connection; False when there are enough."""
        idle = self._idle.setdefault(endpoint, [])
        if len(idle) >= _MOST_IDLE:
            return False
        idle.append(shared)
        return True

    def gone(self, endpoint: Endpoint, shared: _Shared) -> None:
        """An idle connection was closed by its server."""
        idle = self._idle.get(endpoint, [])
        if shared in idle:
            idle.remove(shared)

    def close(self) -> None:
        """Close what is idle."""
        for idle in self._idle.values():
            for shared in list(idle):
                shared.abort()
        self._idle.clear()


class _Shared:
    """A connection that outlives its borrower: Receiver below, Transport above."""

    def __init__(self, pool: PooledNetwork, endpoint: Endpoint, receiver: Receiver) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self._receiver: Receiver | None = receiver
        self._transport: Transport | None = None
        self._secured = False

    def lend(self, receiver: Receiver) -> None:
        """A new borrower."""
        self._receiver = receiver
        if self._transport is None:
            receiver.lost("the connection was closed", False)
            return
        receiver.connected(self)
        if self._secured:
            receiver.secured()

    # -- Receiver ------------------------------------------------------------------------------

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        if self._receiver is not None:
            self._receiver.connected(self)

    def secured(self) -> None:
        self._secured = True
        if self._receiver is not None:
            self._receiver.secured()

    def received(self, data: memoryview) -> None:
        if self._receiver is None:
            # Bytes without a request: the connection is no longer in step.
            self._pool.gone(self._endpoint, self)
            self.abort()
            return
        self._receiver.received(data)

    def lost(self, text: str, permanent: bool) -> None:
        self._transport = None
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            self._pool.gone(self._endpoint, self)
        else:
            receiver.lost(text, permanent)

    # -- Transport -----------------------------------------------------------------------------

    @property
    def rtt_s(self) -> float | None:
        return self._transport.rtt_s if self._transport is not None else None

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        self._receiver = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def release(self) -> None:
        """The borrower is done and the connection is in step: keep it for the next."""
        self._receiver = None
        if self._transport is None or not self._pool.take_back(self._endpoint, self):
            self.abort()

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause()

    def expect(self, count: int) -> None:
        if self._transport is not None:
            self._transport.expect(count)

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume()

    def start_tls(self, name: str) -> None:
        if self._transport is not None:
            self._transport.start_tls(name)
