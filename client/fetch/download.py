"""One file from its mirrors: tells `decide` what happens, and does what it says.

Every mirror is asked at once, each for another part of a file of unknown length. The first answer
tells the size, with which the writer and the segment map are made. From then on the segment map
hands out blocks. A complete file is checked, repaired if need be, and named. `state` has what is
known and decided; here are the connections, the file and the clock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ..net.errors import (
    Corrupt,
    DownloadFailed,
    Interrupted,
    LocalProblem,
    NoRoom,
    UsageProblem,
)
from ..net.identity import client_secret, data_folder
from ..net.network import GuardedNetwork, Network
from ..net.request_builder import RequestBuilder
from ..net.urls import Url
from ..schedule.segments import UNKNOWN_SIZE, Segment, SegmentMap
from ..storage.output import MemoryOutput, Output
from ..storage.piece_writer import PieceWriter
from . import actions as do
from . import connections, events, faults
from .actions import Action
from .content import BodyReceiver, CulpritSearch, DownloadedFile, make_segment_map
from .decide import decide
from .events import Event
from .metalink import LIMIT_BYTES, Metalink, read_metalink
from .options import OnEvent, Options, Progress, Result
from .report import Rates, make_progress, make_result, remember
from .state import Depth, State
from .workers import Worker

#: Silence is judged this often.
TICK_S = 0.025


class RateLimit:
    """`hold(True)` stops all reading, `hold(False)` lets it go on."""

    def __init__(
        self, network: Network, rate_bytes_s: float | None, hold: Callable[[bool], None]
    ) -> None:
        self._network = network
        self._rate = rate_bytes_s
        self._hold = hold
        self._allowance = 0.0
        self._allowed_s = network.now()
        self.held = False

    def spend(self, count: int, now: float) -> None:
        """Count bytes that arrived; stop reading until they are within the limit."""
        rate = self._rate
        if rate is None:
            return
        earned = self._allowance + (now - self._allowed_s) * rate
        # A tenth of a second's bytes may come at once.
        self._allowance = min(earned, rate / 10) - count
        self._allowed_s = now
        if self._allowance < 0 and not self.held:
            self.held = True
            self._hold(True)
            self._network.call_later(-self._allowance / rate, self._release)

    def _release(self) -> None:
        self.held = False
        self._hold(False)


def runs_over(block: Segment, limit: int) -> bool:
    """Whether a block comes so near the edge of the reader's window that it should be held."""
    return block.live and block.position + (1 << 20) > limit and block.end > limit


if TYPE_CHECKING:
    from .multicast_join import MulticastJoin
    from .peer_join import PeerJoin


class Download:
    """Call `start`, then let the network run until `over`; then `result` or `failure` is set."""

    def __init__(
        self,
        network: Network,
        urls: Sequence[Url],
        target: Output,
        options: Options,
        emit: OnEvent,
        metalink: Metalink | None = None,
    ) -> None:
        #: Without a timer or an answer of its own nothing would look after it any more.
        self.network: Network = GuardedNetwork(network, self._broke)
        self.target = target
        self.emit = emit
        folder = Path(options.data_folder or data_folder(options.environ))
        self._rates = Rates(folder)
        self.requests = RequestBuilder(
            options.environ,
            options.headers,
            options.client_id,
            options.pass_token,
            None if options.client_id is not None else client_secret(folder),
        )
        self.state = State(options, Random(options.seed), network.now(), self._rates.path)
        self.state.in_order = target.path is None
        self.content = DownloadedFile(self.state, target, options.digest, metalink)
        self.intake: BodyReceiver | None = None
        self.over = False
        self.result: Result | None = None
        self.failure: DownloadFailed | None = None
        self.when_over: Callable[[], None] = lambda: None
        #: The caller named no file: a name the server proposes may be used.
        self.rename_freely = False
        self._metalink = metalink
        self._workers: dict[int, Worker] = {}
        #: Small downloads beside this one (a Metalink, a torrent).
        self._aside: list[Download] = []
        self._limit = RateLimit(self.network, options.limit_bytes_s, self._hold_all)
        self._waking = False
        self._noted_s = self.state.began_s
        self._told_s = 0.0
        for url in urls:
            self.state.add(url, listed=True)
        #: Asks the first mirror for a multicast session and receives it; None: not wanted.
        self.joining: MulticastJoin | None = None
        if options.multicast and target.path is not None and urls:
            from .multicast_join import MulticastJoin

            self.joining = MulticastJoin(self, self.state.mirrors[0], target.path.parent)
        #: Exchanges pieces with other clients that fetch the file; None: not wanted.
        self.peering: PeerJoin | None = None
        if options.peers and target.path is not None and urls:
            from .peer_join import PeerJoin

            folder, name = target.path.parent, target.path.name
            self.peering = PeerJoin(self, self.state.mirrors[0], folder, name)

    @property
    def segments(self) -> SegmentMap | None:
        """Which bytes are wanted and under way; None until the size is known."""
        return self.state.segments

    @property
    def writer(self) -> PieceWriter | None:
        """Where the bytes go; None until the size is known."""
        return self.intake.writer if self.intake is not None else None

    @property
    def kept_bytes(self) -> int:
        """What lies beside the file for the next try, once this one has failed."""
        writer = self.writer
        if writer is None or self.target.path is None or isinstance(self.failure, Corrupt):
            return 0
        return writer.have.total if writer.size_bytes < UNKNOWN_SIZE else 0

    def progress(self) -> Progress:
        return make_progress(
            self.state, self.writer, self.joining, self.peering, self.network.now()
        )

    # -- starting and ending -------------------------------------------------------------------

    def start(self) -> None:
        if self.peering is None:
            self._begin()
        else:
            self._fetch_torrent(self.peering.head_start(self._begin))

    def _begin(self) -> None:
        if self.over:
            return
        known = self._metalink.size_bytes if self._metalink is not None else None
        try:
            self.handle(events.Started(known))
            size_bytes, validators = self.content.resume()
            self.handle(events.ValidatorsKnown(validators))
            if size_bytes is None and self.peering is not None:
                size_bytes = self.peering.size_bytes()
            if size_bytes is not None:
                self.set_up(size_bytes)
        except DownloadFailed as problem:
            self.fail(problem)
            return
        self.network.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """The caller wants no more; what arrived is kept."""
        self.fail(Interrupted())

    def fail(self, problem: DownloadFailed) -> None:
        """It cannot be done, or is pointless now: keep what arrived unless it is wrong."""
        if self.over:
            return
        self.over = True
        self.handle(events.DownloadOver())
        if self.result is None:
            self.failure = problem
        try:
            self._leave_others()
            for worker in self._workers.values():
                worker.hang_up()
            if self.result is None:
                self.target.close(discard=isinstance(problem, Corrupt))
        finally:
            self.when_over()

    def _broke(self, fault: Exception) -> None:
        """Something that the network called has failed."""
        if self.over:
            raise fault
        if isinstance(fault, DownloadFailed):
            self.fail(fault)
            return
        what = f"{type(fault).__name__}: {fault}"
        local = LocalProblem(f"a fault while it ran ({what}); what arrived is kept")
        local.__cause__ = fault
        self.fail(local)

    # -- deciding and acting -------------------------------------------------------------------

    def handle(self, event: Event) -> bool:
        """Decide and act; True if an answer's bytes were accepted."""
        accepted = False
        for action in decide(self.state, event, self.network.now()):
            if self.over:
                return False
            if isinstance(action, do.OpenOutput) and not self._placed(action.size_bytes):
                return False
            accepted = accepted or isinstance(action, do.AcceptBody)
            self._perform(action)
        return accepted and not self.over

    def _perform(self, action: Action) -> None:
        match action:
            case do.Connect(lane):
                self._worker(lane).connect()
            case do.Disconnect(lane):
                self._worker(lane).hang_up()
            case do.RequestWholeFile(lane):
                self._worker(lane).ask_all()
            case do.RequestSample(lane, start, end):
                self._worker(lane).sample(start, end)
            case do.AssignFrom(lane, start):
                whole = self._worker(lane).whole
                if whole is not None:
                    whole.steer(start)
            case do.Wake():
                self.wake()
            case do.ScheduleRetry(mirror, until):
                due = events.RetryDue(mirror, until)
                self.network.call_later(until - self.network.now(), lambda: self._due(due))
            case do.Emit(event, data):
                self.emit(event, data)
            case do.Fail(problem):
                self.fail(problem)
            case _:
                self._perform_on_file(action)

    def _perform_on_file(self, action: Action) -> None:
        intake, writer = self.intake, self.writer
        match action:
            case do.StartOver():
                self._start_over()
            case do.FetchMetalink(url, teller):
                # It names pieces, and perhaps more mirrors.
                read = functools.partial(self._read_metalink, url, teller)
                self.network.call_later(0.0, lambda: self._fetch_aside(url, LIMIT_BYTES, read))
            case do.SetSize(size_bytes) if intake is not None:
                intake.writer.size_bytes = size_bytes
                intake.segments.settle(size_bytes)
            case do.UseDigest(digest) if writer is not None:
                if self.content.use_told_digest(writer, digest):
                    self.handle(events.DigestKnown())
            case do.Distrust(mirror) if intake is not None:
                intake.distrust(mirror)
            case do.FindCulprit() if intake is not None:
                search = self.content.search
                if search is None:
                    search = CulpritSearch(self.state.mirrors, intake.writer)
                    self.content.search = search
                    self.emit("retry", {"text": "the digest is wrong; looking for the culprit"})
                self.handle(events.ReplacementStarted(search.next(intake.segments)))
            case do.FinishFile():
                self._attempt(self._finish)

    def _placed(self, size_bytes: int) -> bool:
        try:
            self.set_up(size_bytes)
        except NoRoom as problem:
            self.handle(events.FileTooLarge(size_bytes, problem))
            return False
        except DownloadFailed as problem:
            self.fail(problem)
            return False
        return True

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except DownloadFailed as problem:
            self.fail(problem)

    def _due(self, due: events.RetryDue) -> None:
        self.handle(due)

    def _worker(self, lane: int) -> Worker:
        worker = self._workers.get(lane)
        if worker is None:
            worker = self._workers[lane] = Worker(self, self.state.mirror_of(lane), lane)
        return worker

    # -- the file ------------------------------------------------------------------------------

    def set_up(self, size_bytes: int) -> None:
        """The size is known: make the output and the map of segments, and connect. Raises
        DownloadFailed when there is no room for the file."""
        state = self.state
        writer = self.content.open(size_bytes)
        segments = make_segment_map(writer)
        segments.limit = self.target.window_end()
        self.intake = BodyReceiver(state, writer, segments, self)
        told = None if size_bytes == UNKNOWN_SIZE else size_bytes
        self.emit("start", {"size": told, "have": writer.have.total})
        vouched = writer.digest is not None or writer.pieces is not None
        self.handle(
            events.OutputReady(
                size_bytes, writer.have.total, writer.pieces is not None, vouched, segments
            )
        )
        for worker in list(self._workers.values()):
            if worker.connection is not None and worker.connection.open:
                self.connected(worker, anew=False)
        for worker in list(self._workers.values()):
            worker.reserve(size_bytes)

    def _start_over(self) -> None:
        for worker in self._workers.values():
            worker.hang_up()
        self._leave_others()
        self.intake = None
        self._attempt(self.content.start_over)

    def check(self) -> None:
        """Hash what has become ready; wrong pieces are wanted again."""
        writer = self.writer
        if writer is not None and writer.checks_due:
            bad = writer.check()
            if bad or writer.culprits:
                pieces = tuple((piece.index, piece.start, piece.end) for piece in bad)
                self.handle(events.PiecesWrong(pieces, tuple(sorted(writer.culprits))))

    def _conclude(self) -> None:
        """Every byte is there, as it seems."""
        intake = self.intake
        while intake is not None and intake.writer.checks_due and not self.over:
            self.check()
        if self.over or intake is None:
            return
        writer = intake.writer
        if not intake.segments.done or not writer.complete:
            self.wake()
            return
        working = frozenset(
            worker.mirror.number
            for worker in self._workers.values()
            if worker.connection is not None and worker.connection.busy
        )
        wrong = None
        if not writer.right():
            wrong = writer.digest[0] if writer.digest is not None else "digest"
        self.handle(events.BytesComplete(wrong, self.target.drained(), working))

    def _finish(self) -> None:
        state, writer = self.state, self.writer
        assert writer is not None
        if self.content.search is not None:
            self.content.search.name_culprit()
        for worker in self._workers.values():
            worker.let_go()
        note = self.target.finish(state.proposed_name if self.rename_freely else None)
        if note is not None:
            state.notes.append(note)
        remember(state, self._rates)
        if self.peering is not None:
            self.peering.stop()
        now = self.network.now()
        self.result = make_result(state, self.content, writer, self.joining, self.peering, now)
        self.handle(events.FileNamed())
        self._part()

    def _part(self) -> None:
        """The file has its name; a multicast sender may still have to be told."""
        joining = self.joining
        if self.over or (joining is not None and joining.closing(self.network.now())):
            return
        self.over = True
        self.handle(events.DownloadOver())
        self._leave_others()
        self.when_over()

    def _leave_others(self) -> None:
        """End what runs beside the mirrors."""
        if self.joining is not None:
            self.joining.stop()
        if self.peering is not None:
            self.peering.stop()
        for aside in self._aside:
            aside.stop()
        self._aside.clear()

    # -- told by workers -----------------------------------------------------------------------

    def connected(self, worker: Worker, *, anew: bool = True) -> None:
        """Its connection stands; not `anew`: as it did before."""
        segments, state, mirror = self.state.segments, self.state, worker.mirror
        if segments is None or state.ended:
            return
        hint = None
        if mirror.remembered is not None:
            hint = mirror.remembered.rate_bytes_s / max(1, len(mirror.lanes))
        segments.join(
            worker.lane,
            self.network.now(),
            mirror=mirror.number,
            hint=hint,
            rtt_s=worker.rtt_s,
            most_bytes=mirror.most_bytes,
            single=mirror.depth is Depth.ONE,
        )
        self.handle(events.ConnectionOpened(worker.lane, anew))

    def has_session(self, worker: Worker) -> bool:
        """Whether the lane is kept for multicast."""
        return self.joining is not None and self.joining.takes(worker)

    def break_off(self, worker: Worker) -> None:
        """What still comes on this connection is of no use: open another."""
        worker.hang_up()
        worker.connect()

    def break_stopped(self) -> None:
        """Break off the transfers whose blocks were taken away."""
        if self.state.segments is not None:
            for block in self.state.segments.stopped():
                self.break_off(self._worker(block.lane))

    def took(self, lane: int, block: Segment, count: int, now: float) -> None:
        """`count` bytes were read: keep within the user's limit and the reader's window."""
        self._limit.spend(count, now)
        segments = self.state.segments
        if segments is None or segments.limit is None:
            return
        if runs_over(block, segments.limit):
            self._worker(lane).hold(True)
        self.target.checkpoint()

    # -- time ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look after things before the next tick."""
        if not self._waking:
            self._waking = True
            self.network.call_later(0.0, self._woken)

    def _woken(self) -> None:
        self._waking = False
        if self.over or self.intake is None:
            return
        if self.result is not None:
            self._part()
            return
        self.break_stopped()
        self._pump()
        if self.intake is not None and self.intake.segments.done and not self.over:
            self._conclude()

    def _pump(self) -> None:
        for worker in list(self._workers.values()):
            worker.pump()

    def _tick(self) -> None:
        if self.over:
            return
        if self.result is None:
            self._look_after(self.network.now())
        else:
            self._part()
        if not self.over:
            self.network.call_later(TICK_S, self._tick)

    def _look_after(self, now: float) -> None:
        self._listen(now)
        if self.intake is not None and not self.over:
            self.handle(events.Tick())
            self.check()
            if not self.over:
                self.break_stopped()
                if self.joining is not None:
                    self.joining.tick(now)
                if self.peering is not None:
                    self.peering.tick(now)
                self._follow_reader()
                self._pump()
            # A crash loses what arrived in half a second.
            if not self.over and now - self._noted_s >= 0.5:
                self._noted_s = now
                self._attempt(self.target.checkpoint)
        if not self.over and now - self._told_s >= 0.1:
            self._told_s = now
            self.emit("progress", self.progress().fields())
        if not self.over and self.intake is not None and self.intake.segments.done:
            self._conclude()

    def _listen(self, now: float) -> None:
        """Which connections have fallen silent?"""
        for worker in list(self._workers.values()):
            connection = worker.connection
            if connection is None or not connection.open or not connection.busy or worker.paused:
                continue
            silent_s = now - connection.last_s
            headless_s = now - connection.idle_s if connection.headless else 0.0
            if headless_s > self.state.options.max_wait_s + self.state.options.timeout_s:
                # A head that comes in drips is a wait, too.
                silent_s = headless_s
            if self.joining is not None and self.joining.patient(worker):
                if silent_s > self.joining.patience_s:
                    # It held the request for longer than we care to wait: ask the plain way.
                    self.joining.give_up()
                    self.break_off(worker)
            elif silent_s > connections.LEAST_SILENCE_S:
                crowded = connection.unheard
                self.handle(events.ConnectionSilent(worker.lane, silent_s, worker.rtt_s, crowded))

    def _hold_all(self, on: bool) -> None:
        for worker in self._workers.values():
            worker.hold(on)

    def _follow_reader(self) -> None:
        limit, segments = self.target.window_end(), self.state.segments
        if limit is None or segments is None:
            return
        segments.limit = limit
        if self._limit.held:
            return
        for worker in self._workers.values():
            blocks = segments.lanes[worker.lane].blocks if worker.paused else ()
            if worker.paused and not any(runs_over(block, limit) for block in blocks):
                worker.hold(False)

    # -- small files beside the file -----------------------------------------------------------

    def _fetch_torrent(self, answered: Callable[[bytes | None], None]) -> None:
        """By it the downloads of one file find each other."""
        path, mark, _ = self.state.mirrors[0].url.target.partition("?")
        if mark or path.endswith("/"):
            answered(None)
        else:
            url = replace(self.state.mirrors[0].url, target=path + ".torrent")
            self._fetch_aside(url, 32 << 20, answered)

    def _fetch_aside(
        self, url: Url, limit_bytes: int, then: Callable[[bytes | None], None]
    ) -> None:
        """Fetch something small; `then` gets it, or None."""
        if self.state.ended:
            return
        target = MemoryOutput(limit_bytes)
        options = replace(
            self.state.options,
            mirrors=False,
            multicast=False,
            peers=False,
            checksum=None,
            connections=None,
            max_failures=2,
            max_wait_s=5.0,
        )
        aside = Download(self.network, [url], target, options, lambda event, data: None)

        def ended() -> None:
            if aside in self._aside:
                self._aside.remove(aside)
                then(target.data if aside.result is not None else None)

        aside.when_over = ended
        self._aside.append(aside)
        aside.start()

    def _read_metalink(self, url: Url, teller: int, data: bytes | None) -> None:
        # Its pieces would convict the mirror that is believed.
        differs = self.state.mirrors[teller].dropped == faults.DropReason.DIFFERS
        if data is None or differs or self.writer is None or self.state.ended:
            return
        try:
            documents = read_metalink(data, url)
        except UsageProblem:
            return
        for metalink in documents:
            if metalink.size_bytes == self.writer.size_bytes:
                self.adopt(metalink)
                return

    def adopt(self, metalink: Metalink) -> None:
        """Piece digests (and mirrors) learnt while the download runs."""
        writer = self.writer
        if writer is None or not self.content.use_pieces(writer, metalink):
            return
        if writer.pieces is not None:
            self.handle(events.DigestKnown())
        self.handle(events.MirrorsFound(events.Findings(metalink.urls)))
