"""Digests, revisions, events, arrivals and passes: reading and writing. All functions block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, insert, or_, select, update

from .models import ARRIVALS, DIGESTS, EVENTS, PASSES, REVISIONS, USAGE, USAGE_HOURS
from .records import ArrivalRecord, EventRecord, PassRecord, RevisionRecord
from .rows import RowInsert, put


def read_digest(connection: Connection, key: str) -> dict[str, Any] | None:
    """The digests of the bytes that `key` names, or None."""
    return connection.scalar(select(DIGESTS.c.body).where(DIGESTS.c.key == key))


def write_digest(connection: Connection, key: str, body: Mapping[str, Any], now: float) -> None:
    """Store the digests of the bytes that `key` names."""
    put(connection, DIGESTS, {"key": key, "body": dict(body), "used_s": now})


def forget(connection: Connection, now: float) -> None:
    """Delete rows that are too old."""
    # How long rows are kept, by their table and the column of their time, in days.
    for table, name, days in (
        (EVENTS, "at_s", 30),
        (ARRIVALS, "at_s", 30),
        (DIGESTS, "used_s", 90),
        (USAGE_HOURS, "hour_s", 90),
        (USAGE, "at_s", 365),
    ):
        connection.execute(delete(table).where(table.c[name] < now - days * 86_400.0))


def select_fields(table: Table, record: type[Any]) -> Select[Any]:
    """Reads the columns of a record's fields, in their order."""
    return select(*(table.c[one.name] for one in fields(record)))


def _values(record: Any) -> dict[str, Any]:
    """The fields of a record; the database assigns a missing number."""
    found = {one.name: getattr(record, one.name) for one in fields(record)}
    return {name: value for name, value in found.items() if name != "number" or value}


def add_revision(connection: Connection, record: RevisionRecord) -> RevisionRecord:
    """Store an applied change; returns it with its number."""
    values = _values(record) | {"settings": dict(record.settings)}
    stored = insert(REVISIONS).values(values).returning(REVISIONS.c.number)
    return replace(record, number=connection.execute(stored).scalar_one())


def keep_revision(connection: Connection, record: RevisionRecord) -> None:
    """Store a revision in a batch, which takes no result."""
    add_revision(connection, record)


def read_revisions(
    connection: Connection, limit: int, before_id: int | None = None
) -> list[RevisionRecord]:
    """The latest changes, newest first."""
    query = (
        select_fields(REVISIONS, RevisionRecord).order_by(REVISIONS.c.number.desc()).limit(limit)
    )
    if before_id is not None:
        query = query.where(REVISIONS.c.number < before_id)
    return [RevisionRecord(*row) for row in connection.execute(query)]


def read_revision(connection: Connection, revision_id: int) -> RevisionRecord | None:
    query = select_fields(REVISIONS, RevisionRecord).where(REVISIONS.c.number == revision_id)
    row = connection.execute(query).first()
    return RevisionRecord(*row) if row else None


def write_events(connection: Connection, records: Iterable[EventRecord]) -> None:
    """Append to the operator's log."""
    rows = [_values(record) | {"data": dict(record.data)} for record in records]
    if rows:
        connection.execute(insert(EVENTS), rows)


def read_events(
    connection: Connection,
    limit: int,
    *,
    before_id: int | None = None,
    kind: str | None = None,
    text: str | None = None,
) -> list[EventRecord]:
    """The latest events, newest first; `text` must be in the text, or be the kind."""
    wanted: list[ColumnElement[bool]] = []
    if before_id is not None:
        wanted.append(EVENTS.c.number < before_id)
    if kind is not None:
        wanted.append(EVENTS.c.kind == kind)
    if text:
        wanted.append(or_(EVENTS.c.text.icontains(text, autoescape=True), EVENTS.c.kind == text))
    query = select_fields(EVENTS, EventRecord).where(*wanted)
    query = query.order_by(EVENTS.c.number.desc()).limit(limit)
    return [EventRecord(*row) for row in connection.execute(query)]


_ARRIVALS = RowInsert(ARRIVALS, tuple(one.name for one in fields(ArrivalRecord)))


def write_arrivals(connection: Connection, records: Iterable[ArrivalRecord]) -> None:
    _ARRIVALS.write(connection, map(attrgetter(*_ARRIVALS.names), records))


def read_arrivals(connection: Connection, since_s: float, limit: int) -> list[ArrivalRecord]:
    """Arrivals since a time, oldest first."""
    query = select_fields(ARRIVALS, ArrivalRecord).where(ARRIVALS.c.at_s >= since_s)
    query = query.order_by(ARRIVALS.c.at_s).limit(limit)
    return [ArrivalRecord(*row) for row in connection.execute(query)]


def write_passes(connection: Connection, records: Iterable[PassRecord]) -> None:
    rows = [_values(record) for record in records]
    if rows:
        connection.execute(insert(PASSES), rows)


def read_passes(connection: Connection) -> list[PassRecord]:
    """All passes, newest first."""
    query = select_fields(PASSES, PassRecord)
    query = query.order_by(PASSES.c.issued_s.desc(), PASSES.c.serial)
    return [PassRecord(*row) for row in connection.execute(query)]


def count_pass_use(connection: Connection, record: PassRecord) -> None:
    """Store how often a pass was used; inserts a pass that another process issued."""
    put(connection, PASSES, _values(record), "uses")


def revoke_pass(connection: Connection, serial: str) -> bool:
    """Revoke a pass; False if it is unknown."""
    revoked = update(PASSES).where(PASSES.c.serial == serial).values(revoked=True)
    return bool(connection.execute(revoked).rowcount)
