"""Where the finished bytes go: a file that gets its name when it is whole, or a pipe in order."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ...protocol.intervals import IntervalSet
from ...protocol.units import format_size
from ..net.errors import LocalProblem, NoRoom
from ..net.network import Network
from ..schedule.segments import UNKNOWN_SIZE
from .journal import Identity, Journal, boot_id, part_and_journal
from .piece_writer import FileStorage, PieceWriter, RingStorage


class Output(Protocol):
    """The life of an output: `open`, then `checkpoint` now and then, then one of the rest.

    What stands here is right for one that keeps nothing and whose reader never waits.
    """

    path: Path | None = None

    def resumable(self) -> Identity | None:
        """What an earlier, broken-off download left, if its bytes can be trusted."""
        return None

    def open(self, identity: Identity) -> PieceWriter:
        """Take up what is left if it is the same file, else begin afresh."""

    def checkpoint(self) -> None:
        """Look after what has arrived: note it, or send it on."""

    def window_end(self) -> int | None:
        """Bytes from here on are not wanted yet."""
        return None

    def drained(self) -> bool:
        """Whether the reader has got everything; nudges the writer."""
        return True

    def finish(self, name: str | None) -> str | None:
        """Everything is right: the file gets its name, or `name` where the server knows better.

        Returns a sentence when the name was taken and another one had to do.
        """
        return None

    def restart(self) -> None:
        """What is there is of no use: forget it."""

    def close(self, *, discard: bool) -> None:
        """The download ended without the file; what arrived is kept, unless `discard`."""
        return


def is_outlet(path: Path) -> bool:
    """Whether bytes are written into what has that name, and its name is never given to a file:
    a device, a pipe, or anything else of the system's (/dev/stdout may lead to a file)."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return True
    place = os.path.join(os.path.realpath(path.parent), path.name)
    # What stands here belongs to the system: never a place for a file of ours.
    return place.startswith(("/dev/", "/proc/", "/sys/")) and not place.startswith("/dev/shm/")


def followed(path: Path) -> Path:
    """The file that a name stands for, if it is a link, whether or not that file is there.

    Raises LocalProblem where the system does not let this user follow the link.
    """
    if not os.path.islink(path):
        return path
    try:
        path.stat()
    except FileNotFoundError:
        # It leads to a file that is to be made.
        pass
    except OSError as error:
        raise LocalProblem.of(error, path) from None
    return Path(os.path.realpath(path))


class FileOutput(Output):
    """`FILE`, written as `FILE.tidegate-part` with a journal beside it.

    `chosen`: the user named the file, so an older one of that name is replaced. Any other name
    (a server's, a Metalink's) never replaces a file: what is there stays, ours gets a number.
    """

    def __init__(self, path: Path, *, chosen: bool = True) -> None:
        self.path: Path | None = path
        self._chosen = chosen
        self._final = path
        self._part, self._journal_path = part_and_journal(path)
        self._journal: Journal | None = None
        self._backing: FileStorage | None = None
        self._writer: PieceWriter | None = None

    def resumable(self) -> Identity | None:
        # Path.is_dir would hide a name that is too long from Python 3.14 on.
        try:
            folder = stat.S_ISDIR(self._final.stat().st_mode)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise LocalProblem.of(error, self._final) from None
            folder = False
        if folder:
            raise LocalProblem(f"cannot write {self._final}: a folder has that name")
        if is_outlet(self._final):
            # Its name would be given to a file, for all programs of this machine.
            raise LocalProblem(f"cannot replace {self._final}: it is no ordinary file")
        if not os.access(self._final.parent, os.W_OK | os.X_OK):
            missing = errno.ENOTDIR if self._final.parent.exists() else errno.ENOENT
            code = errno.EACCES if self._final.parent.is_dir() else missing
            raise LocalProblem.of(OSError(code, os.strerror(code)), self._final)
        if self._journal is None:
            if not self._journal_path.exists() and not self._part.exists():
                return None
            self._journal = Journal(self._journal_path)
        found = self._journal.identity
        if found is None or not self._part.is_file() or self._part.is_symlink():
            return None
        if self._journal.have.total == 0:
            return None
        last = max(end for _, end in self._journal.have)
        if self._part.stat().st_size < last:
            return None
        return None if found.boot != boot_id() and found.digest is None else found

    def open(self, identity: Identity) -> PieceWriter:
        old = self.resumable()
        if self._journal is None:
            self._journal = Journal(self._journal_path)
        have, checked = IntervalSet(), set[int]()
        same = old is not None and old.vouched_by(identity)
        if old is not None and same:
            have = self._journal.have
            if old.boot == boot_id() and identity.pieces in (None, old.pieces):
                checked = set(self._journal.checked)
            identity.validators = {**old.validators, **identity.validators}
            identity.digest = identity.digest or old.digest
            identity.pieces = identity.pieces or old.pieces
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._part)
        self._backing = FileStorage(self._part)
        missing = identity.size_bytes - have.total
        if identity.size_bytes != UNKNOWN_SIZE and missing > self._backing.room_bytes():
            room, ever = self._backing.room_bytes(), missing > self._backing.capacity_bytes()
            if same:
                # What arrived earlier is kept until there is room.
                self._backing.close()
                self._backing = None
            else:
                self.restart()
            raise NoRoom(
                f"cannot write {self._final}: {format_size(missing)} are needed and "
                f"{format_size(room)} are free",
                ever,
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._final))
        if identity.size_bytes != UNKNOWN_SIZE:
            self._journal.start(identity, have, checked)
        self._writer = PieceWriter(self._backing, identity.size_bytes, have)
        self._writer.checked = checked
        return self._writer

    def checkpoint(self) -> None:
        if self._journal is not None and self._writer is not None and self._journal.identity:
            self._journal.note(self._writer.have, self._writer.checked)

    def finish(self, name: str | None) -> str | None:
        wanted = self._final
        if name is not None and name != wanted.name:
            wanted = wanted.with_name(name)
            self._chosen = False
        assert self._backing is not None
        assert self._writer is not None
        self._backing.truncate(self._writer.size_bytes)
        self._backing.close()
        try:
            if self._chosen:
                os.replace(self._part, wanted)
                self._final = wanted
            else:
                self._final = _place_beside(self._part, wanted)
        except OSError as error:
            raise LocalProblem.of(error, wanted) from None
        self.path = self._final
        if self._journal is not None:
            self._journal.remove()
            self._journal = None
        if self._final == wanted:
            return None
        return f"{wanted} was there and stays as it is; this one is {self._final.name}"

    def restart(self) -> None:
        if self._backing is not None:
            self._backing.close()
            self._backing = None
        if self._journal is not None:
            self._journal.remove()
            self._journal = None
        with contextlib.suppress(OSError):
            os.unlink(self._part)

    def close(self, *, discard: bool) -> None:
        """Stop; keep what arrived for the next time unless it is known to be wrong or nothing."""
        nothing = self._writer is None or self._writer.have.total == 0
        if self._writer is not None and not discard:
            with contextlib.suppress(LocalProblem):
                self.checkpoint()
        if self._backing is not None:
            self._backing.close()
        if discard or (nothing and self._backing is not None):
            self.restart()
        elif self._journal is not None:
            self._journal.close()


def _place_beside(part: Path, wanted: Path) -> Path:
    """Give `part` the name `wanted`, or the first free `NAME.1.EXT`; nothing is ever replaced.

    A hard link fails where the name is taken, so no other program can slip in between; a file
    system without hard links gets the name claimed by an empty file first.
    """
    # This many numbered names are tried.
    for number in range(10_000):
        at = wanted if number == 0 else wanted.with_stem(f"{wanted.stem}.{number}")
        try:
            os.link(part, at, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError:
            try:
                os.close(os.open(at, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
            except FileExistsError:
                continue
            os.replace(part, at)
            return at
        os.unlink(part)
        return at
    raise FileExistsError(errno.EEXIST, "too many files have that name")


class StreamOutput(Output):
    """A file descriptor that gets the bytes in order, through a bounded window of memory.

    Pieces are checked before they leave; the digest of the whole can only be known at the end.
    """

    def __init__(
        self, fd: int, network: Network, window_bytes: int, fail: Callable[[LocalProblem], None]
    ) -> None:
        self._fd = fd
        self._network = network
        self._window = window_bytes
        self._fail = fail
        self._ring: RingStorage | None = None
        self._writer: PieceWriter | None = None
        self._writing = False
        self._started = False

    def open(self, identity: Identity) -> PieceWriter:
        self._ring = RingStorage(self._window)
        self._writer = PieceWriter(self._ring, identity.size_bytes)
        return self._writer

    def checkpoint(self) -> None:
        ring, writer = self._ring, self._writer
        if ring is None or writer is None or self._writing:
            return
        ready = min(writer.have.reach(ring.passed), writer.hashed_bytes)
        if writer.pieces is not None:
            index = ring.passed // writer.pieces.length
            while index in writer.checked:
                index += 1
            ready = min(ready, index * writer.pieces.length)
        ready = min(ready, ring.passed + (1 << 20))
        if ready <= ring.passed:
            return
        data = ring.read(ring.passed, ready - ring.passed)
        self._writing = True
        self._started = True
        self._network.in_thread(lambda: self._write(data), lambda r: self._written(r, ready))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _written(self, result: object, passed: int) -> None:
        self._writing = False
        if isinstance(result, OSError):
            self._fail(LocalProblem.of(result, _name_of(self._fd)))
            return
        if self._ring is not None:
            self._ring.passed = passed
            self.checkpoint()

    def window_end(self) -> int | None:
        return None if self._ring is None else self._ring.passed + self._window

    def drained(self) -> bool:
        self.checkpoint()
        if self._ring is None or self._writer is None:
            return True
        return not self._writing and self._ring.passed >= self._writer.size_bytes

    def restart(self) -> None:
        if self._started:
            raise LocalProblem(
                "the file changed while it was being sent on; what was written is not usable"
            )
        self._ring = None
        self._writer = None


def _name_of(fd: int) -> str:
    if fd == 1:
        return "standard output"
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return f"file descriptor {fd}"


class MemoryOutput(Output):
    """For listings and Metalinks: at most `limit_bytes` of memory, as long as what was written."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._data = bytearray()

    @property
    def data(self) -> bytes:
        """What arrived."""
        return bytes(self._data)

    def open(self, identity: Identity) -> PieceWriter:
        if self._limit < identity.size_bytes < UNKNOWN_SIZE:
            raise LocalProblem(f"the answer has {identity.size_bytes} bytes, which is too much")
        self.restart()
        return PieceWriter(self, identity.size_bytes)

    def checkpoint(self) -> None:
        if len(self._data) > self._limit:
            raise LocalProblem("the answer does not end")

    def restart(self) -> None:
        self._data = bytearray()

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        if len(self._data) < offset:
            self._data.extend(bytes(offset - len(self._data)))
        self._data[offset : offset + len(data)] = data

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])
