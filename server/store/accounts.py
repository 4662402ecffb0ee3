"""Users, API tokens, sessions and the operator's own settings: reading and writing.

Reading blocks, and happens only while the server starts. A write joins the store's next batch and
is retried until it succeeds.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, delete, select

from .database import Database
from .models import DOCUMENTS, SESSIONS, TOKENS, USERS
from .rows import insert_of
from .store import Store

_TABLES: dict[str, Table] = {
    "users": USERS,
    "tokens": TOKENS,
    "sessions": SESSIONS,
    "state": DOCUMENTS,
}


def put(connection: Connection, table: str, values: dict[str, Any]) -> None:
    """Insert a row, or overwrite the one with its key."""
    connection.execute(_overwriting(connection.dialect.name, table, tuple(values)), values)


@cache
def _overwriting(dialect: str, table: str, names: tuple[str, ...]) -> Any:
    """The statement for rows of these columns. Compiling it costs three times the write."""
    model = _TABLES[table]
    key = list(model.primary_key)
    statement = insert_of(dialect)(model)
    changed = {name: statement.excluded[name] for name in names if not model.c[name].primary_key}
    return statement.on_conflict_do_update(index_elements=key, set_=changed)


def drop(connection: Connection, table: str, key: str) -> None:
    """Remove the row with this key, if there is one."""
    model = _TABLES[table]
    (column,) = model.primary_key
    connection.execute(delete(model).where(column == key))


class OperatorTables:
    """The tables of users, tokens, sessions and documents, as plain dictionaries."""

    def __init__(self, database: Database, store: Store) -> None:
        self._database = database
        self._store = store

    def read(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table; blocks."""
        with self._database.engine.begin() as connection:
            rows = connection.execute(select(_TABLES[table])).mappings()
            return [dict(row) for row in rows]

    def put(self, table: str, values: dict[str, Any]) -> None:
        """Write a row with the next batch."""
        self._store.must(lambda connection: put(connection, table, values))

    def drop(self, table: str, key: str) -> None:
        """Remove a row with the next batch."""
        self._store.must(lambda connection: drop(connection, table, key))
