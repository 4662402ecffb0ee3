"""`tidegate backup` and `tidegate restore`: the state folder in one file, also while serving."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import NoReturn

import click

from ..bootstrap import keep_mark, read_mark
from ..config import CannotStart
from ..state_lock import lock_state
from .serve import config_option, flags_of, load_or_fail, state_option


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.tar.gz")
@config_option
@state_option
def backup(target: Path, file: Path | None, state: str | None) -> None:
    """Write keys, queue, history and accounts into one file; the server may run meanwhile.

    With this file tickets and passes can be forged: protect it like a private key. A PostgreSQL
    database is not in it: use pg_dump.
    """
    config = load_or_fail(file, flags_of({"state": state}))[1].config
    if not config.state.is_dir():
        _fail(f"{config.state} is no state folder; name it by --state or --config.")
    handle = None
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            _pack(archive, config.state)
            out.flush()
    except FileExistsError:
        _fail(f"{target} is there already; name a new file.")
    except (OSError, sqlite3.Error) as fault:
        if handle is not None:
            target.unlink(missing_ok=True)
        told = getattr(fault, "strerror", None) or fault
        _fail(f"{target} could not be written: {told}")
    click.echo(f"The state folder {config.state.absolute()} is in {target}.")
    if config.database is not None and not config.database.startswith("sqlite"):
        click.echo("The database is not: save it with pg_dump, after this file.")


def _pack(archive: tarfile.TarFile, state: Path) -> None:
    for path in sorted(state.rglob("*")):
        name = str(path.relative_to(state))
        # SQLite's journal, the lock and sockets mean nothing elsewhere.
        is_local = name.startswith("tidegate.db-") or name in ("lock", "queue.sock")
        if is_local or path.is_symlink() or not path.is_file():
            continue
        if name == "tidegate.db":
            with tempfile.TemporaryDirectory(prefix="tidegate-backup-") as folder:
                copy = Path(folder) / name
                # SQLite's own way: whole and of one moment, even while the server writes.
                with (
                    contextlib.closing(sqlite3.connect(path, timeout=30.0)) as live,
                    contextlib.closing(sqlite3.connect(copy)) as still,
                ):
                    live.backup(still)
                archive.add(copy, name)
        else:
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(path.stat().st_mtime)
            archive.addfile(entry, io.BytesIO(data))


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@config_option
@state_option
def restore(source: Path, file: Path | None, state: str | None) -> None:
    """Make a state folder from a backup; the folder must be empty or absent.

    Tickets issued after the backup stay valid, and keep their places.
    """
    folder = load_or_fail(file, flags_of({"state": state}))[1].config.state
    if folder.exists() and any(folder.iterdir()):
        _fail(f"{folder} is not empty; move it away first, so that nothing of it is lost.")
    try:
        with tarfile.open(source, "r:gz") as archive:
            members = _members(archive)
            if all(member.name != "keys.json" for member in members):
                _fail(f"{source} is no backup of Tidegate: it has no keys.json.")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            held = lock_state(folder)
            _unpack(archive, members, folder)
        # Numbers that were given away after the backup are never given again.
        keep_mark(folder, read_mark(folder) + 10_000_000)
        os.close(held)
    except (OSError, tarfile.TarError, CannotStart) as fault:
        _fail(f"{source} could not be restored: {fault}")
    click.echo(f"The state folder {folder.absolute()} is as it was in {source}. Start the server.")


def _members(archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The files of a backup; raises TarError if it has anything else."""
    members = archive.getmembers()
    for member in members:
        path = PurePosixPath(member.name)
        if not member.isfile() or path.is_absolute() or ".." in path.parts:
            raise tarfile.TarError(f"{member.name!r} is no file of a state folder")
    return members


def _unpack(archive: tarfile.TarFile, members: list[tarfile.TarInfo], folder: Path) -> None:
    """Write these files. `tarfile` can do this by itself only from Python 3.11.4 on."""
    for member in members:
        target = folder / member.name
        for parent in reversed(PurePosixPath(member.name).parents[:-1]):
            (folder / parent).mkdir(mode=0o700, exist_ok=True)
        content = archive.extractfile(member)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            if content is not None:
                shutil.copyfileobj(content, out)
        os.utime(target, (member.mtime, member.mtime))


def _fail(text: str) -> NoReturn:
    raise click.ClickException(text)
