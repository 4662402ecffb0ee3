"""Says early in a download how long it should take, by the model, to be compared later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.schedule import model
from client.storage.output import UNKNOWN_SIZE

if TYPE_CHECKING:
    from client.fetch.download import Download

#: Mirrors are measured for so long before the model is asked, if they are all strangers.
_MEASURE_S = 0.75


class Forecast:
    """From remembered rates when all mirrors are known, else from the first second's."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._made = False
        self.lines: list[str] = []

    def at_start(self) -> None:
        """The size is known; perhaps all mirrors are too."""
        download = self._download
        sink = download.sink
        assert sink is not None
        known = [download.rates.path(source.host) for source in download.sources]
        paths = [model.Path(rtt_s, rate) for rate, rtt_s in (row for row in known if row)]
        left = sink.size_bytes - sink.have.total
        if len(paths) < len(known) or left <= 0 or sink.size_bytes == UNKNOWN_SIZE:
            return
        self._made = True
        block = max(model.least_block(path) for path in paths)
        elapsed_s = download.network.now() - download.began_s
        download.predicted_s = elapsed_s + model.predict_s(left, paths, block)
        count = model.useful(left, paths, block)
        self.lines.append(f"model: from earlier downloads, {count} of {len(paths)} mirrors pay")

    def tick(self, now: float) -> None:
        """Measure for a moment, then predict the rest."""
        download = self._download
        sink, board = download.sink, download.board
        first_s = download.first_byte_s
        if self._made or sink is None or board is None or first_s is None:
            return
        if now - first_s < _MEASURE_S or sink.size_bytes == UNKNOWN_SIZE:
            return
        self._made = True
        paths = []
        for lane in board.lanes.values():
            rate = lane.rate(now)
            if lane.blocks and rate is not None and rate > 1.0:
                paths.append(model.Path(lane.rtt_s, rate))
        left = board.wanted.total
        if not paths or left <= 0:
            return
        block = max(model.least_block(path) for path in paths)
        download.predicted_s = (
            now - download.began_s + model.predict_s(left, paths, block, standing=True)
        )
        count = model.useful(left, paths, block)
        self.lines.append(f"model: from the first second, {count} of {len(paths)} mirrors pay")
