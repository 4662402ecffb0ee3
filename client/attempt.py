"""The way to a connection of `client.loop`: over a name's addresses, or started early."""

from __future__ import annotations

import itertools
import selectors
import socket
from typing import TYPE_CHECKING, Any

from client import early
from client.early_line import Early
from client.net import Endpoint, Receiver
from client.stream import Stream

if TYPE_CHECKING:
    from client.loop import Loop

_STAGGER_S = 0.25
#: A connection that was started early has a quarter of a second to stand; one looks so often.
_HEAD_START_S = 0.25
_GLANCE_S = 0.005


class Attempt:
    """One wish for a connection, over all addresses of a name."""

    def __init__(
        self, loop: Loop, endpoint: Endpoint, receiver: Receiver, timeout_s: float
    ) -> None:
        self._loop = loop
        self._endpoint = endpoint
        self._receiver = receiver
        self._addresses: list[tuple[int, Any]] = []
        self._open: dict[socket.socket, None] = {}
        self._over = False
        self._fault = "no address to connect to"
        self._timers = [loop.call_later(timeout_s, self._too_late)]

    def start(self) -> None:
        host, port = self._endpoint.host, self._endpoint.port
        if self._endpoint.tls_name is None:
            found = early.take(host, port)
            if found is not None:
                self._await(found, self._loop.now() + _HEAD_START_S)
                return
        self._begin()

    def _await(self, found: Early, until_s: float) -> None:
        """Take over what was started early, if it comes to anything in time."""
        if self._over:
            found.abandoned = True
            return
        if not found.settled and self._loop.now() < until_s:
            self._loop.call_later(_GLANCE_S, lambda: self._await(found, until_s))
            return
        sock = found.take() if found.settled else None
        if sock is None:
            found.abandoned = True
            self._begin()
            return
        ready = socket.socket(fileno=sock.detach())
        self._timers.append(self._loop.call_later(0.0, lambda: self._adopt(found, ready)))

    def _begin(self) -> None:
        host, port = self._endpoint.host, self._endpoint.port
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                socket.inet_pton(family, host)
            except OSError:
                continue
            self._addresses = [(family, (host, port))]
            self._timers.append(self._loop.call_later(0.0, self._next))
            return
        self._loop.in_thread(
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), self._resolved
        )

    def _adopt(self, found: Early, sock: socket.socket) -> None:
        self.cancel()
        transport = Stream(self._loop, sock, self._receiver, waiting=True)
        transport.connect_s = found.rtt_s
        transport.asked_spans = tuple(found.spans)
        if found.presented:
            transport.asked_before_s = max(0.0, self._loop.now() - found.asked_s)
        transport.heard_s = found.heard_s or None
        transport.presented = found.presented or None
        self._receiver.connected(transport)
        data = memoryview(found.buffer)[: found.length]
        # Later, so that all connections that were started early have their takers first.
        self._loop.call_later(0.0, lambda: transport.replay(data))

    def cancel(self) -> None:
        self._over = True
        for timer in self._timers:
            timer.cancel()
        for sock in self._open:
            self._loop.watch(sock, 0, self._ignore)
            sock.close()
        self._open.clear()

    @staticmethod
    def _ignore(events: int) -> None:
        """Nobody listens any more."""

    def _fail(self, text: str, permanent: bool = False) -> None:
        if not self._over:
            self.cancel()
            self._receiver.lost(text, permanent)

    def _too_late(self) -> None:
        self._fail(f"{self._endpoint.host} does not answer")

    def _resolved(self, result: Any) -> None:
        if self._over:
            return
        if isinstance(result, socket.gaierror):
            permanent = result.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None))
            self._fail(f"no address is known for {self._endpoint.host}", permanent)
            return
        if isinstance(result, Exception):
            self._fail(f"{self._endpoint.host} cannot be looked up: {result}", True)
            return
        by_family: dict[int, list[tuple[int, Any]]] = {}
        for family, _, _, _, address in result:
            by_family.setdefault(family, []).append((family, address))
        mixed = itertools.zip_longest(*by_family.values())
        self._addresses = [one for turn in mixed for one in turn if one is not None]
        self._next()

    def _next(self) -> None:
        if self._over:
            return
        if not self._addresses:
            if not self._open:
                self._fail(self._fault)
            return
        family, address = self._addresses.pop(0)
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
        except BlockingIOError:
            pass
        except OSError as error:
            sock.close()
            self._fault = self._words(error)
            self._next()
            return
        self._open[sock] = None
        self._loop.watch(sock, selectors.EVENT_WRITE, lambda events: self._ready(sock))
        if self._addresses:
            self._timers.append(self._loop.call_later(_STAGGER_S, self._next))

    def _ready(self, sock: socket.socket) -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._loop.watch(sock, 0, self._ignore)
        del self._open[sock]
        if code != 0:
            import os

            sock.close()
            self._fault = self._words(OSError(code, os.strerror(code)))
            self._next()
            return
        self.cancel()
        transport = Stream(self._loop, sock, self._receiver)
        self._receiver.connected(transport)
        if self._endpoint.tls_name is not None:
            transport.start_tls(self._endpoint.tls_name)

    def _words(self, error: OSError) -> str:
        words = (error.strerror or str(error)).lower()
        return f"{self._endpoint.host}:{self._endpoint.port}: {words}"
