"""One reception of a multicast session: socket, reports and repair around the pure receiver.

    reception = Reception(network, offer, channel, write, folder, interface, ended)
    reception.start()

Verified blocks go through `write(offset, data)` into the same writer as everything else; `ended` is
called once with a `ReceptionOutcome`. Whatever is missing then is the download's to fetch by
unicast, under its lease. Nothing in here raises for what the network does.
"""

from __future__ import annotations

import mmap
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ...protocol.errors import ProtocolError
from ...protocol.packet import PAYLOAD_OFFSET
from ...protocol.session import HASH_BYTES, Offer, ReceiverReport, decode_answer, encode_report
from ..net.answers import Reply
from ..net.client import KeepAliveClient
from ..net.network import Cancellable, Network
from ..net.request_builder import RequestBuilder
from ..net.urls import Url
from .blocks import ReceiverCounters
from .receiver import MulticastReceiver
from .socket import GroupSocket

#: No block is larger.
SLOT_BYTES = 1 << 20
#: The block hashes of the largest file fit into this.
ANSWER_BYTES = 64 << 20


class HttpChannel:
    """What a receiver asks the server that made its offer: reports, hashes and repair.

    `path` is what stands in the request line; `done` gets the body of an answer that did what was
    asked, or a sentence why not.
    """

    def __init__(self, network: Network, asking: RequestBuilder, base: Url) -> None:
        self._asking = asking
        self._base = base
        self._keep_alive = KeepAliveClient(network, *asking.route(base))

    def ask(self, path: str, done: Callable[[bytes | str], None], body: bytes = b"") -> None:
        def answered(outcome: Reply | str) -> None:
            if isinstance(outcome, str):
                done(outcome)
            elif not outcome.done or len(outcome.body) >= ANSWER_BYTES:
                done(f"the server answered {outcome.status}")
            else:
                done(outcome.body)

        at = replace(self._base, target=path)
        request = self._asking.request(at, at, method="POST" if body else "GET", body=body)
        self._keep_alive.ask(request, answered, limit_bytes=ANSWER_BYTES, silence_s=10.0)


@dataclass(frozen=True, slots=True)
class ReceptionOutcome:
    """How a reception ended. `reason` is None when every block was written; `problem` is what
    `write` raised, if it did."""

    reason: str | None
    problem: Exception | None
    counters: ReceiverCounters
    repaired_bytes: int
    seconds: float


class Reception:
    """Joins (on construction), collects, reports, repairs. One use.

    Raises `LocalProblem` on construction when the group cannot be joined. Between construction and
    the end the kernel keeps what comes, so long hash lists may be fetched meanwhile.
    """

    def __init__(
        self,
        network: Network,
        offer: Offer,
        channel: HttpChannel,
        write: Callable[[int, memoryview], object],
        folder: Path,
        interface: str,
        ended: Callable[[ReceptionOutcome], None],
        *,
        have: Callable[[int], bool],
        limit_bytes_s: float,
    ) -> None:
        self._network = network
        self._offer = offer
        self._channel = channel
        self._ended = ended
        self._began_at = network.now()
        self._socket = GroupSocket(offer, interface)
        self.receiver: MulticastReceiver
        self._write = write
        self._have = have
        self._limit_bytes_s = limit_bytes_s
        self._space = BlockSpace(folder)
        self._size = PAYLOAD_OFFSET + offer.fec.symbol_bytes
        per_second = max(1.0, offer.rate_bytes_s / self._size)
        self._room_s = self._socket.room_datagrams / per_second
        # The drained socket is left alone this long: one wake-up serves many datagrams.
        self._nap_s = min(0.02, 0.25 * self._room_s)
        self._over = False
        self._finishing = False
        self._failure: Exception | None = None
        self._nap: Cancellable | None = None
        self._timer: Cancellable | None = None
        self._timer_at = float("inf")
        self._reading = False
        self._repaired_bytes = 0
        self._report_open = False
        #: The newest report until the last is answered: a queue grows where round trips are long.
        self._next_report: ReceiverReport | None = None

    def start(self) -> None:
        offer = self._offer
        if offer.hashes or not offer.size_bytes:
            self._begin(offer.hashes)
        else:
            self._channel.ask(offer.hashes_url, self._hashes_came)

    def _hashes_came(self, data: bytes | str) -> None:
        blocks = self._offer.layout().blocks
        if isinstance(data, bytes) and len(data) == blocks * HASH_BYTES:
            self._begin(tuple(data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)))
            return
        self.receiver = self._make(())
        fault = data if isinstance(data, str) else "they do not cover the file"
        self.receiver.given_up = f"no block hashes: {fault}"
        self._end()

    def _make(self, hashes: tuple[bytes, ...]) -> MulticastReceiver:
        return MulticastReceiver(
            self._offer,
            hashes,
            self._write,
            random.Random(),
            self._network.now(),
            self._space,
            self._have,
            self._limit_bytes_s,
        )

    def _begin(self, hashes: tuple[bytes, ...]) -> None:
        self.receiver = self._make(hashes)
        if self._over:
            return
        self._read(True)
        self._look()

    def settle(self) -> None:
        """The caller has everything: say so to the sender and end."""
        if hasattr(self, "receiver"):
            self.receiver.came_elsewhere(self._network.now())
            self._look()

    def stop(self) -> None:
        """Give up from outside; the outcome says so."""
        if not hasattr(self, "receiver"):
            self.receiver = self._make(())
        if self.receiver.given_up is None and not self.receiver.finished:
            self.receiver.given_up = "stopped"
        self._end()

    # --- reading ------------------------------------------------------------------------------

    def _readable(self) -> None:
        """Take what the kernel has, then nap."""
        # The next one may end a pass.
        few = self._drain() < 8
        if not self._over:
            self._read(False)
            # Towards the end of a pass every moment counts.
            nap_s = 0.0 if few else self.receiver.pass_left_s / 8
            nap_s = min(self._nap_s, max(0.002, nap_s))
            self._nap = self._network.call_later(nap_s, self._wake)
            self._look()

    def _drain(self) -> int:
        took = 0
        read, size = self._socket.read, self._size
        receiver, now = self.receiver, self._network.now()
        room_us = int(1e6 * self._room_s)
        try:
            # Bounds one turn of the loop.
            for _ in range(16):
                read_us = time.time_ns() // 1000
                batch = read()
                if not batch:
                    break
                took += len(batch)
                if max(map(len, batch)) > size:
                    # Several of equal size, joined by the kernel (GRO).
                    batch = [d[at : at + size] for d in batch for at in range(0, len(d), size)]
                receiver.take_all(batch, now)
                arrived_us = self._socket.arrived_us()
                receiver.sample_delay(arrived_us, now)
                if arrived_us is not None:
                    receiver.note_lag(read_us - arrived_us, room_us)
        except OSError as error:
            # Of the socket (interface gone) or of the disk below `write` and the block space.
            self.receiver.given_up = f"receiving failed: {error.strerror}"
        except Exception as error:  # noqa: BLE001 - the writer's errors belong to the caller
            self._failure = error
        return took

    def _wake(self) -> None:
        self._nap = None
        self._read(True)

    def _read(self, on: bool) -> None:
        if on != self._reading:
            self._reading = on
            self._network.watch_reading(self._socket, self._readable if on else None)

    # --- timers and reports -------------------------------------------------------------------

    def _look(self) -> None:
        """Send what is due, notice the end, set the timer."""
        if self._over or self._finishing:
            return
        receiver = self.receiver
        now = self._network.now()
        if now >= receiver.silent_at:
            # A process that was starved finds its timers due before its socket read.
            self._drain()
        report = receiver.due(now)
        if report is not None:
            receiver.counters.overruns = self._socket.overruns()
            self._send(report)
        waits_to_say_done = receiver.finished and receiver.report_pending
        if (
            self._failure is not None
            or receiver.given_up
            or (receiver.finished and not waits_to_say_done and not self._report_open)
        ):
            self._finish()
            return
        self._set_timer(receiver.wake_at, now)

    def _set_timer(self, at: float, now: float) -> None:
        # Silence moves away with every datagram: a timer that fires too early just looks again.
        if at == float("inf") or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._network.call_later(max(0.0, at - now), self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._look()

    def _send(self, report: ReceiverReport) -> None:
        if self._report_open:
            self._next_report = report
            return
        self._report_open = True
        self._channel.ask(self._offer.report_url, self._answered, encode_report(report))

    def _answered(self, answer: bytes | str) -> None:
        self._report_open = False
        try:
            if isinstance(answer, str):
                # The sender may be gone; silence will tell.
                self.receiver.report_failed()
            elif answer:
                # No body: go on as before.
                self.receiver.answered(decode_answer(answer))
        except ProtocolError:
            self.receiver.report_failed()
        if self._next_report is not None and not self._over:
            report, self._next_report = self._next_report, None
            self._send(report)
        self._look()

    # --- the end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._finishing = True
        receiver = self.receiver
        self._unwatch()
        ranges = receiver.repair_ranges() if receiver.has_received and self._failure is None else []
        wanted = sum(end - first for first, end in ranges)
        size = self._offer.size_bytes
        # Where more is missing, the download fetches it.
        if not wanted or wanted > size / 4 or not self._offer.repair_url:
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

        def patch(data: bytes | str) -> None:
            now = self._network.now()
            if isinstance(data, str) or len(data) != sum(b - a for a, b in portion):
                # Refused or broken: the download takes what is left.
                self._end()
                return
            view = memoryview(data)
            try:
                for first, end in portion:
                    self.receiver.patch(first, view[: end - first], now)
                    view = view[end - first :]
            except Exception as error:  # noqa: BLE001 - the writer's errors belong to the caller
                self._failure = error
                self._end()
                return
            self._repaired_bytes += len(data)
            self._repair(portions)

        self._channel.ask(self._offer.repair_url, patch, body)

    def _unwatch(self) -> None:
        self._read(False)
        for call in (self._nap, self._timer):
            if call is not None:
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
        if receiver.given_up is not None or self._repaired_bytes:
            # A courtesy: the sender need not wait for a receiver that is gone.
            report = encode_report(receiver.leave(self._network.now()))
            self._channel.ask(self._offer.report_url, lambda answer: None, report)
        self._ended(
            ReceptionOutcome(
                receiver.given_up,
                self._failure,
                receiver.counters,
                self._repaired_bytes,
                self._network.now() - self._began_at,
            )
        )


def _portions(ranges: list[tuple[int, int]], symbol_bytes: int) -> list[list[tuple[int, int]]]:
    """Ranges in portions the server answers at once, cut between symbols."""
    step = max(1, (256 << 10) // symbol_bytes) * symbol_bytes
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


class BlockSpace:
    """Memory for blocks that are still coming in: the heap first, a deleted temporary file beyond.

    With 5 % loss nearly every block of a pass stays incomplete until the repair, so a large file
    would need its size in memory. Beyond 64 MiB blocks live in a mapped
    file that the kernel may write out; its space is freed with it, whatever happens to us. `folder`
    should be where the file goes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = 64 << 20
        self._free: list[memoryview] = []
        #: What is lent, by identity: its whole slot in a mapped file, or None for the heap.
        self._lent: dict[int, memoryview | None] = {}
        self._maps: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """Zeroed memory of `size` bytes (at most 1 MiB). Raises OSError when the disk is full."""
        if size <= self._left:
            memory = memoryview(bytearray(size))
            self._left -= size
            self._lent[id(memory)] = None
            return memory
        if not self._free:
            self._grow()
        slot = self._free.pop()
        memory = slot[:size]
        self._lent[id(memory)] = slot
        return memory

    def give_back(self, memory: memoryview) -> None:
        """The very object `take` gave; its memory may be used again."""
        slot = self._lent.pop(id(memory))
        if slot is None:
            self._left += len(memory)
            return
        memory[:] = bytes(len(memory))
        self._free.append(slot)

    def _grow(self) -> None:
        with tempfile.TemporaryFile(dir=self._folder, prefix=".tidegate-blocks-") as file:
            size = SLOT_BYTES * 64
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
        self._maps.append(mapped)
        whole = memoryview(mapped)
        self._free.extend(whole[at : at + SLOT_BYTES] for at in range(0, size, SLOT_BYTES))
