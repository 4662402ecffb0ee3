"""Sessions by the clock: entries in a folder that a running server watches.

`tidegate multicast send FILE --at TIME` writes an entry (one JSON file, written beside and renamed)
into STATE/multicast; the server opens the session `ANNOUNCE_S` before its time, so that receivers
that ask from then on are given the offer at once and wait for its start. An entry is removed when
its send has ended, so a server that was killed or stopped before then sends when it is back.
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

from protocol.disk.durable import write_whole
from protocol.errors import ProtocolError
from protocol.fec import BlockLayout
from protocol.session import Capability
from protocol.strict_json import get_int, get_number, get_text, load_object
from server.files.openfile import OpenFile
from server.files.paths import split_path
from server.files.tree import IsDirectory, NotHere, Tree
from server.http.clock import Clock, Repeat
from server.multicast.blocks import BlockHashes
from server.multicast.demand import Hot
from server.multicast.live import LiveSession
from server.multicast.sessions import Sessions
from server.multicast.switch import object_key

FOLDER = "multicast"
ANNOUNCE_S = 600.0
_LOOK_S = 1.0
_MOST_ENTRY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ScheduledSend:
    """One object, its hour (Unix time), and how: passes above 1 need no return channel."""

    path: str
    at: float
    passes: int = 1
    listens: bool = True


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
        hot: Hot,
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
        #: Entries that are being sent; None while their file is hashed.
        self._taken: dict[Path, LiveSession | None] = {}

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
        for file, session in list(self._taken.items()):
            if session is not None and session not in running:
                self._drop(file)
            elif session is not None and file.name not in names:
                session.stop("called off")

    def _drop(self, file: Path) -> None:
        self._taken.pop(file, None)
        file.unlink(missing_ok=True)

    def _consider(self, file: Path) -> None:
        if file in self._taken:
            return
        try:
            entry = read_entry(file)
        except (ProtocolError, OSError) as error:
            self.log.warn("schedule entry {file} dropped: {error}", file=str(file), error=error)
            self._drop(file)
            return
        if entry.at - self._wall() > ANNOUNCE_S:
            return
        parts = split_path(entry.path.encode())
        try:
            if parts is None:
                raise NotHere
            opened = self._tree.open(parts)
        except (NotHere, IsDirectory):
            self.log.warn("scheduled {path} is not there to be sent", path=entry.path)
            self._drop(file)
            return
        self._taken[file] = None
        layout = self._sessions.layout(opened.rep.size_bytes)
        self._hashes.want(opened, layout).addCallbacks(
            lambda hashes: self._open(file, entry, opened, layout, hashes),
            lambda failure: self._unreadable(file, failure),
        )

    def _unreadable(self, entry_file: Path, failure: Failure) -> None:
        self.log.failure("scheduled file cannot be read", failure)
        self._drop(entry_file)

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
            self._drop(entry_file)
            return
        self._taken[entry_file] = session
        self._hot.started(key, session.id)
