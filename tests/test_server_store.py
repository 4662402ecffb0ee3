"""The store: batches, crashes, degraded mode; history thins; every record comes back."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event, inspect, select, text
from sqlalchemy.exc import OperationalError
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from tests.databases import DIALECTS, database, new_database, only_sqlite, postgres
from tests.installed import PYTHON
from tidegate.policies.contract import TicketRow, TicketState
from tidegate.server.store import database as store_database
from tidegate.server.store import history
from tidegate.server.store import queries as ledger
from tidegate.server.store.accounts import OperatorTables
from tidegate.server.store.cluster import Fenced
from tidegate.server.store.database import (
    FITS,
    MIGRATIONS,
    Database,
    StoreUnavailable,
    sqlite_url,
    unverified_host,
    words_of,
)
from tidegate.server.store.journal import (
    forget_tickets,
    read_journal,
    reserve_numbers,
    write_tickets,
)
from tidegate.server.store.models import HISTORY, METADATA
from tidegate.server.store.records import (
    ArrivalRecord,
    EventRecord,
    PassRecord,
    RevisionRecord,
    SampleRecord,
    UsageRecord,
)
from tidegate.server.store.reports import Sought, read_period
from tidegate.server.store.store import TIMES, Store
from tidegate.server.store.usage import add_usage, read_hours, read_usage

T = TypeVar("T")
__all__ = ["database", "postgres"]


def ticket(number: int, state: TicketState = TicketState.WAITING, **more: Any) -> TicketRow:
    row = TicketRow(
        number=number,
        client=f"192.0.2.{number % 250}#1",
        file="/big.iso",
        size_bytes=5_000_000_000,
        remaining_bytes=5_000_000_000,
        weight=1.0,
        issued_s=1000.0 + number,
        state=state,
        changed_s=1000.0 + number,
        priority_class="gold",
    )
    return row._replace(**more)


class Threads:
    """Stands for a thread: work runs when the test says so, or fails when it says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Deferred[Any]]] = []
        self.broken: Exception | None = None

    def __call__(self, work: Callable[[], T]) -> Deferred[T]:
        answer: Deferred[T] = Deferred()
        self.jobs.append((work, answer))
        return answer

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for work, answer in jobs:
            try:
                if self.broken is not None:
                    raise self.broken
                result = work()
            except (OperationalError, StoreUnavailable) as error:
                answer.errback(error)
            else:
                answer.callback(result)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def store(database: Database, clock: Clock, threads: Threads) -> Store:
    return Store(database, clock, threads, lambda work: succeed(work()), clock.seconds)


def live(database: Database) -> list[int]:
    with database.engine.connect() as connection:
        return [row.number for row in read_journal(connection).live]


def shape(database: Database) -> dict[str, Any]:
    """The columns, indexes and keys of each table."""
    found = inspect(database.engine)

    def column(one: Any) -> tuple[Any, ...]:
        kind = str(one["type"])
        is_float = kind.startswith(("FLOAT", "DOUBLE", "REAL"))
        return ("FLOAT" if is_float else kind), one["nullable"], one["default"]

    return {
        table: (
            {one["name"]: column(one) for one in found.get_columns(table)},
            sorted(found.get_indexes(table), key=lambda one: str(one["name"])),
            found.get_pk_constraint(table)["constrained_columns"],
            found.get_unique_constraints(table),
        )
        for table in found.get_table_names()
        if table != "alembic_version"
    }


#: What the program whose last migration is 0009 left, with a row in each table.
DUMP_0009 = (Path(__file__).parent / "vectors" / "database_0009.sql").read_text("ascii")


def open_0009(folder: Path) -> Database:
    """A database that the program of migration 0009 left."""
    with contextlib.closing(sqlite3.connect(folder / "tidegate.db")) as connection:
        connection.executescript(DUMP_0009)
    return Database(sqlite_url(folder / "tidegate.db"))


def rows(database: Database) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables."""
    with database.begin() as connection:
        return {
            name: [
                dict(row) for row in connection.execute(text(f'SELECT * FROM "{name}"')).mappings()
            ]
            for name in inspect(connection).get_table_names()
        }


def test_migrations_make_the_tables_of_the_models(tmp_path: Path) -> None:
    """What an earlier program left is kept."""
    (tmp_path / "made").mkdir()
    migrated, made = open_0009(tmp_path), Database(sqlite_url(tmp_path / "made" / "tidegate.db"))
    before = rows(migrated)
    for each in (migrated, made):
        each.migrate()
    assert shape(made) == shape(migrated)
    assert shape(made).keys() == METADATA.tables.keys()
    assert rows(migrated).keys() >= before.keys()
    for table, kept in before.items():
        if table != "alembic_version":
            found = rows(migrated)[table]
            # What fits the tables from now on is one more counter.
            assert len(found) - len(kept) == (table == "counters")
            for old, now in zip(kept, found, strict=False):
                assert old.items() <= now.items()
    assert live(migrated) == [7]


def test_a_database_of_migration_0009_is_brought_up_to_date_by_each_kind(
    database: Database,
) -> None:
    """A new database is made from the models, so no other test migrates PostgreSQL."""
    made = shape(database)
    with database.begin() as connection:
        connection.execute(text("ALTER TABLE arrivals DROP COLUMN program"))
        connection.execute(text("ALTER TABLE admin_users DROP COLUMN subject"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0009'"))
        connection.execute(
            text("INSERT INTO arrivals (at_s, client, file, size_bytes) VALUES (1, 'a#1', '/x', 9)")
        )
    assert shape(database) != made
    database.migrate()
    assert shape(database) == made
    with database.begin() as connection:
        assert ledger.read_arrivals(connection, 0.0, 9) == [ArrivalRecord(1.0, "a#1", "/x", 9, "")]


def _columns(database: Database) -> dict[tuple[str, str], tuple[str, bool]]:
    """The type of each column, and whether a program that does not know it may write rows."""
    found = inspect(database.engine)
    return {
        (table, column["name"]): (
            str(column["type"]),
            bool(column["nullable"] or column["default"] is not None),
        )
        for table in found.get_table_names()
        for column in found.get_columns(table)
    }


def test_programs_that_are_said_to_fit_find_all_their_columns_and_need_no_others(
    tmp_path: Path,
) -> None:
    assert FITS == 9, "keep a dump of the first program that fits"
    database = open_0009(tmp_path)
    before = _columns(database)
    database.migrate()
    now = _columns(database)
    assert {name: now[name] for name in before} == before
    tables = {table for table, _ in before}
    assert [
        name for name in now if name not in before and name[0] in tables and not now[name][1]
    ] == []


def test_migrating_twice_changes_nothing(database: Database) -> None:
    with database.engine.begin() as connection:
        write_tickets(connection, [ticket(1)])
    database.migrate()
    assert live(database) == [1]


def test_a_wrong_url_says_what_to_write() -> None:
    with pytest.raises(StoreUnavailable, match=r"Use sqlite:///FILE, or postgresql://"):
        Database("nonsense")


def test_the_journal_gives_back_every_live_ticket_and_remembers_finished_ones(
    database: Database,
) -> None:
    rows = [ticket(3), ticket(1, TicketState.STARTED), ticket(2, TicketState.READY)]
    finished = [ticket(4, TicketState.DONE), ticket(5, TicketState.EXPIRED)]
    with database.engine.begin() as connection:
        write_tickets(connection, rows + finished)
        reserve_numbers(connection, 1000)
    with database.engine.connect() as connection:
        found = read_journal(connection)
    assert found.live == tuple(sorted(rows, key=lambda row: row.number))
    assert sorted(found.over) == [4, 5]
    assert found.next_number == 1000


SOME_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)
A_TIME = st.floats(0.0, 2e9)
A_ROW = st.builds(
    TicketRow,
    *(st.integers(1, 6), SOME_TEXT, SOME_TEXT, st.integers(0, 1 << 62)),
    *(st.sampled_from([0, 1, 1 << 62]), st.floats(0.01, 1e9), A_TIME),
    *(st.sampled_from(TicketState), A_TIME, st.integers(0, 99), st.integers(0, 99)),
    *(SOME_TEXT, SOME_TEXT, st.booleans()),
)


def test_any_batches_come_back_as_the_last_row_of_each_ticket(database: Database) -> None:
    """Who a ticket is for and what it is about stays as first written; the rest is the newest."""

    @settings(max_examples=40)
    @given(st.lists(st.lists(A_ROW, max_size=5), max_size=4), st.integers(1, 9))
    def holds(batches: list[list[TicketRow]], reserved: int) -> None:
        expected: dict[int, TicketRow] = {}
        with database.engine.connect() as connection:
            for batch in batches:
                write_tickets(connection, batch)
                for number, row in {row.number: row for row in batch}.items():
                    first = expected.get(number, row)
                    expected[number] = row._replace(
                        client=first.client,
                        file=first.file,
                        size_bytes=first.size_bytes,
                        issued_s=first.issued_s,
                    )
            reserve_numbers(connection, reserved)
            found = read_journal(connection)
            connection.rollback()
        over = {number for number, row in expected.items() if is_over(row)}
        assert set(found.over) == over
        assert found.live == tuple(expected[n] for n in sorted(expected.keys() - over))
        assert found.next_number == max(reserved, 1 + max(expected, default=0))

    holds()


def is_over(row: TicketRow) -> bool:
    ending = row.state is TicketState.STARTED and row.remaining_bytes == 0
    return ending or row.state not in (
        TicketState.WAITING,
        TicketState.READY,
        TicketState.STARTED,
    )


def test_numbers_are_never_reused_even_without_a_counter(database: Database) -> None:
    with database.engine.begin() as connection:
        write_tickets(connection, [ticket(77)])
    with database.engine.connect() as connection:
        assert read_journal(connection).next_number == 78


def test_many_rows_fit_in_one_batch_and_the_last_row_of_a_ticket_counts(
    database: Database,
) -> None:
    rows = [ticket(number) for number in range(1, 3000)]
    with database.engine.begin() as connection:
        write_tickets(connection, [*rows, ticket(7, TicketState.DONE)])
    assert len(live(database)) == 2998


def test_finished_tickets_are_forgotten_once_their_tokens_have_expired(
    database: Database,
) -> None:
    with database.engine.begin() as connection:
        write_tickets(
            connection, [ticket(1), ticket(2, TicketState.DONE), ticket(900, TicketState.DONE)]
        )
        forget_tickets(connection, before_s=1500.0)
        assert read_journal(connection).over == (900,)
    assert live(database) == [1]


NEXT_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9998", "{last}", None, None

def upgrade():
    op.add_column("tickets", sa.Column("later", sa.Text, nullable=False, server_default=""))
    op.create_table("later", sa.Column("name", sa.Text, primary_key=True))
    op.create_index("by_later", "tickets", ["later"])
"""


def change_tables(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Be a later program, whose tables are others."""
    last = store_database._migration_numbers()[-1]
    shutil.copytree(MIGRATIONS, folder)
    (folder / "versions" / "v9998_later.py").write_text(NEXT_MIGRATION.format(last=last))
    monkeypatch.setattr(store_database, "MIGRATIONS", folder)


@pytest.mark.parametrize("how", ["makes", "changes"])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("last", [3, 7, 12, 20, 30, 10_000])
def test_a_server_killed_while_it_makes_or_changes_its_database_starts_again(
    dialect: str,
    how: str,
    last: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After any number of statements: all are there or none."""
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1
        if statements > last:
            raise KeyboardInterrupt

    changes = how == "changes"
    with new_database(dialect, tmp_path, request, migrated=False) as database:
        if changes:
            database.migrate()
            with database.begin() as connection:
                write_tickets(connection, [ticket(7)])
            change_tables(monkeypatch, tmp_path / "migrations")
        database.engine.dispose()
        event.listen(database.engine, "before_cursor_execute", count)
        with contextlib.suppress(KeyboardInterrupt):
            database.migrate()
        event.remove(database.engine, "before_cursor_execute", count)
        assert statements > min(last, 10)
        database.engine.dispose()
        with database.begin() as connection:
            there = inspect(connection)
            tables = set(there.get_table_names())
            whole = statements <= last
            if changes:
                assert ("later" in tables) == whole
                columns = {column["name"] for column in there.get_columns("tickets")}
                assert ("later" in columns) == whole
            else:
                assert tables == ({*METADATA.tables, "alembic_version"} if whole else set())
        database.migrate()
        with database.begin() as connection:
            write_tickets(connection, [ticket(1)])
        assert live(database) == ([1, 7] if changes else [1])


def test_a_ticket_of_which_nothing_is_wanted_any_more_is_used(database: Database) -> None:
    ending = ticket(1, TicketState.STARTED)._replace(remaining_bytes=0)
    with database.engine.begin() as connection:
        write_tickets(connection, [ending, ticket(2, TicketState.STARTED)])
        found = read_journal(connection)
        assert ([row.number for row in found.live], found.over) == ([2], (1,))
        forget_tickets(connection, before_s=ending.changed_s + 1)
        assert read_journal(connection).over == ()


def test_what_comes_after_a_pause_is_written_at_once_and_the_next_a_batch_later(
    store: Store, clock: Clock, threads: Threads
) -> None:
    store.keep_tickets([ticket(1)])
    clock.advance(0)
    assert len(threads.jobs) == 1
    threads.run()
    store.keep_tickets([ticket(2)])
    clock.advance(0)
    assert threads.jobs == []
    clock.advance(TIMES.batch_s)
    assert len(threads.jobs) == 1
    threads.run()


def test_writes_wait_a_few_milliseconds_and_go_together(
    store: Store, clock: Clock, threads: Threads, database: Database
) -> None:
    store.keep_tickets([ticket(1)])
    store.keep_tickets([ticket(2), ticket(1, TicketState.READY)])
    assert threads.jobs == []
    clock.advance(0.01)
    assert len(threads.jobs) == 1
    threads.run()
    assert live(database) == [1, 2]
    assert clock.getDelayedCalls() == []


def test_after_commit_calls_once_the_ticket_is_safe(
    store: Store, clock: Clock, threads: Threads
) -> None:
    told: list[str] = []
    store.after_commit(lambda: told.append("idle"))
    store.keep_tickets([ticket(1)])
    store.after_commit(lambda: told.append("first"))
    clock.advance(0.01)
    store.keep_tickets([ticket(2)])
    store.after_commit(lambda: told.append("second"))
    assert told == ["idle"]
    threads.run()
    assert told == ["idle", "first"]
    clock.advance(0.01)
    threads.run()
    assert told == ["idle", "first", "second"]


def test_nobody_waits_long_for_a_database_that_hangs(
    store: Store, clock: Clock, threads: Threads, database: Database
) -> None:
    told: list[str] = []
    store.keep_tickets([ticket(1)])
    store.after_commit(lambda: told.append("in flight"))
    clock.advance(0.01)
    store.keep_tickets([ticket(2)])
    store.after_commit(lambda: told.append("behind it"))
    clock.advance(TIMES.late_s - 0.02)
    assert not told
    clock.advance(0.02)
    assert told == ["in flight", "behind it"]
    # Once: who comes while it hangs is not kept.
    store.keep_tickets([ticket(2)])
    store.after_commit(lambda: told.append("later"))
    assert told[2:] == ["later"]
    threads.run()
    clock.advance(0.01)
    threads.run()
    assert live(database) == [1, 2]
    assert clock.getDelayedCalls() == []


def test_in_a_cluster_no_answer_leaves_before_its_commit(
    database: Database, clock: Clock, threads: Threads
) -> None:
    ends: list[str] = []
    store = Store(
        database, clock, threads, lambda work: succeed(work()), clock.seconds, ends.append
    )
    told: list[list[int]] = []
    store.keep_tickets([ticket(1)])
    store.after_commit(lambda: told.append(live(database)))
    clock.advance(TIMES.batch_s)
    clock.advance(TIMES.deadline_s - 1.0)
    assert told == [], "a slow commit"
    threads.broken = OperationalError("INSERT", {}, Exception("connection cut"))
    threads.run()
    threads.broken = None
    assert told == [], "a failed one"
    clock.advance(TIMES.retry_first_s)
    threads.run()
    assert told == [[1]]
    assert ends == []
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_a_leader_whose_database_takes_no_writes_ends_before_any_answer(
    database: Database, clock: Clock, threads: Threads, how: str
) -> None:
    heard: list[str] = []
    store = Store(
        database, clock, threads, lambda work: succeed(work()), clock.seconds, heard.append
    )
    store.keep_tickets([ticket(1)])
    store.after_commit(lambda: heard.append("answered"))
    clock.advance(TIMES.batch_s)
    if how == "fails":
        threads.broken = OperationalError("INSERT", {}, Exception("disk full"))
    for _ in range(int(TIMES.deadline_s) - 1):
        if how == "fails":
            threads.run()
        clock.advance(1.0)
        assert heard == []
    for _ in range(int(TIMES.retry_most_s) + 2):
        if how == "fails":
            threads.run()
        clock.advance(1.0)
    reason = "disk full" if how == "fails" else "no answer in 20 s"
    assert heard
    assert all(why.startswith("the database takes no writes: ") for why in heard)
    assert reason in heard[0]


def test_a_dead_database_degrades_and_recovers_without_losing_a_ticket(
    store: Store, clock: Clock, threads: Threads, database: Database
) -> None:
    told: list[str] = []
    threads.broken = OperationalError("INSERT", {}, Exception("disk full"))
    store.keep_tickets([ticket(1)])
    store.after_commit(lambda: told.append("degraded"))
    clock.advance(0.01)
    threads.run()
    assert told == []
    assert not store.state.ok
    clock.advance(TIMES.late_s)
    assert told == ["degraded"]
    assert "disk full" in store.state.reason
    store.keep_tickets([ticket(1, TicketState.READY), ticket(2)])
    store.after_commit(lambda: told.append("at once"))
    assert told == ["degraded", "at once"]
    while store.failures_total < 6:
        clock.advance(20)
        threads.run()
    threads.broken = None
    clock.advance(20)
    threads.run()
    assert store.state.ok
    assert store.state.pending == 0
    with database.engine.connect() as connection:
        assert [row.state for row in read_journal(connection).live] == ["ready", "waiting"]


def test_close_ends_although_the_database_never_answers(
    store: Store, clock: Clock, threads: Threads
) -> None:
    closed: list[bool] = []
    store.keep_tickets([ticket(1)])
    clock.advance(0.01)
    store.close().addCallback(closed.append)
    clock.advance(TIMES.close_s)
    clock.advance(TIMES.cut_s - 0.01)
    assert closed == []
    clock.advance(0.01)
    assert closed == [False]
    # As the manual says (docs/operations.md).
    assert TIMES.close_s + TIMES.cut_s == 8
    threads.run()
    assert closed == [False]


def test_close_ends_although_the_process_dies_where_it_hears_that_it_leads_no_more(
    database: Database, clock: Clock, threads: Threads
) -> None:
    """The refused batch counted as under way for ever: `close` waited for it in an endless loop."""

    def die(why: str) -> None:
        raise RuntimeError(why)

    store = Store(database, clock, threads, lambda work: succeed(work()), clock.seconds, die)
    store.keep_tickets([ticket(1)])
    clock.advance(TIMES.batch_s)
    closed: list[bool] = []
    store.close().addCallback(closed.append)
    ((_, answer),) = threads.jobs
    answer.errback(Fenced("epoch 2 is over"))
    assert closed == [True]


def test_a_write_without_an_answer_is_cut_off_said_and_tried_again(
    store: Store,
    clock: Clock,
    threads: Threads,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted: list[float] = []
    monkeypatch.setattr(database, "interrupt", lambda: interrupted.append(clock.seconds()))
    store.keep_tickets([ticket(1)])
    clock.advance(TIMES.batch_s)
    began_s = clock.seconds()
    clock.advance(19.9)
    assert (store.state.ok, interrupted) == (True, [])
    clock.advance(0.1)
    assert not store.state.ok
    # As the manual says (docs/operations.md).
    assert interrupted == [began_s + 20] == [began_s + TIMES.deadline_s]
    assert "no answer" in store.state.reason
    threads.broken = OperationalError("write", {}, Exception("cut"))
    threads.run()
    threads.broken = None
    clock.advance(TIMES.retry_first_s)
    threads.run()
    assert store.state.ok
    assert live(database) == [1]


@only_sqlite("it is a file")
@pytest.mark.parametrize("how", ["removed", "replaced", "emptied", "overwritten"])
def test_a_database_file_that_is_lost_is_noticed_and_written_anew(
    database: Database, clock: Clock, threads: Threads, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "tidegate.db"
    known = [ticket(1), ticket(2)]
    store = Store(
        database,
        clock,
        threads,
        lambda work: succeed(work()),
        clock.seconds,
    )
    store.open(lambda: [lambda connection: write_tickets(connection, known)])
    store.keep_tickets(known)
    clock.advance(TIMES.look_s)
    threads.run()
    assert live(database) == [1, 2], "nothing was wrong"
    if how == "removed":
        file.unlink()
    elif how == "replaced":
        other = tmp_path / "other"
        other.write_bytes(file.read_bytes())
        other.rename(file)
    elif how == "emptied":
        os.truncate(file, 0)
    else:
        file.write_bytes(b"x" * 100_000)
    with capturedLogs() as logged:
        clock.advance(TIMES.look_s)
        threads.run()
        clock.advance(TIMES.batch_s)
        threads.run()
    assert store.state.ok
    assert [str(event.get("fault", "")).startswith(str(file)) for event in logged].count(True) == 1
    found = sqlite3.connect(file)
    assert [row[0] for row in found.execute("SELECT number FROM tickets")] == [1, 2]
    assert file.with_name("tidegate.db.broken").exists() == (how != "removed")
    found.close()
    store.close()


def _refused(path: Path, mode: int = 0o777, *, exist_ok: bool = False) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@only_sqlite("it is a file")
def test_a_state_folder_that_is_gone_is_said_and_made_again_where_that_is_allowed(
    database: Database,
    clock: Clock,
    threads: Threads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [ticket(1), ticket(2)]
    store = Store(database, clock, threads, lambda work: succeed(work()), clock.seconds)
    store.open(lambda: [lambda connection: write_tickets(connection, known)])
    shutil.rmtree(tmp_path)
    # A confined server may not make it.
    with capturedLogs() as logged, monkeypatch.context() as confined:
        confined.setattr(Path, "mkdir", _refused)
        for _ in range(3):
            clock.advance(TIMES.look_s)
            threads.run()
            clock.advance(TIMES.retry_most_s)
            threads.run()
    told = [event for event in logged if "removed or replaced" in str(event.get("fault", ""))]
    assert len(told) == 1
    assert not store.state.ok
    assert "bring it back" in store.state.reason
    assert not tmp_path.exists()
    clock.advance(TIMES.retry_most_s)
    threads.run()
    assert store.state.ok
    with contextlib.closing(sqlite3.connect(tmp_path / "tidegate.db")) as found:
        assert [row[0] for row in found.execute("SELECT number FROM tickets")] == [1, 2]
    store.close()


def test_tables_are_made_and_opened_without_alembic(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path;"
        "from tidegate.server.store.database import Database, sqlite_url;"
        "Database(sqlite_url(Path(sys.argv[1]))).migrate(); print('alembic' in sys.modules)"
    )
    said = [
        subprocess.run(
            [PYTHON, "-c", script, str(tmp_path / "state.db")],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert said == ["False", "False"]


def test_a_database_of_a_newer_version_is_refused_in_one_sentence(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreUnavailable, match="newer version of Tidegate"):
        database.migrate()


def test_a_database_of_an_unreleased_version_is_refused_in_one_sentence(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0008'"))
    with pytest.raises(StoreUnavailable, match="development version of Tidegate wrote it"):
        database.migrate()


def test_a_note_that_cannot_be_written_does_not_keep_tickets_out(
    store: Store, clock: Clock, threads: Threads, database: Database
) -> None:
    def poison(connection: Connection) -> None:
        raise OperationalError("INSERT", {}, Exception("no such thing"))

    store.note(poison)
    store.keep_tickets([ticket(1)])
    clock.advance(0.01)
    threads.run()
    clock.advance(1)
    threads.run()
    assert live(database) == [1]
    assert store.state.ok


def test_many_notes_do_not_keep_an_answer_waiting(
    store: Store, clock: Clock, threads: Threads
) -> None:
    """The arrivals of five seconds were one write, in the batch that answers waited for."""
    written: list[int] = []
    for n in range(50):
        store.note(lambda connection, n=n: written.append(n))  # type: ignore[misc]
    store.keep_tickets([ticket(1)])
    safe: list[int] = []
    store.after_commit(lambda: safe.append(len(written)))
    for _ in range(20):
        clock.advance(0.01)
        threads.run()
    assert safe[0] < 10
    assert written == list(range(50))


def test_what_must_be_stored_is_said_to_be_when_it_is_and_not_before(
    store: Store, clock: Clock, threads: Threads, database: Database
) -> None:
    told: list[tuple[float, bool]] = []

    def ask() -> None:
        store.stored().addCallback(lambda stored: told.append((clock.seconds(), stored)))

    ask()
    assert told.pop()[1], "nothing was given"
    store.must(lambda connection: write_tickets(connection, [ticket(1)]))
    ask()
    clock.advance(TIMES.batch_s)
    # Its batch is under way, and another one waits for it.
    store.must(lambda connection: write_tickets(connection, [ticket(2)]))
    ask()
    assert not told
    for _ in range(3):
        threads.run()
        clock.advance(TIMES.batch_s)
    assert [stored for _, stored in told] == [True, True]
    assert live(database) == [1, 2]
    told.clear()
    threads.broken = OperationalError("INSERT", {}, Exception("disk full"))
    began_s = clock.seconds()
    store.must(lambda connection: write_tickets(connection, [ticket(3)]))
    ask()
    for _ in range(40):
        clock.advance(0.1)
        threads.run()
    ((told_s, stored),) = told
    assert not stored
    assert told_s - began_s == pytest.approx(TIMES.stored_s, abs=0.2)
    ask()
    assert told.pop() == (clock.seconds(), False), "it is known by now"


def test_close_writes_what_is_pending(
    store: Store, clock: Clock, threads: Threads, database: Database
) -> None:
    closed: list[bool] = []
    store.keep_tickets([ticket(1)])
    clock.advance(0.01)
    store.keep_tickets([ticket(2)])
    store.close().addCallback(closed.append)
    threads.run()
    assert closed == []
    # A download that the stop cut ends while the last batch is written.
    store.keep_tickets([ticket(3)])
    threads.run()
    assert closed == []
    threads.run()
    assert closed == [True]
    assert live(database) == [1, 2, 3]
    assert clock.getDelayedCalls() == []


def test_close_tries_an_ill_database_twice(store: Store, threads: Threads) -> None:
    closed: list[bool] = []
    threads.broken = OperationalError("write", {}, Exception("full"))
    store.keep_tickets([ticket(1)])
    store.close().addCallback(closed.append)
    threads.run()
    assert closed == []
    threads.run()
    assert closed == [True]
    assert store.failures_total == 2
    assert store.state.pending == 1


def test_reads_answer_with_what_the_query_found(store: Store) -> None:
    found: list[int] = []
    store.read(lambda connection: len(read_journal(connection).live)).addCallback(found.append)
    assert found == [0]


def test_history_thins_to_minutes_and_hours(database: Database) -> None:
    start = 7200.0 * 100
    with database.engine.begin() as connection:
        for step in range(0, 7200, 10):
            now = start + step
            history.write_samples(connection, [SampleRecord(now, "waiting", step % 60, step % 60)])
            if step % 600 == 0:
                history.thin(connection, now)
        history.thin(connection, start + 7200)
        raw = connection.scalars(select(HISTORY.c.at_s).where(HISTORY.c.resolution_s == 0)).all()
        assert min(raw) >= start + 3600
        rows = select(HISTORY.c.at_s, HISTORY.c.mean, HISTORY.c.peak).order_by(HISTORY.c.at_s)
        minutes = connection.execute(rows.where(HISTORY.c.resolution_s == history.MINUTE)).all()
        assert minutes == [(start + 60 * n, 25.0, 50.0) for n in range(120)]
        hours = connection.execute(rows.where(HISTORY.c.resolution_s == history.HOUR)).all()
        assert [mean for _, mean, _ in hours] == [25.0, 25.0]
        history.thin(connection, start + 400 * 86400)
        assert connection.scalars(select(HISTORY)).all() == []


def test_a_rate_counts_the_same_in_a_report_of_any_span(database: Database) -> None:
    """A server that ran for three minutes has no more refusals in a week than in an hour."""
    start = 7200.0 * 100
    with database.engine.begin() as connection:
        for step in range(0, 180, 5):
            history.write_samples(connection, [SampleRecord(start + step, "refused", 0.2, 0.2)])
        for later_s in (180.0, 7200.0, 8 * 86_400.0):
            now = start + later_s
            history.thin(connection, now, ("refused",))
            for span_s in (max(7200.0, later_s), later_s + 86_400.0, later_s + 7 * 86_400.0):
                sought = Sought(now - span_s, now, None)
                *_, sums = read_period(connection, sought, str, (), ("refused", "errors"), now)
                assert sums == {"refused": 36, "errors": 0}, (later_s, span_s)


CONFINED = """
import sys
from pathlib import Path
from tidegate.server.app.config import load_config
from tidegate.server.app.confinement import confine, needs_of, writable
from tidegate.server.store import database as store_database
from tidegate.server.store import history
from tidegate.server.store.database import Database, sqlite_url
from tidegate.server.store.records import SampleRecord

state = Path(sys.argv[1])
database = Database(sqlite_url(state / "tidegate.db"))
database.migrate()
config = load_config(None, {"TIDEGATE_STATE": str(state)}, {}).config
confine(writable(config), needs_of(config, several=False))
with database.engine.begin() as connection:
    for step in range(720):
        samples = [SampleRecord(3.6e6 + 5 * step, f"series{n}", 1.0, 2.0) for n in range(60)]
        history.write_samples(connection, samples)
for later_s in (4_000, 9_000):
    with database.engine.begin() as connection:
        history.thin(connection, 3.6e6 + later_s)
"""


def test_a_confined_server_thins_more_history_than_sqlite_undoes_in_memory(tmp_path: Path) -> None:
    """It may make no files where SQLite would lay the rest."""
    command = [PYTHON, "-c", CONFINED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_records_come_back_as_they_were_written(database: Database) -> None:
    with database.engine.begin() as connection:
        ledger.write_digest(connection, "8:1:2", {"sha256": "00"}, 1.0)
        ledger.write_digest(connection, "8:1:2", {"sha256": "ff"}, 2.0)
        assert ledger.read_digest(connection, "8:1:2") == {"sha256": "ff"}
        ledger.forget(connection, 90 * 86_400.0 + 1.0)
        assert ledger.read_digest(connection, "8:1:2") == {"sha256": "ff"}
        ledger.forget(connection, 90 * 86_400.0 + 3.0)
        assert ledger.read_digest(connection, "8:1:2") is None

        first = ledger.add_revision(connection, RevisionRecord(1.0, "ann", "fcfs", {"slots": 3}))
        second = ledger.add_revision(connection, RevisionRecord(2.0, "bob", "ticket", {}, "rush"))
        assert ledger.read_revisions(connection, 10) == [second, first]
        assert ledger.read_revisions(connection, 10, before_id=second.number) == [first]
        assert ledger.read_revision(connection, first.number) == first

        ledger.write_events(
            connection,
            [EventRecord(1.0, "login", "ann came in"), EventRecord(2.0, "store", "100% full")],
        )
        assert [event.text for event in ledger.read_events(connection, 9, text="100%")] == [
            "100% full"
        ]
        assert [event.text for event in ledger.read_events(connection, 9, text="login")] == [
            "ann came in"
        ]
        assert [event.kind for event in ledger.read_events(connection, 9)] == ["store", "login"]
        assert ledger.read_events(connection, 9, kind="login")[0].level == "info"

        add_usage(connection, [UsageRecord("/a", 1, 0, 0, 5.0), UsageRecord("/b", 2, 1, 900, 5.0)])
        add_usage(connection, [UsageRecord("/a", 0, 1, 4_000_000_000_000, 50.0)])
        add_usage(connection, [])
        assert read_usage(connection) == {"/a": (1, 1, 4_000_000_000_000), "/b": (2, 1, 900)}
        assert read_hours(connection, 0.0, 9_999.0, "", 9) == [
            (0, "/a", 1, 1, 4_000_000_000_000),
            (0, "/b", 2, 1, 900),
        ]
        assert [row[1] for row in read_hours(connection, 0.0, 9_999.0, "/b", 9)] == ["/b"]
        ledger.forget(connection, 365 * 86_400.0 + 10.0)
        assert read_hours(connection, 0.0, 9_999.0, "", 9) == []
        assert list(read_usage(connection)) == ["/a"]

        arrival = ArrivalRecord(5.0, "192.0.2.1#0", "/a", 9)
        ledger.write_arrivals(connection, [arrival])
        assert ledger.read_arrivals(connection, 0.0, 9) == [arrival]
        ledger.forget(connection, 30 * 86_400.0 + 10.0)
        assert ledger.read_arrivals(connection, 0.0, 9) == []

        issued = PassRecord("s1", "gold", 4.0, "/*", 1.0, 1.0, 9.0, 3)
        ledger.write_passes(connection, [issued])
        ledger.count_pass_use(connection, replace(issued, uses=2))
        foreign = replace(issued, serial="s2", issued_s=0.0, uses=1)
        ledger.count_pass_use(connection, foreign)
        assert ledger.read_passes(connection) == [replace(issued, uses=2), foreign]
        assert ledger.revoke_pass(connection, "s1")
        assert not ledger.revoke_pass(connection, "nobody")
        assert ledger.read_passes(connection)[0].revoked


def test_a_look_at_a_database_that_is_away_says_so(tmp_path: Path) -> None:
    away = Database(sqlite_url(tmp_path / "gone" / "queue.db"))
    tables = OperatorTables(away, cast(Store, None))
    with pytest.raises(StoreUnavailable, match="unable to open"):
        tables.read("operator_state")
    away.close()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("sqlite:////var/lib/tidegate/tidegate.db", None),
        ("postgresql://tide@/tide?host=/run/postgresql", None),
        ("postgresql:///tide", None),
        ("postgresql://tide@localhost/tide", None),
        ("postgresql://tide@[::1]:5433/tide", None),
        ("postgresql://tide@db.example/tide", "db.example"),
        ("postgresql://tide@192.0.2.1/tide?sslmode=require", "192.0.2.1"),
        ("postgresql://tide@/tide?host=localhost,db.example", "db.example"),
        ("postgresql://tide@db.example/tide?sslmode=verify-ca", "db.example"),
        ("postgresql+psycopg://tide@db.example/tide?sslmode=verify-full", None),
    ],
)
def test_a_remote_database_without_a_verified_certificate_is_found(
    url: str, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert unverified_host(url) == host
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert unverified_host(url) is None or "sslmode" in url


def test_a_fault_of_the_database_is_told_without_classes_and_links() -> None:
    full = OperationalError("INSERT", {}, Exception("database or disk is full"))
    assert "sqlalche.me" in str(full)
    assert words_of(full) == "database or disk is full"
    assert words_of(ValueError("")) == "unknown fault"
