"""One file from its mirrors: builds the parts, hears the workers, decides what a fault means.

The order of events: every mirror is asked at once (each for another part, in the hope that the
file is that long); the first answer tells the size, which makes the sink and the board; from then
on the board hands out blocks. When all is there it is checked, mended if need be, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from client.asking import Asking
from client.blocks import AdaptiveBlocks, DynamicBlocks, HistoryBlocks, SingleBlocks
from client.board import Block, Board
from client.failures import (
    AccessRefused,
    Corrupt,
    DownloadFailed,
    Interrupted,
    LocalProblem,
    NetworkProblem,
    NotFound,
    WaitedTooLong,
)
from client.finding import Findings, read_findings
from client.journal import Identity
from client.jury import Jury
from client.metalink import Metalink
from client.net import Network
from client.options import Options, Result, SourceReport
from client.rates import Rates, client_id, data_folder
from client.repair import Repair
from client.session import Body, Fields, OutOfRange, Redirect
from client.sink import BadPiece, Pieces, Sink
from client.sources import Source
from client.target import UNKNOWN_SIZE, Target
from client.urls import BadUrl, Url, disposition_name
from client.visit import (
    Answer,
    Ask,
    Failed,
    GiveUp,
    HoldOn,
    Manners,
    Reason,
    WaitUntil,
)
from client.workers import RangeTaker, Worker

if TYPE_CHECKING:
    from client.multicast_join import MulticastJoin

_FIRST_BYTES = 64 << 10
_SAMPLE_BYTES = 4096
_TICK_S = 0.025
_FAILURES: Mapping[Reason, type[DownloadFailed]] = {
    Reason.NOT_FOUND: NotFound,
    Reason.REFUSED: AccessRefused,
    Reason.NETWORK: NetworkProblem,
    Reason.PROTOCOL: NetworkProblem,
    Reason.WAITED_TOO_LONG: WaitedTooLong,
}
Emit = Callable[[str, Mapping[str, object]], None]


class Download:
    """Call `start`, then let the network run until `over`; then `result` or `failure` is set."""

    def __init__(
        self,
        network: Network,
        urls: Sequence[Url],
        target: Target,
        options: Options,
        emit: Emit,
        metalink: Metalink | None = None,
    ) -> None:
        self.network = network
        self.target = target
        self.options = options
        folder = options.data_folder or data_folder(options.environ)
        self.rates = Rates(folder)
        self.asking = Asking(
            options.environ,
            options.headers,
            options.client_id or client_id(folder),
            options.pass_token,
        )
        self.board: Board | None = None
        self.sink: Sink | None = None
        self.over = False
        self.result: Result | None = None
        self.failure: DownloadFailed | None = None
        self.workers: dict[int, Worker] = {}
        self.sources: list[Source] = []
        self.overhead_bytes = 0
        self.resumed_bytes = 0
        self.proposed_name: str | None = None
        #: The caller named no file: a name the server proposes may be used.
        self.rename_freely = False
        self.predicted_s: float | None = None
        self.notes: list[str] = []
        self.when_over: Callable[[], None] = lambda: None
        self.began_s = network.now()
        self.first_byte_s: float | None = None
        self._emit = emit
        self._random = Random(options.seed)
        #: Asks the first mirror for a multicast session and receives it; None: not wanted.
        self.joining: MulticastJoin | None = None
        self._manners = Manners(
            max_wait_s=options.max_wait_s, max_failures=max(1, options.max_failures)
        )
        self._metalink = metalink
        self._jury = Jury()
        self._sample: tuple[int, int] | None = None
        self._repair: Repair | None = None
        self._restarts = 0
        self._allowance = 0.0
        self._allowed_s = self.began_s
        self._held = False
        self._noted_s = self.began_s
        self._told_s = 0.0
        self._bad_pieces: dict[int, int] = {}
        self._ending = False
        self._digest_from: str | None = None
        self._reasons: list[tuple[Reason, str]] = []
        for url in urls:
            self._add(url, listed=True)
        if options.multicast and target.path is not None and urls:
            from client.multicast_join import MulticastJoin

            folder = target.path.parent
            self.joining = MulticastJoin(self, self.sources[0], folder, self._set_up, emit)

    # -- starting ------------------------------------------------------------------------------

    def _add(self, url: Url, *, listed: bool) -> Source | None:
        if any(source.url == url for source in self.sources):
            return None
        now = self.network.now()
        number = len(self.sources)
        source = Source.make(number, url, self._manners, self._random, now, listed)
        self.sources.append(source)
        self._lane(source)
        return source

    def _lane(self, source: Source) -> Worker:
        lane = len(self.workers)
        worker = Worker(self, source, lane)
        self.workers[lane] = worker
        source.lanes.append(lane)
        return worker

    def start(self) -> None:
        """Begin; returns at once."""
        try:
            for worker in list(self.workers.values()):
                worker.connect()
            for source in list(self.sources):
                for _ in range((self.options.connections or 1) - 1):
                    self._lane(source)
            self._resume()
        except DownloadFailed as problem:
            self._fail(problem)
            return
        self.network.call_later(_TICK_S, self._tick)

    def _resume(self) -> None:
        left = self.target.resumable()
        known = self._metalink
        if left is not None:
            digest = self._digest_text(self.options.checksum or (known.digest if known else None))
            urls = {source.url.text for source in self.sources}
            vouched = left.digest is not None and left.digest == digest
            if vouched or urls & set(left.validators):
                for source in self.sources:
                    source.etag = left.validators.get(source.url.text)
                self._set_up(left.size_bytes)
                return
        if known is not None and known.size_bytes is not None:
            self._set_up(known.size_bytes)

    @staticmethod
    def _digest_text(digest: tuple[str, bytes] | None) -> str | None:
        return f"{digest[0]}:{digest[1].hex()}" if digest is not None else None

    def _set_up(self, size_bytes: int) -> None:
        """The size is known: make the sink and the board, and set everybody to work."""
        known = self._metalink
        digest = self.options.checksum or (known.digest if known else None)
        self._digest_from = "checksum" if self.options.checksum else "digest"
        pieces = known.pieces if known is not None else None
        if pieces is not None and not pieces.fits(size_bytes):
            pieces = None
        identity = Identity(
            size_bytes,
            {s.url.text: s.etag for s in self.sources if s.etag is not None},
            self._digest_text(digest),
            pieces.digests[0].hex() if pieces is not None else None,
        )
        sink = self.target.open(identity)
        checked = sorted(sink.checked)
        if pieces is not None:
            sink.use_pieces(pieces, checked)
        if digest is not None and not self._pieces_vouch(pieces):
            sink.use_digest(digest)
        self.sink = sink
        self.resumed_bytes = sink.have.total
        self.board = self._make_board(sink)
        self.board.limit = self.target.window_end()
        self._emit(
            "start",
            {"size": None if size_bytes == UNKNOWN_SIZE else size_bytes, "have": sink.have.total},
        )
        if len(self.sources) > 1 and pieces is None and 1 << 20 <= size_bytes < UNKNOWN_SIZE:
            at = self._random.randrange(size_bytes - _SAMPLE_BYTES)
            self._sample = (at, at + _SAMPLE_BYTES)
        for worker in list(self.workers.values()):
            worker.connect()
            if worker.connection is not None and worker.connection.open:
                self.joined(worker)
        self._expect()

    def _pieces_vouch(self, pieces: Pieces | None) -> bool:
        """Whether checked pieces make the digest of the whole superfluous: both come from one
        Metalink, and the caller gave no checksum of his own."""
        return (
            pieces is not None
            and pieces.algorithm in ("sha256", "sha512", "sha384")
            and self.options.checksum is None
        )

    def _make_board(self, sink: Sink) -> Board:
        missing, options = sink.missing(), self.options
        left = sum(end - start for start, end in missing)
        match options.strategy:
            case "history":
                known = {s.number: self.rates.rate(s.host) for s in self.sources}
                seen = [rate for rate in known.values() if rate]
                usual = sum(seen) / len(seen) if seen else 1.0
                shares = {n: rate or usual for n, rate in known.items()}
                return HistoryBlocks(missing, shares)
            case "dynamic":
                count = options.blocks
                if options.block_bytes:
                    count = max(1, -(-left // options.block_bytes))
                return DynamicBlocks(missing, count)
            case "single":
                return SingleBlocks(missing)
        align = sink.pieces.length if sink.pieces is not None else 1
        return AdaptiveBlocks(
            missing,
            align=align if align <= 1 << 20 else 1,
            first_bytes=_FIRST_BYTES,
            fixed_bytes=options.block_bytes,
        )

    def _expect(self) -> None:
        if self.board is not None:
            usable = [s for s in self.sources if s.dropped is None and not s.excluded]
            self.board.expected = sum(len(s.lanes) for s in usable)

    # -- heard from the workers ----------------------------------------------------------------

    @property
    def size_limit(self) -> int:
        return self.sink.size_bytes if self.sink is not None else UNKNOWN_SIZE

    def connect_timeout_s(self, worker: Worker) -> float:
        """Shorter while others work."""
        others = any(s.usable and s is not worker.source for s in self.sources)
        return min(self.options.timeout_s, 10.0) if others else self.options.timeout_s

    def joined(self, worker: Worker) -> None:
        """A connection stands."""
        if self.board is None or self.over:
            return
        source = worker.source
        hint = self.rates.rate(source.host) if self.options.strategy != "single" else None
        if self.options.connections not in (None, 1) and hint is not None:
            hint /= len(source.lanes)
        self.board.join(
            worker.lane, self.network.now(), mirror=source.number, hint=hint, rtt_s=worker.rtt_s
        )
        self._ask_sample(worker)

    def _ask_sample(self, worker: Worker) -> None:
        source = worker.source
        if self._sample is None or worker.lane != source.lanes[0] or source.last_resort:
            return
        if source.number not in self._jury.heard:
            self._jury.heard.add(source.number)
            worker.sample(*self._sample)

    def unjoined(self, worker: Worker) -> None:
        """A connection is gone: its blocks are free."""
        if self.board is not None:
            self.board.leave(worker.lane, self.network.now())

    def again(self, worker: Worker) -> None:
        """Open the connection anew, at once, unless nothing is left to do."""
        if not self.over and worker.source.usable:
            worker.connect()

    def opening(self, worker: Worker) -> tuple[int | None, int | None]:
        """What to ask a mirror for before the size is known; (None, None) is the whole file."""
        if sum(s.dropped is None for s in self.sources) == 1 or worker.source.last_resort:
            return None, None
        step = self.options.block_bytes or _FIRST_BYTES
        return worker.lane * step, (worker.lane + 1) * step

    def failed(self, worker: Worker, text: str, permanent: bool) -> None:
        """The connection broke, or never came."""
        source = worker.source
        if worker.lane != source.lanes[0]:
            source.lanes.remove(worker.lane)
            self._expect()
            return
        if permanent:
            self._reasons.append((Reason.NETWORK, text))
            self.drop(source, text)
            return
        self.told(worker, Failed(text))

    def told(self, worker: Worker, answer: Answer) -> None:
        """A mirror said no, later, or nothing; or (Granted) yes."""
        source = worker.source
        now = self.network.now()
        action = source.visit.answered(now, answer)
        match action:
            case HoldOn(connections):
                source.max_lanes = connections
                return
            case Ask():
                worker.hang_up()
                self.again(worker)
            case WaitUntil(at, text, told):
                source.retries += 1
                source.wait_until = at
                source.waiting_text = text
                source.place = told.place if told is not None else None
                for lane in source.lanes:
                    self.workers[lane].hang_up()
                self._emit(
                    "wait" if told is not None else "retry",
                    {
                        "url": source.url.text,
                        "text": text,
                        "seconds": round(at - now, 3),
                        "place": source.place,
                        "expected_s": told.expected_s if told is not None else None,
                        "p90_s": told.p90_s if told is not None else None,
                        "ready": told.ready if told is not None else False,
                    },
                )
                self.network.call_later(at - now, lambda: self._due(source, at))
                self.wake()
            case GiveUp(reason, text):
                self._reasons.append((reason, text))
                self.drop(source, text)

    def _due(self, source: Source, at: float) -> None:
        if self.over or source.wait_until != at:
            return
        source.wait_until = None
        source.visit.due(self.network.now())
        for lane in source.lanes:
            self.workers[lane].connect()

    def moved(self, worker: Worker, meaning: Redirect | OutOfRange, taker: RangeTaker) -> None:
        """A redirect, or a range outside the file."""
        source = worker.source
        if isinstance(meaning, OutOfRange):
            if self.board is None:
                # Asked in the dark for a part of a small file: the first mirror will tell.
                if self.sources[0].dropped is not None and meaning.size_bytes is not None:
                    self._set_up(meaning.size_bytes)
                return
            if taker.start is not None and taker.start < self.size_limit:
                self._disagrees(source, meaning.size_bytes)
            return
        source.redirects += 1
        if source.redirects > self.options.max_redirects:
            self._reasons.append((Reason.PROTOCOL, "it redirects in circles"))
            self.drop(source, "it redirects in circles")
            return
        try:
            aim = source.at.join(meaning.location)
            if source.at.scheme == "https" and aim.scheme == "http":
                raise BadUrl("it redirects from https to http")
        except BadUrl as error:
            self._reasons.append((Reason.PROTOCOL, str(error)))
            self.drop(source, str(error))
            return
        source.at = aim
        for lane in source.lanes:
            self.workers[lane].hang_up()
            self.again(self.workers[lane])

    def accepts(self, worker: Worker, body: Body, fields: Fields, start: int | None) -> bool:
        """Whether these bytes belong to our file; if not, the mirror has been dealt with."""
        source = worker.source
        if not body.whole and body.start != start:
            self.drop(source, "it sends another part than was asked for")
            return False
        if source.answered and source.etag is not None and body.etag != source.etag:
            self._changed(source, "the file changed on the server during the download")
            return False
        if not source.answered and source.etag is not None and body.etag != source.etag:
            self._changed(source, "the file has changed since the download was broken off")
            return False
        size = body.size_bytes
        if size is not None and self.size_limit < UNKNOWN_SIZE and size != self.size_limit:
            self._disagrees(source, size)
            return False
        first = not source.answered
        source.answered, source.etag, source.modified = True, body.etag, body.modified
        source.size_bytes = size
        source.redirects = 0
        self.told(worker, body.granted)
        if first:
            self._learn(source, fields, size)
            if self.over:
                return False
        if body.whole and start is not None and self._others(source):
            source.parts = False
            self.drop(source, "it sends only the whole file")
            return False
        if self.board is None:
            try:
                self._set_up(size if size is not None else UNKNOWN_SIZE)
            except DownloadFailed as problem:
                self._fail(problem)
                return False
        return not self.over

    def _others(self, source: Source) -> bool:
        return any(s is not source and s.dropped is None and s.parts for s in self.sources)

    def _learn(self, source: Source, fields: Fields, size: int | None) -> None:
        found = read_findings(source.at, fields)
        if self.proposed_name is None and source.number == 0:
            self.proposed_name = disposition_name(fields.get("content-disposition"))
        if not source.listed:
            return
        if self.options.mirrors and (size or 0) >= 1 << 20:
            for url in found.mirrors:
                fresh = self._add(url, listed=False)
                if fresh is not None:
                    self._emit("mirror", {"url": url.text, "state": "found"})
                    self.workers[fresh.lanes[0]].connect()
            self._expect()
        if found.digest is not None and self.options.checksum is None and source.number == 0:
            self.network.call_later(0.0, lambda: self._adopt(found))

    def _adopt(self, found: Findings) -> None:
        sink = self.sink
        if sink is None or self.over or found.digest is None or sink.digest is not None:
            return
        if not self._pieces_vouch(sink.pieces):
            sink.use_digest(found.digest)
            self._digest_from = "digest"

    def adopt_pieces(self, metalink: Metalink) -> None:
        """Piece digests learnt while the download runs."""
        sink, pieces = self.sink, metalink.pieces
        if sink is None or self.over or pieces is None or sink.pieces is not None:
            return
        if metalink.size_bytes == sink.size_bytes and pieces.fits(sink.size_bytes):
            sink.use_pieces(pieces)

    def claim(self, worker: Worker, start: int, end: int) -> Block:
        """The lane is being sent this already."""
        assert self.board is not None
        return self.board.claim(worker.lane, start, end, self.network.now())

    def take_whole(self, worker: Worker, body: Body) -> Block:
        """The mirror sends everything from the start: take it."""
        assert self.board is not None
        now = self.network.now()
        self.board.leave(worker.lane, now)
        self.joined(worker)
        return self.board.claim(worker.lane, 0, self.size_limit, now)

    def arrived(self, worker: Worker, block: Block, data: memoryview) -> bool:
        """Bytes at the block's position; False when the download is over because of them."""
        assert self.sink is not None
        assert self.board is not None
        now = self.network.now()
        try:
            self.sink.write_at(block.position, data, worker.source.number)
        except LocalProblem as problem:
            self._fail(problem)
            return False
        if self.first_byte_s is None:
            self.first_byte_s = now
        count = len(data)
        worker.source.received_bytes += count
        self.board.received(block, count, now)
        if self.options.limit_bytes_s is not None:
            self._limit(count, now)
        if self.board.limit is not None:
            self._slide(worker, block)
        if self.board.done:
            self.wake()
        return not self.over

    def short(self, worker: Worker, block: Block) -> None:
        """An answer ended before its block did."""
        assert self.board is not None
        assert self.sink is not None
        if self.size_limit == UNKNOWN_SIZE:
            self.sink.settle(block.position)
            self.board.filled(block.position, UNKNOWN_SIZE)
            self.wake()
            return
        self.board.ended(block, self.network.now())

    def broken_off(self, worker: Worker) -> None:
        """What still comes on this connection is of no use: close it and open another."""
        worker.hang_up()
        self.again(worker)

    def sampled(self, worker: Worker, data: bytes) -> None:
        """A mirror's bytes at the place where all are compared."""
        self._jury.testify(worker.source.number, data)
        for number in self._jury.liars():
            if self.sources[number].dropped is None:
                self.convict(self.sources[number], "its copy differs from the others'")

    # -- mirrors that misbehave ----------------------------------------------------------------

    def drop(self, source: Source, text: str) -> None:
        """The mirror is out of the game."""
        if source.dropped is not None or self.over:
            return
        source.dropped = text
        source.wait_until = None
        for lane in source.lanes:
            self.workers[lane].hang_up()
        self._emit("mirror", {"url": source.url.text, "state": "dropped", "text": text})
        self._expect()
        if all(s.dropped is not None for s in self.sources):
            self._last_hope(text)
        else:
            self.wake()

    def _last_hope(self, text: str) -> None:
        whole = [s for s in self.sources if not s.parts and not s.last_resort]
        if whole:
            source = whole[0]
            source.dropped, source.last_resort = None, True
            self._expect()
            self.again(self.workers[source.lanes[0]])
            return
        if self._reasons and len(self.sources) == 1:
            reason, text = self._reasons[-1]
        else:
            order = [Reason.WAITED_TOO_LONG, Reason.REFUSED, Reason.NETWORK, Reason.PROTOCOL]
            ranked = sorted(
                self._reasons, key=lambda r: order.index(r[0]) if r[0] in order else len(order)
            )
            reason, text = ranked[0] if ranked else (Reason.NETWORK, text)
        names = self.sources[0].url.text if len(self.sources) == 1 else "every mirror failed"
        self._fail(_FAILURES[reason](f"{names}: {text}"))

    def convict(self, source: Source, text: str) -> None:
        """The mirror gave wrong bytes: what it gave and nobody vouched for is missing again."""
        assert self.sink is not None
        assert self.board is not None
        sink, pieces = self.sink, self.sink.pieces
        for start, end, giver in sink.sources(0, sink.size_bytes):
            if giver != source.number:
                continue
            doubtful = [(start, end)]
            if pieces is not None:
                doubtful = [
                    (max(start, a), min(end, b))
                    for index in range(start // pieces.length, -(-end // pieces.length))
                    if index not in sink.checked
                    for a, b in [pieces.span(index, sink.size_bytes)]
                ]
            for a, b in doubtful:
                sink.forget(a, b)
                self.board.want(a, b)
        self.notes.append(f"{source.url.text} was dropped: {text}")
        sink.culprits.add(source.number)
        self._reasons.append((Reason.PROTOCOL, text))
        if all(s.dropped is not None or s is source for s in self.sources):
            self._fail(Corrupt(f"{source.url.text} gives wrong bytes, and no other mirror is left"))
            return
        self.drop(source, text)

    def _changed(self, source: Source, text: str) -> None:
        if self._others(source):
            self.drop(source, text)
        else:
            self._start_over(source, text)

    def _disagrees(self, source: Source, size: int | None) -> None:
        """A mirror has a copy of another size: the majority of those asked decides."""
        source.size_bytes = size
        sizes = [s.size_bytes for s in self.sources if s.size_bytes is not None]
        settled = self._metalink is not None and self._metalink.size_bytes is not None
        ours = sizes.count(self.size_limit)
        if not settled and size is not None and sizes.count(size) > ours:
            for other in self.sources:
                if other.size_bytes == size and other.dropped is not None:
                    other.dropped = None
                elif other.size_bytes not in (size, None):
                    self.drop(other, "its copy has another size")
            self._start_over(source, "most mirrors have a copy of another size")
            return
        if not self._others(source):
            if settled:
                self._fail(
                    Corrupt(
                        f"{source.url.text} has {size} bytes where {self.size_limit} are promised"
                    )
                )
            else:
                self._start_over(source, "the file has another size than before")
            return
        self.drop(source, "its copy has another size")

    def _start_over(self, source: Source, text: str) -> None:
        self._restarts += 1
        if self._restarts > 3:
            self._fail(NetworkProblem(f"{source.url.text}: {text}, again and again"))
            return
        self._emit("retry", {"url": source.url.text, "text": f"{text}; starting over"})
        for worker in self.workers.values():
            worker.hang_up()
        if self.joining is not None:
            self.joining.stop()
        try:
            self.target.restart()
        except DownloadFailed as problem:
            self._fail(problem)
            return
        self.board = self.sink = None
        self._jury = Jury()
        self._repair = None
        self.overhead_bytes += sum(s.received_bytes for s in self.sources)
        for other in self.sources:
            other.etag, other.answered = None, False
        for worker in list(self.workers.values()):
            self.again(worker)

    # -- time ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.over:
            return
        now = self.network.now()
        if self.result is not None:
            self._part()
            self.network.call_later(_TICK_S, self._tick)
            return
        self._stalls(now)
        if self.board is not None and self.sink is not None:
            if self.sink.checks_due:
                self._bad(self.sink.check())
            if not self.over:
                self._break_stopped()
                if self.joining is not None:
                    self.joining.tick(now)
                limit = self.target.window_end()
                if limit is not None:
                    self.board.limit = limit
                    self._slide(None, None)
                for worker in list(self.workers.values()):
                    worker.pump()
            if not self.over and now - self._noted_s >= 0.5:
                self._noted_s = now
                try:
                    self.target.checkpoint()
                except DownloadFailed as problem:
                    self._fail(problem)
        if not self.over and now - self._told_s >= 0.1:
            self._told_s = now
            self._emit("progress", {})
        if not self.over and self.board is not None and self.board.done:
            self._conclude()
        if not self.over:
            self.network.call_later(_TICK_S, self._tick)

    def wake(self) -> None:
        """Look after things before the next tick."""
        if not self._ending:
            self._ending = True
            self.network.call_later(0.0, self._woken)

    def _woken(self) -> None:
        self._ending = False
        if self.over or self.board is None:
            return
        if self.result is not None:
            self._part()
            return
        self._break_stopped()
        for worker in list(self.workers.values()):
            worker.pump()
        if self.board is not None and self.board.done and not self.over:
            self._conclude()

    def _break_stopped(self) -> None:
        if self.board is None:
            return
        for block in self.board.stopped():
            self.broken_off(self.workers[block.lane])

    def _stalls(self, now: float) -> None:
        for worker in list(self.workers.values()):
            connection = worker.connection
            if connection is None or not connection.open or not connection.busy or worker.paused:
                continue
            limit_s = self.options.timeout_s
            if any(s.usable and s is not worker.source for s in self.sources):
                rate = None
                if self.board is not None and worker.lane in self.board.lanes:
                    rate = self.board.lanes[worker.lane].last_rate
                # Four packets' time at the rate last seen, so that slow is not taken for dead.
                slow_s = 6000 / rate if rate is not None and rate > 1.0 else 0.0
                limit_s = min(limit_s, max(self.options.stall_s, slow_s) + 2 * worker.rtt_s)
            if self.joining is not None and self.joining.patient(worker):
                if now - connection.last_s > self.joining.patience_s:
                    # It held the request for longer than we care to wait: ask the plain way.
                    self.joining.give_up()
                    self.broken_off(worker)
                continue
            if now - connection.last_s > limit_s:
                worker.hang_up()
                self.failed(worker, "it sent nothing for a while", False)
                if self.over:
                    return

    def _limit(self, count: int, now: float) -> None:
        assert self.options.limit_bytes_s is not None
        rate = self.options.limit_bytes_s
        self._allowance = min(self._allowance + (now - self._allowed_s) * rate, rate * 0.1)
        self._allowed_s = now
        self._allowance -= count
        if self._allowance < 0 and not self._held:
            self._held = True
            for worker in self.workers.values():
                worker.hold(True)
            self.network.call_later(-self._allowance / rate, self._release)

    def _release(self) -> None:
        self._held = False
        for worker in self.workers.values():
            worker.hold(False)

    def _slide(self, worker: Worker | None, block: Block | None) -> None:
        """Keep answers that run past the reader's window from overrunning it."""
        assert self.board is not None
        limit = self.board.limit
        if limit is None:
            return
        if worker is not None and block is not None:
            if block.live and block.position + (1 << 20) > limit and block.end > limit:
                worker.hold(True)
            self.target.checkpoint()
            return
        if not self._held:
            for one in self.workers.values():
                if one.paused:
                    blocks = self.board.lanes[one.lane].blocks
                    if all(b.position + (1 << 20) <= limit or b.end <= limit for b in blocks):
                        one.hold(False)

    # -- the end -------------------------------------------------------------------------------

    def _bad(self, bad: list[BadPiece]) -> None:
        assert self.sink is not None
        assert self.board is not None
        for piece in bad:
            self.board.want(piece.start, piece.end)
            times = self._bad_pieces[piece.index] = self._bad_pieces.get(piece.index, 0) + 1
            if times > 2 * len(self.sources) + 1:
                self._fail(Corrupt(f"piece {piece.index} is wrong on every mirror"))
                return
        for number in sorted(self.sink.culprits):
            if self.sources[number].dropped is None and not self.over:
                self.convict(self.sources[number], "it gives wrong bytes")

    def _conclude(self) -> None:
        """Every byte is there: check, mend, finish."""
        sink, board = self.sink, self.board
        assert sink is not None
        assert board is not None
        while sink.checks_due and not self.over:
            self._bad(sink.check())
        if self.over:
            return
        if not board.done or not sink.complete:
            self.wake()
            return
        if not sink.right():
            # A reader of in-order output has not had the last bytes yet, and will not get them.
            self._mend(sink, board)
            return
        if not self.target.drained():
            return
        self._finish(sink)

    def _mend(self, sink: Sink, board: Board) -> None:
        if self.target.path is None or not self._others(self.sources[0]):
            digest = sink.digest[0] if sink.digest is not None else "digest"
            who = "; the mirrors agree on it, so the checksum may be wrong"
            names = self.sources[0].url.text if len(self.sources) == 1 else "the file"
            self._fail(
                Corrupt(
                    f"{names} arrived whole but does not have the expected {digest}"
                    f"{who if len(self.sources) > 1 else ''}"
                )
            )
            return
        if self._repair is None:
            self._repair = Repair(self.sources, sink, self.convict)
            self._emit("retry", {"text": "the digest is wrong; looking for the culprit"})
        if not self._repair.next(board):
            self._fail(Corrupt("the mirrors agree, but the file does not have the expected digest"))
            return
        for source in self.sources:
            if source.excluded:
                for lane in source.lanes:
                    self.workers[lane].hang_up()
        self._expect()
        for worker in list(self.workers.values()):
            self.again(worker)
        self.wake()

    def _finish(self, sink: Sink) -> None:
        if self._repair is not None:
            self._repair.name_culprit()
        for worker in self.workers.values():
            worker.let_go()
        try:
            self.target.finish(self.proposed_name if self.rename_freely else None)
        except DownloadFailed as problem:
            self._fail(problem)
            return
        telling = [s for s in self.sources if s.busy_s > 0.05 and s.received_bytes >= 16 << 10]
        for source in telling:
            self.rates.learn(source.host, source.received_bytes / source.busy_s, source.rtt_s)
        if telling:
            self.rates.save()
        verified = "length"
        if sink.digest is not None:
            verified = self._digest_from or "digest"
        elif sink.pieces is not None:
            verified = "pieces"
        elif self.joining is not None and self.joining.received_bytes == sink.size_bytes:
            # Every block of the session was checked before it was written.
            verified = "pieces"
        seconds = self.network.now() - self.began_s
        self.result = Result(
            self.target.path,
            sink.size_bytes,
            sum(s.received_bytes for s in self.sources)
            + self.overhead_bytes
            + (self.joining.received_bytes if self.joining is not None else 0),
            self.resumed_bytes,
            seconds,
            verified,
            self.report(),
            self.predicted_s,
            tuple(self.sources[n].url.text for n in sorted(sink.culprits)),
            tuple(self.notes),
        )
        self._part()

    def _part(self) -> None:
        """The file has its name; a multicast sender may still have to hear so."""
        if self.over or (self.joining is not None and self.joining.closing(self.network.now())):
            return
        self.over = True
        if self.joining is not None:
            self.joining.stop()
        self.when_over()

    def report(self) -> tuple[SourceReport, ...]:
        """What each mirror has done so far, and multicast if it brought anything."""
        joined = self.joining.report() if self.joining is not None else ()
        return joined + tuple(
            SourceReport(
                s.url.text,
                s.received_bytes,
                s.received_bytes / s.busy_s if s.busy_s > 0 else 0.0,
                s.rtt_s,
                s.requests,
                s.connections,
                s.retries,
                s.visit.waited_s,
                s.dropped,
            )
            for s in self.sources
        )

    def stop(self) -> None:
        """The caller wants no more; what arrived is kept."""
        if not self.over:
            self._fail(Interrupted("interrupted; run the same command again to go on"))

    def _fail(self, problem: DownloadFailed) -> None:
        if self.over:
            return
        self.over = True
        if self.result is None:
            self.failure = problem
        if self.joining is not None:
            self.joining.stop()
        for worker in self.workers.values():
            worker.hang_up()
        if self.result is None:
            self.target.close(discard=isinstance(problem, Corrupt))
        self.when_over()

    def abandon(self, problem: DownloadFailed) -> None:
        """Something outside the download makes it pointless (its reader has gone)."""
        self._fail(problem)
