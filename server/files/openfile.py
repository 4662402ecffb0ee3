"""One content of one file, open for reading, and what identifies it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from server.files.transfer import FileKey, Representation


def key_of(status: os.stat_result) -> FileKey:
    """The identity of a file's content, from its status."""
    return FileKey(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def etag_of(key: FileKey) -> str:
    """A strong entity tag: the same as long as nobody wrote to the file, also after a restart."""
    text = f"{key.inode:x}.{key.size_bytes:x}.{key.mtime_ns:x}.{key.ctime_ns:x}"
    return f'"{hashlib.blake2b(text.encode("ascii"), digest_size=12).hexdigest()}"'


class OpenFile:
    """One content of one file, open for reading, shared by all who send it.

    The descriptor is read with explicit offsets only. It is closed when nobody refers to the
    object any more; so a plan, a queue or a sender keeps it open by having it.
    """

    __slots__ = ("_mtime_ns", "_size_bytes", "fd", "memo", "rep")

    def __init__(self, fd: int, rep: Representation) -> None:
        self.fd = fd
        self.rep = rep
        #: For the site: what it last said of this content, and as of when.
        self.memo: tuple[int, object, list[tuple[bytes, bytes]]] | None = None
        self._size_bytes = rep.size_bytes
        self._mtime_ns = rep.key.mtime_ns

    def __del__(self) -> None:
        os.close(self.fd)

    def unchanged(self) -> bool:
        """Whether nobody has written to the file since it was opened.

        A file that was renamed over or removed is unchanged: the descriptor still has it whole.
        """
        now = os.fstat(self.fd)
        return now.st_mtime_ns == self._mtime_ns and now.st_size == self._size_bytes

    def read_all(self) -> bytes | None:
        """The whole content; None when it changed meanwhile."""
        return self.read_pieces([(0, self._size_bytes)])

    def read_pieces(self, pieces: Sequence[bytes | tuple[int, int]]) -> bytes | None:
        """Byte ranges of the content, with bytes that stand for themselves between them.

        None when the file changed meanwhile.
        """
        out: list[bytes] = []
        for piece in pieces:
            if isinstance(piece, bytes):
                out.append(piece)
                continue
            offset, end = piece
            while offset < end:
                data = os.pread(self.fd, end - offset, offset)
                if not data:
                    return None
                out.append(data)
                offset += len(data)
        return b"".join(out) if self.unchanged() else None
