"""The store on a real PostgreSQL: migrations, journal, history and a server that restarts."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, inspect, text

from tests.faulty_mirrors import certificate
from tests.postgres import NoPostgres, Postgres, postgres_running
from tests.running import make_release, serving, wait_for
from tests.test_e2e_crash import ARGS, ENVIRON, ask
from tidegate.policies.contract import TicketRow, TicketState
from tidegate.server.store.database import Database, StoreUnavailable
from tidegate.server.store.journal import (
    read_journal,
    write_tickets,
)

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_running() as found:
        yield found


def test_a_database_in_sql_ascii_is_good_enough(url: str) -> None:
    database = Database(url)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        made = "CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"
        connection.execute(text(made))
    database.close()
    there = Database(url.replace("/postgres?", "/ascii?"))
    there.migrate()
    row = TicketRow(1, "é", "/ü", 9, 9, 1.0, 1e9, TicketState.WAITING, 1e9)
    with there.begin() as connection:
        write_tickets(connection, [row])
    with there.begin() as connection:
        assert read_journal(connection).live == (row,)
    there.close()


def _migrate_and_die(url: str, last: int) -> None:
    """Migrate in another process that is killed instead of its next statement after so many."""
    child = os.fork()
    if not child:
        try:
            database = Database(url)
            counted = itertools.count(1)

            def count(*_: object) -> None:
                if next(counted) > last:
                    os.kill(os.getpid(), signal.SIGKILL)

            event.listen(database.engine, "before_cursor_execute", count)
            database.migrate()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it had no more statements"


def test_a_server_killed_while_it_makes_its_database_in_postgresql_starts_again(url: str) -> None:
    """After any number of statements: all are there or none, and nobody is kept out."""
    for last in (4, 8, 15, 22):
        _migrate_and_die(url, last)
        database = Database(url)
        with database.engine.connect() as connection:
            assert inspect(connection).get_table_names() == []
        database.claim()
        database.migrate()
        with database.begin() as connection:
            assert read_journal(connection).live == ()
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        database.close()


def test_an_older_machine_uses_a_newer_database_only_if_that_says_so(url: str) -> None:
    newer = Database(url)
    newer.migrate()
    with newer.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    clustered, alone = Database(url, clustered=True), Database(url)
    clustered.migrate()
    with pytest.raises(StoreUnavailable, match="a newer version of Tidegate wrote it"):
        alone.migrate()
    with newer.begin() as connection:
        connection.execute(text("UPDATE counters SET value = 9000 WHERE name = 'schema_fits'"))
    with pytest.raises(StoreUnavailable, match="a newer version of Tidegate wrote it"):
        clustered.migrate()
    clustered.close()
    alone.close()
    with newer.engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    newer.close()


def test_a_server_keeps_its_queue_in_postgresql(url: str, tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=5_000_000)
    environ = {**ENVIRON, "TIDEGATE_DATABASE": url}
    places = []
    token = None
    for _ in range(2):
        with serving(tmp_path / "release", tmp_path / "state", *ARGS, **environ) as server:
            holders = [ask(server.url, f"holder-{n}") for n in range(2)]
            assert [status for status, _, _ in holders] == [200, 200]
            status, headers, connection = ask(server.url, "client", token)
            connection.close()
            assert status == 503
            assert headers is not None
            token = headers["Tidegate-Ticket"]
            places.append(headers["Tidegate-Place"])
            server.kill()
            for _, _, holder in holders:
                holder.close()
    assert places == ["1", "1"]


def drains(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 503)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 503


def backends(url: str) -> list[int]:
    """Process numbers of PostgreSQL's ends of all connections but this one."""
    database = Database(url)
    with database.begin() as connection:
        ours = "client_port = -1 AND pid <> pg_backend_pid()"
        found = connection.execute(text(f"SELECT pid FROM pg_stat_activity WHERE {ours}"))
        numbers = [row[0] for row in found]
    database.close()
    return numbers


def test_a_server_stops_although_its_database_connections_hang(url: str, tmp_path: Path) -> None:
    """As after a fail-over or a lost NAT entry: old connections are silent, new ones work."""
    make_release(tmp_path / "release", big_iso=5_000_000)
    environ = {**ENVIRON, "TIDEGATE_DATABASE": url}
    with serving(tmp_path / "release", tmp_path / "state", *ARGS, **environ) as server:
        holders = [ask(server.url, f"holder-{n}") for n in range(2)]
        hung = backends(url)
        assert hung
        for number in hung:
            os.kill(number, signal.SIGSTOP)
        try:
            status, headers, connection = ask(server.url, "late client")
            connection.close()
            assert status == 503
            assert headers is not None
            server.signal(signal.SIGTERM)
            wait_for(lambda: drains(server.url))
            server.signal(signal.SIGTERM)
            wait_for(lambda: server.process.poll() is not None, 25)
            assert server.process.returncode is not None, server.errors
        finally:
            for number in hung:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGCONT)
            for _, _, holder in holders:
                holder.close()
        number = headers["Tidegate-Ticket"]
    with serving(tmp_path / "release", tmp_path / "state", *ARGS, **environ) as server:
        holders = [ask(server.url, f"holder-{n}") for n in range(2)]
        status, headers, connection = ask(server.url, "late client", number)
        connection.close()
        assert status in (200, 503)
        for _, _, holder in holders:
            holder.close()


def ready(url: str) -> bytes:
    with urllib.request.urlopen(f"{url}/-/ready", timeout=20) as answer:
        body: bytes = answer.read()
        return body


def kept(url: str) -> int:
    """How many tickets the database has that are not over."""
    database = Database(url)
    with database.begin() as connection:
        live = len(read_journal(connection).live)
    database.close()
    return live


def test_a_server_goes_on_while_its_database_is_away(tmp_path: Path) -> None:
    """Connections end, and nobody takes new ones; what was decided meanwhile is written after."""
    make_release(tmp_path / "release", big_iso=5_000_000)
    with postgres_running() as url:
        environ = {**ENVIRON, "TIDEGATE_DATABASE": url}
        with (
            serving(tmp_path / "release", tmp_path / "state", *ARGS, **environ) as server,
            urllib.request.urlopen(f"{server.url}/big.iso", timeout=60) as running,
        ):
            holder = ask(server.url, "holder")[2]
            connections = backends(url)
            process = Path(f"/proc/{connections[0]}/status").read_text()
            postmaster = int(process.partition("PPid:")[2].split()[0])
            os.kill(postmaster, signal.SIGSTOP)
            try:
                for number in connections:
                    os.kill(number, signal.SIGTERM)
                for number in range(3):
                    status, _, connection = ask(server.url, f"meanwhile {number}")
                    connection.close()
                    assert status == 503
                assert len(running.read(100_000)) == 100_000
                wait_for(lambda: b"takes no writes" in ready(server.url), 60)
                assert b"takes no writes" in ready(server.url)
            finally:
                os.kill(postmaster, signal.SIGCONT)
            wait_for(lambda: ready(server.url) == b"ready\n", 60)
            assert ready(server.url) == b"ready\n"
            assert kept(url) >= 3
            holder.close()


def test_a_second_server_on_one_database_is_refused_in_a_sentence(url: str, tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_iso=5_000)
    environ = {**ENVIRON, "TIDEGATE_DATABASE": url}
    with (
        serving(tmp_path / "release", tmp_path / "state", *ARGS, **environ),
        pytest.raises(AssertionError, match="another Tidegate server uses it"),
        serving(tmp_path / "release", tmp_path / "other", *ARGS, **environ),
    ):
        pass


def test_a_leaders_long_reading_is_not_taken_for_a_stopped_process(url: str) -> None:
    """PostgreSQL ends transactions of a cluster that stand still; reading may take long."""
    database = Database(url, clustered=True)
    try:
        with database.begin() as connection:
            database.take_time(connection)
            time.sleep(4.0)
            assert connection.scalar(text("SELECT 1")) == 1
        with database.begin() as connection:
            limit = connection.scalar(text("SHOW idle_in_transaction_session_timeout"))
            assert limit == "3s"
    finally:
        database.close()


def test_a_database_is_verified_where_its_url_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("PGPORT", str(port))
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
        certificate(folder)
    try:
        server = Postgres(address="127.0.0.1")
    except NoPostgres as fault:
        pytest.skip(str(fault))
    try:
        server.use_certificate(mine / "certificate.pem")
        server.start()
        base = f"postgresql://tide@localhost:{port}/postgres?sslmode=verify-full&sslrootcert="
        good = Database(f"{base}{mine / 'certificate.pem'}")
        with good.begin() as connection:
            assert connection.scalar(text("SELECT ssl FROM pg_stat_ssl WHERE pid=pg_backend_pid()"))
        good.close()
        false = Database(f"{base}{other / 'certificate.pem'}")
        with pytest.raises(StoreUnavailable, match="certificate verify failed"), false.begin():
            pass
        false.close()
        # Its certificate is for another name.
        named = Database(f"{base}{mine / 'certificate.pem'}".replace("localhost", "127.0.0.1"))
        with pytest.raises(StoreUnavailable, match="does not match host name"), named.begin():
            pass
        named.close()
    finally:
        server.remove()
