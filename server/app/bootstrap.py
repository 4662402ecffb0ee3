"""What an earlier run left: journal, passes, policy in force, ticket number mark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twisted.logger import Logger

from ...protocol.disk.durable import write_whole
from ..admission.number_allocator import BLOCK
from ..control.revisions import CONFIGURATION, usable
from ..store.cluster import Fenced
from ..store.database import Database, StoreUnavailable, sqlite_url, unverified_host
from ..store.journal import JournalState, read_journal, reserve_numbers
from ..store.queries import add_revision, read_passes, read_revisions
from ..store.records import PassRecord, RevisionRecord
from .config import CannotStart, without_password
from .settings import ServerConfig

_log = Logger()
_MARK = "ticket-numbers"


@dataclass(frozen=True, slots=True)
class Memory:
    """The open database, what it held, and the policy to run."""

    database: Database
    journal: JournalState
    revision: RevisionRecord
    passes: list[PassRecord]


def open_memory(config: ServerConfig, now: float, shared: Database | None = None) -> Memory:
    """Open, migrate and read the database; in a cluster, `shared` is open already.

    Raises CannotStart.
    """
    url = config.database or sqlite_url(config.state / "tidegate.db")
    try:
        if shared is None:
            database = Database(url)
            database.claim()
            database.migrate()
            warn_unverified(url)
        else:
            database, url = shared, config.cluster or url
        with database.begin() as session:
            # No fence: nothing is written, and a later leader waits for no reader.
            database.take_time(session)
            journal = read_journal(session)
            passes = read_passes(session)
            latest = read_revisions(session, 1000)
        if shared is not None:
            # Reserved before the first number is issued. Otherwise, if the database failed then, a
            # leader at another machine would issue the same numbers.
            first = max(journal.next_number, read_mark(config.state))
            with database.begin() as session:
                database.fence(session)
                reserve_numbers(session, first + BLOCK)
        wanted = configured_revision(config, now)
        revision = revision_in_force(latest, wanted)
        if revision is None:
            with database.begin() as session:
                database.fence(session)
                revision = add_revision(session, wanted)
    except (StoreUnavailable, Fenced, OSError) as fault:
        text = str(fault).splitlines()[0]
        if "; " in text:
            # It says the remedy.
            remedy = ""
        elif not url.startswith("sqlite"):
            remedy = " Start it, or correct `database`."
        elif "is full" in text or _is_full(config.state):
            remedy = " Make room on its disk."
        else:
            remedy = " Repair it, or move it away to start with an empty queue."
        named = without_password(url)
        raise CannotStart(f"The database {named} cannot be used: {text}.{remedy}") from fault
    return Memory(database, journal, revision, passes)


def _is_full(folder: Path) -> bool:
    room = os.statvfs(folder)
    # With less than 1 MiB SQLite cannot work. Some file systems count no inodes.
    return room.f_bavail * room.f_frsize < 1 << 20 or (room.f_files > 0 and room.f_favail == 0)


def warn_unverified(url: str) -> None:
    """Log a warning if the database is remote and its certificate is not verified."""
    host = unverified_host(url)
    if host is not None:
        _log.warn(
            "The certificate of the database at {host} is not verified: an attacker on the way "
            "can read the keys of this server or play the database. Add "
            "?sslmode=verify-full&sslrootcert=FILE to its URL.",
            host=host,
        )


def revision_in_force(
    latest: Sequence[RevisionRecord], wanted: RevisionRecord
) -> RevisionRecord | None:
    """The stored revision that counts at a start; None if the configuration counts.

    The last change wins: the configuration counts if it changed after the operators' last revision.
    `latest` is newest first.
    """
    configured = next((one for one in latest if one.who == CONFIGURATION), None)
    if configured is None or not configured.same_policy(wanted) or usable(latest[0]) is None:
        return None
    return latest[0]


def stored_revision(config: ServerConfig) -> RevisionRecord | None:
    """The result of `revision_in_force` for the database, which is only read.

    None without a database. Raises CannotStart.
    """
    file = config.state / "tidegate.db"
    if config.database is None and not file.exists():
        return None
    url = config.database or sqlite_url(file)
    try:
        database = Database(url)
        with database.begin() as session:
            found = revision_in_force(
                read_revisions(session, 1000), configured_revision(config, 0.0)
            )
        database.close()
    except (StoreUnavailable, OSError) as fault:
        named, text = without_password(url), str(fault).splitlines()[0]
        raise CannotStart(f"The database {named} cannot be read: {text}.") from fault
    return found


def read_mark(state: Path) -> int:
    """The first ticket number that was never issued, whatever happened to the database.

    The mark lies beside the signing keys: no number may be issued twice while old tokens are valid.
    1 if there is no mark. Raises CannotStart.
    """
    file = state / _MARK
    try:
        return int(file.read_text("ascii"))
    except FileNotFoundError:
        return 1
    except (OSError, ValueError) as fault:
        raise CannotStart(
            f"{file} cannot be read ({fault}); it holds a number that is higher than all ticket "
            "numbers ever given away: write one into it, or remove it together with keys.json."
        ) from fault


def keep_mark(state: Path, below: int) -> None:
    """Write that only numbers below this one may have been issued."""
    write_whole(state / _MARK, b"%d\n" % below, mode=0o600)


def configured_revision(config: ServerConfig, now: float) -> RevisionRecord:
    settings = config.policy_settings().model_dump(mode="json")
    return RevisionRecord(now, CONFIGURATION, config.policy, settings)
