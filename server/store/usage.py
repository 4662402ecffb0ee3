"""Popularity of files over the server's life: reading and adding. All functions block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from server.store.models import Usage, UsageHour
from server.store.records import UsageRecord
from server.store.rows import insert_for

_READ_MOST = 200_000
HOUR_S = 3600


def add_usage(session: Session, records: Iterable[UsageRecord]) -> None:
    """Add counts to what is known of their files."""
    rows = [asdict(record) for record in records]
    if not rows:
        return
    statement = insert_for(session)(Usage.__table__)  # type: ignore[arg-type]
    added = {
        "downloads": Usage.downloads + statement.excluded.downloads,
        "sent_bytes": Usage.sent_bytes + statement.excluded.sent_bytes,
        "at_s": statement.excluded.at_s,
    }
    upsert = statement.on_conflict_do_update(index_elements=[Usage.file], set_=added)
    session.connection().execute(upsert, rows)
    hours = insert_for(session)(UsageHour.__table__)  # type: ignore[arg-type]
    also = {
        "downloads": UsageHour.downloads + hours.excluded.downloads,
        "sent_bytes": UsageHour.sent_bytes + hours.excluded.sent_bytes,
    }
    by_hour = [
        {"hour_s": int(row["at_s"] // HOUR_S * HOUR_S)}
        | {name: row[name] for name in ("file", "downloads", "sent_bytes")}
        for row in rows
    ]
    session.connection().execute(
        hours.on_conflict_do_update(index_elements=[UsageHour.hour_s, UsageHour.file], set_=also),
        by_hour,
    )


def read_usage(session: Session) -> dict[str, tuple[int, int]]:
    """(downloads, bytes) by file; of very many files the most wanted."""
    query = (
        select(Usage.file, Usage.downloads, Usage.sent_bytes)
        .order_by(Usage.downloads.desc())
        .limit(_READ_MOST)
    )
    return {file: (downloads, sent_bytes) for file, downloads, sent_bytes in session.execute(query)}


def read_hours(
    session: Session, since_s: float, until_s: float, file: str, most: int
) -> list[tuple[int, str, int, int]]:
    """(hour, file, downloads, bytes) of a period, oldest first; `file` narrows it to one."""
    query = select(UsageHour.hour_s, UsageHour.file, UsageHour.downloads, UsageHour.sent_bytes)
    query = query.where(UsageHour.hour_s >= since_s, UsageHour.hour_s < until_s)
    if file:
        query = query.where(UsageHour.file == file)
    query = query.order_by(UsageHour.hour_s, UsageHour.file).limit(most)
    return [(hour, name, count, size) for hour, name, count, size in session.execute(query)]


def forget_usage(session: Session, before_s: float, hours_before_s: float) -> None:
    """Drop files that nobody asked for since a time, and the hours before another."""
    session.execute(delete(Usage).where(Usage.at_s < before_s))
    session.execute(delete(UsageHour).where(UsageHour.hour_s < hours_before_s))
