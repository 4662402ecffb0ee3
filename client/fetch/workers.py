"""A worker is one connection to one mirror: it asks for the blocks it is handed, reads the
answers, and reports.

What to do about an answer or a fault is decided elsewhere (`client.fetch.decide`); the worker
knows only its connection and what it has asked for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from ...protocol.ranges import format_range
from ..net import answers as session
from ..net.answers import Body, Fields, Meaning, OutOfRange, Redirect
from ..net.http import Connection, Taker
from ..net.network import Network
from ..net.request_builder import RequestBuilder
from ..schedule.segments import UNKNOWN_SIZE, Segment
from . import connections, events, sampling
from .acceptance import read_findings
from .content import ArrivalHandler, BodyReceiver
from .state import Depth, Mirror, Serves, State, WholeAnswer


class Driver(ArrivalHandler, Protocol):
    """What a download offers to its workers, to a multicast session, and to an exchange with peers.

    `intake` exists once the size is known.
    """

    @property
    def network(self) -> Network: ...
    @property
    def requests(self) -> RequestBuilder: ...
    @property
    def state(self) -> State: ...
    @property
    def intake(self) -> BodyReceiver | None: ...

    def emit(self, event: str, data: Mapping[str, object], /) -> None: ...
    def set_up(self, size_bytes: int) -> None: ...
    def connected(self, worker: Worker, *, anew: bool = True) -> None:
        """Its connection stands; not `anew`: as it did before."""

    def has_session(self, worker: Worker) -> bool:
        """Whether the lane is kept for multicast."""

    def break_off(self, worker: Worker) -> None:
        """What still comes on this connection is of no use: open another."""


class Worker:
    """Lane number `lane`, to `mirror`."""

    def __init__(self, driver: Driver, mirror: Mirror, lane: int) -> None:
        self.driver = driver
        self.mirror = mirror
        self.lane = lane
        self.connection: Connection | None = None
        self.rtt_s = 0.0
        self.paused = False
        #: Reads the whole answer that runs on this lane.
        self.whole: FileBytes | None = None
        #: Bytes of the file that this connection brought, and the answer that runs on it.
        self.brought_bytes = self.answer_bytes = 0
        self._busy_since: float | None = None
        self._first_asked = False
        self._openings: list[FileBytes] = []

    # -- connecting ----------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the connection; does nothing when it is open or on its way, or given up."""
        driver, mirror, state = self.driver, self.mirror, self.driver.state
        if self.connection is not None or not state.usable(mirror) or mirror.resting:
            return
        if state.ended or self.lane not in mirror.lanes:
            return
        endpoint, tunnel = driver.requests.route(mirror.at)
        self._first_asked = False
        self._openings.clear()
        self.brought_bytes = self.answer_bytes = 0
        timeout_s = connections.connect_timeout_s(state, mirror)
        self.connection = Connection(driver.network, endpoint, self, timeout_s, tunnel)

    def opened(self, rtt_s: float) -> None:
        counts = self.mirror.counts
        counts.connections += 1
        self.rtt_s = rtt_s
        counts.rtt_s = min(counts.rtt_s, rtt_s) if counts.rtt_s else rtt_s
        self.driver.connected(self)
        self.pump()

    def closed(self, text: str, permanent: bool, crowded: bool) -> None:
        """The connection is gone by itself."""
        assert self.connection is not None
        served, announced = self.connection.served, self.connection.closing
        self._gone()
        how = events.Break(
            served, self.brought_bytes, self.answer_bytes, crowded, permanent, announced
        )
        self.driver.handle(events.ConnectionLost(self.lane, how, text))

    def hang_up(self) -> None:
        """Close the connection from our side; the blocks become free."""
        if self.connection is not None:
            self.connection.abort()
        self._gone()

    def _gone(self) -> None:
        self._rest()
        self.connection = None
        self.paused = False
        if self.whole is not None:
            self.whole = None
            self.driver.handle(events.WholeAnswerEnded(self.lane))
        segments = self.driver.state.segments
        if segments is not None:
            segments.leave(self.lane, self.driver.network.now())

    def let_go(self) -> None:
        """The download is done: others may use the connection."""
        self._rest()
        if self.connection is not None:
            self.connection.release()
            self.connection = None

    # -- asking ----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Ask for as much as is sensible now."""
        connection, mirror, state = self.connection, self.mirror, self.driver.state
        if connection is None or not connection.usable or not state.usable(mirror):
            return
        if self.driver.has_session(self):
            return
        segments = state.segments
        if segments is None:
            if not self._first_asked:
                self._ask_first()
            return
        if mirror.serves is Serves.LAST_RESORT:
            if not connection.busy and not segments.done:
                self.ask_all()
            return
        if mirror.resting:
            return
        if state.size_bytes == UNKNOWN_SIZE:
            if not self._first_asked:
                self._ask_size(mirror)
            return
        # Two blocks and two samples.
        most = 1 if mirror.depth is Depth.ONE else 4
        while connection.busy < most:
            block = segments.ask(self.lane, self.driver.network.now())
            if block is None:
                return
            self._send(AnswerTaker(self, FileBytes(self, block), block.start, block.end))

    def _ask_size(self, mirror: Mirror) -> None:
        """The answers so far told no size; this one's may."""
        if not mirror.answered:
            self._ask_first()
        elif not self.driver.state.whole:
            self.driver.handle(events.UnsizedAnswerLost(self.lane))

    def _ask_first(self) -> None:
        self._first_asked = True
        sample, span = sampling.first_request(self.driver.state, self.lane)
        if sample is not None:
            self.sample(*sample)
        start, end = span if span is not None else (None, None)
        reader = FileBytes(self, None, start, end)
        self._openings.append(reader)
        self._send(AnswerTaker(self, reader, start, end))

    def reserve(self, size_bytes: int) -> None:
        """The size is known: what this lane has asked for in the dark are its blocks, so that
        no other lane gets the same bytes."""
        for one in self._openings:
            if self.connection is not None:
                one.reserve(size_bytes)
        self._openings.clear()

    def ask_all(self) -> None:
        """Ask for whatever there is: the whole file."""
        if self.connection is not None and self.connection.usable:
            self._send(AnswerTaker(self, FileBytes(self, None), None, None))

    def sample(self, start: int, end: int) -> None:
        """Ask for a few bytes to compare with those of other mirrors."""
        usable = self.driver.state.usable(self.mirror)
        if self.connection is not None and self.connection.usable and usable:
            self._send(AnswerTaker(self, SampleBytes(self, start, end), start, end))

    def ask_offer(self, taker: Taker, field: tuple[str, str]) -> None:
        """Ask for the whole file, or for an offer to receive it by multicast."""
        self._first_asked = True
        self._request(taker, [field])

    def ask_anew(self) -> None:
        """Ask for the file: the first answer was an offer that is not taken."""
        self._first_asked = False
        self.pump()

    def _send(self, taker: AnswerTaker) -> None:
        fields = []
        if taker.start is not None:
            assert taker.stop is not None
            fields.append(("Range", format_range([(taker.start, taker.stop)])))
            if self.mirror.validator is not None:
                fields.append(("If-Range", self.mirror.validator))
            if self.driver.state.segments is not None:
                fields += self.mirror.visit.remaining(self.driver.state.segments.wanted.total)
        self._request(taker, fields)

    def _request(self, taker: Taker, fields: list[tuple[str, str]]) -> None:
        driver, mirror = self.driver, self.mirror
        mirror.counts.requests += 1
        if self._busy_since is None:
            self._busy_since = driver.network.now()
        assert self.connection is not None
        all_fields = [*mirror.visit.headers(), *fields]
        self.connection.send(driver.requests.request(mirror.at, mirror.url, all_fields), taker)

    def _rest(self) -> None:
        if self._busy_since is not None:
            self.mirror.counts.busy_s += self.driver.network.now() - self._busy_since
            self._busy_since = None

    def answered(self) -> None:
        """An answer is complete: go on, or rest."""
        behind = self.connection is not None and self.connection.served_behind > 0
        if behind and self.mirror.depth is Depth.UNTRIED:
            self.driver.handle(events.PipelineAnswered(self.lane))
        self.pump()
        if self.connection is not None and not self.connection.busy:
            self._rest()

    def brought(self, count: int) -> None:
        """`count` bytes of the file have come."""
        self.brought_bytes += count
        self.answer_bytes += count

    # -- holding back --------------------------------------------------------------------------

    def hold(self, on: bool) -> None:
        """Stop or go on reading (rate limit, full window)."""
        if self.connection is not None and on != self.paused:
            self.paused = on
            (self.connection.pause if on else self.connection.resume)()
            if not on:
                self.connection.last_s = self.driver.network.now()


class Reader(Protocol):
    """What is done with the bytes of an answer."""

    def begin(self, body: Body) -> None:
        """The bytes of `body` follow."""

    def useful(self, data: memoryview) -> None:
        """Bytes of the file."""

    def complete(self) -> None:
        """The answer is over."""


class AnswerTaker:
    """Takes one answer: reads its head, then hands body bytes to `reader`, or reads the words of
    a problem. What was asked for is [start, stop), or everything (None)."""

    def __init__(self, worker: Worker, reader: Reader, start: int | None, stop: int | None) -> None:
        self.start = start
        self.stop = stop
        self._worker = worker
        self._reader = reader
        self._problem: tuple[int, Fields] | None = None
        self._words = bytearray()
        self._useful = False

    def head(self, status: int, fields: Fields) -> None:
        worker = self._worker
        driver = worker.driver
        worker.answer_bytes = 0
        if status >= 400 and status != 416:
            self._problem = (status, fields)
            return
        meaning = session.read(status, fields)
        match meaning:
            # The answer's body says nothing of use; what follows it on this connection does.
            case Redirect():
                driver.handle(events.Redirected(worker.lane, meaning.location))
            case OutOfRange():
                driver.handle(events.RangeOutsideFile(worker.lane, self.start, meaning.size_bytes))
            case Body():
                if driver.handle(self._answered(meaning, fields)):
                    self._useful = True
                    self._reader.begin(meaning)
            case _:
                self._report_status(meaning)

    def _answered(self, body: Body, fields: Fields) -> events.AnswerReceived:
        worker = self._worker
        mirror = worker.mirror
        return events.AnswerReceived(
            worker.lane,
            self.start,
            body,
            self._received_s(),
            (fields.get("content-encoding") or "identity").strip().lower(),
            (fields.get("accept-ranges") or "").strip().lower() == "bytes",
            events.NOTHING_FOUND if mirror.answered else read_findings(mirror.at, fields),
        )

    def body(self, data: memoryview) -> None:
        if self._useful:
            self._reader.useful(data)
        elif self._problem is not None and len(self._words) < 64 << 10:
            self._words += data

    def end(self) -> None:
        if self._problem is not None:
            status, fields = self._problem
            self._report_status(session.read(status, fields, bytes(self._words), time.time()))
            return
        self._reader.complete()
        self._worker.answered()

    def _report_status(self, meaning: Meaning) -> None:
        """The mirror will not or cannot."""
        assert not isinstance(meaning, Body | Redirect | OutOfRange)
        worker = self._worker
        worker.driver.handle(events.StatusReceived(worker.lane, meaning, self._received_s()))

    def _received_s(self) -> float:
        """What was told counts from when it arrived."""
        connection = self._worker.connection
        return connection.last_s if connection is not None else self._worker.driver.network.now()


class FileBytes:
    """Brings the bytes of one block, or of what was asked for in the dark: then `block` is None
    until the size is known, and [start, stop) was asked for, or everything."""

    def __init__(
        self,
        worker: Worker,
        block: Segment | None,
        start: int | None = None,
        stop: int | None = None,
    ) -> None:
        self._worker = worker
        self._block = block
        self._start = start
        self._stop = stop
        self._promised = block.end if block is not None else 0
        self._whole: WholeAnswer | None = None

    def begin(self, body: Body) -> None:
        worker = self._worker
        state = worker.driver.state
        if body.whole:
            self._promised = body.end if body.end is not None else state.size_bytes
            self._begin_whole()
            return
        assert body.end is not None
        self._promised = body.end
        if self._block is None:
            self._claim(body.start, body.end)
        if self._block is not None and self._block.live:
            worker.pump()

    def _begin_whole(self) -> None:
        worker = self._worker
        driver = worker.driver
        if driver.state.segments is not None:
            driver.state.segments.leave(worker.lane, driver.network.now())
        driver.connected(worker, anew=False)
        self._block = None
        worker.whole = self
        driver.handle(events.WholeAnswerBegan(worker.lane))
        self._whole = driver.state.whole.get(worker.lane)

    def reserve(self, size_bytes: int) -> None:
        """The file has that size: what was asked for of it is this answer's block."""
        if self._start is None or self._stop is None or self._block is not None:
            return
        if self._start < size_bytes:
            self._claim(self._start, min(self._stop, size_bytes))

    def steer(self, start: int) -> None:
        """The whole answer gets the block from there on."""
        self._claim(start, self._worker.driver.state.size_bytes)

    def _claim(self, start: int, end: int) -> None:
        driver = self._worker.driver
        if driver.state.segments is not None:
            now = driver.network.now()
            self._block = driver.state.segments.claim(self._worker.lane, start, end, now)

    def useful(self, data: memoryview) -> None:
        worker = self._worker
        driver = worker.driver
        now = driver.network.now()
        whole = self._whole
        if whole is not None:
            position = whole.position
            whole.position += len(data)
            if sampling.is_sampled(driver.state, worker.lane, position, whole.position):
                driver.handle(events.SamplePassed(worker.lane, position, bytes(data)))
            if worker.connection is None or driver.intake is None:
                return
            if self._block is None:
                if driver.intake.beside(worker.lane, position, data, now):
                    worker.brought(len(data))
                return
        block, intake = self._block, driver.intake
        while True:
            if block is None or not block.live or intake is None:
                # Taken over by another mirror: what still comes is of no use.
                driver.break_off(worker)
                return
            part = data[: block.end - block.position]
            worker.brought(len(part))
            if not intake.arrived(worker.lane, block, part, now):
                return
            if block.position >= block.end and block.end < self._promised:
                if not intake.segments.carry_on(block, now):
                    driver.break_off(worker)
                    return
            elif block.live and block.position >= block.ask_at:
                worker.pump()
            data = data[len(part) :]
            if not len(data):
                return

    def complete(self) -> None:
        worker, block = self._worker, self._block
        driver = worker.driver
        if worker.whole is self:
            worker.whole = None
            driver.handle(events.WholeAnswerEnded(worker.lane))
        if block is None or not block.live or driver.intake is None:
            return
        # The answer ended before its block did.
        if driver.state.size_bytes == UNKNOWN_SIZE:
            marked = worker.connection is not None and worker.connection.marks_end
            driver.handle(events.UnsizedAnswerEnded(worker.lane, block.position, marked))
        else:
            driver.intake.segments.ended(block, driver.network.now())
            if block.position < block.end and worker.answer_bytes < 16 << 10:
                driver.handle(events.ShortAnswer(worker.lane))


class SampleBytes:
    """Brings a few bytes to compare."""

    def __init__(self, worker: Worker, start: int, stop: int) -> None:
        self._worker = worker
        self._start = start
        self._stop = stop
        self._data = bytearray()
        #: Reads on where the mirror sends the whole file instead.
        self._instead: FileBytes | None = None
        #: The mirror minds only where a range begins.
        self._runs_on = False

    def begin(self, body: Body) -> None:
        if body.whole:
            self._instead = FileBytes(self._worker, None)
            self._instead.begin(body)
        elif body.end is not None:
            self._runs_on = body.end - self._stop > 64 << 10

    def useful(self, data: memoryview) -> None:
        if self._instead is not None:
            self._instead.useful(data)
            return
        driver = self._worker.driver
        driver.state.overhead_bytes += len(data)
        self._data += data[: self._stop - self._start - len(self._data)]
        if self._runs_on and len(self._data) == self._stop - self._start:
            self.complete()
            driver.break_off(self._worker)

    def complete(self) -> None:
        if self._instead is not None:
            self._instead.complete()
        elif len(self._data) == self._stop - self._start:
            worker = self._worker
            worker.driver.handle(events.SampleReceived(worker.lane, self._start, bytes(self._data)))
