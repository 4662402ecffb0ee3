"""Digests, revisions, events, arrivals and passes: reading and writing. All functions block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from server.store.models import ArrivalRow, Digest, EventRow, PassRow, Revision
from server.store.records import (
    ArrivalRecord,
    EventRecord,
    PassRecord,
    RevisionRecord,
)
from server.store.rows import RowInsert, insert_for


def read_digest(session: Session, key: str) -> dict[str, Any] | None:
    """What is known about the bytes that `key` names."""
    found = session.get(Digest, key)
    return dict(found.body) if found else None


def write_digest(session: Session, key: str, body: Mapping[str, Any], now: float) -> None:
    """Remember the digests of the bytes that `key` names."""
    statement = insert_for(session)(Digest).values(key=key, body=dict(body), used_s=now)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[Digest.key],
            set_={"body": statement.excluded.body, "used_s": statement.excluded.used_s},
        )
    )


def forget_digests(session: Session, before_s: float) -> None:
    """Drop digests that nobody stored or renewed since `before_s`."""
    session.execute(delete(Digest).where(Digest.used_s < before_s))


def add_revision(session: Session, record: RevisionRecord) -> RevisionRecord:
    """Store an applied change; the answer carries its id (a given one is kept)."""
    row = Revision(
        id=record.number or None,
        at_s=record.at_s,
        author=record.who,
        note=record.note,
        policy=record.policy,
        settings=dict(record.settings),
        restored_from=record.restored_from,
    )
    session.add(row)
    session.flush()
    return _revision(row)


def keep_revision(session: Session, record: RevisionRecord) -> None:
    """Store a revision as a write of a batch."""
    add_revision(session, record)


def read_revisions(
    session: Session, limit: int, before_id: int | None = None
) -> list[RevisionRecord]:
    """The latest changes, newest first."""
    query = select(Revision).order_by(Revision.id.desc()).limit(limit)
    if before_id is not None:
        query = query.where(Revision.id < before_id)
    return [_revision(row) for row in session.scalars(query)]


def read_revision(session: Session, revision_id: int) -> RevisionRecord | None:
    """One change."""
    row = session.get(Revision, revision_id)
    return _revision(row) if row else None


def _revision(row: Revision) -> RevisionRecord:
    return RevisionRecord(
        number=row.id,
        at_s=row.at_s,
        who=row.author,
        note=row.note,
        policy=row.policy,
        settings=dict(row.settings),
        restored_from=row.restored_from,
    )


def write_events(session: Session, records: Iterable[EventRecord]) -> None:
    """Add lines to the operator's log."""
    rows = [
        {
            "at_s": record.at_s,
            "kind": record.kind,
            "level": record.level,
            "text": record.text,
            "data": dict(record.data),
        }
        for record in records
    ]
    if rows:
        session.execute(insert(EventRow), rows)


def read_events(
    session: Session,
    limit: int,
    *,
    before_id: int | None = None,
    kind: str | None = None,
    text: str | None = None,
) -> list[EventRecord]:
    """The latest events, newest first; `text` is looked for in the text and the kind."""
    wanted: list[ColumnElement[bool]] = []
    if before_id is not None:
        wanted.append(EventRow.id < before_id)
    if kind is not None:
        wanted.append(EventRow.kind == kind)
    if text:
        wanted.append(or_(EventRow.text.contains(text, autoescape=True), EventRow.kind == text))
    query = select(EventRow).where(*wanted).order_by(EventRow.id.desc()).limit(limit)
    return [
        EventRecord(
            number=row.id,
            at_s=row.at_s,
            kind=row.kind,
            level=row.level,
            text=row.text,
            data=dict(row.data),
        )
        for row in session.scalars(query)
    ]


def forget_events(session: Session, before_s: float) -> None:
    """Drop events and arrivals older than `before_s`."""
    session.execute(delete(EventRow).where(EventRow.at_s < before_s))
    session.execute(delete(ArrivalRow).where(ArrivalRow.at_s < before_s))


_ARRIVAL = tuple(one.name for one in fields(ArrivalRecord))
_ARRIVALS = RowInsert(ArrivalRow, _ARRIVAL)


def write_arrivals(session: Session, records: Iterable[ArrivalRecord]) -> None:
    """Add arrivals."""
    _ARRIVALS.write(session, map(attrgetter(*_ARRIVAL), records))


def read_arrivals(session: Session, since_s: float, limit: int) -> list[ArrivalRecord]:
    """Arrivals since a time, oldest first."""
    query = (
        select(ArrivalRow).where(ArrivalRow.at_s >= since_s).order_by(ArrivalRow.at_s).limit(limit)
    )
    return [
        ArrivalRecord(at_s=row.at_s, client=row.client, file=row.file, size_bytes=row.size_bytes)
        for row in session.scalars(query)
    ]


def write_passes(session: Session, records: Iterable[PassRecord]) -> None:
    """Remember issued passes."""
    session.add_all(PassRow(**asdict(record)) for record in records)


def read_passes(session: Session) -> list[PassRecord]:
    """All passes, newest first."""
    query = select(PassRow).order_by(PassRow.issued_s.desc(), PassRow.serial)
    return [
        PassRecord(**{one.name: getattr(row, one.name) for one in fields(PassRecord)})
        for row in session.scalars(query)
    ]


def count_pass_use(session: Session, record: PassRecord) -> None:
    """Store how often a pass was used; one that another process issued is taken up."""
    statement = insert_for(session)(PassRow).values(**asdict(record))
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[PassRow.serial], set_={"uses": statement.excluded.uses}
        )
    )


def revoke_pass(session: Session, serial: str) -> bool:
    """Make a pass worthless; False when it is unknown."""
    result = session.execute(update(PassRow).where(PassRow.serial == serial).values(revoked=True))
    return bool(getattr(result, "rowcount", 0))
