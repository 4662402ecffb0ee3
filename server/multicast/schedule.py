"""Sessions by the clock: entries in a folder that a running server watches.

`tidegate multicast send FILE --at TIME` writes an entry (one JSON file, written beside and renamed)
into STATE/multicast; the server opens the session `ANNOUNCE_S` before its time, so that receivers
that ask from then on are given the offer at once and wait for its start. What cannot be announced
yet (no such file, or one that is being written) is tried again until its hour. An entry is removed
when its send has ended, so a server that was killed or stopped before then sends when it is back.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from twisted.logger import Logger
from twisted.python.failure import Failure

from ...protocol.disk.durable import write_whole
from ...protocol.errors import ProtocolError
from ...protocol.fec import BlockLayout
from ...protocol.session import Capability
from ...protocol.strict_json import get_int, get_number, get_text, load_object
from ..files.digests import FileChanged
from ..files.openfile import OpenFile
from ..files.paths import split_path
from ..files.tree import IsDirectory, NotHere, Tree
from ..http.clock import Clock, Repeat
from .blocks import BlockHashes
from .demand import DemandDetector
from .live import LiveSession
from .sessions import Sessions
from .switch import object_key

FOLDER = "multicast"
ANNOUNCE_S = 600.0
_LOOK_S = 1.0
#: So long after a try that failed the next one is made.
_AGAIN_S = 10.0
_MOST_ENTRY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ScheduledSend:
    """One object, its hour (Unix time), and how: passes above 1 need no return channel."""

    path: str
    at: float
    passes: int = 1
    listens: bool = True


@dataclass(slots=True)
class _Taken:
    """An entry in hand; without a session its file is being hashed."""

    entry: ScheduledSend
    session: LiveSession | None = None


def write_entry(state: Path, entry: ScheduledSend) -> Path:
    """Put an entry where the server looks. Raises OSError."""
    folder = state / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {
        "path": entry.path,
        "at": entry.at,
        "passes": entry.passes,
        "listens": entry.listens,
    }
    final = folder / f"{int(entry.at)}-{secrets.token_hex(4)}.json"
    write_whole(final, json.dumps(document).encode())
    return final


def read_entry(file: Path) -> ScheduledSend:
    """Read an entry. Raises `ProtocolError` or OSError."""
    with file.open("rb") as stream:
        document = load_object(stream.read(_MOST_ENTRY_BYTES), str(file))
    return ScheduledSend(
        get_text(document, "path", 4000),
        get_number(document, "at", 0, 1e11),
        get_int(document, "passes", 1, 1000, 1),
        document.get("listens", True) is True,
    )


class ScheduleWatch:
    """Looks at the folder once a second. `wall` is the wall clock the entries are written in."""

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
        self._timer = Repeat(reactor, _LOOK_S, self._look)
        #: Entries that are announced or sent.
        self._taken: dict[Path, _Taken] = {}
        #: Entries that cannot be announced yet, and when each is tried again (Unix time).
        self._put_off: dict[Path, float] = {}

    def start(self) -> None:
        """Look now and then every second."""
        self._timer.start()
        self._look()

    def stop(self) -> None:
        """Look no more; what has not been sent by now keeps its entry."""
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
        for file, taken in list(self._taken.items()):
            session, entry = taken.session, taken.entry
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
        """What the entry's name means now."""
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
        """Try again before its hour, at the latest then; drop what fails after it."""
        self._taken.pop(file, None)
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
        self._put_off[file] = min(now + _AGAIN_S, entry.at)

    def _drop(self, file: Path) -> None:
        self._taken.pop(file, None)
        self._put_off.pop(file, None)
        file.unlink(missing_ok=True)

    def _consider(self, file: Path) -> None:
        if file in self._taken or self._put_off.get(file, 0.0) > self._wall():
            return
        try:
            entry = read_entry(file)
        except (ProtocolError, OSError) as error:
            self.log.warn("schedule entry {file} dropped: {error}", file=str(file), error=error)
            self._drop(file)
            return
        if entry.at - self._wall() > ANNOUNCE_S:
            return
        try:
            opened = self._file(entry)
        except (NotHere, IsDirectory):
            self._postpone(file, entry, "there is no such file")
            return
        self._taken[file] = _Taken(entry)
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
        anybody = Capability(self._sessions.schemes)
        fec = self._sessions.choose_fec([anybody], layout, return_channel=entry.listens)
        key = object_key(file.rep)
        session = self._sessions.open(
            key,
            file,
            fec,
            hashes,
            url=f"http://localhost{file.rep.url_path}",
            lead_s=max(0.0, entry.at - self._wall()),
            at_fixed_time=True,
            passes=entry.passes,
            repair=entry.listens,
        )
        if session is None:
            self._postpone(entry_file, entry, "the network does not let it begin")
            return
        self._put_off.pop(entry_file, None)
        self._taken[entry_file].session = session
        self._hot.started(key, session.id)
