"""One content of one file, open for reading, and what identifies it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from twisted.logger import Logger

from ...protocol.errors import ProtocolError
from .transfer import FileKey, Representation

_log = Logger()
_PAGE_BYTES = 4096
_PROBE = bytearray(1)
#: What leaves in one write is read here, in one call that says whether it had to be waited for.
_ROOM = memoryview(bytearray(256 * 1024))
#: One piece of a body: bytes as they are, or a half-open range of the file.
Piece = bytes | tuple[int, int]
#: The entity tag of an open file with this key.
TagOf = Callable[[int, FileKey], str]
#: Places at which a content is sampled, a page each.
_SAMPLES = 8


class Unreadable(ProtocolError):
    """The file is there, but its disk does not give its bytes."""

    status = 503
    code = "unreadable"


def key_of(status: os.stat_result) -> FileKey:
    """The identity of a file's content, from its status."""
    return FileKey(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def has_key(status: os.stat_result, key: FileKey) -> bool:
    """Whether it is `key_of` the status."""
    return (
        status.st_mtime_ns == key.mtime_ns
        and status.st_size == key.size_bytes
        and status.st_ino == key.inode
        and status.st_ctime_ns == key.ctime_ns
    )


def local_tag(fd: int, key: FileKey) -> str:
    """A strong entity tag: the same until the file is written to, also after a restart."""
    return _tag(key.text)


def shared_tag(fd: int, key: FileKey) -> str:
    """One that copies of the file on other machines have too, if their times were kept.

    Builds set times, so size and time alone would let two contents pass for one: parts of the
    content stand in it, all of a short one.
    """
    size = key.size_bytes
    parts = [f"{size:x}.{key.mtime_ns:x}".encode()]
    places = range(0, size, _PAGE_BYTES)
    if size > _SAMPLES * _PAGE_BYTES:
        last = size - _PAGE_BYTES
        places = range(0, last + 1, last // (_SAMPLES - 1))
        # A slow disk finds all of them at once.
        for place in places:
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, place, _PAGE_BYTES, os.POSIX_FADV_WILLNEED)
    try:
        parts += [os.pread(fd, _PAGE_BYTES, place) for place in places]
    except OSError as error:
        # No other copy has this tag: a copy from elsewhere is not continued here.
        parts.append(f"{local_tag(fd, key)} {error.errno}".encode())
    return _tag(b"".join(parts))


def _tag(text: bytes) -> str:
    return f'"{hashlib.blake2b(text, digest_size=12).hexdigest()}"'


def read_at_hand(fd: int, start: int, stop: int) -> bytes | None:
    """This part, up to 256 KiB, if all of it can be read without waiting for a disk.

    Where the kernel cannot say whether it would wait, it may. Raises OSError.
    """
    room = _ROOM[: stop - start]
    try:
        there = os.preadv(fd, (room,), start, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        there = os.preadv(fd, (room,), start)
    return bytes(room) if there == stop - start else None


class OpenFile:
    """One content of one file, open for reading, shared by all who send it.

    The descriptor is read with explicit offsets only. It is closed when nothing refers to the
    object any more; so a plan, a queue or a sender keeps it open by having it.
    """

    __slots__ = ("_mtime_ns", "_size_bytes", "_tag_of", "_told", "by_link", "fd", "rep")

    def __init__(
        self, fd: int, rep: Representation, tag_of: TagOf = local_tag, *, by_link: bool = False
    ) -> None:
        self.fd = fd
        self.rep = rep
        #: Whether it lay under another name than it was asked for when it was opened.
        self.by_link = by_link
        self._tag_of = tag_of
        self._size_bytes = rep.size_bytes
        self._mtime_ns = rep.key.mtime_ns
        #: Whether the log has it that the disk fails here.
        self._told = False

    def __del__(self) -> None:
        os.close(self.fd)

    def unchanged(self) -> bool:
        """Whether the file was not written to since it was opened.

        A file that was renamed over or removed is unchanged: the descriptor still has it whole.
        """
        now = os.fstat(self.fd)
        return now.st_mtime_ns == self._mtime_ns and now.st_size == self._size_bytes

    def as_it_is(self) -> OpenFile | None:
        """The same file as its status is now; None when its size is another."""
        now = os.fstat(self.fd)
        if now.st_size != self._size_bytes:
            return None
        key = key_of(now)
        rep = replace(
            self.rep, key=key, etag=self._tag_of(self.fd, key), mtime_s=now.st_mtime_ns / 1e9
        )
        return OpenFile(os.dup(self.fd), rep, self._tag_of, by_link=self.by_link)

    def accept(self, other: OpenFile) -> None:
        """Another status of this file was found to have the same content."""
        self._mtime_ns = other.rep.key.mtime_ns

    def read_at(self, offset: int, count: int) -> bytes:
        """`count` bytes from there; fewer only where the file ends. Raises Unreadable."""
        parts: list[bytes] = []
        while count:
            try:
                part = os.pread(self.fd, count, offset)
            except OSError as error:
                raise self.unreadable(error) from error
            if not part:
                break
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def unreadable(self, error: OSError) -> Unreadable:
        """What a failed read means, told to the operator once."""
        if not self._told:
            self._told = True
            _log.error(
                "{path} cannot be read: {reason}. Downloads of it are cut; is its disk failing?",
                path=self.rep.url_path,
                reason=os.strerror(error.errno or errno.EIO),
            )
        return Unreadable("The server cannot read this file; its operator was told.")

    def at_hand(self, start: int, stop: int) -> bool:
        """Whether the page cache has both ends of this part: files are read from front to back.

        True where it is unknown: some file systems cannot tell.
        """
        try:
            if stop - start > _PAGE_BYTES:
                os.preadv(self.fd, (_PROBE,), start, os.RWF_NOWAIT)
            os.preadv(self.fd, (_PROBE,), max(start, stop - 1), os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def read_pieces_at_hand(self, pieces: Sequence[Piece]) -> bytes | None:
        """Byte ranges of the content, with bytes that stand for themselves between them.

        None when the file changed meanwhile, or a disk has to be waited for. Raises Unreadable.
        """
        if len(pieces) == 1 and not isinstance(pieces[0], bytes):
            start, stop = pieces[0]
            if stop - start <= len(_ROOM):
                try:
                    part = read_at_hand(self.fd, start, stop)
                except OSError as error:
                    raise self.unreadable(error) from error
                return part if self.unchanged() else None
        if not all(isinstance(piece, bytes) or self.at_hand(*piece) for piece in pieces):
            return None
        out = [
            piece if isinstance(piece, bytes) else self.read_at(piece[0], piece[1] - piece[0])
            for piece in pieces
        ]
        return b"".join(out) if self.unchanged() else None
