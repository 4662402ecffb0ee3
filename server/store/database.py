"""Opening a database: SQLite in WAL by default, PostgreSQL by its URL, migrated before use.

Everything here blocks, so it runs at start-up or on the store's threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

MIGRATIONS = Path(__file__).with_name("migrations")


class StoreUnavailable(Exception):
    """The database cannot be opened; the message names the fault and the remedy."""


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{path}"


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # WAL with synchronous=NORMAL survives a killed process; only a power cut may lose the last
    # batch, and the signed tokens bring those tickets back.
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "busy_timeout=5000",
        "cache_size=-16000",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


class Database:
    """One engine and its sessions; every method blocks."""

    def __init__(self, url: str) -> None:
        if url.startswith("postgresql://"):
            url = "postgresql+psycopg://" + url.removeprefix("postgresql://")
        try:
            self.engine: Engine = create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise StoreUnavailable(
                f"The database URL cannot be used: {error}. Use sqlite:///FILE, or "
                "postgresql://USER@HOST/NAME with the extra `postgres` installed."
            ) from error
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _prepare_sqlite)
        self.session = sessionmaker(self.engine, class_=Session, expire_on_commit=False)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    @contextlib.contextmanager
    def begin(self) -> Iterator[Session]:
        """One transaction, for callers who may block.

        Raises StoreUnavailable with what the database says, in a line.
        """
        try:
            with self.session.begin() as session:
                yield session
        except SQLAlchemyError as error:
            raise StoreUnavailable(str(error).splitlines()[0]) from error

    def migrate(self) -> None:
        """Bring the tables up to date; raises StoreUnavailable as `begin` does."""
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        try:
            with self.engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except SQLAlchemyError as error:
            raise StoreUnavailable(str(error).splitlines()[0]) from error

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()
