"""What the store knows of a period: peaks, who came with which program, what each file was taken.

All functions block, and read only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, select

from .history import HOUR, KEPT_S
from .models import ARRIVALS, HISTORY, USAGE_HOURS
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


def _peaks(
    connection: Connection, series: Collection[str], since_s: float, until_s: float
) -> dict[str, tuple[float, float]]:
    """(when, how much) at the peak of each series, as exactly as the time is still known."""
    found: dict[str, tuple[float, float]] = {}
    for name in series:
        query = (
            select(HISTORY.c.at_s, HISTORY.c.peak)
            .where(HISTORY.c.series == name, HISTORY.c.at_s >= since_s, HISTORY.c.at_s < until_s)
            .where(HISTORY.c.resolution_s.in_(KEPT_S))
            .order_by(HISTORY.c.peak.desc(), HISTORY.c.resolution_s)
            .limit(1)
        )
        row = connection.execute(query).first()
        if row is not None:
            found[name] = (row[0], row[1])
    return found


def _in_period(
    connection: Connection, since_s: float, until_s: float, wanted: Callable[[str], bool] | None
) -> list[ColumnElement[bool]]:
    """The conditions of the arrivals of a period, of the `wanted` files."""
    period = [ARRIVALS.c.at_s >= since_s, ARRIVALS.c.at_s < until_s]
    if wanted is not None:
        files = connection.scalars(select(ARRIVALS.c.file).where(*period).distinct())
        # SQLite takes no more values in one query.
        period.append(ARRIVALS.c.file.in_([one for one in files if wanted(one)][:30_000]))
    return period


def _arrivals(
    connection: Connection,
    since_s: float,
    until_s: float,
    wanted: Callable[[str], bool] | None,
    network_of: Callable[[str], str],
) -> PeriodArrivals:
    period = _in_period(connection, since_s, until_s, wanted)
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
    since_s: float,
    until_s: float,
    wanted: Callable[[str], bool] | None,
    network_of: Callable[[str], str],
    series: Collection[str],
) -> tuple[PeriodArrivals, PeriodFiles, dict[str, tuple[float, float]]]:
    """Who came, what was taken, and when and how high each series peaked.

    `network_of` names the network of a client.
    """
    return (
        _arrivals(connection, since_s, until_s, wanted, network_of),
        _files(connection, since_s, until_s, wanted),
        _peaks(connection, series, since_s, until_s),
    )


def read_around(
    connection: Connection,
    since_s: float,
    until_s: float,
    wanted: Callable[[str], bool] | None,
    peak_s: float,
    most: int,
) -> list[ArrivalRecord]:
    """The arrivals of a period, oldest first; of more than `most` those around `peak_s`."""
    period = _in_period(connection, since_s, until_s, wanted)
    columns = [ARRIVALS.c[name] for name in ("at_s", "client", "file", "size_bytes", "program")]
    query = select(*columns).where(*period).order_by(func.abs(ARRIVALS.c.at_s - peak_s))
    found = [ArrivalRecord(*row) for row in connection.execute(query.limit(most))]
    return sorted(found, key=lambda one: one.at_s)


def _files(
    connection: Connection,
    since_s: float,
    until_s: float,
    wanted: Callable[[str], bool] | None,
) -> PeriodFiles:
    sums = [func.sum(USAGE_HOURS.c[name]) for name in ("begun", "complete", "sent_bytes")]
    query = (
        select(USAGE_HOURS.c.file, *sums)
        .where(USAGE_HOURS.c.hour_s >= since_s // HOUR * HOUR, USAGE_HOURS.c.hour_s < until_s)
        .group_by(USAGE_HOURS.c.file)
        .order_by(sums[2].desc(), USAGE_HOURS.c.file)
    )
    every = [
        FileCount(file, int(begun), int(complete), int(sent))
        for file, begun, complete, sent in connection.execute(query)
        if wanted is None or wanted(file)
    ]
    return PeriodFiles(
        len(every),
        sum(one.begun for one in every),
        sum(one.complete for one in every),
        sum(one.sent_bytes for one in every),
        every[:LISTED],
    )
