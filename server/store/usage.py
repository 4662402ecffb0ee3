"""Popularity of files over the server's life: reading and adding. All functions block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from server.store.journal import insert_for
from server.store.models import Usage
from server.store.records import UsageRecord

_READ_MOST = 200_000


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


def read_usage(session: Session) -> dict[str, tuple[int, int]]:
    """(downloads, bytes) by file; of very many files the most wanted."""
    query = (
        select(Usage.file, Usage.downloads, Usage.sent_bytes)
        .order_by(Usage.downloads.desc())
        .limit(_READ_MOST)
    )
    return {file: (downloads, sent_bytes) for file, downloads, sent_bytes in session.execute(query)}


def forget_usage(session: Session, before_s: float) -> None:
    """Drop files that nobody asked for since a time."""
    session.execute(delete(Usage).where(Usage.at_s < before_s))
