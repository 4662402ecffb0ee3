"""Inserts many rows at once, overwriting rows with the same key. All functions block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import starmap
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    JSON,
    Connection,
    Insert,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.compiler import SQLCompiler

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql


def insert_of(dialect: str) -> type[sqlite.Insert] | type[postgresql.Insert]:
    """The INSERT with ON CONFLICT of this dialect."""
    if dialect != "postgresql":
        return sqlite.Insert
    from sqlalchemy.dialects import postgresql

    return postgresql.Insert


def put(connection: Connection, table: Table, values: Mapping[str, Any], *changing: str) -> None:
    """Insert a row, or overwrite `changing` (all, if none is named) of the one with its key."""
    statement = _overwriting(connection.dialect.name, table, tuple(values), changing)
    connection.execute(statement, values)


@cache
def _overwriting(
    dialect: str, table: Table, names: tuple[str, ...], changing: tuple[str, ...]
) -> Insert:
    """The statement for rows of these columns. Compiling it costs three times the write."""
    statement = insert_of(dialect)(table)
    changed = changing or [name for name in names if not table.c[name].primary_key]
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={name: statement.excluded[name] for name in changed},
    )


class RowInsert:
    """Inserts rows of the columns `names`, in their order.

    Where a row with the same `key` is there already, its columns `changing` are overwritten.
    """

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        *,
        key: str = "",
        changing: Sequence[str] = (),
    ) -> None:
        self._table = table
        self.names = tuple(names)
        self._key = key
        self._changing = tuple(changing)
        # Dictionaries take three times as long to make and to encode.
        self._object = msgspec.defstruct("Row", [(name, Any) for name in names], gc=False)

    def write(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
        """Write these rows; no value may be infinite or no number."""
        listed = list(rows)
        if not listed:
            return
        # Rows are parameters: compiling a statement with their values costs ten times the write.
        if connection.dialect.name != "postgresql":
            connection.exec_driver_sql(self._sqlite_text, listed)
            return
        encoded = msgspec.json.encode(list(starmap(self._object, listed)))
        connection.execute(self._from_json, {"rows": encoded.decode()})

    @cached_property
    def _sqlite_text(self) -> str:
        """The statement for SQLite's driver, which accepts rows as they are."""
        values: dict[str, Any] = {name: bindparam(name) for name in self.names}
        statement = self._overwriting(sqlite.Insert(self._table).values(values))
        compiled = statement.compile(dialect=sqlite.dialect())
        assert isinstance(compiled, SQLCompiler)
        assert compiled.positiontup == list(self.names)
        return compiled.string

    @cached_property
    def _from_json(self) -> Insert:
        """The statement for PostgreSQL: all rows are one JSON parameter."""
        statement = insert_of("postgresql")(self._table)
        return self._overwriting(statement.from_select(self.names, self._rows_of_json()))

    def _rows_of_json(self) -> Select[Any]:
        text = cast(bindparam("rows", type_=Text), JSON)
        columns = [column(name, self._table.c[name].type) for name in self.names]
        named = func.json_to_recordset(text).table_valued(*columns).render_derived(with_types=True)
        return select(*(named.c[name] for name in self.names))

    def _overwriting(self, statement: sqlite.Insert | postgresql.Insert) -> Insert:
        if not self._key:
            return statement
        changed = {name: statement.excluded[name] for name in self._changing}
        return statement.on_conflict_do_update(
            index_elements=[self._table.c[self._key]], set_=changed
        )
