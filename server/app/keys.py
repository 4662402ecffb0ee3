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
from .config import CannotStart

#: Old keys stay good for reading this long after a newer one took over.
OVERLAP_S = 30 * 86_400.0
#: How often the file is looked at: what was removed by mistake is there again before a restart.
_LOOK_S = 30.0
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
    """These keys, newest first, with a fresh one before them if it is time for it."""
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
    return _read(path) if path.exists() else []


class KeyKeeper:
    """Looks after the key file while the server runs; `use` gets the ring when it may be new.

    The newest key is replaced `rotate_after_s` after it was made. A file that is removed meanwhile
    is written again, for else every ticket and pass that was given out would be worthless;
    `lost` hears of it.
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
        self._said = ""
        self._timer = Repeat(reactor, _LOOK_S, self.read)

    def start(self) -> None:
        """Look again and again; what can go wrong by then is logged and changes nothing."""
        self._known = read_keys(self._path)
        self._timer.start()

    def stop(self) -> None:
        """Look no more."""
        self._timer.stop()

    def reconfigure(self, rotate_after_s: float) -> None:
        """Replace keys at this age from now on, and read the file again."""
        self._rotate_after_s = rotate_after_s
        self.read()

    def read(self) -> None:
        """Read the keys now; what goes wrong is logged, once, and changes nothing."""
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
            self._said = ""
        except (CannotStart, OSError) as fault:
            if str(fault) != self._said:
                self._said = str(fault)
                self.log.error("The keys stay as they were: {fault}", fault=fault)


def _read(path: Path) -> Entries:
    try:
        if path.stat().st_mode & 0o077:
            raise CannotStart(f"{path} can be read by others; run chmod 600 {path}.")
        entries = [
            (Key(entry["name"], bytes.fromhex(entry["secret"])), float(entry["made_s"]))
            for entry in json.loads(path.read_text("ascii"))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CannotStart(
            f"The keys in {path} cannot be read ({error}); put a backup in its place, or move the "
            "file away: tickets and passes that were given out are worthless then."
        ) from error
    return sorted(entries, key=lambda entry: -entry[1])


def _write(path: Path, entries: Entries) -> None:
    # Made with its final mode: at no moment is a key readable by others.
    text = json.dumps(
        [
            {"name": key.name, "secret": key.secret.hex(), "made_s": made_s}
            for key, made_s in entries
        ]
    )
    write_whole(path, (text + "\n").encode("ascii"), mode=0o600)
