"""The past in numbers: raw for an hour, by minutes for a week, by hours for a year.

All functions block. A minute's row is made once its raw rows are complete, an hour's from its
minutes, so thinning costs little however long the server runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Integer, cast, delete, func, insert, literal, select
from sqlalchemy.orm import Session

from server.store.models import Sample
from server.store.records import SampleRecord

RAW, MINUTE, HOUR = 0, 60, 3600
#: Resolution -> how long its rows are kept, in seconds.
KEPT_S = {RAW: 3600.0, MINUTE: 7 * 86400.0, HOUR: 365 * 86400.0}


def write_samples(session: Session, samples: Iterable[SampleRecord]) -> None:
    """Add raw samples."""
    rows = [
        {
            "resolution_s": RAW,
            "series": sample.series,
            "at_s": sample.at_s,
            "mean": sample.mean,
            "peak": sample.peak,
        }
        for sample in samples
    ]
    if rows:
        session.execute(insert(Sample), rows)


def thin(session: Session, now: float) -> None:
    """Condense complete minutes and hours that are not condensed yet, and drop what is too old."""
    _condense(session, RAW, MINUTE, now)
    _condense(session, MINUTE, HOUR, now)
    for resolution_s, kept_s in KEPT_S.items():
        session.execute(
            delete(Sample).where(Sample.resolution_s == resolution_s, Sample.at_s < now - kept_s)
        )


def _condense(session: Session, fine: int, coarse: int, now: float) -> None:
    done = session.scalar(select(func.max(Sample.at_s)).where(Sample.resolution_s == coarse))
    start = (done + coarse) if done is not None else 0.0
    end = now - now % coarse
    if end <= start:
        return
    bucket = cast(func.floor(Sample.at_s / coarse), Integer) * coarse
    if session.get_bind().dialect.name == "sqlite":
        bucket = cast(Sample.at_s / coarse, Integer) * coarse
    rows = (
        select(
            literal(coarse).label("resolution_s"),
            Sample.series,
            bucket.label("at_s"),
            func.avg(Sample.mean).label("mean"),
            func.max(Sample.peak).label("peak"),
        )
        .where(Sample.resolution_s == fine, Sample.at_s >= start, Sample.at_s < end)
        .group_by(Sample.series, bucket)
    )
    session.execute(
        insert(Sample).from_select(["resolution_s", "series", "at_s", "mean", "peak"], rows)
    )


def read_series(
    session: Session, series: Sequence[str], since_s: float, until_s: float
) -> dict[str, list[SampleRecord]]:
    """Points of each series in time order, at the finest resolution that reaches `since_s`."""
    resolution_s = RAW
    for candidate, kept_s in KEPT_S.items():
        resolution_s = candidate
        if until_s - since_s <= kept_s:
            break
    found: dict[str, list[SampleRecord]] = {name: [] for name in series}
    query = (
        select(Sample)
        .where(
            Sample.resolution_s == resolution_s,
            Sample.series.in_(list(series)),
            Sample.at_s >= since_s,
            Sample.at_s < until_s,
        )
        .order_by(Sample.series, Sample.at_s)
    )
    for row in session.scalars(query):
        found[row.series].append(SampleRecord(row.at_s, row.series, row.mean, row.peak))
    return found


def read_binned(
    session: Session, series: Sequence[str], since_s: float, until_s: float, points: int
) -> tuple[list[float], dict[str, list[float | None]]]:
    """Series on one axis of at most `points` equal steps; a step without a value is None."""
    resolution_s = RAW
    for candidate, kept_s in KEPT_S.items():
        resolution_s = candidate
        if until_s - since_s <= kept_s:
            break
    width_s = max((until_s - since_s) / points, float(resolution_s) or 5.0)
    steps = max(1, round((until_s - since_s) / width_s))
    axis = [since_s + (step + 0.5) * width_s for step in range(steps)]
    found: dict[str, list[float | None]] = {name: [None] * steps for name in series}
    step = cast((Sample.at_s - since_s) / width_s, Integer)
    if session.get_bind().dialect.name != "sqlite":
        step = cast(func.floor((Sample.at_s - since_s) / width_s), Integer)
    query = (
        select(Sample.series, step.label("step"), func.avg(Sample.mean))
        .where(
            Sample.resolution_s == resolution_s,
            Sample.series.in_(list(series)),
            Sample.at_s >= since_s,
            Sample.at_s < until_s,
        )
        .group_by(Sample.series, "step")
    )
    for name, at, value in session.execute(query):
        if 0 <= at < steps:
            found[name][at] = value
    return axis, found
