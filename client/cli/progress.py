"""The progress view on a terminal: a line per mirror, a bar, rate and time left."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...protocol.units import format_duration, format_size
from ..fetch.download import Download
from ..fetch.state import Mirror
from ..net.errors import DownloadFailed
from .show import Quiet, progress_line

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


class Rich(Quiet):
    """Redrawn eight times a second; news scrolls above it."""

    sums_up = True

    def __init__(self, explain: bool) -> None:
        super().__init__(explain)
        self._console = Console(stderr=True)
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

    def failed(self, problem: DownloadFailed) -> None:
        self._console.print(Text(f"tidegate: {problem}{self.kept(problem)}", style="bold red"))


def draw(download: Download) -> RenderableType:
    now = download.network.now()
    mirrors, view = Table.grid(padding=(0, 2)), Table.grid()
    for mirror in download.state.mirrors:
        mirrors.add_row(*_row(download, mirror, now))
    view.add_row(mirrors)
    if download.segments is not None:
        stands = download.progress()
        if stands.size_bytes:
            view.add_row(ProgressBar(stands.size_bytes, stands.done_bytes, width=60))
        view.add_row(Text(progress_line(stands)))
    return view


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
            told, at = ("done", pause.done_at) if pause.done_at else ("starts", pause.starts_at)
            when = f"{told} in about {format_duration(max(0.0, at - now))}, " if at else ""
            return name, got, Text(f"waiting, place {pause.place}, {when}asks again in {left}")
        return name, got, Text(f"{pause.text}; again in {left}", style="yellow")
    segments = download.segments
    lanes = [segments.lanes[n] for n in mirror.lanes if segments and n in segments.lanes]
    if not any(lane.blocks for lane in lanes):
        return name, got, Text("connecting" if segments is None else "ready", style="dim")
    return name, got, Text(f"{format_size(sum(lane.rate(now) or 0.0 for lane in lanes))}/s")
