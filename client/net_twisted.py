"""The client's network on a running Twisted reactor, for programs that have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import defer, protocol, ssl, threads
from twisted.internet import error as errors
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from client.net import Cancellable, Endpoint, Readable, Receiver


class _Timer:
    def __init__(self, call: Any) -> None:
        self._call = call

    def cancel(self) -> None:
        if self._call.active():
            self._call.cancel()


class TwistedNetwork:
    """See `client.net.Network`."""

    def __init__(self, reactor: Any = None) -> None:
        if reactor is None:
            from twisted.internet import reactor
        self._reactor: Any = reactor
        self._watched: dict[int, _Reader] = {}

    def now(self) -> float:
        return float(self._reactor.seconds())

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Cancellable:
        return _Timer(self._reactor.callLater(max(0.0, delay_s), call))

    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Cancellable:
        return _Attempt(self._reactor, endpoint, receiver, timeout_s)

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def failed(failure: Failure) -> None:
            then(failure.value)

        threads.deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work).addCallbacks(
            then, failed
        )

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        known = self._watched.pop(sock.fileno(), None)
        if known is not None:
            self._reactor.removeReader(known)
        if call is not None:
            reader = self._watched[sock.fileno()] = _Reader(sock, call)
            self._reactor.addReader(reader)


@implementer(IReadDescriptor)
class _Reader:
    """A caller's socket as the reactor wants it."""

    def __init__(self, sock: Readable, call: Callable[[], None]) -> None:
        self._sock = sock
        self._call = call

    def fileno(self) -> int:
        return self._sock.fileno()

    def logPrefix(self) -> str:
        return "datagrams"

    def doRead(self) -> None:
        self._call()

    def connectionLost(self, reason: Any) -> None:
        """The reactor stops; the socket's owner closes it."""


class _Attempt:
    def __init__(
        self, reactor: Any, endpoint: Endpoint, receiver: Receiver, timeout_s: float
    ) -> None:
        self._receiver = receiver
        self._name = f"{endpoint.host}:{endpoint.port}"
        self._cancelled = False
        wanted: Any = HostnameEndpoint(reactor, endpoint.host, endpoint.port, timeout_s)
        factory = protocol.Factory.forProtocol(lambda: _Stream(receiver, endpoint.tls_name))
        self._deferred: defer.Deferred[Any] = wanted.connect(factory)
        self._deferred.addErrback(self._failed)

    def cancel(self) -> None:
        self._cancelled = True
        self._deferred.cancel()

    def _failed(self, failure: Any) -> None:
        if self._cancelled:
            return
        if failure.check(errors.DNSLookupError):
            self._receiver.lost(f"no address is known for {self._name}", True)
        else:
            self._receiver.lost(f"{self._name}: {failure.getErrorMessage()}", False)


class _Stream(protocol.Protocol):
    """A connection as `client.net.Transport`."""

    transport: Any

    def __init__(self, receiver: Receiver, tls_name: str | None) -> None:
        self._receiver: Receiver | None = receiver
        self._tls_name = tls_name
        self._shaking = False
        self.connect_s: float | None = None
        self.asked_before_s = 0.0
        self.heard_s: float | None = None
        self.asked_spans: tuple[tuple[int, int], ...] = ()

    def connectionMade(self) -> None:
        # A TLS layer put in later announces itself here again; the owner is told once.
        if self._shaking or self._receiver is None:
            return
        self.transport.setTcpNoDelay(True)
        self._receiver.connected(self)
        if self._tls_name is not None:
            self.start_tls(self._tls_name)

    def dataReceived(self, data: bytes) -> None:
        if self._receiver is not None:
            self._receiver.received(memoryview(data))

    def connectionLost(self, reason: Any = protocol.connectionDone) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        if reason.check(errors.ConnectionDone):
            receiver.lost("the connection was closed", False)
            return
        text = reason.getErrorMessage()
        untrusted = self._shaking and ("certificate" in text or "Verif" in text)
        receiver.lost(f"its certificate is not trusted: {text}" if untrusted else text, untrusted)

    # -- Transport -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def abort(self) -> None:
        self._receiver = None
        self.transport.abortConnection()

    def release(self) -> None:
        self.abort()

    def pause(self) -> None:
        self.transport.pauseProducing()

    def resume(self) -> None:
        self.transport.resumeProducing()

    def start_tls(self, name: str) -> None:
        self._shaking = True
        self.transport.startTLS(ssl.optionsForClientTLS(name))
        # Writes wait inside the TLS layer until the handshake is done.
        if self._receiver is not None:
            self._receiver.secured()
