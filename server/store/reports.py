"""What the store knows of a period: peaks, who came with which program, what each file was taken.

All functions block, and read only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, func, select

from .history import HOUR, KEPT_S, MINUTE, RAW, SAMPLE_S
from .models import ARRIVALS, HISTORY, USAGE_HOURS
from .queries import select_fields
from .records import ArrivalRecord

#: Rows of each list; the counts beside it are of all. Clients choose the names of programs.
LISTED = 1_000


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are of what has this name."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class PeriodArrivals:
    """The arrivals of a period. `programs` counts downloads, `networks` counts clients."""

    downloads: int
    clients: int
    program_count: int
    network_count: int
    programs: Sequence[Count]
    networks: Sequence[Count]


@dataclass(frozen=True, slots=True)
class FileCount:
    """Downloads of one file (percent-encoded)."""

    path: str
    begun: int
    complete: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class PeriodFiles:
    """The files of the hours that a period touches, those with most bytes first, and their sums."""

    file_count: int
    begun: int
    complete: int
    sent_bytes: int
    files: Sequence[FileCount]


class Sought(NamedTuple):
    """[`since_s`, `until_s`) of the files that are `wanted`; None: of all."""

    since_s: float
    until_s: float
    wanted: Callable[[str], bool] | None


def _peaks(
    connection: Connection, sought: Sought, series: Collection[str]
) -> dict[str, tuple[float, float]]:
    """(when, how much) at the peak of each series, as exactly as the time is still known."""
    found: dict[str, tuple[float, float]] = {}
    for name in series:
        query = (
            select(HISTORY.c.at_s, HISTORY.c.peak)
            .where(HISTORY.c.series == name, *_within(HISTORY.c.at_s, sought))
            .where(HISTORY.c.resolution_s.in_(KEPT_S))
            .order_by(HISTORY.c.peak.desc(), HISTORY.c.resolution_s)
            .limit(1)
        )
        row = connection.execute(query).first()
        if row is not None:
            found[name] = (row[0], row[1])
    return found


def _sums(
    connection: Connection, sought: Sought, rates: Collection[str], now: float
) -> dict[str, int]:
    """How often each happened, from the finest rows of its rate that are kept.

    A chart's step that is recorded in part has the rate of that part, and would count too much.
    """
    found = dict.fromkeys(rates, 0.0)
    end_s = sought.until_s
    for resolution_s, coarser_s in ((RAW, MINUTE), (MINUTE, HOUR), (HOUR, 0)):
        # Older rows of this resolution may be deleted.
        begin_s = -((KEPT_S[resolution_s] - now) // coarser_s) * coarser_s if coarser_s else 0.0
        query = (
            select(HISTORY.c.series, func.sum(HISTORY.c.mean))
            .where(HISTORY.c.resolution_s == resolution_s, HISTORY.c.series.in_(rates))
            .where(*_within(HISTORY.c.at_s, sought))
            .where(HISTORY.c.at_s >= begin_s, HISTORY.c.at_s < end_s)
            .group_by(HISTORY.c.series)
        )
        for name, rate in connection.execute(query):
            found[name] += rate * (resolution_s or SAMPLE_S)
        end_s = min(end_s, begin_s)
    return {name: round(value) for name, value in found.items()}


def _within(column: Column[float], sought: Sought) -> list[ColumnElement[bool]]:
    return [column >= sought.since_s, column < sought.until_s]


def _in_period(connection: Connection, sought: Sought) -> list[ColumnElement[bool]]:
    """The conditions of the arrivals of a period, of the `wanted` files."""
    period, wanted = _within(ARRIVALS.c.at_s, sought), sought.wanted
    if wanted is not None:
        files = connection.scalars(select(ARRIVALS.c.file).where(*period).distinct())
        # SQLite takes no more values in one query.
        period.append(ARRIVALS.c.file.in_([one for one in files if wanted(one)][:30_000]))
    return period


def _arrivals(
    connection: Connection, sought: Sought, network_of: Callable[[str], str]
) -> PeriodArrivals:
    period = _in_period(connection, sought)
    programs = connection.execute(
        select(ARRIVALS.c.program, func.count())
        .where(*period)
        .group_by(ARRIVALS.c.program)
        .order_by(func.count().desc(), ARRIVALS.c.program)
        .limit(LISTED)
    )
    sums = select(func.count(), func.count(ARRIVALS.c.program.distinct())).where(*period)
    downloads, program_count = connection.execute(sums).one()
    # More of them would take seconds.
    clients = connection.scalars(select(ARRIVALS.c.client).where(*period).distinct().limit(200_000))
    networks: Counter[str] = Counter(map(network_of, clients))
    return PeriodArrivals(
        downloads,
        networks.total(),
        program_count,
        len(networks),
        [Count(name or "unknown", count) for name, count in programs],
        [Count(*one) for one in networks.most_common(LISTED)],
    )


def read_period(
    connection: Connection,
    sought: Sought,
    network_of: Callable[[str], str],
    levels: Collection[str],
    rates: Collection[str],
    now: float,
) -> tuple[PeriodArrivals, PeriodFiles, dict[str, tuple[float, float]], dict[str, int]]:
    """Who came, what was taken, when and how high each level peaked, and the count of each rate.

    `network_of` names the network of a client.
    """
    return (
        _arrivals(connection, sought, network_of),
        _files(connection, sought),
        _peaks(connection, sought, levels),
        _sums(connection, sought, rates, now),
    )


def read_around(
    connection: Connection, sought: Sought, peak_s: float, most: int
) -> list[ArrivalRecord]:
    """The arrivals of a period, oldest first; of more than `most` those around `peak_s`."""
    period = _in_period(connection, sought)
    query = (
        select_fields(ARRIVALS, ArrivalRecord)
        .where(*period)
        .order_by(func.abs(ARRIVALS.c.at_s - peak_s))
    )
    found = [ArrivalRecord(*row) for row in connection.execute(query.limit(most))]
    return sorted(found, key=lambda one: one.at_s)


def _files(connection: Connection, sought: Sought) -> PeriodFiles:
    sums = [func.sum(USAGE_HOURS.c[name]) for name in ("begun", "complete", "sent_bytes")]
    query = (
        select(USAGE_HOURS.c.file, *sums)
        .where(USAGE_HOURS.c.hour_s >= sought.since_s // HOUR * HOUR)
        .where(USAGE_HOURS.c.hour_s < sought.until_s)
        .group_by(USAGE_HOURS.c.file)
        .order_by(sums[2].desc(), USAGE_HOURS.c.file)
    )
    every = [
        FileCount(file, int(begun), int(complete), int(sent))
        for file, begun, complete, sent in connection.execute(query)
        if sought.wanted is None or sought.wanted(file)
    ]
    return PeriodFiles(
        len(every),
        sum(one.begun for one in every),
        sum(one.complete for one in every),
        sum(one.sent_bytes for one in every),
        every[:LISTED],
    )
