"""The databases of tests: what holds on SQLite must hold on PostgreSQL.

A test module imports the fixtures that it needs, with `postgres` always.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from tests import fakes
from tidegate.policies.contract import TicketRow, TicketState
from tidegate.server.store.database import Database, sqlite_url
from tidegate.server.store.journal import read_journal
from tidegate.server.store.models import METADATA, TICKETS
from tidegate.server.store.store import TIMES, Store

SQLITE, POSTGRESQL = "sqlite", "postgresql"
DIALECTS = (SQLITE, POSTGRESQL)
#: A journal in memory, for tests whose subject is not what is stored.
MEMORY = "memory"
_MOST_JOURNALS = 4


class Postgres:
    """A running PostgreSQL that makes databases, empty or with all tables."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()
        template = Database(url)
        template.migrate()
        template.close()

    def make(self, *, migrated: bool = True) -> str:
        """The URL of a new database."""
        name = f"test{next(self._numbers)}"
        template = "postgres" if migrated else "template0"
        self._administer(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self._url_of(name)

    def drop(self, url: str) -> None:
        """Remove a database that `make` made."""
        name = url.rpartition("?")[0].rpartition("/")[2]
        self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    def _url_of(self, name: str) -> str:
        return self._url.replace("/postgres?", f"/{name}?")

    def _administer(self, statement: str) -> None:
        # A template may have no connection of its own.
        database = Database(self._url_of("template1"))
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text(statement))
        database.close()


@pytest.fixture(scope="session")
def postgres(postgres_url: str) -> Postgres:
    """Makes databases in the one PostgreSQL of this process."""
    return _server(postgres_url)


@functools.cache
def _server(url: str) -> Postgres:
    return Postgres(url)


@contextmanager
def new_database(
    dialect: str, folder: Path, request: pytest.FixtureRequest, *, migrated: bool = True
) -> Iterator[Database]:
    """A database of its own; `migrated`: with all tables, else empty."""
    server: Postgres | None = None
    url = sqlite_url(folder / "tidegate.db")
    if dialect == POSTGRESQL:
        server = request.getfixturevalue("postgres")
        url = server.make(migrated=migrated)
    database = Database(url)
    try:
        if migrated:
            database.migrate()
        yield database
    finally:
        database.close()
        if server is not None:
            server.drop(url)


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database of each kind with all tables."""
    with new_database(request.param, tmp_path, request) as found:
        yield found


def only_sqlite(reason: str) -> pytest.MarkDecorator:
    """Run a test of `database` on SQLite alone, which the reason must explain."""
    return pytest.mark.parametrize(
        "database", [pytest.param(SQLITE, id=f"sqlite: {reason}")], indirect=True
    )


def _at_once(work: Callable[[], Any]) -> Deferred[Any]:
    """Stands for a thread."""
    return succeed(work())


class StoredJournal:
    """A `FakeJournal` that the real store keeps in a database."""

    def __init__(self, database: Database) -> None:
        self.waiters: list[Callable[[], None]] = []
        self.hold = False
        #: Whether a batch is being written: what it brings about is written after it.
        self._writing = False
        self.database = database
        self._kept: dict[int, TicketRow] = {}
        # The clock of the house stands still while a batch is written.
        self._clock = Clock()
        self._store = Store(database, self._clock, _at_once, _at_once, self._clock.seconds)

    @property
    def rows(self) -> dict[int, TicketRow]:
        """The rows that the database has."""
        self._write()
        columns = [TICKETS.c[name] for name in TicketRow._fields]
        with self.database.engine.connect() as connection:
            found = connection.execute(select(*columns).order_by(TICKETS.c.number)).all()
        rows = [TicketRow._make(one) for one in found]
        return {row.number: row._replace(state=TicketState(row.state)) for row in rows}

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        kept = list(rows)
        for row in kept:
            first = self._kept.get(row.number, row)
            # A row that comes later changes neither whose a ticket is nor what it is for.
            self._kept[row.number] = row._replace(
                client=first.client,
                file=first.file,
                size_bytes=first.size_bytes,
                issued_s=first.issued_s,
            )
        self._store.keep_tickets(kept)

    def after_commit(self, callback: Callable[[], None]) -> None:
        if self.hold:
            self.waiters.append(callback)
            return
        self._store.after_commit(callback)
        self._write()

    def check(self) -> None:
        """The database has all that it was given, and a server that starts finds it."""
        assert self.rows == self._kept
        with self.database.engine.connect() as connection:
            found = read_journal(connection)
        numbers = {row.number for row in found.live} | set(found.over)
        assert numbers == set(self._kept)
        assert all(row == self._kept[row.number] for row in found.live)

    def _write(self) -> None:
        if self._writing:
            return
        self._writing = True
        try:
            self._clock.advance(2 * TIMES.batch_s)
            while self._store.state.pending:
                self._clock.advance(2 * TIMES.batch_s)
        finally:
            self._writing = False
        assert self._store.state.ok


class JournalMaker:
    """Gives each gate of a test a journal in a database of its own."""

    def __init__(self, open_one: Callable[[], Database]) -> None:
        self._open = open_one
        self._idle: list[Database] = []
        self._journals: list[StoredJournal] = []

    def make(self) -> StoredJournal:
        """An empty journal; the oldest one ends when there are more than `_MOST_JOURNALS`."""
        if len(self._journals) == _MOST_JOURNALS:
            self._end(self._journals.pop(0))
        if not self._idle:
            self._idle.append(self._open())
        journal = StoredJournal(self._idle.pop())
        self._journals.append(journal)
        return journal

    def end_test(self) -> None:
        """End all journals; their databases serve the next test."""
        journals, self._journals = self._journals, []
        for journal in journals:
            self._end(journal)

    def _end(self, journal: StoredJournal) -> None:
        self._idle.append(journal.database)
        try:
            journal.check()
        finally:
            with journal.database.engine.begin() as connection:
                for table in reversed(METADATA.sorted_tables):
                    connection.execute(table.delete())

    def close(self) -> None:
        """Close all databases."""
        for database in self._idle:
            database.close()


@pytest.fixture(scope="module")
def journal_makers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], JournalMaker]]:
    """A maker of journals for each dialect."""
    makers: dict[str, JournalMaker] = {}

    def open_one(dialect: str) -> Database:
        if dialect == SQLITE:
            database = Database(sqlite_url(tmp_path_factory.mktemp("journal") / "tidegate.db"))
        else:
            database = Database(request.getfixturevalue("postgres").make())
        database.migrate()
        return database

    def of(dialect: str) -> JournalMaker:
        if dialect not in makers:
            makers[dialect] = JournalMaker(lambda: open_one(dialect))
        return makers[dialect]

    yield of
    for maker in makers.values():
        maker.close()


@pytest.fixture(autouse=True, params=DIALECTS)
def journals(
    request: pytest.FixtureRequest,
    journal_makers: Callable[[str], JournalMaker],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Every `House` of the module keeps its tickets in a database, of each kind in turn."""
    if request.param == MEMORY:
        yield
        return
    maker = journal_makers(request.param)
    monkeypatch.setattr(fakes, "FakeJournal", maker.make)
    yield
    maker.end_test()
