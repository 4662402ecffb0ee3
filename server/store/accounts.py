"""Users, API tokens, sessions and the operator's own settings: reading and writing.

Reading blocks, and happens only while the server starts. A write joins the store's next batch and
is retried until it succeeds.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, select
from sqlalchemy.exc import SQLAlchemyError

from .database import Database, StoreUnavailable, words_of
from .models import METADATA
from .rows import put
from .store import Store


class OperatorTables:
    """The tables of users, tokens, sessions and documents by name; rows are dictionaries."""

    def __init__(self, database: Database, store: Store) -> None:
        self._database = database
        self._store = store

    def read(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table; blocks. Raises StoreUnavailable."""
        # A statement by itself: a transaction takes two turns more.
        engine = self._database.engine.execution_options(isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                rows = connection.execute(select(METADATA.tables[table])).mappings()
                return [dict(row) for row in rows]
        except SQLAlchemyError as error:
            raise StoreUnavailable(words_of(error)) from error

    def put(self, table: str, values: dict[str, Any]) -> None:
        """Write a row with the next batch."""
        self._store.must(lambda connection: put(connection, METADATA.tables[table], values))

    def drop(self, table: str, key: str) -> None:
        """Remove a row with the next batch."""
        model = METADATA.tables[table]
        (column,) = model.primary_key

        def work(connection: Connection) -> None:
            connection.execute(delete(model).where(column == key))

        self._store.must(work)
