"""Mirrors that send only the whole file: which of their answers is kept.

Such an answer begins at the start of the file and cannot be steered. One of them is worth keeping,
the fastest that runs: mirrors that serve parts work from the far end towards it. While several run
side by side, each writes what the others have not; after a moment the fastest stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.schedule.segments import Lane

if TYPE_CHECKING:
    from client.fetch.download import Download
    from client.fetch.sources import Source
    from client.fetch.workers import BlockTaker, Worker

#: So long the answers run side by side, from the first byte of the last of them.
_COMPARE_S = 0.25
#: Or until one has brought this much.
_COMPARE_BYTES = 2 << 20
#: Where the others have, or are being sent, more of the file than this, it would come twice.
_TWICE_SHARE = 0.1


@dataclass(slots=True)
class Stream:
    """One whole answer: `position` is the next byte of it, `taker` its reader."""

    taker: BlockTaker
    began_s: float
    position: int = 0

    def rate(self, now: float) -> float:
        """Bytes per second since it began."""
        return self.position / max(0.001, now - self.began_s)


class Streams:
    """The whole answers that run; only one of them has a block on the board."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._running: dict[int, Stream] = {}

    def welcome(self, source: Source) -> bool:
        """Whether a whole answer from this mirror could be of use now."""
        board = self._download.board
        if board is None or not self._download.others(source):
            return True
        size = self._download.size_limit
        # Those that may turn out alike are not counted; they are compared, and the fastest stays.
        sources = self._download.sources
        lanes = [lane for lane in board.lanes.values() if sources[lane.mirror].ranged]
        return size - board.wanted.total + sum(map(Lane.left, lanes)) <= _TWICE_SHARE * size

    def begin(self, taker: BlockTaker) -> Stream:
        """The body of a whole answer follows; it has the block if none runs yet."""
        download, worker = self._download, taker.worker
        assert download.board is not None
        now = download.network.now()
        download.board.leave(worker.lane, now)
        download.joined(worker)
        stream = Stream(taker, now)
        if not self._running:
            taker.block = download.intake.claim(worker, 0, download.size_limit)
        self._running[worker.source.number] = stream
        return stream

    def ended(self, worker: Worker) -> None:
        """What this connection brought is over, or broken off."""
        stream = self._running.get(worker.source.number)
        if stream is not None and stream.taker.worker is worker:
            del self._running[worker.source.number]

    def stop(self) -> None:
        """The download starts over."""
        self._running.clear()

    def tick(self, now: float) -> None:
        """Keep the fastest, once it is known; without any mirror at work, begin another answer."""
        streams = list(self._running.values())
        sources = self._download.sources
        if not streams and not any(
            s.wait_until is None and s.helps and not s.resting for s in sources
        ):
            self._download.troubles.revive()
        if len(streams) > 1:
            youngest_s = now - max(stream.began_s for stream in streams)
            if youngest_s < _COMPARE_S and max(s.position for s in streams) < _COMPARE_BYTES:
                return
            best = max(streams, key=lambda stream: stream.rate(now))
            for stream in streams:
                if stream is not best:
                    source = stream.taker.worker.source
                    self._download.troubles.drop(source, "another one sends the whole file faster")
            streams = [best]
        for stream in streams:
            if stream.taker.block is None and not self._download.over:
                # It ran beside the one that had the block, which is gone.
                stream.taker.block = self._download.intake.claim(
                    stream.taker.worker, stream.position, self._download.size_limit
                )
