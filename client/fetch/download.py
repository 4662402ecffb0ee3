"""One file from its mirrors: builds the parts and holds what they share.

The order of events: every mirror is asked at once (each for another part, in the hope that the
file is that long); the first answer tells the size, which makes the sink and the board; from then
on the board hands out blocks. When all is there it is checked, mended if need be, and named.
What arrives goes through `receiver`, faults are judged in `faults`, time is watched in `watchdog`,
the end is in `finaliser`, what the answers tell of other copies in `discovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from client.fetch.discovery import Learning
from client.fetch.faults import Troubles
from client.fetch.finaliser import Ending
from client.fetch.forecast import Forecast
from client.fetch.metalink import Metalink
from client.fetch.options import Emit, Options, Result
from client.fetch.planning import Planning
from client.fetch.rates import Rates
from client.fetch.receiver import Intake
from client.fetch.sampling import SAMPLE_BYTES, Sampling
from client.fetch.sharing import make_board
from client.fetch.sources import Source
from client.fetch.streams import Streams
from client.fetch.watchdog import Watch
from client.fetch.widening import Widening
from client.fetch.workers import Worker
from client.net.errors import Corrupt, DownloadFailed, Interrupted
from client.net.identity import client_secret, data_folder
from client.net.network import Network
from client.net.request_builder import Asking
from client.net.retry import Manners
from client.net.urls import Url
from client.schedule.segments import Board
from client.storage.journal import Identity
from client.storage.output import UNKNOWN_SIZE, Target
from client.storage.piece_writer import Pieces, Sink

if TYPE_CHECKING:
    from client.fetch.multicast_join import MulticastJoin

#: What each of several mirrors is asked for before the size is known.
_OPENING_BYTES = 128 << 10
#: So many mirrors can tell which of them has another copy.
_JURY = 3
#: What strategies with a plan of their own ask for before they know the size.
_PROBE_BYTES = 16 << 10
_STRONG = ("sha256", "sha384", "sha512")


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
        self.emit = emit
        folder = options.data_folder or data_folder(options.environ)
        self.rates = Rates(folder)
        self.asking = Asking(
            options.environ,
            options.headers,
            options.client_id,
            options.pass_token,
            None if options.client_id is not None else client_secret(folder),
        )
        self.board: Board | None = None
        self.sink: Sink | None = None
        self.over = False
        self.result: Result | None = None
        self.failure: DownloadFailed | None = None
        self.workers: dict[int, Worker] = {}
        self.sources: list[Source] = []
        #: A small download beside this one (a Metalink).
        self.aside: Download | None = None
        self.overhead_bytes = self.resumed_bytes = 0
        self.proposed_name: str | None = None
        #: The caller named no file: a name the server proposes may be used.
        self.rename_freely = False
        self.predicted_s: float | None = None
        self.digest_from = "digest"
        self.notes: list[str] = []
        self.when_over: Callable[[], None] = lambda: None
        self.began_s = network.now()
        self.first_byte_s: float | None = None
        self.random = Random(options.seed)
        self._sample_at = self.random.randrange(_OPENING_BYTES - SAMPLE_BYTES)
        self.troubles = Troubles(self)
        self.watch = Watch(self)
        self.intake = Intake(self)
        self.ending = Ending(self)
        self.learning = Learning(self)
        self.sampling = Sampling(self)
        self.forecast = Forecast(self)
        self.streams = Streams(self)
        self.widening = Widening(self)
        self.planning = Planning(self)
        #: Asks the first mirror for a multicast session and receives it; None: not wanted.
        self.joining: MulticastJoin | None = None
        self._manners = Manners(
            max_wait_s=options.max_wait_s, max_failures=max(1, options.max_failures)
        )
        self._metalink = metalink
        self._waking = False
        for url in urls:
            self.add(url, listed=True)
        if options.multicast and target.path is not None and urls:
            from client.fetch.multicast_join import MulticastJoin

            at = target.path.parent
            self.joining = MulticastJoin(self, self.sources[0], at, self.set_up, emit)

    # -- mirrors -------------------------------------------------------------------------------

    def add(self, url: Url, *, listed: bool) -> Source | None:
        """One more mirror, not yet connected; None when it is known. `listed`: the user named it,
        so what it says of digests and mirrors is believed."""
        if any(source.url == url for source in self.sources):
            return None
        number, now = len(self.sources), self.network.now()
        source = Source.make(number, url, self._manners, self.random, now, listed)
        self.sources.append(source)
        self.lane(source)
        return source

    def lane(self, source: Source) -> Worker:
        """One more connection to a mirror, not yet open."""
        worker = Worker(self, source, len(self.workers))
        self.workers[worker.lane] = worker
        source.lanes.append(worker.lane)
        return worker

    def others(self, source: Source) -> bool:
        """Whether another mirror can serve parts of the file."""
        return any(s is not source and s.dropped is None and s.parts for s in self.sources)

    def expect(self) -> None:
        """The number of mirrors changed: the strategy should know how many may come."""
        if self.board is not None:
            self.board.expected = sum(
                len(s.lanes)
                for s in self.sources
                if s.dropped is None and not s.excluded and not s.standby
            )

    # -- starting ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; returns at once."""
        try:
            self.planning.choose((self._metalink and self._metalink.size_bytes) or 0)
            for worker in list(self.workers.values()):
                worker.connect()
            for source in list(self.sources):
                for _ in range((self.options.connections or 1) - 1):
                    self.lane(source)
            self._resume()
        except DownloadFailed as problem:
            self.fail(problem)
            return
        self.watch.start()

    def _resume(self) -> None:
        left = self.target.resumable()
        known = self._metalink
        if left is not None:
            digest = self._digest_text(self.options.checksum or (known.digest if known else None))
            urls = {source.url.text for source in self.sources}
            vouched = left.digest is not None and left.digest == digest
            if vouched or urls & set(left.validators):
                for source in self.sources:
                    source.validator = left.validators.get(source.url.text)
                self.set_up(left.size_bytes)
                return
        if known is not None and known.size_bytes is not None:
            self.set_up(known.size_bytes)

    @staticmethod
    def _digest_text(digest: tuple[str, bytes] | None) -> str | None:
        return f"{digest[0]}:{digest[1].hex()}" if digest is not None else None

    @property
    def size_limit(self) -> int:
        """The size of the file, or what stands for an unknown one."""
        return self.sink.size_bytes if self.sink is not None else UNKNOWN_SIZE

    @property
    def size_is_certain(self) -> bool:
        """Whether the size comes from a Metalink rather than from a mirror."""
        return self._metalink is not None and self._metalink.size_bytes is not None

    def set_up(self, size_bytes: int) -> None:
        """The size is known: make the sink and the board, and set everybody to work."""
        known = self._metalink
        digest = self.options.checksum or (known.digest if known else None)
        self.digest_from = "checksum" if self.options.checksum else "digest"
        pieces = known.pieces if known is not None else None
        if pieces is not None and not pieces.fits(size_bytes):
            pieces = None
        identity = Identity(
            size_bytes,
            {s.url.text: s.validator for s in self.sources if s.validator is not None},
            self._digest_text(digest),
            pieces.digests[0].hex() if pieces is not None else None,
        )
        sink = self.target.open(identity)
        checked = sorted(sink.checked)
        if pieces is not None:
            sink.use_pieces(pieces, checked)
        if digest is not None and not self.pieces_vouch(pieces):
            sink.use_digest(digest)
        self.sink = sink
        self.resumed_bytes = sink.have.total
        hosts = {s.number: self.rates.rate(s.host) for s in self.sources}
        self.board = make_board(sink, self.options, hosts)
        self.board.limit = self.target.window_end()
        self.emit(
            "start",
            {"size": None if size_bytes == UNKNOWN_SIZE else size_bytes, "have": sink.have.total},
        )
        if len(self.sources) > 1 and pieces is None:
            self.sampling.choose(size_bytes)
        for worker in list(self.workers.values()):
            worker.connect()
            if worker.connection is not None and worker.connection.open:
                self.joined(worker)
        for worker in self.workers.values():
            worker.reserve(size_bytes)
        self.expect()
        self.forecast.at_start()

    def pieces_vouch(self, pieces: Pieces | None) -> bool:
        """Whether checked pieces make the digest of the whole superfluous: both come from one
        Metalink, and the caller gave no checksum of his own."""
        strong = pieces is not None and pieces.algorithm in _STRONG
        return strong and self.options.checksum is None

    def restart(self) -> None:
        """Forget everything that arrived and ask all mirrors afresh."""
        for worker in self.workers.values():
            worker.hang_up()
        if self.joining is not None:
            self.joining.stop()
        try:
            self.target.restart()
        except DownloadFailed as problem:
            self.fail(problem)
            return
        self.board = self.sink = None
        self.sampling = Sampling(self)
        self.learning = Learning(self)
        self.ending.restart()
        self.streams.stop()
        self.overhead_bytes += sum(s.received_bytes for s in self.sources)
        for other in self.sources:
            other.received_bytes = 0
            other.validator, other.answered = None, False
        for worker in list(self.workers.values()):
            self.again(worker)

    # -- heard from the workers ----------------------------------------------------------------

    def joined(self, worker: Worker) -> None:
        """A connection stands."""
        if self.board is None or self.over:
            return
        source = worker.source
        hint = self.rates.rate(source.host) if self.options.strategy != "single" else None
        if hint is not None:
            hint /= len(source.lanes)
        self.board.join(
            worker.lane,
            self.network.now(),
            mirror=source.number,
            hint=hint,
            rtt_s=worker.rtt_s,
            most_bytes=source.most_bytes,
            single=source.single,
        )
        self.sampling.ask(worker)

    def unjoined(self, worker: Worker) -> None:
        """A connection is gone: its blocks are free."""
        if self.board is not None:
            self.board.leave(worker.lane, self.network.now())

    def again(self, worker: Worker) -> None:
        """Open the connection anew, at once, unless nothing is left to do."""
        if not self.over and worker.source.usable:
            worker.connect()

    def first_spans(self, worker: Worker) -> list[tuple[int, int] | tuple[None, None]]:
        """What to ask a mirror for before the size is known; (None, None) is the whole file."""
        count = 1 if worker.source.last_resort else sum(s.dropped is None for s in self.sources)
        if count == 1:
            return [(None, None)]
        step = _OPENING_BYTES if self.options.strategy == "adaptive" else _PROBE_BYTES
        step = self.options.block_bytes or step
        opening = (worker.lane * step, (worker.lane + 1) * step)
        if count < _JURY:
            return [opening]
        # These can tell which of them has another copy, so a sample comes before anything else.
        return [(self._sample_at, self._sample_at + SAMPLE_BYTES), opening]

    def broken_off(self, worker: Worker) -> None:
        """What still comes on this connection is of no use: open another."""
        worker.hang_up()
        self.again(worker)

    def break_stopped(self) -> None:
        """Break off the transfers whose blocks were taken away."""
        if self.board is not None:
            for block in self.board.stopped():
                self.broken_off(self.workers[block.lane])

    def wake(self) -> None:
        """Look after things before the next tick."""
        if not self._waking:
            self._waking = True
            self.network.call_later(0.0, self._woken)

    def _woken(self) -> None:
        self._waking = False
        if self.over or self.board is None:
            return
        if self.result is not None:
            self.ending.part()
            return
        self.break_stopped()
        for worker in list(self.workers.values()):
            worker.pump()
        if self.board is not None and self.board.done and not self.over:
            self.ending.conclude()

    # -- the end -------------------------------------------------------------------------------

    def stop(self) -> None:
        """The caller wants no more; what arrived is kept."""
        self.fail(Interrupted())

    def fail(self, problem: DownloadFailed) -> None:
        """It cannot be done, or is pointless now: keep what arrived unless it is wrong."""
        if self.over:
            return
        self.over = True
        if self.result is None:
            self.failure = problem
        if self.joining is not None:
            self.joining.stop()
        for worker in self.workers.values():
            worker.hang_up()
        if self.aside is not None:
            self.aside.stop()
        if self.result is None:
            self.target.close(discard=isinstance(problem, Corrupt))
        self.when_over()
