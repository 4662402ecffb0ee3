"""Gives mirrors more connections where `client.schedule.trials` finds that it helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.fetch.sources import Source
from client.schedule.trials import Add, Reading, Trials
from client.storage.output import UNKNOWN_SIZE

if TYPE_CHECKING:
    from client.fetch.download import Download

#: More than this to one server is not polite, whatever it brings.
_MOST_LANES = 4
_EVERY_S = 0.1


class Widening:
    """Watches what comes, opens connections on trial, closes those that do not pay."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._trials = Trials()
        self._retiring: set[int] = set()
        self._next_s = 0.0
        self.lines: list[str] = []

    @property
    def _wanted(self) -> bool:
        options = self._download.options
        return (
            options.connections is None
            and options.strategy == "adaptive"
            and options.block_bytes is None
            and options.limit_bytes_s is None
            # A reader in order sets the pace itself.
            and self._download.target.path is not None
        )

    def tick(self, now: float) -> None:
        """Called by the watch."""
        download = self._download
        board = download.board
        if board is None or download.size_limit >= UNKNOWN_SIZE:
            return
        if now < self._next_s or not self._wanted:
            return
        self._next_s = now + _EVERY_S
        self._retire()
        readings = {
            source.number: Reading(source.received_bytes, self._lanes(source), self._most(source))
            for source in download.sources
            if source.usable and source.answered and source.parts and source.ranged
        }
        for step in self._trials.tick(now, readings, board.wanted.total):
            source = download.sources[step.mirror]
            if isinstance(step, Add):
                for _ in range(step.count):
                    download.lane(source).connect()
                download.expect()
            else:
                for lane in source.lanes[-step.count :]:
                    board.retire(lane)
                    self._retiring.add(lane)
            verb = "try" if isinstance(step, Add) else "give up"
            text = f"{verb} {step.count} more to {source.url.text}"
            self.lines.append(f"connections: after {now - download.began_s:.1f} s, {text}")

    def _lanes(self, source: Source) -> int:
        return sum(lane not in self._retiring for lane in source.lanes)

    @staticmethod
    def _most(source: Source) -> int:
        told = source.lease_connections
        return _MOST_LANES if told is None else min(_MOST_LANES, told)

    def _retire(self) -> None:
        download = self._download
        assert download.board is not None
        for lane in list(self._retiring):
            known = download.board.lanes.get(lane)
            worker = download.workers[lane]
            if lane not in worker.source.lanes:
                self._retiring.discard(lane)
            elif known is None or not known.blocks:
                self._retiring.discard(lane)
                worker.source.lanes.remove(lane)
                worker.let_go()
                download.expect()
