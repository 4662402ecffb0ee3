"""Recorded series: raw for an hour, by minutes for a week, by hours for a year.

A row of a minute is made when its raw rows are complete, a row of an hour from its minutes. So
thinning costs the same however long the server runs. All functions block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, Integer, case, cast, delete, func, insert, literal, select

from .models import HISTORY
from .records import SampleRecord

#: Resolutions in seconds; raw samples have none.
RAW = 0
MINUTE = 60
HOUR = 3600
#: Seconds between two raw samples.
SAMPLE_S = 5.0
#: How long the rows of a resolution are kept, in seconds.
KEPT_S = {RAW: 3600.0, MINUTE: 7 * 86400.0, HOUR: 365 * 86400.0}


def write_samples(connection: Connection, samples: Iterable[SampleRecord]) -> None:
    rows = [{"resolution_s": RAW, **asdict(sample)} for sample in samples]
    if rows:
        connection.execute(insert(HISTORY), rows)


def thin(connection: Connection, now: float, rates: Collection[str] = ()) -> None:
    """Condense complete minutes and hours, and delete rows that are too old.

    The hour of one of these `rates` times its length is what happened in it, however short the
    server ran: unrecorded minutes count as none.
    """
    _condense(connection, RAW, MINUTE, now, ())
    _condense(connection, MINUTE, HOUR, now, rates)
    for resolution_s, kept_s in KEPT_S.items():
        connection.execute(
            delete(HISTORY).where(
                HISTORY.c.resolution_s == resolution_s, HISTORY.c.at_s < now - kept_s
            )
        )


def _condense(
    connection: Connection, fine: int, coarse: int, now: float, rates: Collection[str]
) -> None:
    done = connection.scalar(
        select(func.max(HISTORY.c.at_s)).where(HISTORY.c.resolution_s == coarse)
    )
    start = (done + coarse) if done is not None else 0.0
    end = now - now % coarse
    if end <= start:
        return
    bucket = cast(func.floor(HISTORY.c.at_s / coarse), Integer) * coarse
    if connection.dialect.name == "sqlite":
        bucket = cast(HISTORY.c.at_s / coarse, Integer) * coarse
    rows = (
        select(
            literal(coarse).label("resolution_s"),
            HISTORY.c.series,
            bucket.label("at_s"),
            case(
                (HISTORY.c.series.in_(rates), func.sum(HISTORY.c.mean) * fine / coarse),
                else_=func.avg(HISTORY.c.mean),
            ).label("mean"),
            func.max(HISTORY.c.peak).label("peak"),
        )
        .where(HISTORY.c.resolution_s == fine, HISTORY.c.at_s >= start, HISTORY.c.at_s < end)
        .group_by(HISTORY.c.series, bucket)
    )
    connection.execute(
        insert(HISTORY).from_select(["resolution_s", "series", "at_s", "mean", "peak"], rows)
    )


def read_binned(
    connection: Connection, series: Sequence[str], since_s: float, until_s: float, points: int
) -> tuple[list[float], dict[str, list[float | None]]]:
    """Series on one axis of about `points` equal steps; a step without a value is None.

    Most of it comes from the coarsest resolution that fits the axis, the rest from finer ones. So a
    week costs no more than an hour.
    """
    wished_s = (until_s - since_s) / points
    # A span of an hour may be longer by a rounding of its ends.
    finest = next((r for r, kept_s in KEPT_S.items() if round(until_s - since_s) <= kept_s), HOUR)
    coarsest = max((r for r in KEPT_S if finest <= r <= 2 * wished_s), default=finest)
    width_s = max(wished_s, float(coarsest) or SAMPLE_S)
    steps = max(1, round((until_s - since_s) / width_s))
    axis = [since_s + (step + 0.5) * width_s for step in range(steps)]
    sums: dict[str, list[tuple[float, float] | None]] = {name: [None] * steps for name in series}
    start_s = since_s
    for resolution_s in sorted((r for r in KEPT_S if r <= coarsest), reverse=True):
        end_s = until_s
        if resolution_s != RAW:
            last_s = connection.scalar(
                select(func.max(HISTORY.c.at_s)).where(HISTORY.c.resolution_s == resolution_s)
            )
            end_s = min(until_s, start_s if last_s is None else last_s + resolution_s)
        if end_s <= start_s:
            continue
        for name, at, mean, count in _bins(
            connection, series, resolution_s, start_s, end_s, since_s, width_s
        ):
            if 0 <= at < steps:
                weight = count * max(1.0, resolution_s)
                old = sums[name][at] or (0.0, 0.0)
                sums[name][at] = (old[0] + mean * weight, old[1] + weight)
        start_s = end_s
    found = {
        name: [None if one is None else one[0] / one[1] for one in row]
        for name, row in sums.items()
    }
    return axis, found


def _bins(
    connection: Connection,
    series: Sequence[str],
    resolution_s: int,
    start_s: float,
    end_s: float,
    origin_s: float,
    width_s: float,
) -> Iterable[tuple[str, int, float, int]]:
    """(series, step, mean, count) of the samples of one resolution."""
    step = cast((HISTORY.c.at_s - origin_s) / width_s, Integer)
    if connection.dialect.name != "sqlite":
        step = cast(func.floor((HISTORY.c.at_s - origin_s) / width_s), Integer)
    query = (
        select(HISTORY.c.series, step.label("step"), func.avg(HISTORY.c.mean), func.count())
        .where(
            HISTORY.c.resolution_s == resolution_s,
            HISTORY.c.series.in_(list(series)),
            HISTORY.c.at_s >= start_s,
            HISTORY.c.at_s < end_s,
        )
        .group_by(HISTORY.c.series, "step")
    )
    return (tuple(row) for row in connection.execute(query))
