"""How often each file was downloaded, in total and by hour. All functions block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Table, select

from .history import HOUR
from .models import USAGE, USAGE_HOURS
from .records import UsageRecord
from .rows import insert_of

_COUNTS = ("begun", "complete", "sent_bytes")


def add_usage(connection: Connection, records: Iterable[UsageRecord]) -> None:
    """Add these counts to those of their files."""
    rows = [asdict(record) for record in records]
    if not rows:
        return
    _add(connection, USAGE, rows, "at_s")
    by_hour = [
        {"hour_s": int(row["at_s"] // HOUR * HOUR)}
        | {name: row[name] for name in ("file", *_COUNTS)}
        for row in rows
    ]
    _add(connection, USAGE_HOURS, by_hour)


def _add(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *replaced: str
) -> None:
    """Insert these rows; counts add up with those of the rows that have their keys."""
    statement = insert_of(connection.dialect.name)(table)
    new = {name: table.c[name] + statement.excluded[name] for name in _COUNTS}
    new |= {name: statement.excluded[name] for name in replaced}
    keys = list(table.primary_key)
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=new), rows)


def read_usage(connection: Connection) -> dict[str, tuple[int, int, int]]:
    """(begun, complete, bytes) by file; the 200 000 most popular files."""
    query = (
        select(USAGE.c.file, *(USAGE.c[name] for name in _COUNTS))
        .order_by(USAGE.c.begun.desc())
        .limit(200_000)
    )
    return {file: (begun, done, size) for file, begun, done, size in connection.execute(query)}


def begun_ever(connection: Connection, most: int) -> int:
    """How many downloads ever began, of `most` files at most."""
    return sum(connection.scalars(select(USAGE.c.begun).limit(most)))


def read_hours(
    connection: Connection, since_s: float, until_s: float, file: str, most: int
) -> list[tuple[int, str, int, int, int]]:
    """(hour, file, begun, complete, bytes) of a period, oldest first; of one `file` if given."""
    query = select(
        USAGE_HOURS.c.hour_s, USAGE_HOURS.c.file, *(USAGE_HOURS.c[name] for name in _COUNTS)
    )
    query = query.where(USAGE_HOURS.c.hour_s >= since_s, USAGE_HOURS.c.hour_s < until_s)
    if file:
        query = query.where(USAGE_HOURS.c.file == file)
    query = query.order_by(USAGE_HOURS.c.hour_s, USAGE_HOURS.c.file).limit(most)
    return [
        (hour, name, begun, done, size)
        for hour, name, begun, done, size in connection.execute(query)
    ]
