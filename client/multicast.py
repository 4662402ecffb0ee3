"""One reception of a multicast session: socket, reports and repair around the pure receiver.

    reception = Reception(reactor, offer, channel, write, folder, interface)
    outcome = await reception.run()

Verified blocks go through `write(offset, data)` into the same sink as everything else. The outcome
says why it ended; whatever is missing then is the session's to fetch by unicast, under its lease.
Nothing in here raises for what the network does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from client.multicast_paper import PaperReceiver
from client.multicast_receiver import MulticastReceiver, ReceiverCounters
from client.multicast_socket import GroupSocket
from client.multicast_space import BlockSpace
from protocol.errors import ProtocolError
from protocol.packet import PAYLOAD_OFFSET
from protocol.paper_mode import HEADER_BYTES as PAPER_HEADER_BYTES
from protocol.session import HASH_BYTES, Offer
from protocol.session_report import Report, decode_answer, encode_report

_BUFFER_BYTES = 1 << 16
#: After draining the socket it is left alone for so long: one wake-up serves many datagrams.
_NAP_S = 0.005
_MOST_A_TURN = 512
#: Repair by unicast inside the session pays only for little; the rest is the unicast session's.
_REPAIR_SHARE = 0.25
_REPAIR_BYTES = 256 * 1024


class Channel(Protocol):
    """Requests to the server that made the offer; `path` is relative to the offer's origin."""

    def get(self, path: str) -> Deferred[bytes]:
        """The body of a 200 answer; anything else fails."""
        ...

    def post(self, path: str, body: bytes) -> Deferred[bytes]:
        """The same with a body."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a reception ended. `reason` is None when every block was written."""

    reason: str | None
    heard: bool
    counters: ReceiverCounters
    repaired_bytes: int
    seconds: float


@implementer(IReadDescriptor)
class Reception:
    """Joins, collects, reports, repairs. One use.

    Raises `LocalProblem` on construction when the group cannot be joined.
    """

    def __init__(
        self,
        reactor: Any,
        offer: Offer,
        channel: Channel,
        write: Callable[[int, memoryview], object],
        folder: Path,
        interface: str = "",
        *,
        have: Callable[[int], bool] = lambda block: False,
        rng: random.Random | None = None,
        space_bytes: int = 64 << 20,
    ) -> None:
        self._reactor = reactor
        self._offer = offer
        self._channel = channel
        self._began_at = reactor.seconds()
        self._socket = GroupSocket(offer, interface)
        self.receiver: MulticastReceiver
        self._write = write
        self._have = have
        self._rng = rng or random.Random()
        self._space = BlockSpace(folder, space_bytes)
        paper = offer.fec.scheme == "paper"
        header_bytes = PAPER_HEADER_BYTES if paper else PAYLOAD_OFFSET
        self._size = header_bytes + offer.fec.symbol_bytes
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        per_second = max(1.0, offer.rate_bytes_s / self._size)
        self._nap_s = min(_NAP_S, 0.25 * self._socket.room_datagrams / per_second)
        self._done: Deferred[Outcome] = Deferred()
        self._over = False
        self._failure: Exception | None = None
        self._napping: Any = None
        self._timer: Any = None
        self._reading = False
        self._repaired_bytes = 0
        self._reports_open = 0

    def run(self) -> Deferred[Outcome]:
        """Begin; fires with the outcome, fails only when `write` or the disk does.

        The group is joined already, so the kernel keeps what comes while long hash lists are
        fetched.
        """
        offer = self._offer
        if offer.hashes or not offer.size_bytes:
            self._begin(offer.hashes)
        else:
            answered = self._channel.get(offer.hashes_url)
            answered.addCallback(self._hashes_came)
            answered.addErrback(self._no_hashes)
        return self._done

    def _hashes_came(self, data: bytes) -> None:
        blocks = self._offer.layout().blocks
        if len(data) != blocks * HASH_BYTES:
            raise ProtocolError("the server's block hashes do not cover the file")
        self._begin(tuple(data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)))

    def _no_hashes(self, failure: Failure) -> None:
        self.receiver = self._make(())
        self.receiver.given_up = f"no block hashes: {failure.getErrorMessage()}"
        self._end()

    def _make(self, hashes: tuple[bytes, ...]) -> MulticastReceiver:
        paper = self._offer.fec.scheme == "paper"
        receiver_class = PaperReceiver if paper else MulticastReceiver
        now = self._reactor.seconds()
        return receiver_class(
            self._offer, hashes, self._write, self._rng, now, self._have, self._space
        )

    def _begin(self, hashes: tuple[bytes, ...]) -> None:
        self.receiver = self._make(hashes)
        if self._over:
            return
        self._read(True)
        self._look()

    def stop(self) -> None:
        """Give up from outside; the outcome says so."""
        if not hasattr(self, "receiver"):
            self.receiver = self._make(())
        if self.receiver.given_up is None and not self.receiver.finished:
            self.receiver.given_up = "stopped"
        self._end()

    @property
    def source_specific(self) -> bool:
        """Whether the kernel filters by the sender's address."""
        return self._socket.source_specific

    # --- IReadDescriptor ----------------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "multicast"

    def connectionLost(self, reason: Failure) -> None:
        self.stop()

    def doRead(self) -> None:
        """Take what the kernel has, then nap."""
        self._drain()
        if not self._over:
            self._read(False)
            self._napping = self._reactor.callLater(self._nap_s, self._wake)
            self._look()

    def _drain(self) -> None:
        recv_into, buffer, size = self._socket.recv_into, self._buffer, self._size
        take, now = self.receiver.take, self._reactor.seconds()
        try:
            for _ in range(_MOST_A_TURN):
                length = recv_into(buffer)
                if length <= size:
                    take(buffer[:length], now)
                    continue
                for at in range(0, length, size):
                    take(buffer[at : min(length, at + size)], now)
        except BlockingIOError:
            pass
        except OSError as error:
            # Of the socket (interface gone) or of the disk below `write` and the block space.
            self.receiver.given_up = f"receiving failed: {error.strerror}"
        except Exception as error:  # noqa: BLE001 - the sink's errors belong to the caller
            self._failure = error

    def _wake(self) -> None:
        self._napping = None
        self._read(True)

    def _read(self, on: bool) -> None:
        if on != self._reading:
            self._reading = on
            (self._reactor.addReader if on else self._reactor.removeReader)(self)

    # --- timers and reports -------------------------------------------------------------------

    def _look(self) -> None:
        """Send what is due, notice the end, set the timer."""
        if self._over:
            return
        receiver = self.receiver
        now = self._reactor.seconds()
        if now >= receiver.silent_at:
            # A process that was starved finds its timers due before its socket read.
            self._drain()
        report = receiver.due(now)
        if report is not None:
            receiver.counters.overruns = self._socket.overruns()
            self._send(report)
        waits_to_say_done = receiver.finished and receiver.wake_at < receiver.silent_at
        if (
            self._failure is not None
            or receiver.given_up
            or (receiver.finished and not waits_to_say_done and not self._reports_open)
        ):
            self._finish()
            return
        if self._timer is not None and self._timer.active():
            self._timer.reset(max(0.0, receiver.wake_at - now))
        else:
            self._timer = self._reactor.callLater(max(0.0, receiver.wake_at - now), self._look)

    def _send(self, report: Report) -> None:
        self._reports_open += 1
        answered = self._channel.post(self._offer.report_url, encode_report(report))
        answered.addCallbacks(self._answered, self._unanswered)
        answered.addCallback(lambda _: self._look())

    def _answered(self, body: bytes) -> None:
        self._reports_open -= 1
        try:
            # No body: go on as before.
            if body:
                self.receiver.answered(decode_answer(body))
        except ProtocolError:
            self.receiver.report_failed()

    def _unanswered(self, failure: Failure) -> None:
        # The sender may be gone; silence will tell.
        del failure
        self._reports_open -= 1
        self.receiver.report_failed()

    # --- the end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        receiver = self.receiver
        self._unwatch()
        ranges = receiver.repair_ranges() if receiver.heard and self._failure is None else []
        wanted = sum(end - first for first, end in ranges)
        size = self._offer.size_bytes
        if not wanted or wanted > _REPAIR_SHARE * size or not self._offer.repair_url:
            self._end()
            return
        self._repair(_portions(ranges, self._offer.fec.symbol_bytes))

    def _repair(self, portions: list[list[tuple[int, int]]]) -> None:
        if not portions or self._over:
            self._end()
            return
        portion = portions.pop(0)
        wanted = ",".join(f"{first}-{end - 1}" for first, end in portion)
        body = f"{self._offer.member} bytes={wanted}".encode()
        answered = self._channel.post(self._offer.repair_url, body)

        def patch(data: bytes) -> None:
            now = self._reactor.seconds()
            view = memoryview(data)
            for first, end in portion:
                self.receiver.patch(first, view[: end - first], now)
                view = view[end - first :]
            self._repaired_bytes += len(data)
            self._repair(portions)

        answered.addCallback(patch)
        # Refused, broken, or the sink said no: the unicast session takes what is left.
        answered.addErrback(lambda _: self._end())

    def _unwatch(self) -> None:
        self._read(False)
        for call in (self._napping, self._timer):
            if call is not None and call.active():
                call.cancel()
        self.receiver.counters.overruns = self._socket.overruns()
        self._socket.close()

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        if self._socket.fileno() >= 0:
            self._unwatch()
        receiver = self.receiver
        if receiver.finished:
            receiver.given_up = None
        if self._failure is not None:
            self._done.errback(self._failure)
            return
        if receiver.given_up is not None or self._repaired_bytes:
            # A courtesy: the sender need not wait for a receiver that is gone.
            self._channel.post(self._offer.report_url, encode_report(receiver.leave())).addErrback(
                lambda _: None
            )
        self._done.callback(
            Outcome(
                receiver.given_up,
                receiver.heard,
                receiver.counters,
                self._repaired_bytes,
                self._reactor.seconds() - self._began_at,
            )
        )


def _portions(ranges: list[tuple[int, int]], symbol_bytes: int) -> list[list[tuple[int, int]]]:
    """Ranges in portions the server answers at once, cut between symbols."""
    step = max(1, _REPAIR_BYTES // symbol_bytes) * symbol_bytes
    portions: list[list[tuple[int, int]]] = []
    room = 0
    for first, end in ranges:
        while first < end:
            if room <= 0:
                portions.append([])
                room = step
            stop = min(end, first + step)
            portions[-1].append((first, stop))
            room -= stop - first
            first = stop
    return portions
