"""A worker is one connection to one mirror: it fetches the blocks it is handed, and reports.

What an answer means is read by `client.net.answers`, what to do about it is decided by the
download; the worker knows only its connection and its blocks.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from client.fetch.breaks import Break
from client.fetch.sources import Source
from client.fetch.streams import Stream
from client.net import answers as session
from client.net.answers import Body, Fields, Meaning, OutOfRange, Redirect
from client.net.http import Connection
from client.schedule.segments import Block
from client.storage.output import UNKNOWN_SIZE
from protocol.ranges import format_range

if TYPE_CHECKING:
    from client.fetch.download import Download

_PROBLEM_BYTES = 64 << 10
#: Two blocks (see the board) and two samples.
_MOST_UNDER_WAY = 4


class Worker:
    """Lane number `lane`, to `source`."""

    def __init__(self, download: Download, source: Source, lane: int) -> None:
        self.download = download
        self.source = source
        self.lane = lane
        self.connection: Connection | None = None
        self.rtt_s = 0.0
        self.paused = False
        #: Bytes of the file that this connection brought, and the answer that runs on it.
        self.brought_bytes = self.answer_bytes = 0
        self._busy_since: float | None = None
        self._first_asked = False
        self._openings: list[Opening] = []

    # -- connecting ----------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the connection; does nothing when it is open or on its way, or given up."""
        if self.connection is not None or not self.source.usable or self.source.resting:
            return
        if self.lane not in self.source.lanes:
            return
        download = self.download
        endpoint, tunnel = download.asking.route(self.source.at)
        self._first_asked = False
        self._openings.clear()
        self.brought_bytes = self.answer_bytes = 0
        self.connection = Connection(
            download.network, endpoint, self, download.watch.connect_timeout_s(self), tunnel
        )

    def opened(self, rtt_s: float) -> None:
        """The connection stands."""
        self.source.connections += 1
        self.rtt_s = rtt_s
        self.source.rtt_s = min(self.source.rtt_s, rtt_s) if self.source.rtt_s else rtt_s
        self.download.joined(self)
        self.pump()

    def closed(self, text: str, permanent: bool, crowded: bool) -> None:
        """The connection is gone by itself."""
        assert self.connection is not None
        served = self.connection.served
        if self.connection.closing and served <= 1:
            self.source.single = True
        self._rest()
        self.connection = None
        self.download.streams.ended(self)
        self.download.unjoined(self)
        if not self.download.over:
            ended = Break(served, self.brought_bytes, self.answer_bytes, crowded, permanent)
            self.download.troubles.broke(self, ended, text)

    def hang_up(self) -> None:
        """Close the connection from our side; the blocks become free."""
        self._rest()
        if self.connection is not None:
            self.connection.abort()
            self.connection = None
            self.download.streams.ended(self)
        self.paused = False
        self.download.unjoined(self)

    def let_go(self) -> None:
        """The download is done: others may use the connection."""
        self._rest()
        if self.connection is not None:
            self.connection.release()
            self.connection = None

    # -- asking --------------------------------------------------------------------------------

    def pump(self) -> None:
        """Ask for as much as is sensible now."""
        connection = self.connection
        if connection is None or not connection.usable or not self.source.usable:
            return
        joining = self.download.joining
        if joining is not None and joining.takes(self):
            return
        board = self.download.board
        if board is None:
            if not self._first_asked:
                self._first_asked = True
                *samples, first = self.download.first_spans(self)
                for start, end in samples:
                    if start is not None and end is not None:
                        self.download.sampling.asked_early(self, start, end)
                        self.sample(start, end)
                opening = Opening(self, *first)
                self._openings.append(opening)
                self._send(opening, *first)
            return
        if self.source.last_resort:
            if not connection.busy and not board.done:
                self._send(Opening(self, None, None), None, None)
            return
        if self.source.resting or self.download.size_limit == UNKNOWN_SIZE:
            return
        most = 1 if self.source.single else _MOST_UNDER_WAY
        while connection.busy < most:
            block = board.ask(self.lane, self.download.network.now())
            if block is None:
                return
            self._send(BlockTaker(self, block), block.start, block.end)

    def reserve(self, size_bytes: int) -> None:
        """The size is known: what this lane has asked for in the dark are its blocks, so that
        nobody else is handed the same bytes."""
        for one in self._openings:
            if one.start is None or one.stop is None or self.connection is None:
                continue
            if one.block is None and one.start < size_bytes:
                stop = min(one.stop, size_bytes)
                one.block = self.download.intake.claim(self, one.start, stop)
        self._openings.clear()

    def ask_all(self) -> None:
        """Ask for whatever there is: the whole file."""
        if self.connection is not None and self.connection.usable:
            self._send(Opening(self, None, None), None, None)

    def sample(self, start: int, end: int) -> None:
        """Ask for a few bytes to compare with those of other mirrors."""
        if self.connection is not None and self.connection.usable and self.source.usable:
            self._send(SampleTaker(self, start, end), start, end)

    def _send(
        self,
        taker: RangeTaker,
        start: int | None,
        end: int | None,
        *more: tuple[str, str],
    ) -> None:
        source = self.source
        fields = [*source.visit.headers(), *more]
        if start is not None:
            assert end is not None
            fields.append(("Range", format_range([(start, end)])))
            if source.validator is not None:
                fields.append(("If-Range", source.validator))
        source.requests += 1
        if self._busy_since is None:
            self._busy_since = self.download.network.now()
        assert self.connection is not None
        self.connection.send(self.download.asking.request(source.at, source.url, fields), taker)

    def ask_offer(self, taker: RangeTaker, field: tuple[str, str]) -> None:
        """Ask for the whole file, or for an offer to receive it by multicast."""
        self._first_asked = True
        self._send(taker, None, None, field)

    def _rest(self) -> None:
        if self._busy_since is not None:
            self.source.busy_s += self.download.network.now() - self._busy_since
            self._busy_since = None

    def answered(self) -> None:
        """An answer is complete: go on, or rest."""
        if self.connection is not None and self.connection.served_behind:
            self.source.pipelines = True
        self.pump()
        if self.connection is not None and not self.connection.busy:
            self._rest()

    # -- holding back --------------------------------------------------------------------------

    def hold(self, on: bool) -> None:
        """Stop or go on reading (rate limit, full window)."""
        if self.connection is not None and on != self.paused:
            self.paused = on
            (self.connection.pause if on else self.connection.resume)()
            if not on:
                self.connection.last_s = self.download.network.now()


class RangeTaker(ABC):
    """Takes one answer: reads its head, then either body bytes or the words of a problem."""

    def __init__(self, worker: Worker, start: int | None, end: int | None) -> None:
        self.worker = worker
        self.start = start
        self.stop = end
        self._problem: tuple[int, Fields] | None = None
        self._words = bytearray()
        self._useful = False

    def head(self, status: int, fields: Fields) -> None:
        """Called by the connection."""
        self.worker.answer_bytes = 0
        if session.is_error(status) and status != 416:
            self._problem = (status, fields)
            return
        meaning = session.read(status, fields)
        if isinstance(meaning, Redirect | OutOfRange):
            # The answer's body says nothing of use; what follows it on this connection does.
            self.worker.download.troubles.moved(self.worker, meaning, self)
            return
        if not isinstance(meaning, Body):
            self.refuse(meaning)
            return
        if self.worker.download.intake.accepts(self.worker, meaning, fields, self.start):
            self._useful = True
            self.begin(meaning, fields)

    @abstractmethod
    def begin(self, body: Body, fields: Fields) -> None:
        """The bytes of `body` follow."""

    @abstractmethod
    def useful(self, data: memoryview) -> None:
        """Bytes of the file."""

    @abstractmethod
    def complete(self) -> None:
        """The answer is over."""

    def body(self, data: memoryview) -> None:
        """Called by the connection."""
        if self._useful:
            self.useful(data)
        elif self._problem is not None and len(self._words) < _PROBLEM_BYTES:
            self._words += data

    def end(self) -> None:
        """Called by the connection."""
        if self._problem is not None:
            status, fields = self._problem
            self.refuse(session.read(status, fields, bytes(self._words), time.time()))
            return
        self.complete()
        self.worker.answered()

    def refuse(self, meaning: Meaning) -> None:
        """The mirror will not or cannot: hand what it said to the download."""
        assert not isinstance(meaning, Body | Redirect | OutOfRange)
        self.worker.download.troubles.told(self.worker, meaning)

    def lost(self, text: str, permanent: bool) -> None:  # noqa: B027 - see there
        """Called by the connection; the worker hears of it too, and gives the blocks back."""


class BlockTaker(RangeTaker):
    """Takes the bytes of one block."""

    def __init__(self, worker: Worker, block: Block) -> None:
        super().__init__(worker, block.start, block.end)
        self.block: Block | None = block
        self._promised = block.end
        self._stream: Stream | None = None

    def begin(self, body: Body, fields: Fields) -> None:
        download = self.worker.download
        if body.whole:
            self._stream = download.streams.begin(self)
            self._promised = body.end if body.end is not None else download.size_limit
            return
        assert body.end is not None
        self._promised = body.end
        if self.block is not None and self.block.live:
            self.worker.pump()

    def useful(self, data: memoryview) -> None:
        worker, block = self.worker, self.block
        intake = worker.download.intake
        if self._stream is not None:
            position = self._stream.position
            self._stream.position += len(data)
            worker.download.sampling.passed(worker, position, data)
            if block is None or worker.connection is None:
                if worker.connection is not None:
                    intake.beside(worker, position, data)
                return
        while True:
            if block is None or not block.live:
                # Taken over by another mirror: what still comes is of no use.
                worker.download.broken_off(worker)
                return
            part = data[: block.end - block.position]
            if not intake.arrived(worker, block, part):
                return
            if block.position >= block.end and block.end < self._promised:
                if not intake.carry_on(block):
                    worker.download.broken_off(worker)
                    return
            elif block.live and block.position >= block.ask_at:
                worker.pump()
            data = data[len(part) :]
            if not len(data):
                return

    def complete(self) -> None:
        download = self.worker.download
        download.streams.ended(self.worker)
        if self.block is not None and self.block.live:
            download.intake.short(self.worker, self.block)


class Opening(BlockTaker):
    """The first answer of a download whose size is not known yet."""

    def __init__(self, worker: Worker, start: int | None, end: int | None) -> None:
        RangeTaker.__init__(self, worker, start, end)
        self.block = None
        self._promised = 0
        self._stream = None

    def begin(self, body: Body, fields: Fields) -> None:
        if body.whole:
            super().begin(body, fields)
            return
        assert body.end is not None
        self._promised = body.end
        if self.block is None:
            self.block = self.worker.download.intake.claim(self.worker, body.start, body.end)
        self.worker.pump()


class SampleTaker(RangeTaker):
    """Takes a few bytes to compare."""

    def __init__(self, worker: Worker, start: int, end: int) -> None:
        super().__init__(worker, start, end)
        self._data = bytearray()
        #: Reads on where the mirror sends the whole file instead.
        self._instead: Opening | None = None

    def begin(self, body: Body, fields: Fields) -> None:
        if body.whole:
            self._instead = Opening(self.worker, None, None)
            self._instead.begin(body, fields)

    def useful(self, data: memoryview) -> None:
        if self._instead is not None:
            self._instead.useful(data)
            return
        self.worker.download.overhead_bytes += len(data)
        self._data += data

    def complete(self) -> None:
        if self._instead is not None:
            self._instead.complete()
            return
        assert self.start is not None
        assert self.stop is not None
        if len(self._data) == self.stop - self.start:
            download = self.worker.download
            download.sampling.testified(self.worker, self.start, bytes(self._data))
