"""The network of `client.net.network` on asyncio: connections, TLS, timers, threads.

Bytes are read into one large buffer that is lent to the receiver, so a byte is copied from the
kernel once and to the file once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import aiohappyeyeballs

from .errors import Interrupted, UsageProblem
from .near import may_lead
from .network import Cancellable, Endpoint, Readable, Receiver

if TYPE_CHECKING:
    import ssl


class ThresholdTuning(NamedTuple):
    """How many bytes may gather before the program is woken."""

    #: The bytes of this time at the measured rate are read at once.
    gathered_s: float = 0.008
    #: A rate is measured over this time.
    measured_s: float = 0.04
    #: A socket buffer of the usual first size is then half empty.
    most_bytes: int = 48 << 10
    #: Below two packets there is nothing to gain.
    least_bytes: int = 4 << 10


READING = ThresholdTuning()


class ReadThreshold:
    """How many bytes one socket lets gather before it tells that it can be read (SO_RCVLOWAT).

    A thousand packets a second cost less when ten of them are read at a time. The kernel counts
    them, so no timer is needed, and it tells at once what fills the window. Call `took` for what
    was read, `calm` about each `READING.gathered_s`.
    """

    def __init__(self) -> None:
        self._rate_bytes_s = 0.0
        self._counted_bytes = 0
        self._since_s: float | None = None
        self._read = False

    def took(self, count: int, now: float) -> None:
        """`count` bytes were read at `now` (s)."""
        self._read = True
        if self._since_s is None:
            self._since_s, self._counted_bytes = now, 0
            return
        self._counted_bytes += count
        elapsed_s = now - self._since_s
        if elapsed_s >= READING.measured_s:
            self._rate_bytes_s = self._counted_bytes / elapsed_s
            self._since_s, self._counted_bytes = now, 0

    def calm(self) -> bool:
        """Whether nothing was read since the last call: then what is there is read at once, and
        the rate is measured anew."""
        calm, self._read = not self._read, False
        if calm:
            self._rate_bytes_s, self._since_s = 0.0, None
        return calm

    def threshold_bytes(self, sure_bytes: int) -> int:
        """The least that is worth a call, at most `sure_bytes`, which are certain to come."""
        wish = min(int(self._rate_bytes_s * READING.gathered_s), READING.most_bytes, sure_bytes)
        return wish if wish >= READING.least_bytes else 1


class SocketTuning(NamedTuple):
    """Bounds of one network's sockets."""

    #: The buffer that all reads of a network share.
    buffer_bytes: int = 256 << 10
    #: One address of a name is tried this long (RFC 8305, 5: 100 ms to 2 s).
    next_address_s: float = 0.2
    #: Bytes of a line that became slower may lie unread this long.
    sweep_s: float = 0.012
    #: TLS may hold back one record (RFC 8446, 5.2: 16 KiB and its overhead).
    tls_record_bytes: int = 17 << 10


TUNING = SocketTuning()


#: Where the kernel's smoothed round trip (us) lies in struct tcp_info, on Linux.
_TCP_INFO_RTT = 68

Value = TypeVar("Value")


class TooNear(OSError):
    """Another machine named a place that only this one can reach."""


@dataclass(frozen=True, slots=True)
class CertificateTrust:
    """Which certificates are believed: the platform's, and those of `ca_file` where it is given.

    OpenSSL honours SSL_CERT_FILE and SSL_CERT_DIR. `insecure`: any certificate will do.
    """

    ca_file: str | os.PathLike[str] | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """A TLS context for HTTP/1.1; raises UsageProblem when `ca_file` is of no use."""
        import ssl

        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        if self.ca_file is not None:
            try:
                context.load_verify_locations(self.ca_file)
            except (OSError, ssl.SSLError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                name = os.fspath(self.ca_file)
                raise UsageProblem(
                    f"{name} cannot be used as a file of certificates (PEM): {reason}"
                ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class AsyncioNetwork:
    """See `client.net.network.Network`. Made and used inside a running loop; `close` at the end.

    Connections that are released stay open for the next download of the same endpoint, up to
    `most_idle` of them for each endpoint.
    """

    def __init__(self, trust: CertificateTrust | None = None, most_idle: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self.buffer = memoryview(bytearray(TUNING.buffer_bytes))
        self._trust = trust or CertificateTrust()
        self._tls: ssl.SSLContext | None = None
        self._attempts: set[asyncio.Task[None]] = set()
        self._streams: set[Stream] = set()
        self._gathering: set[Stream] = set()
        self._sweeping = False
        self._most_idle = most_idle
        self._idle: dict[Endpoint, list[Stream]] = {}

    def now(self) -> float:
        return self._loop.time()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Cancellable:
        return self._loop.call_later(delay_s, call)

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        if call is None:
            self._loop.remove_reader(sock.fileno())
        else:
            self._loop.add_reader(sock.fileno(), call)

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """The thread is a daemon: a pipe without a reader does not keep the program alive."""

        def run() -> None:
            result: Any
            try:
                result = work()
            except (OSError, UnicodeError, ValueError) as error:
                result = error
            # The loop may have been closed meanwhile.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(then, result)

        threading.Thread(target=run, daemon=True).start()

    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Cancellable:
        if idle := self._idle.get(endpoint):
            stream = idle.pop()
            return self._loop.call_soon(lambda: stream.lend(receiver))
        task = self._loop.create_task(self._connect(endpoint, receiver, timeout_s))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)
        return task

    async def close(self) -> None:
        """Close every connection, without callbacks."""
        for task in list(self._attempts):
            task.cancel()
        for stream in list(self._streams):
            stream.abort()
        while self._streams or self._attempts:
            await asyncio.sleep(0)

    # -- for the streams -----------------------------------------------------------------------

    def opened(self, stream: Stream) -> None:
        self._streams.add(stream)

    def closed(self, stream: Stream) -> None:
        self._streams.discard(stream)
        self._gathering.discard(stream)
        idle = self._idle.get(stream.endpoint, [])
        if stream in idle:
            idle.remove(stream)

    def keep(self, stream: Stream) -> bool:
        """Keep a released connection for the next download; False when there are enough."""
        idle = self._idle.setdefault(stream.endpoint, [])
        if len(idle) >= self._most_idle:
            return False
        idle.append(stream)
        return True

    def gathers(self, stream: Stream) -> None:
        """Its bytes may lie unread for `TUNING.sweep_s`, or twice that."""
        self._gathering.add(stream)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(TUNING.sweep_s, self._sweep)

    def _sweep(self) -> None:
        self._gathering = {stream for stream in self._gathering if stream.gathers_on()}
        self._sweeping = bool(self._gathering)
        if self._sweeping:
            self._loop.call_later(TUNING.sweep_s, self._sweep)

    def tls(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = self._trust.context()
        return self._tls

    def secure(self, stream: Stream, name: str) -> None:
        task = self._loop.create_task(stream.shake(name))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)

    async def _addresses(self, endpoint: Endpoint) -> list[Any]:
        """What `socket.getaddrinfo` finds; raises OSError (TooNear) or UnicodeError."""
        found = await self._look_up(endpoint.host, endpoint.port)
        if endpoint.led_by:
            leader = [one[-1][0] for one in await self._look_up(endpoint.led_by, endpoint.port)]
            found = [one for one in found if may_lead(leader, one[-1][0])]
            if not found:
                raise TooNear(
                    "another server may not lead to services of this machine or a private network"
                )
        return found

    async def _look_up(self, host: str, port: int) -> list[Any]:
        looked_up: asyncio.Future[Any] = self._loop.create_future()

        def settle(found: Any) -> None:
            # A look-up cannot be stopped; its attempt may have been.
            if not looked_up.done():
                looked_up.set_result(found)

        self.in_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), settle)
        found = await looked_up
        if isinstance(found, Exception):
            raise found
        return list(found)

    async def _connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> None:
        host, port = endpoint.host, endpoint.port
        proxy = f" (the proxy in {endpoint.proxy_in})" if endpoint.proxy_in else ""
        try:
            async with asyncio.timeout(timeout_s):
                sock = await aiohappyeyeballs.start_connection(
                    await self._addresses(endpoint),
                    happy_eyeballs_delay=TUNING.next_address_s,
                    loop=self._loop,
                )
                _, stream = await self._loop.create_connection(
                    lambda: Stream(self, endpoint, receiver), sock=sock
                )
        except TimeoutError:
            receiver.lost(f"{host}{proxy} does not answer", False)
        except socket.gaierror as error:
            permanent = error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None))
            receiver.lost(f"no address is known for {host}{proxy}", permanent)
        except UnicodeError as error:
            receiver.lost(f"{host}{proxy} cannot be looked up: {error}", True)
        except TooNear as error:
            receiver.lost(f"{host}:{port}: {error}", True)
        except OSError as error:
            # Addresses that fail for different reasons leave no number of an error.
            text = _words(error) if error.errno else "no address could be connected to"
            receiver.lost(f"{host}:{port}{proxy}: {text}", False)
        else:
            receiver.connected(stream)
            if endpoint.tls_name is not None:
                stream.start_tls(endpoint.tls_name)


def _words(error: OSError) -> str:
    # asyncio puts sentences of its own into `strerror`.
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


class Stream(asyncio.BufferedProtocol):
    """A connection as `client.net.network.Transport`."""

    def __init__(self, network: AsyncioNetwork, endpoint: Endpoint, receiver: Receiver) -> None:
        self._network = network
        self.endpoint = endpoint
        self._receiver: Receiver | None = receiver
        self._transport: Any = None
        self._threshold = ReadThreshold()
        self._threshold_bytes = 1
        self._secured = False
        self.rtt_s: float | None = None

    # -- asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._network.opened(self)
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError, struct.error):
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RTT + 4)
            self.rtt_s = struct.unpack_from("=I", info, _TCP_INFO_RTT)[0] / 1e6 or None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._network.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._threshold.took(nbytes, self._network.now())
        if self._receiver is not None:
            self._receiver.received(self._network.buffer[:nbytes])
        else:
            # Bytes without a request: the connection is no longer in step.
            self._network.closed(self)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._network.closed(self)
        text = "the connection was closed"
        if isinstance(exc, OSError):
            text = _words(exc)
        elif exc is not None:
            text = str(exc).lower() or "the connection broke"
        self._lose(text, False)

    # -- Transport -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def abort(self) -> None:
        self._receiver = None
        self._transport.abort()

    def release(self) -> None:
        self._receiver = None
        if self._transport.is_closing() or not self._network.keep(self):
            self.abort()

    def lend(self, receiver: Receiver) -> None:
        if self._transport.is_closing():
            receiver.lost("the connection was closed", False)
            return
        self._receiver = receiver
        self.resume()
        receiver.connected(self)
        if self._secured:
            receiver.secured()

    def pause(self) -> None:
        self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def expect(self, count: int) -> None:
        if self._secured:
            count -= TUNING.tls_record_bytes
        self._tell_at(self._threshold.threshold_bytes(count))

    def gathers_on(self) -> bool:
        """Whether bytes are still let gather; what has lain there for long is told now."""
        if self._threshold.calm():
            self._tell_at(1)
        return self._threshold_bytes > 1

    def _tell_at(self, threshold_bytes: int) -> None:
        if threshold_bytes == self._threshold_bytes or sys.platform != "linux":
            return
        sock = self._transport.get_extra_info("socket")
        # It may be closed, or of a kind that knows no threshold.
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, threshold_bytes)
            self._threshold_bytes = threshold_bytes
            if threshold_bytes > 1:
                self._network.gathers(self)

    def start_tls(self, name: str) -> None:
        self._network.secure(self, name)

    async def shake(self, name: str) -> None:
        import ssl

        plain = self._transport
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain, self, self._network.tls(), server_hostname=name
            )
        except asyncio.CancelledError:
            self._receiver = None
            self._fail("", False)
            raise
        except ssl.SSLCertVerificationError as error:
            # Self-signed, or its issuer is unknown.
            own = "; --ca FILE trusts one of your own" if error.verify_code in (18, 19, 20) else ""
            self._fail(f"its certificate is not trusted: {error.verify_message}{own}", True)
        except UsageProblem as problem:
            self._fail(str(problem), True)
        except OSError as error:
            wrong = isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"
            reason = getattr(error, "reason", None) or error.strerror or str(error) or "it hung up"
            text = f"TLS failed: {str(reason).replace('_', ' ').lower()}"
            self._fail("it does not speak TLS on that port" if wrong else text, wrong)
        else:
            if secured is None:
                self._fail("the connection was closed", False)
                return
            self._transport = secured
            self._secured = True
            if self._receiver is None:
                secured.abort()
            else:
                self._receiver.secured()

    def _fail(self, text: str, permanent: bool) -> None:
        """No TLS: asyncio does not call `connection_lost` for that."""
        self._network.closed(self)
        self._transport.abort()
        self._lose(text, permanent)

    def _lose(self, text: str, permanent: bool) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost(text, permanent)


def run_blocking(
    main: Callable[[], Coroutine[Any, Any, Value]],
    stopped_by: Sequence[signal.Signals] = (signal.SIGINT,),
) -> Value:
    """Run `main()` on an event loop of its own and return what it returns.

    The signals `stopped_by`, where the program does nothing special about them itself, cancel it
    at a point where it waits; then Interrupted is raised. Raises UsageProblem where an event loop
    runs in this thread already.
    """
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageProblem("an event loop runs in this thread already: await fetch(...) there")
    loop = asyncio.SelectorEventLoop()
    caught: list[int] = []
    try:
        task = loop.create_task(main())
        with _cancelling(loop, task, stopped_by, caught.append):
            return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if caught:
            raise Interrupted from None
        raise
    finally:
        _wind_up(loop)
        loop.close()


@contextlib.contextmanager
def _cancelling(
    loop: asyncio.AbstractEventLoop,
    task: asyncio.Task[Any],
    numbers: Sequence[signal.Signals],
    note: Callable[[int], None],
) -> Iterator[None]:
    plain = (signal.default_int_handler, signal.SIG_DFL)
    taken = {}

    def stop(number: int) -> None:
        note(number)
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        taken = {n: old for n in numbers if (old := signal.getsignal(n)) in plain}
    for number in taken:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number, old in taken.items():
            loop.remove_signal_handler(number)
            signal.signal(number, old)


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    # What was aborted closes its socket in the next round.
    loop.run_until_complete(asyncio.sleep(0))
