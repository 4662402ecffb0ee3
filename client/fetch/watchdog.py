"""Looks after a download while it runs: silence, rate limit, the reader's window, the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.net.errors import DownloadFailed
from client.schedule.segments import Block

if TYPE_CHECKING:
    from client.fetch.download import Download
    from client.fetch.workers import Worker

TICK_S = 0.025
_NOTE_S = 0.5
_TELL_S = 0.1
#: An answer that runs past the reader's window is held back this far before its edge.
_MARGIN_BYTES = 1 << 20
#: Silence that is too long on a connection with several requests, until one was answered.
_TRYING_S = 0.3
#: What a narrow line's queue may hold: a mirror's bytes may stand behind so many of others.
_QUEUE_BYTES = 64 << 10


class Watch:
    """Ticks until the download is over."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._noted_s = download.began_s
        self._told_s = 0.0
        self._allowance = 0.0
        self._allowed_s = download.began_s
        self._held = False

    def start(self) -> None:
        """Begin ticking."""
        self._download.network.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        download = self._download
        if download.over:
            return
        if download.result is not None:
            download.ending.part()
            download.network.call_later(TICK_S, self._tick)
            return
        now = download.network.now()
        self._stalls(now)
        if download.board is not None and not download.over:
            download.forecast.tick(now)
            download.widening.tick(now)
            download.planning.tick(now)
            download.streams.tick(now)
            download.ending.check()
            if not download.over:
                download.break_stopped()
                if download.joining is not None:
                    download.joining.tick(now)
                self._follow_reader()
                for worker in list(download.workers.values()):
                    worker.pump()
            if not download.over and now - self._noted_s >= _NOTE_S:
                self._noted_s = now
                self._note()
        if not download.over and now - self._told_s >= _TELL_S:
            self._told_s = now
            download.emit("progress", {})
        if not download.over and download.board is not None and download.board.done:
            download.ending.conclude()
        if not download.over:
            download.network.call_later(TICK_S, self._tick)

    def _note(self) -> None:
        try:
            self._download.target.checkpoint()
        except DownloadFailed as problem:
            self._download.fail(problem)

    def _stalls(self, now: float) -> None:
        download = self._download
        for worker in list(download.workers.values()):
            connection = worker.connection
            if connection is None or not connection.open or not connection.busy or worker.paused:
                continue
            joining = download.joining
            if joining is not None and joining.patient(worker):
                if now - connection.last_s > joining.patience_s:
                    # It held the request for longer than we care to wait: ask the plain way.
                    joining.give_up()
                    download.broken_off(worker)
                continue
            silent_s = now - connection.last_s
            trying = connection.unheard and not worker.source.single
            if trying and silent_s > self._trying_s(worker):
                # Some servers stall on a request that is sent while another is under way.
                worker.source.single = True
                download.broken_off(worker)
                continue
            if silent_s > self._patience_s(worker):
                worker.hang_up()
                download.troubles.failed(worker, "it sent nothing for a while", False)
                if download.over:
                    return

    def connect_timeout_s(self, worker: Worker) -> float:
        """How long a connection may take to stand: shorter while others work."""
        download = self._download
        others = any(s.helps and s is not worker.source for s in download.sources)
        return min(download.options.timeout_s, 10.0) if others else download.options.timeout_s

    def _trying_s(self, worker: Worker) -> float:
        """How long silence may last where several requests are under way: shorter while the
        mirror has not shown that it can do that."""
        patience_s = self._patience_s(worker)
        if worker.source.pipelines:
            return patience_s
        return min(patience_s, _TRYING_S + 4 * worker.rtt_s + self._queue_s())

    def _queue_s(self) -> float:
        """How long a queue in front of us takes to pass, at the rate at which all arrives."""
        download = self._download
        if download.first_byte_s is None:
            return 0.0
        seconds = max(0.1, download.network.now() - download.first_byte_s)
        arrived = sum(source.received_bytes for source in download.sources)
        return _QUEUE_BYTES * seconds / max(1, arrived)

    def _patience_s(self, worker: Worker) -> float:
        """How long the mirror may be silent: long if it is the only one, else about a second."""
        download = self._download
        limit_s = download.options.timeout_s
        if not any(s.helps and s is not worker.source for s in download.sources):
            return limit_s
        rate = None
        if download.board is not None and worker.lane in download.board.lanes:
            rate = download.board.lanes[worker.lane].last_rate
        # Four packets' time at the rate last seen, so that slow is not taken for dead.
        slow_s = 6000 / rate if rate is not None and rate > 1.0 else 0.0
        slow_s = max(download.options.stall_s, slow_s) + self._queue_s()
        return min(limit_s, slow_s + 2 * worker.rtt_s)

    # -- --limit-rate --------------------------------------------------------------------------

    def spend(self, count: int, now: float) -> None:
        """So many bytes have arrived: read no further until they are within the limit."""
        download = self._download
        rate = download.options.limit_bytes_s
        if rate is None:
            return
        self._allowance = min(self._allowance + (now - self._allowed_s) * rate, rate * 0.1)
        self._allowed_s = now
        self._allowance -= count
        if self._allowance < 0 and not self._held:
            self._held = True
            for worker in download.workers.values():
                worker.hold(True)
            download.network.call_later(-self._allowance / rate, self._release)

    def _release(self) -> None:
        self._held = False
        for worker in self._download.workers.values():
            worker.hold(False)

    # -- in-order output -----------------------------------------------------------------------

    def near_edge(self, worker: Worker, block: Block) -> None:
        """Bytes arrived for a reader in order: do not overrun its window."""
        board = self._download.board
        if board is None or board.limit is None:
            return
        limit = board.limit
        if block.live and block.position + _MARGIN_BYTES > limit and block.end > limit:
            worker.hold(True)
        self._download.target.checkpoint()

    def _follow_reader(self) -> None:
        download = self._download
        limit = download.target.window_end()
        board = download.board
        if limit is None or board is None:
            return
        board.limit = limit
        if self._held:
            return
        for worker in download.workers.values():
            if worker.paused:
                blocks = board.lanes[worker.lane].blocks
                if all(b.position + _MARGIN_BYTES <= limit or b.end <= limit for b in blocks):
                    worker.hold(False)
