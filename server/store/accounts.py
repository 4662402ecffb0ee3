"""Users, API tokens, sessions and the operator's own settings: tables, reading and writing.

Reading blocks and happens at the start only; every write goes into the store's next batch and is
tried until it arrives.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, String, Text, delete, inspect, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from server.store.database import Database
from server.store.journal import insert_for
from server.store.models import Base
from server.store.store import Store


class UserRow(Base):
    """One user of the administration."""

    __tablename__ = "admin_users"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))
    password_hash: Mapped[str] = mapped_column(Text)
    created_s: Mapped[float]
    must_change: Mapped[bool]
    totp_secret: Mapped[str | None] = mapped_column(String(64))
    totp_step: Mapped[int]


class TokenRow(Base):
    """One API token, by the digest of its secret."""

    __tablename__ = "admin_tokens"

    serial: Mapped[str] = mapped_column(String(16), primary_key=True)
    label: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))
    owner: Mapped[str] = mapped_column(String(64))
    created_s: Mapped[float]
    expires_s: Mapped[float | None]
    used_s: Mapped[float | None]
    parent: Mapped[str | None] = mapped_column(String(16))


class SessionRow(Base):
    """One login, by the digest of its id."""

    __tablename__ = "admin_sessions"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str] = mapped_column(String(64))
    created_s: Mapped[float]
    seen_s: Mapped[float]


class DocumentRow(Base):
    """A document of the operator's: rules for files, blocked networks, the waiting page."""

    __tablename__ = "operator_state"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)


_TABLES: dict[str, type[Base]] = {
    "users": UserRow,
    "tokens": TokenRow,
    "sessions": SessionRow,
    "state": DocumentRow,
}


def put(session: Session, table: str, values: dict[str, Any]) -> None:
    """Insert a row, or overwrite the one with its key."""
    model = _TABLES[table]
    key = [column.name for column in inspect(model).primary_key]
    statement = insert_for(session)(model).values(**values)
    changed = {name: statement.excluded[name] for name in values if name not in key}
    session.execute(statement.on_conflict_do_update(index_elements=key, set_=changed))


def drop(session: Session, table: str, key: str) -> None:
    """Remove a row, if it is there."""
    model = _TABLES[table]
    column = inspect(model).primary_key[0]
    session.execute(delete(model).where(column == key))


class OperatorTables:
    """The tables of this module as plain dictionaries."""

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
