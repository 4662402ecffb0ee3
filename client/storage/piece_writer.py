"""Takes the bytes of one file in any order, from any source, and knows what is still missing.

For sources other than the mirrors (multicast):

    fresh = writer.write_at(offset, data, source)   # bytes that were new; never overwrites
    spans = writer.missing()                        # [(start, end), ...] half-open, in order
    writer.complete                                 # all bytes there and all known pieces checked

`source` is any small number; the source of each byte is remembered, so that a wrong piece names its
culprit. Call `check()` now and then (it hashes at most `budget_bytes`): it returns the pieces that
turned out wrong, whose bytes are then missing again. Not thread-safe; does no waiting.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...protocol.intervals import IntervalSet, Span
from ..net.errors import LocalProblem

Buffer = bytes | bytearray | memoryview


class Storage(Protocol):
    """Random access to the bytes of one download."""

    def write(self, offset: int, data: Buffer) -> None: ...
    def read(self, offset: int, length: int) -> bytes: ...


class FileStorage:
    """A file written in place with pwrite; opened without following a link at its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o666)
        except OSError as error:
            raise LocalProblem.of(error, path) from None

    def write(self, offset: int, data: Buffer) -> None:
        try:
            done = os.pwrite(self._fd, data, offset)
            while done < len(data):
                done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)
        except OSError as error:
            raise LocalProblem.of(error, self.path) from None

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, offset)
        except OSError as error:
            raise LocalProblem.of(error, self.path) from None

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to its right length (a larger leftover may have had the name)."""
        try:
            os.ftruncate(self._fd, size_bytes)
        except OSError as error:
            raise LocalProblem.of(error, self.path) from None

    def room_bytes(self) -> int:
        stat = os.fstatvfs(self._fd)
        return stat.f_bavail * stat.f_frsize

    def capacity_bytes(self) -> int:
        """What the file system can hold, free or not."""
        stat = os.fstatvfs(self._fd)
        return stat.f_blocks * stat.f_frsize

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1


class RingStorage:
    """A window of memory that moves over the file; holds [passed, passed + window_bytes)."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.passed = 0
        self._ring = bytearray(window_bytes)

    def write(self, offset: int, data: Buffer) -> None:
        length = len(data)
        if offset < self.passed or offset + length > self.passed + self.window_bytes:
            raise ValueError("bytes outside the window")
        at = offset % self.window_bytes
        first = min(length, self.window_bytes - at)
        view = memoryview(data)
        self._ring[at : at + first] = view[:first]
        self._ring[: length - first] = view[first:]

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.passed + self.window_bytes - offset)
        at = offset % self.window_bytes
        first = min(length, self.window_bytes - at)
        return bytes(self._ring[at : at + first]) + bytes(self._ring[: length - first])


#: hashlib releases the interpreter lock per call; this keeps one call below about a millisecond.
_HASH_STRIDE = 1 << 20


@dataclass(frozen=True, slots=True)
class Pieces:
    """Digests of consecutive parts of `length` bytes (Metalink 4, RFC 5854, 4.1.2)."""

    length: int
    algorithm: str
    digests: tuple[bytes, ...]

    def span(self, index: int, size_bytes: int) -> Span:
        return index * self.length, min(size_bytes, (index + 1) * self.length)

    def fits(self, size_bytes: int) -> bool:
        return self.length > 0 and len(self.digests) == -(-size_bytes // self.length)


@dataclass(frozen=True, slots=True)
class BadPiece:
    """A piece with the wrong digest: [start, end) is missing again. `sources` gave it."""

    index: int
    start: int
    end: int
    sources: tuple[int, ...]


@dataclass(slots=True)
class _Suspect:
    data: bytes
    runs: list[tuple[int, int, int]] = field(default_factory=list)


class PieceWriter:
    """One file on its way. `have` may be filled by a journal before the first write."""

    def __init__(
        self,
        backing: Storage,
        size_bytes: int,
        have: IntervalSet | None = None,
    ) -> None:
        self.backing = backing
        self.size_bytes = size_bytes
        self.pieces: Pieces | None = None
        self.have = have if have is not None else IntervalSet()
        self.checked: set[int] = set()
        self.culprits: set[int] = set()
        self._runs: list[list[int]] = []
        self._last_run: dict[int, list[int]] = {}
        self._left: list[int] = []
        self._due: deque[int] = deque()
        self._suspects: dict[int, _Suspect] = {}
        #: (first source, second source) -> how often the two differed after `doubt`.
        self.differences: dict[tuple[int, int], int] = {}
        self._doubted: list[tuple[int, int, int]] = []
        #: Of the whole file, where one is known.
        self.digest: tuple[str, bytes] | None = None
        self._hasher: hashlib._Hash | None = None
        self._hashed = 0

    # -- what is there -------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Every byte is there, and every piece whose digest is known was right."""
        if self.have.total != self.size_bytes:
            return False
        return self.pieces is None or len(self.checked) == len(self.pieces.digests)

    def missing(self) -> list[Span]:
        """What has not arrived yet, in order."""
        return self.have.holes(0, self.size_bytes)

    def sources(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Who gave [start, end) in this life: (start, end, source) in order."""
        found = [
            (max(start, run[0]), min(end, run[1]), run[2])
            for run in self._runs
            if run[0] < end and run[1] > start
        ]
        return sorted(found)

    # -- writing -------------------------------------------------------------------------------

    def write_at(self, offset: int, data: Buffer, source: int = 0) -> int:
        """Put bytes in place; those that are there already stay as they are.

        Returns how many were new. Raises LocalProblem when the disk says no, ValueError when the
        bytes lie outside the file.
        """
        length = len(data)
        end = offset + length
        if offset < 0 or end > self.size_bytes:
            raise ValueError("bytes outside the file")
        if not self.have.overlaps(offset, end):
            self._put(offset, data, source)
            return length
        fresh = 0
        for start, stop in self.have.holes(offset, end):
            self._put(start, memoryview(data)[start - offset : stop - offset], source)
            fresh += stop - start
        return fresh

    def doubt(self, start: int, end: int) -> None:
        """Those bytes may be wrong: they are missing again, and what comes is compared."""
        self._doubted += self.sources(start, end)
        self.forget(start, end)

    def _put(self, offset: int, data: Buffer, source: int) -> None:
        for start, end, old in self._doubted:
            first, last = max(start, offset), min(end, offset + len(data))
            if first < last:
                view = memoryview(data)[first - offset : last - offset]
                if self.backing.read(first, last - first) != view:
                    pair = (old, source)
                    self.differences[pair] = self.differences.get(pair, 0) + 1
        self.backing.write(offset, data)
        end = offset + len(data)
        self.have.add(offset, end)
        run = self._last_run.get(source)
        if run is not None and run[1] == offset:
            run[1] = end
        else:
            run = [offset, end, source]
            self._runs.append(run)
            self._last_run[source] = run
        if self._hasher is not None and offset == self._hashed:
            self._hasher.update(data)
            self._hashed = end
        if self.pieces is not None:
            self._count(offset, end)

    def forget(self, start: int, end: int) -> None:
        """Those bytes are wrong: they are missing again."""
        self.have.remove(start, end)
        kept: list[list[int]] = []
        for run in self._runs:
            if run[1] <= start or run[0] >= end:
                kept.append(run)
                continue
            if run[0] < start:
                kept.append([run[0], start, run[2]])
            if run[1] > end:
                kept.append([end, run[1], run[2]])
        self._runs = kept
        self._last_run = {}
        if self._hasher is not None and self.digest is not None and start < self._hashed:
            self._hasher = hashlib.new(self.digest[0])
            self._hashed = 0
        if self.pieces is not None:
            for index in range(start // self.pieces.length, -(-end // self.pieces.length)):
                self.checked.discard(index)
                first, last = self.pieces.span(index, self.size_bytes)
                self._left[index] = sum(b - a for a, b in self.have.holes(first, last))

    # -- checking ------------------------------------------------------------------------------

    def use_pieces(self, pieces: Pieces, checked: Sequence[int] = ()) -> None:
        """Start (or, after a late manifest, go on) checking pieces; `checked` were right before."""
        if not pieces.fits(self.size_bytes):
            raise ValueError("the piece digests do not cover the file")
        self.pieces = pieces
        self._left = []
        self._due.clear()
        self.checked = set(checked)
        for index in range(len(pieces.digests)):
            start, end = pieces.span(index, self.size_bytes)
            left = sum(b - a for a, b in self.have.holes(start, end))
            self._left.append(left)
            if left > 0:
                self.checked.discard(index)
            elif index not in self.checked:
                self._due.append(index)

    def use_digest(self, digest: tuple[str, bytes]) -> None:
        """The digest of the whole file, learnt late."""
        self.digest = digest
        self._hasher = hashlib.new(digest[0])
        self._hashed = 0

    @property
    def checks_due(self) -> bool:
        """Whether `check` has something to do."""
        return bool(self._due) or (
            self._hasher is not None
            and self._hashed < self.size_bytes
            and self.have.reach(self._hashed) - self._hashed >= _HASH_STRIDE
        )

    def check(self, budget_bytes: int = 8 * _HASH_STRIDE) -> list[BadPiece]:
        """Hash what is ready; returns the wrong pieces, whose bytes are missing again."""
        bad: list[BadPiece] = []
        while self._due and budget_bytes > 0:
            index = self._due.popleft()
            budget_bytes -= self._check_piece(index, bad)
        self._hash_prefix(budget_bytes)
        return bad

    def right(self) -> bool:
        """Whether the whole file has its digest (True where none is known). Reads what is left to
        read; call it when all bytes are there."""
        if self._hasher is None or self.digest is None:
            return True
        self._hash_prefix(self.size_bytes)
        return self._hashed == self.size_bytes and self._hasher.digest() == self.digest[1]

    def _hash_prefix(self, budget_bytes: int) -> None:
        if self._hasher is None:
            return
        reach = min(self.have.reach(self._hashed), self._hashed + max(0, budget_bytes))
        while self._hashed < reach:
            data = self.backing.read(self._hashed, min(_HASH_STRIDE, reach - self._hashed))
            if not data:
                return
            self._hasher.update(data)
            self._hashed += len(data)

    @property
    def hashed_bytes(self) -> int:
        """How far the digest of the whole has come (a ring may drop what lies before)."""
        return self._hashed if self._hasher is not None else self.size_bytes

    def _count(self, offset: int, end: int) -> None:
        assert self.pieces is not None
        length = self.pieces.length
        while offset < end:
            index = offset // length
            stop = min(end, (index + 1) * length)
            self._left[index] -= stop - offset
            if self._left[index] == 0:
                self._due.append(index)
            offset = stop

    def _check_piece(self, index: int, bad: list[BadPiece]) -> int:
        assert self.pieces is not None
        start, end = self.pieces.span(index, self.size_bytes)
        if index in self.checked or not self.have.covers(start, end):
            return 0
        hasher = hashlib.new(self.pieces.algorithm)
        at = start
        while at < end:
            data = self.backing.read(at, min(_HASH_STRIDE, end - at))
            if not data:
                break
            hasher.update(data)
            at += len(data)
        if at == end and hasher.digest() == self.pieces.digests[index]:
            self.checked.add(index)
            self._compare(index, start, end)
            return end - start
        runs = self.sources(start, end)
        givers = tuple(sorted({source for _, _, source in runs}))
        if len(givers) == 1:
            self.culprits.add(givers[0])
        elif index not in self._suspects:
            self._suspects[index] = _Suspect(self.backing.read(start, end - start), runs)
        self.forget(start, end)
        bad.append(BadPiece(index, start, end, givers))
        return end - start

    def _compare(self, index: int, start: int, end: int) -> None:
        """A piece that was wrong is right now: the mirror that gave other bytes is the culprit."""
        suspect = self._suspects.pop(index, None)
        if suspect is None:
            return
        good = self.backing.read(start, end - start)
        for first, last, source in suspect.runs:
            if suspect.data[first - start : last - start] != good[first - start : last - start]:
                self.culprits.add(source)
