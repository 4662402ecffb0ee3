"""The progress view on a terminal: a line per mirror, a map of the file, rate and time left."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...protocol.units import format_duration, format_size
from ..fetch.download import Download
from ..fetch.options import Result
from ..fetch.state import Mirror
from ..net.errors import DownloadFailed
from ..schedule.segments import UNKNOWN_SIZE
from .show import Quiet, progress_line, summary

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
_MAP_CELLS = 60


class Rich(Quiet):
    """Redrawn eight times a second; news scrolls above it."""

    def __init__(self, explain: bool, console: Console | None = None) -> None:
        super().__init__(explain)
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._drawn_s = 0.0

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def begin(self, download: Download) -> None:
        super().begin(download)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def event(self, event: str, data: Mapping[str, object]) -> None:
        text = self.news(event, data)
        if text is not None and event != "wait":
            self.say(text)
        now = time.monotonic()
        if self._live is not None and self.download is not None and now - self._drawn_s > 0.125:
            self._drawn_s = now
            self._live.update(draw(self.download), refresh=True)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def done(self, result: Result) -> None:
        for line in summary(result):
            self.say(line)
        super().done(result)

    def failed(self, problem: DownloadFailed) -> None:
        self.end()
        self._console.print(Text(f"tidegate: {problem}", style="bold red"))


def draw(download: Download) -> RenderableType:
    """The whole view as it stands now."""
    now = download.network.now()
    table = Table.grid(padding=(0, 2))
    for mirror in download.state.mirrors:
        table.add_row(*_row(download, mirror, now))
    writer, segments = download.writer, download.segments
    if writer is None or segments is None:
        return table
    line = Text(progress_line(download.progress()))
    if writer.size_bytes < UNKNOWN_SIZE:
        return Group(table, _map(download, writer.size_bytes), line)
    return Group(table, line)


def _row(download: Download, mirror: Mirror, now: float) -> tuple[Text, Text, Text]:
    colour = _COLOURS[mirror.number % len(_COLOURS)]
    name = Text(mirror.url.authority, style=colour)
    got = Text(format_size(mirror.counts.received_bytes))
    pause = mirror.pause
    if mirror.dropped is not None:
        return name, got, Text(mirror.dropped, style="red")
    if pause is not None:
        left = format_duration(max(0.0, pause.until - now))
        if pause.place is not None:
            start = ""
            if pause.starts_at is not None:
                start = f"starts in about {format_duration(max(0.0, pause.starts_at - now))}, "
            return name, got, Text(f"waiting, place {pause.place}, {start}asks again in {left}")
        return name, got, Text(f"{pause.text}; again in {left}", style="yellow")
    segments = download.segments
    lanes = [segments.lanes[n] for n in mirror.lanes if segments and n in segments.lanes]
    if not any(lane.blocks for lane in lanes):
        return name, got, Text("connecting" if segments is None else "ready", style="dim")
    return name, got, Text(f"{format_size(sum(lane.rate(now) or 0.0 for lane in lanes))}/s")


def _map(download: Download, size: int) -> Text:
    """What has arrived, in the colour of its mirror; a mark where a mirror is at work."""
    text = Text()
    writer, segments = download.writer, download.segments
    if writer is None or segments is None or size == 0:
        return text
    owner: list[int | None] = [None] * _MAP_CELLS
    for start, end, number in writer.sources(0, size):
        for cell in range(start * _MAP_CELLS // size, -(-end * _MAP_CELLS // size)):
            owner[cell] = number
    at_work = {
        min(_MAP_CELLS - 1, block.position * _MAP_CELLS // size): lane.mirror
        for lane in segments.lanes.values()
        for block in lane.blocks
    }
    for cell in range(_MAP_CELLS):
        low, high = cell * size // _MAP_CELLS, max(1, (cell + 1) * size // _MAP_CELLS)
        who = at_work.get(cell, owner[cell])
        style = _COLOURS[who % len(_COLOURS)] if who is not None else "white"
        if writer.have.covers(low, high):
            text.append("█", style=style)
        elif cell in at_work:
            text.append("▸", style=style)
        else:
            text.append("▒" if writer.have.overlaps(low, high) else "·", style=style)
    return text
