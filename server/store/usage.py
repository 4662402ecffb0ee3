"""Popularity of files over the server's life: reading and adding. All functions block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import Connection, delete, select

from .models import USAGE, USAGE_HOURS
from .records import UsageRecord
from .rows import insert_for

_READ_MOST = 200_000
HOUR_S = 3600


def add_usage(connection: Connection, records: Iterable[UsageRecord]) -> None:
    """Add counts to what is known of their files."""
    rows = [asdict(record) for record in records]
    if not rows:
        return
    statement = insert_for(connection)(USAGE)
    added = {
        "downloads": USAGE.c.downloads + statement.excluded.downloads,
        "sent_bytes": USAGE.c.sent_bytes + statement.excluded.sent_bytes,
        "at_s": statement.excluded.at_s,
    }
    upsert = statement.on_conflict_do_update(index_elements=[USAGE.c.file], set_=added)
    connection.execute(upsert, rows)
    hours = insert_for(connection)(USAGE_HOURS)
    also = {
        "downloads": USAGE_HOURS.c.downloads + hours.excluded.downloads,
        "sent_bytes": USAGE_HOURS.c.sent_bytes + hours.excluded.sent_bytes,
    }
    by_hour = [
        {"hour_s": int(row["at_s"] // HOUR_S * HOUR_S)}
        | {name: row[name] for name in ("file", "downloads", "sent_bytes")}
        for row in rows
    ]
    connection.execute(
        hours.on_conflict_do_update(
            index_elements=[USAGE_HOURS.c.hour_s, USAGE_HOURS.c.file], set_=also
        ),
        by_hour,
    )


def read_usage(connection: Connection) -> dict[str, tuple[int, int]]:
    """(downloads, bytes) by file; of very many files the most wanted."""
    query = (
        select(USAGE.c.file, USAGE.c.downloads, USAGE.c.sent_bytes)
        .order_by(USAGE.c.downloads.desc())
        .limit(_READ_MOST)
    )
    return {
        file: (downloads, sent_bytes) for file, downloads, sent_bytes in connection.execute(query)
    }


def read_hours(
    connection: Connection, since_s: float, until_s: float, file: str, most: int
) -> list[tuple[int, str, int, int]]:
    """(hour, file, downloads, bytes) of a period, oldest first; `file` narrows it to one."""
    query = select(
        USAGE_HOURS.c.hour_s, USAGE_HOURS.c.file, USAGE_HOURS.c.downloads, USAGE_HOURS.c.sent_bytes
    )
    query = query.where(USAGE_HOURS.c.hour_s >= since_s, USAGE_HOURS.c.hour_s < until_s)
    if file:
        query = query.where(USAGE_HOURS.c.file == file)
    query = query.order_by(USAGE_HOURS.c.hour_s, USAGE_HOURS.c.file).limit(most)
    return [(hour, name, count, size) for hour, name, count, size in connection.execute(query)]


def forget_usage(connection: Connection, before_s: float, hours_before_s: float) -> None:
    """Drop files that nobody asked for since a time, and the hours before another."""
    connection.execute(delete(USAGE).where(USAGE.c.at_s < before_s))
    connection.execute(delete(USAGE_HOURS).where(USAGE_HOURS.c.hour_s < hours_before_s))
