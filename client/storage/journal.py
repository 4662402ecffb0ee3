"""Remembers beside a part file what of it has arrived, so that kill -9 costs under a second.

`FILE.tidegate-part.journal`: one JSON object (what is being fetched), then lines that are only
appended: `+ start end` arrived, `- start end` was wrong, `= index` piece checked. A torn last line
is ignored. The bytes are always written before the line that claims them, which is enough for a
killed process; after a reboot (another boot id) only digests can vouch for the bytes, so without
one the download starts over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from ...protocol.intervals import IntervalSet
from ..net.errors import LocalProblem

_PART_SUFFIX = ".tidegate-part"
_JOURNAL_SUFFIX = _PART_SUFFIX + ".journal"


@dataclass(slots=True)
class Identity:
    """What is being fetched: enough to tell whether a part file still belongs to it."""

    size_bytes: int
    validators: dict[str, str] = field(default_factory=dict)
    digest: str | None = None
    pieces: str | None = None
    boot: str = ""

    def vouched_by(self, now: Identity) -> bool:
        """Whether bytes of this belong to what is being fetched now: a digest says so, or the
        validator of the same URL. An equal size alone proves nothing."""
        if self.size_bytes != now.size_bytes:
            return False
        if self.digest is not None and now.digest is not None:
            return self.digest == now.digest
        if self.pieces is not None and self.pieces == now.pieces:
            return True
        return any(now.validators.get(url) == value for url, value in self.validators.items())


def part_and_journal(path: Path) -> tuple[Path, Path]:
    """What stands beside `path` while it is fetched. The name of a long one is cut there."""
    name = path.name
    raw = os.fsencode(name)
    longest = 255 - len(_JOURNAL_SUFFIX)
    if len(raw) > longest:
        mark = hashlib.sha256(raw).hexdigest()[:16]
        name = f"{raw[: longest - 17].decode('utf-8', 'ignore')}~{mark}"
    return path.with_name(name + _PART_SUFFIX), path.with_name(name + _JOURNAL_SUFFIX)


def boot_id() -> str:
    """A name for the time since the machine started; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Journal:
    """The open journal of one part file; locked, so two downloads never share one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity: Identity | None = None
        self.have = IntervalSet()
        self.checked: set[int] = set()
        self._written = IntervalSet()
        self._written_checked: set[int] = set()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o666)
        except OSError as error:
            final = path.with_name(path.name.removesuffix(_JOURNAL_SUFFIX))
            raise LocalProblem.of(error, final) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise LocalProblem(
                f"another download is writing {path.name.removesuffix(_JOURNAL_SUFFIX)}; "
                "wait for it or choose another name with -o"
            ) from None
        self._load()

    def _load(self) -> None:
        lines = os.pread(self._fd, min(os.fstat(self._fd).st_size, 64 << 20), 0).split(b"\n")
        try:
            head = json.loads(lines[0])
            identity = Identity(
                int(head["size"]),
                {str(k): str(v) for k, v in head["validators"].items()},
                head["digest"],
                head["pieces"],
                str(head["boot"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return
        for line in lines[1:-1]:
            words = line.split()
            try:
                if words[0] == b"+":
                    self.have.add(int(words[1]), min(int(words[2]), identity.size_bytes))
                elif words[0] == b"-":
                    self.have.remove(int(words[1]), int(words[2]))
                elif words[0] == b"=":
                    self.checked.add(int(words[1]))
            except (ValueError, IndexError):
                continue
        self.identity = identity

    def start(self, identity: Identity, have: IntervalSet, checked: set[int]) -> None:
        """Begin again with this; older lines are gone."""
        identity.boot = boot_id()
        self.identity = identity
        head = {
            "size": identity.size_bytes,
            "validators": identity.validators,
            "digest": identity.digest,
            "pieces": identity.pieces,
            "boot": identity.boot,
        }
        try:
            os.ftruncate(self._fd, 0)
        except OSError as error:
            raise LocalProblem.of(error, self.path) from None
        self._written = IntervalSet()
        self._written_checked = set()
        self._append([json.dumps(head)])
        self.note(have, checked)

    def note(self, have: IntervalSet, checked: set[int]) -> None:
        """Append what changed since the last note; the bytes must be written already."""
        lines = []
        old = self._written
        for start, end in have:
            lines += [f"+ {a} {b}" for a, b in old.holes(start, end)]
        for start, end in old:
            lines += [f"- {a} {b}" for a, b in have.holes(start, end)]
        lines += [f"= {index}" for index in sorted(checked - self._written_checked)]
        if lines:
            self._append(lines)
            self._written = IntervalSet(have)
            self._written_checked = set(checked)

    def _append(self, lines: list[str]) -> None:
        data = ("\n".join(lines) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise LocalProblem.of(error, self.path) from None

    def remove(self) -> None:
        """The download is whole: the journal has done its duty."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
