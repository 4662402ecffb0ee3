"""The signing keys of one server: a file that only its owner can read, rotated with overlap."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path

from twisted.logger import Logger

from ...protocol.disk.durable import write_whole
from ...protocol.ticket import Key, KeyRing
from ..http.clock import Clock, Repeat
from .config import CannotStart, start_fault

#: Old keys stay good for reading this long after a newer one was made: an hour before it signs.
OVERLAP_S = 31 * 86_400.0
#: Keys and when they were made.
Entries = list[tuple[Key, float]]


def load_keys(path: Path, now: float, rotate_after_s: float | None = None) -> KeyRing:
    """The ring of keys in `path`; made if absent, rotated when the newest is too old.

    Keys that were replaced more than `OVERLAP_S` ago are dropped: their tickets have expired.
    Raises `CannotStart` for a damaged file or one that others can read.
    """
    entries = read_keys(path)
    kept = renewed(entries, now, rotate_after_s)
    if kept != entries:
        _write(path, kept)
    return KeyRing([key for key, _ in kept])


def renewed(entries: Entries, now: float, rotate_after_s: float | None = None) -> Entries:
    """These keys, newest first, after a new one if the newest is too old."""
    newest_s = max((made_s for _, made_s in entries), default=None)
    if newest_s is not None and (rotate_after_s is None or now - newest_s < rotate_after_s):
        return entries
    kept = [(Key(secrets.token_hex(4), secrets.token_bytes(32)), now)]
    replaced_s = now
    for key, made_s in entries:
        if now - replaced_s < OVERLAP_S:
            kept.append((key, made_s))
        replaced_s = made_s
    return kept


def read_keys(path: Path) -> Entries:
    """The keys in a file, newest first; none if it is not there. Raises `CannotStart`."""
    if not path.exists():
        return []
    try:
        if path.stat().st_mode & 0o077:
            raise CannotStart(f"{path} can be read by others; run chmod 600 {path}.")
        entries = [
            (Key(entry["name"], bytes.fromhex(entry["secret"])), float(entry["made_s"]))
            for entry in json.loads(path.read_text("ascii"))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CannotStart(
            f"The keys in {path} cannot be read ({reason}); put a backup in its place, or move the "
            "file away: tickets and passes that were given out are worthless then."
        ) from error
    return sorted(entries, key=lambda entry: -entry[1])


class KeyKeeper:
    """Keeps the key file while the server runs; `use` is called with changed keys.

    A newer key replaces one of age `rotate_after_s`. A file that was removed is written again:
    otherwise all issued tickets and passes would become invalid. `lost` is called then.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Clock,
        now: Callable[[], float],
        path: Path,
        rotate_after_s: float | None,
        use: Callable[[KeyRing], None],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._now = now
        self._path = path
        self._rotate_after_s = rotate_after_s
        self._use = use
        self._lost = lost
        self._known: Entries = []
        self._last_fault = ""
        # A file removed by mistake is restored before a restart.
        self.timer = Repeat(reactor, 30.0, self.read)

    def start(self) -> None:
        """Check the file periodically; later faults are logged and change nothing."""
        self._known = read_keys(self._path)
        self.timer.start()

    def reconfigure(self, rotate_after_s: float) -> None:
        """Replace keys at this age from now on, and read the file again."""
        self._rotate_after_s = rotate_after_s
        self.read()

    def read(self) -> None:
        """Read the keys now; a fault is logged once and changes nothing."""
        try:
            entries = read_keys(self._path)
            if not entries and self._known:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                _write(self._path, self._known)
                self.log.error("{path} was removed; it is written again.", path=str(self._path))
                self._lost()
                entries = self._known
            kept = renewed(entries, self._now(), self._rotate_after_s)
            if kept != entries:
                _write(self._path, kept)
            if kept != self._known:
                self._known = kept
                self._use(KeyRing([key for key, _ in kept]))
            self._last_fault = ""
        except (CannotStart, OSError) as fault:
            told = start_fault(fault) or ""
            if told != self._last_fault:
                self._last_fault = told
                self.log.error("The keys stay as they were: {fault}", fault=told)


def _write(path: Path, entries: Entries) -> None:
    # Created with its final mode: no other user can read a key at any moment.
    text = json.dumps(
        [
            {"name": key.name, "secret": key.secret.hex(), "made_s": made_s}
            for key, made_s in entries
        ]
    )
    write_whole(path, (text + "\n").encode("ascii"), mode=0o600)


def session_key(path: Path) -> bytes:
    """The secret that signs sessions; created if it is missing, readable only by its owner."""
    key = path.read_bytes() if path.exists() else b""
    if len(key) < 32:
        key = secrets.token_bytes(32)
        write_whole(path, key, mode=0o600)
    return key
