"""Which of the known mirrors are worth a connection, by the model and remembered rates.

A small file from a near mirror is through before a far one has said a word: such a mirror stands
by. It is brought in when another leaves, or when the download takes longer than was thought.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.fetch.sources import Source
from client.schedule import model
from client.storage.output import UNKNOWN_SIZE

if TYPE_CHECKING:
    from client.fetch.download import Download

#: So much longer than planned, and everybody is called.
_LATE = 1.5
_LATE_S = 0.3
#: For choosing mirrors, blocks of this length are as good as any.
_BLOCK_BYTES = 256 << 10


class Planning:
    """Marks mirrors as standing by; a mirror about which nothing is known never stands by."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._until_s: float | None = None
        self.lines: list[str] = []

    def choose(self, left_bytes: int) -> None:
        """Before connections are opened, when the size is known."""
        download = self._download
        if download.options.strategy != "adaptive" or not 0 < left_bytes < UNKNOWN_SIZE:
            return
        sources = [s for s in download.sources if s.dropped is None]
        paths = {s.number: path for s in sources if (path := self._path(s)) is not None}
        if len(paths) < len(sources) or len(paths) < 2:
            return
        numbers = list(paths)
        ways = [paths[number] for number in numbers]
        plan = model.choose(left_bytes, ways, [min(_BLOCK_BYTES, left_bytes)])
        used = {numbers[index] for index in plan.mirrors}
        for source in sources:
            source.standby = source.number not in used
        idle = [s.url.text for s in sources if s.standby]
        self._until_s = download.network.now() + plan.seconds * _LATE + _LATE_S
        text = f"plan: {len(used)} of {len(sources)} mirrors, {plan.seconds:.2f} s"
        self.lines.append(text + (f"; standing by: {', '.join(idle)}" if idle else ""))

    def found(self, source: Source, size_bytes: int) -> None:
        """A mirror was learnt of while the download runs: does it pay to open it?"""
        download = self._download
        board, path = download.board, self._path(source)
        if path is None or download.options.strategy != "adaptive":
            return
        left = board.wanted.total if board is not None else size_bytes
        used = [
            way
            for s in download.sources
            if s is not source and s.usable and (way := self._path(s)) is not None
        ]
        if not used or left >= UNKNOWN_SIZE >> 1:
            return
        block = min(_BLOCK_BYTES, max(1, left))
        without_s = model.predict_s(left, used, block)
        with_s = model.predict_s(left, [*used, path], block)
        if with_s > without_s * (1 - model.WORTH):
            source.standby = True
            self._until_s = download.network.now() + without_s * _LATE + _LATE_S
            self.lines.append(f"plan: {source.url.text} would not make it shorter, stands by")

    def tick(self, now: float) -> None:
        """Call everybody when it takes longer than planned."""
        if self._until_s is not None and now > self._until_s:
            self.call_all()

    def call_all(self) -> None:
        """The plan has failed: a mirror left or waits, or it takes too long."""
        self._until_s = None
        download = self._download
        waiting = [source for source in download.sources if source.standby]
        for source in waiting:
            source.standby = False
        if waiting and not download.over:
            download.expect()
            for source in waiting:
                for lane in source.lanes:
                    download.workers[lane].connect()

    def _path(self, source: Source) -> model.Path | None:
        row = self._download.rates.path(source.host)
        return model.Path(row[1], row[0]) if row is not None else None
