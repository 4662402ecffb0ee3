"""One open database: SQLite in WAL mode by default, or PostgreSQL by its URL.

All methods block: call them while the server starts, or on the store's threads.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    TextClause,
    create_engine,
    event,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from .cluster import LEASE, check_epoch
from .models import COUNTERS, METADATA
from .rows import put

MIGRATIONS = Path(__file__).with_name("migrations")


#: Neither side waits longer for the other; libpq's own limits are hours. PostgreSQL then releases
#: the lock of a vanished server.
_ANSWER_S = 15
#: The oldest migration number whose programs can use the tables as they are now: later migrations
#: only add tables, and columns with a default. An older machine of a cluster may start again then.
FITS = 9


def _postgres_limits(*, clustered: bool) -> dict[str, Any]:
    """How long client and server wait for each other, as arguments of the driver."""
    options = (
        f"-c statement_timeout={_ANSWER_S}s -c tcp_keepalives_idle=10 "
        "-c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
    )
    if clustered:
        # A stopped leader's transaction ends: its successor waits for its lock.
        options += " -c idle_in_transaction_session_timeout=3000"
    return {
        "connect_timeout": 5,
        # Otherwise a database in SQL_ASCII returns bytes.
        "client_encoding": "utf8",
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": _ANSWER_S * 1000,
        "options": options,
    }


def _migration_numbers() -> list[str]:
    """The numbers of all migrations, oldest first."""
    names = sorted(path.stem for path in (MIGRATIONS / "versions").glob("v*.py"))
    return [name.partition("_")[0].removeprefix("v") for name in names]


def _make_tables(connection: Connection) -> None:
    """Make all tables, without Alembic, which takes 8 MB of memory."""
    METADATA.create_all(connection, checkfirst=False)
    connection.execute(insert(LEASE).values(id=1, epoch=0, holder="", place="", expires_s=0.0))
    # Alembic's own table, which holds the number of the last migration.
    connection.exec_driver_sql(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
        "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    version = {"version": _migration_numbers()[-1]}
    connection.execute(text("INSERT INTO alembic_version VALUES (:version)"), version)


def _upgrade(connection: Connection) -> None:
    """Apply all migrations that the tables have not seen."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def words_of(fault: BaseException | None) -> str:
    """What the driver says: without the class and the link to a manual that SQLAlchemy adds."""
    return (str(getattr(fault, "orig", None) or fault) or "unknown fault").splitlines()[0][:300]


class StoreUnavailable(Exception):
    """The database cannot be used; the message names the fault and the remedy."""


def _advisory_lock(function: str, number: int) -> TextClause:
    """Call a function of PostgreSQL's advisory locks for this schema."""
    return text(f"SELECT {function}({number}, hashtext(current_schema()))")


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{path}"


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # WAL with synchronous=NORMAL survives a killed process. A power cut may lose the last batch;
    # the signed tokens then restore those tickets.
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "busy_timeout=5000",
        # A confined process must not create files in SQLite's temporary folder.
        "temp_store=MEMORY",
        "cache_size=-16000",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def address_towards(url: str) -> str:
    """The address of this machine on the route to the database of this URL."""
    parsed = make_url(url)
    if not parsed.host or "host" in parsed.query:
        return "127.0.0.1"
    try:
        found = socket.getaddrinfo(parsed.host, parsed.port or 5432, type=socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as probe:
            # Connecting UDP sends no packet: the kernel only chooses the route.
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def unverified_host(url: str) -> str | None:
    """The host of a remote database whose certificate is not verified; None if there is none.

    Without `sslmode=verify-full` an attacker on the way can read all keys or play the database.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return None
    mode = parsed.query.get("sslmode") or os.environ.get("PGSSLMODE")
    if mode == "verify-full":
        return None
    told = parsed.query.get("host") or parsed.host or ""
    hosts = told.split(",") if isinstance(told, str) else told
    # A host that begins with a slash is the folder of a local socket.
    remote = (one for one in hosts if one and not one.startswith("/") and not _is_loopback(one))
    return next(remote, None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Database:
    """One engine and the lock of its server.

    `clustered`: other machines use the database as well. `epoch` is that of this leader.
    """

    def __init__(self, url: str, *, clustered: bool = False) -> None:
        self._clustered = clustered
        self.epoch: int | None = None
        if url.startswith("postgresql://"):
            url = "postgresql+psycopg://" + url.removeprefix("postgresql://")
        try:
            parsed = make_url(url)
            sqlite = parsed.get_backend_name() == "sqlite"
            limits = {} if sqlite else _postgres_limits(clustered=clustered)
            limits = {name: value for name, value in limits.items() if name not in parsed.query}
            # The driver asks for a type that no table has, in three turns.
            only = {} if sqlite else {"pool_pre_ping": True, "use_native_hstore": False}
            self.engine: Engine = create_engine(
                parsed, pool_timeout=_ANSWER_S, connect_args=limits, **only
            )
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise StoreUnavailable(
                f"{error}. Use sqlite:///FILE, or postgresql://USER@HOST/NAME with the extra "
                "`postgres` installed"
            ) from error
        #: The SQLite file, if there is one, and its device and inode when it was opened.
        self._file = Path(parsed.database) if sqlite and parsed.database else None
        self._identity: tuple[int, int] | None = None
        self._lock: Connection | None = None
        #: Connections of the driver, for `interrupt`.
        self._connections: set[Any] = set()
        event.listen(self.engine, "connect", self._connected)
        for gone in ("close", "close_detached"):
            event.listen(self.engine, gone, lambda found, *_: self._connections.discard(found))

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction. Raises StoreUnavailable with the database's first line."""
        try:
            with self.engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreUnavailable(words_of(error)) from error

    def lead(self, epoch: int) -> None:
        """Let transactions write only in this epoch of the cluster."""
        self.epoch = epoch

    def fence(self, connection: Connection) -> None:
        """Raises Fenced unless this machine still leads; in a single server it does."""
        if self.epoch is not None:
            check_epoch(connection, self.epoch)

    def take_time(self, connection: Connection) -> None:
        """Lift the time limits of a transaction that reads much and locks nothing."""
        if self.dialect == "postgresql":
            limits = ("statement_timeout", "idle_in_transaction_session_timeout")
            connection.execute(text(";".join(f"SET LOCAL {name} = 0" for name in limits)))

    def migrate(self) -> None:
        """Make the tables, or bring them up to date; raises StoreUnavailable."""
        with self.begin() as connection:
            change = self._needed_change(connection)
        if change is not None:
            with self.begin() as connection:
                if self.dialect == "postgresql":
                    connection.execute(text("SET LOCAL statement_timeout = 0"))
                    # Machines that start together migrate one after the other.
                    connection.execute(_advisory_lock("pg_advisory_xact_lock", 1953064038))
                else:
                    # Otherwise SQLite commits each CREATE: a killed server leaves half a database.
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                # Another machine of the cluster may have been first.
                change = self._needed_change(connection)
                if change is not None:
                    change(connection)
                    put(connection, COUNTERS, {"name": "schema_fits", "value": FITS})
        self._identity = self._look_at_file()

    def _needed_change(self, connection: Connection) -> Callable[[Connection], None] | None:
        """What the tables need to serve this program; raises StoreUnavailable if nothing helps."""
        if not inspect(connection).has_table("alembic_version"):
            return _make_tables
        found: str = connection.scalar(text("SELECT version_num FROM alembic_version")) or ""
        numbers = _migration_numbers()
        oldest, newest = numbers[0], numbers[-1]
        if found < oldest:
            raise StoreUnavailable(
                f"a development version of Tidegate wrote it (tables {found}); move it away to "
                "start with an empty one"
            )
        if found <= newest:
            return _upgrade if found < newest else None
        wanted = select(COUNTERS.c.value).where(COUNTERS.c.name == "schema_fits")
        fits = connection.scalar(wanted) if self._clustered else None
        if fits is None or fits > int(newest):
            raise StoreUnavailable(
                f"a newer version of Tidegate wrote it (tables {found}); install that version "
                "again, or restore a backup from before it"
            )
        return None

    # -- one server, one database --------------------------------------------------------------

    def claim(self, wait_s: float = 10.0) -> None:
        """Keep other servers off a PostgreSQL database while this one runs.

        Two queues must not use one table; the machines of a cluster have one queue and share the
        lock. PostgreSQL releases the lock of a killed server within 10 s. A SQLite file lies in the
        state folder, which has a lock of its own. Raises StoreUnavailable when another server holds
        the database for longer than `wait_s`.
        """
        if self.dialect != "postgresql" or self._lock is not None:
            return
        end_s = time.monotonic() + wait_s
        try:
            connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            kind = "pg_try_advisory_lock" + ("_shared" if self._clustered else "")
            while not connection.scalar(_advisory_lock(kind, 1953064037)):
                if time.monotonic() >= end_s:
                    connection.close()
                    other = "another Tidegate server uses it"
                    raise StoreUnavailable(
                        f"{other} without `cluster`; stop that one, or start all with `cluster`"
                        if self._clustered
                        else f"{other}; stop that one, or give each server a database or schema of "
                        "its own"
                    )
                time.sleep(0.2)
        except SQLAlchemyError as error:
            raise StoreUnavailable(words_of(error)) from error
        self._lock = connection
        self._connections.discard(connection.connection.dbapi_connection)

    def fault(self) -> str | None:
        """What is wrong if this is not the database any more that was opened; else None."""
        if self._file is not None:
            if self._look_at_file() != self._identity:
                return f"{self._file} was removed or replaced"
            with open(self._file, "rb") as stream:
                head = stream.read(100)
            pages, page = int.from_bytes(head[28:32], "big"), int.from_bytes(head[16:18], "big")
            size = self._file.stat().st_size
            if not head.startswith(b"SQLite format 3\x00") or size < pages * (
                65536 if page == 1 else page
            ):
                return f"{self._file} was cut or overwritten"
        elif self._lock is not None:
            try:
                self._lock.scalar(text("SELECT 1"))
            except SQLAlchemyError:
                with contextlib.suppress(Exception):
                    self._lock.invalidate()
                    self._lock.close()
                self._lock = None
                try:
                    self.claim(0.0)
                except StoreUnavailable as error:
                    return f"the database: {error}"
        return None

    def renew(self) -> None:
        """Create a new SQLite file after a fault, and rename the rest of the old one.

        Creates its folder as well if this process may. Raises StoreUnavailable.
        """
        if self._file is None:
            return
        self.engine.dispose()
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                f"The folder {self._file.parent} is gone and cannot be made again "
                f"({error.strerror}): bring it back from a backup and start the server anew."
            ) from error
        for ending in ("-wal", "-shm", ""):
            path = self._file.with_name(self._file.name + ending)
            with contextlib.suppress(FileNotFoundError):
                path.rename(path.with_name(f"{self._file.name}.broken{ending}"))
        self.migrate()

    def interrupt(self) -> None:
        """Make all running queries fail. Any thread may call this."""
        for connection in tuple(self._connections):
            with contextlib.suppress(Exception):
                if self._file is not None or self.dialect == "sqlite":
                    connection.interrupt()
                else:
                    with socket.socket(fileno=os.dup(connection.fileno())) as stream:
                        stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._lock is not None:
            # Without a message to the database, which may not answer.
            self._lock.invalidate()
        self.engine.dispose()

    def _look_at_file(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _connected(self, connection: Any, record: object) -> None:
        if self.dialect == "sqlite":
            _prepare_sqlite(connection, record)
        self._connections.add(connection)
