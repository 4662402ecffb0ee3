"""Users, API tokens, sessions and the operator's own settings: reading and writing.

Reading blocks and happens at the start only; every write goes into the store's next batch and is
tried until it arrives.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import delete, inspect, select
from sqlalchemy.orm import Session

from server.store.database import Database
from server.store.models import Base, DocumentRow, SessionRow, TokenRow, UserRow
from server.store.rows import insert_of
from server.store.store import Store

_TABLES: dict[str, type[Base]] = {
    "users": UserRow,
    "tokens": TokenRow,
    "sessions": SessionRow,
    "state": DocumentRow,
}


def put(session: Session, table: str, values: dict[str, Any]) -> None:
    """Insert a row, or overwrite the one with its key."""
    session.execute(_overwriting(session.get_bind().dialect.name, table, tuple(values)), values)


@cache
def _overwriting(dialect: str, table: str, names: tuple[str, ...]) -> Any:
    """The statement for rows of these columns: making it anew costs three times the writing."""
    model = _TABLES[table]
    key = [column.name for column in inspect(model).primary_key]
    statement = insert_of(dialect)(model)
    changed = {name: statement.excluded[name] for name in names if name not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=changed)


def drop(session: Session, table: str, key: str) -> None:
    """Remove a row, if it is there."""
    model = _TABLES[table]
    column = inspect(model).primary_key[0]
    session.execute(delete(model).where(column == key))


class OperatorTables:
    """Their tables as plain dictionaries."""

    def __init__(self, database: Database, store: Store) -> None:
        self._database = database
        self._store = store

    def read(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table; blocks."""
        model = _TABLES[table]
        names = model.__table__.columns.keys()
        with self._database.session.begin() as session:
            return [
                {name: getattr(row, name) for name in names}
                for row in session.scalars(select(model))
            ]

    def put(self, table: str, values: dict[str, Any]) -> None:
        """Write a row with the next batch."""
        self._store.must(lambda session: put(session, table, values))

    def drop(self, table: str, key: str) -> None:
        """Remove a row with the next batch."""
        self._store.must(lambda session: drop(session, table, key))
