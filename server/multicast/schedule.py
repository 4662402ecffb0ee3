"""Scheduled sessions: entries in a folder that a running server watches.

`tidegate multicast send FILE --at TIME` writes an entry (one JSON file, written atomically) into
STATE/multicast. The server opens the session ten minutes before its time: receivers get the offer
at once and wait for the start. If the file is missing or being written, the server tries again
until the entry's time. An entry is removed when its session has ended: a server that was stopped
before sends after its restart.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...protocol.disk.durable import write_whole
from ...protocol.errors import ProtocolError
from ...protocol.fec import BlockLayout
from ...protocol.session import Capability
from ...protocol.strict_json import PRINTABLE, read_json
from ..files.digests import FileChanged
from ..files.openfile import OpenFile
from ..files.paths import split_path
from ..files.tree import IsDirectory, NotHere, Tree
from ..http.clock import Clock, Repeat
from .blocks import BlockHashes
from .demand import DemandDetector
from .live import LiveSession, SentContent
from .sessions import Sessions
from .switch import object_key

FOLDER = "multicast"


@dataclass(frozen=True, slots=True)
class ScheduledSend:
    """One object, its time (Unix time), the number of passes, and whether reports are read."""

    path: Annotated[str, Meta(max_length=4000, pattern=PRINTABLE)]
    at: Annotated[float, Meta(ge=0, le=1e11)]
    passes: Annotated[int, Meta(ge=1, le=1000)] = 1
    listens: bool = True


@dataclass(slots=True)
class _Announced:
    """An entry that is announced or sent. Without a session its file is being hashed."""

    entry: ScheduledSend
    session: LiveSession | None = None


def write_entry(state: Path, entry: ScheduledSend) -> Path:
    """Write an entry for the server with this state folder. Raises OSError."""
    folder = state / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    final = folder / f"{int(entry.at)}-{secrets.token_hex(4)}.json"
    write_whole(final, msgspec.json.encode(entry))
    return final


def read_entry(file: Path) -> ScheduledSend:
    """Read an entry. Raises `ProtocolError` or OSError."""
    with file.open("rb") as stream:
        return read_json(stream.read(64 * 1024), ScheduledSend, str(file))


class ScheduleWatch:
    """Reads the folder once a second, and opens the sessions. `wall` is the wall clock."""

    log = Logger()

    def __init__(
        self,
        reactor: Clock,
        state: Path,
        tree: Tree,
        hot: DemandDetector,
        hashes: BlockHashes,
        sessions: Sessions,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder = state / FOLDER
        self._tree = tree
        self._hot = hot
        self._hashes = hashes
        self._sessions = sessions
        self._wall = wall
        # How often the folder is read.
        self._timer = Repeat(reactor, 1.0, self._look)
        self._announced: dict[Path, _Announced] = {}
        #: Entries that cannot be announced yet, and the time of the next try (Unix time).
        self._put_off: dict[Path, float] = {}

    def start(self) -> None:
        """Read the folder now, and then every second."""
        self._timer.start()
        self._look()

    def stop(self) -> None:
        """Stop reading the folder. Entries that were not sent stay."""
        self._timer.stop()

    def _look(self) -> None:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        for name in names:
            if name.endswith(".json"):
                self._consider(self._folder / name)
        running = self._sessions.running
        for file, announced in list(self._announced.items()):
            session, entry = announced.session, announced.entry
            if session is None:
                continue
            if session not in running:
                if self._wall() < entry.at:
                    self._postpone(file, entry, "its session ended early")
                else:
                    self._drop(file)
            elif file.name not in names:
                session.stop("called off")
            elif self._wall() < entry.at and self._object(entry) != session.object_key:
                session.stop("the file was replaced before its hour")

    def _object(self, entry: ScheduledSend) -> str | None:
        """The object at the entry's path now; None if there is none."""
        try:
            return object_key(self._file(entry).rep)
        except (NotHere, IsDirectory):
            return None

    def _file(self, entry: ScheduledSend) -> OpenFile:
        parts = split_path(entry.path.encode())
        if parts is None:
            raise NotHere
        return self._tree.open(parts)

    def _postpone(self, file: Path, entry: ScheduledSend, why: str) -> None:
        """Try again later, at the entry's time at the latest. After it the entry is removed."""
        self._announced.pop(file, None)
        now = self._wall()
        if now >= entry.at:
            self.log.warn("scheduled {path} is not sent: {why}", path=entry.path, why=why)
            self._drop(file)
            return
        if file not in self._put_off:
            self.log.warn(
                "scheduled {path} cannot be announced: {why}; it is tried again until its hour",
                path=entry.path,
                why=why,
            )
        # The interval between tries to announce a session.
        self._put_off[file] = min(now + 10.0, entry.at)

    def _drop(self, file: Path) -> None:
        self._announced.pop(file, None)
        self._put_off.pop(file, None)
        file.unlink(missing_ok=True)

    def _consider(self, file: Path) -> None:
        if file in self._announced or self._put_off.get(file, 0.0) > self._wall():
            return
        try:
            entry = read_entry(file)
        except (ProtocolError, OSError) as error:
            self.log.warn("schedule entry {file} dropped: {error}", file=str(file), error=error)
            self._drop(file)
            return
        if entry.at - self._wall() > 600.0:
            return
        try:
            opened = self._file(entry)
        except (NotHere, IsDirectory):
            self._postpone(file, entry, "there is no such file")
            return
        self._announced[file] = _Announced(entry)
        layout = self._sessions.layout(opened.rep.size_bytes)
        self._hashes.want(opened, layout).addCallbacks(
            lambda hashes: self._open(file, entry, opened, layout, hashes),
            lambda failure: self._unreadable(file, entry, failure),
        )

    def _unreadable(self, file: Path, entry: ScheduledSend, failure: Failure) -> None:
        if not isinstance(failure.value, FileChanged | OSError):
            self.log.failure("scheduled file cannot be read", failure)
        self._postpone(file, entry, "it cannot be read, or is being written")

    def _open(
        self,
        entry_file: Path,
        entry: ScheduledSend,
        file: OpenFile,
        layout: BlockLayout,
        hashes: tuple[bytes, ...],
    ) -> None:
        receiver = Capability(self._sessions.schemes)
        fec = self._sessions.choose_fec([receiver], layout, return_channel=entry.listens)
        key = object_key(file.rep)
        session = self._sessions.open(
            SentContent(key, file, fec, hashes),
            lead_s=max(0.0, entry.at - self._wall()),
            passes=entry.passes,
            repair=entry.listens,
        )
        if session is None:
            self._postpone(entry_file, entry, "the network does not let it begin")
            return
        self._put_off.pop(entry_file, None)
        self._announced[entry_file].session = session
        self._hot.started(key, session.id)
