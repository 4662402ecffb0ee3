"""The report of a period: what the recorded history says of it, in figures and in sentences."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from twisted.internet.defer import DeferredLock

from ...protocol.bounded_table import BoundedTable
from ...protocol.units import format_duration, format_size
from ..admission.client_keys import address_of
from ..http.proxies import prefixes_of
from ..store.records import ArrivalRecord
from ..store.reports import Count, FileCount, Sought, read_around, read_period
from .events import ask
from .history import Series

if TYPE_CHECKING:
    from .server import Server

#: Steps of the report's charts.
POINTS = 240


@dataclass(frozen=True, slots=True)
class Period:
    """[`since_s`, `until_s`) in Unix seconds, of the files that fit `path` (empty: all)."""

    since_s: float
    until_s: float
    path: str = ""

    def sought(self) -> Sought:
        """The same for the store, whose files are percent-encoded."""
        if not self.path:
            return Sought(self.since_s, self.until_s, None)
        pattern = re.compile(fnmatch.translate(self.path + ("*" if self.path[-1] == "/" else "")))
        return Sought(
            self.since_s, self.until_s, lambda file: pattern.match(unquote(file)) is not None
        )


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest value of a series, and when."""

    at_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a period: the API and the CSV give these fields as they stand here.

    `begun`, `complete` and `sent_bytes` are counted by whole hours. Counts of the whole server are
    rounded sums of recorded rates. The lists have `LISTED` rows, the counts beside them all.
    """

    clients: int
    downloads: int
    begun: int
    complete: int
    sent_bytes: int
    peak_people: Peak | None
    peak_goodput: Peak | None
    longest_wait: Peak | None
    ends_judged: int
    ends_kept: int
    end_error: float | None
    small: int
    refused: int
    faults: int
    file_count: int
    program_count: int
    network_count: int
    files: Sequence[FileCount]
    programs: Sequence[Count]
    networks: Sequence[Count]

    @property
    def empty(self) -> bool:
        """Whether nothing is recorded of the period."""
        return not (self.downloads or self.files or self.small)


@dataclass(frozen=True, slots=True)
class Beside:
    """What the simulator says of the same arrivals: means from arrival to the last byte."""

    downloads: int
    here_s: float
    nginx_s: float
    left_here: int
    left_nginx: int

    @property
    def spans(self) -> tuple[str, str]:
        """Both means in words, by the second where they would read the same."""
        here, nginx = format_duration(self.here_s), format_duration(self.nginx_s)
        seconds = f"{self.here_s:,.0f} s", f"{self.nginx_s:,.0f} s"
        return seconds if here == nginx else (here, nginx)


class Reports:
    """Makes reports, one at a time. A report is kept for a while: browsers load it every 3 s."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._turn = DeferredLock()
        # Reports that are kept.
        self._kept: BoundedTable[Period, tuple[float, Report, Series]] = BoundedTable(8)

    async def read(self, period: Period) -> tuple[Report, Series]:
        """The report of a period, and the history for its charts. Raises StoreSilent."""
        async with self._turn:
            kept = self._kept.use(period)
            now = self._server.now()
            # A kept report is shown for half a minute.
            if kept is None or not 0 <= now - kept[0] < 30.0:
                kept = self._kept[period] = (now, *await _make_report(self._server, period))
            return kept[1:]


async def _make_report(server: Server, period: Period) -> tuple[Report, Series]:
    sought, since_s = period.sought(), period.since_s
    levels = ("people_waiting", "goodput_bytes_s", "last_wait_s")
    rates = ("ends_judged", "ends_kept", "admitted_small", "refused", "errors")
    arrivals, files, peaks, sums = await ask(
        server.store, lambda c: read_period(c, sought, _network_of, levels, rates, server.now())
    )
    end_s = max(since_s + 1.0, min(sought.until_s, server.now()))
    history = await server.history.read(since_s, end_s, POINTS)
    first = history.first_value
    if first > POINTS * 7 / 8:
        # The charts of a young server would be a few dots at their right edge.
        begun_s = 2 * history.t[first - 1] - history.t[first]
        history = await server.history.read(begun_s, end_s, POINTS)
    known = {name: Peak(*peak) for name, peak in peaks.items() if peak[1] > 0}
    errors = [one for one in history.series["end_median_error"] if one is not None]
    report = Report(
        peak_people=known.get("people_waiting"),
        peak_goodput=known.get("goodput_bytes_s"),
        longest_wait=known.get("last_wait_s"),
        ends_judged=sums["ends_judged"],
        ends_kept=sums["ends_kept"],
        end_error=sum(errors) / len(errors) if errors else None,
        small=sums["admitted_small"],
        refused=sums["refused"],
        faults=sums["errors"],
        **_fields(arrivals),
        **_fields(replace(files, files=[replace(f, path=unquote(f.path)) for f in files.files])),
    )
    return report, history


async def arrivals_to_play(server: Server, period: Period, report: Report) -> list[ArrivalRecord]:
    """The arrivals of a report, for the simulator. Raises StoreSilent."""
    peak_s = report.peak_people.at_s if report.peak_people else period.since_s
    # Arrivals that the simulator plays; of more those around the peak.
    return await ask(server.store, lambda c: read_around(c, period.sought(), peak_s, 20_000))


def _fields(record: Any) -> dict[str, Any]:
    return {one.name: getattr(record, one.name) for one in fields(record)}


def _network_of(client: str) -> str:
    return prefixes_of(address_of(client).partition("/")[0])[-1]


def sentences(report: Report, beside: Beside | None, moment: Callable[[float], str]) -> list[str]:
    """The report in words, what matters most first; `moment` writes a time."""
    if report.empty:
        return ["Nothing is recorded of this time."]
    told = []
    if report.downloads:
        told.append(
            f"{counted(report.clients, 'client')} asked for "
            f"{counted(report.downloads, 'download')} of large files."
        )
    if report.files:
        told.append(
            f"{counted(report.begun, 'download')} of files of any size began, and "
            f"{report.complete:,} became complete. {format_size(report.sent_bytes)} were sent."
        )
    if report.peak_people:
        people = int(report.peak_people.value)
        told.append(
            f"The line was longest at {moment(report.peak_people.at_s)}: "
            f"{'1 person was' if people == 1 else f'{people:,} people were'} waiting."
        )
    elif report.downloads:
        told.append("Nobody waited in the queue.")
    if report.longest_wait:
        told.append(f"The longest told wait was {format_duration(report.longest_wait.value)}.")
    if report.ends_judged:
        was = "was" if report.ends_judged == 1 else "were"
        kept = f"{report.ends_kept:,} of {counted(report.ends_judged, 'told end')} {was} kept"
        share = 100 * report.ends_kept / report.ends_judged
        told.append(f"{kept} ({share:.0f} %): the last byte came before the told bound.")
    told.append(
        f"{counted(report.refused, 'request') if report.refused else 'No request'} "
        f"{'was' if report.refused <= 1 else 'were'} refused. "
        f"{counted(report.faults, 'fault') if report.faults else 'No fault'} "
        f"{'was' if report.faults <= 1 else 'were'} logged."
    )
    if beside is not None:
        told.append(_comparison(beside))
    return told


def _comparison(beside: Beside) -> str:
    here, nginx = beside.spans
    told = (
        f"Simulated with the same {beside.downloads:,} downloads: {here} in the mean from arrival "
        f"to the last byte here, {nginx} with nginx, where all share the line at once."
    )
    if beside.left_here or beside.left_nginx:
        told += f" {beside.left_here:,} leave without their file here, {beside.left_nginx:,} there."
    return told


def counted(number: int, noun: str) -> str:
    """`1 download`, `2,000 downloads`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
