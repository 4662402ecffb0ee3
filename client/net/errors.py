"""How a download can end badly, as exceptions with exit codes and one plain sentence each."""

from __future__ import annotations

import errno
import os


class DownloadFailed(Exception):
    """The file did not arrive; `str()` says why, `code` is the documented exit code."""

    code = 5
    kind = "network"


class UsageProblem(DownloadFailed):
    """What was asked for makes no sense."""

    code = 2
    kind = "usage"


class NotFound(DownloadFailed):
    """No source has the file."""

    code = 3
    kind = "not-found"


class AccessRefused(DownloadFailed):
    """Every source refuses to give it."""

    code = 4
    kind = "refused"


class NetworkProblem(DownloadFailed):
    """No source could be reached, or all of them broke."""

    code = 5
    kind = "network"


class Corrupt(DownloadFailed):
    """The bytes do not have the promised digest, and no source could mend them."""

    code = 6
    kind = "corrupt"


class WaitedTooLong(DownloadFailed):
    """The place in the queue is further away than the caller wants to wait."""

    code = 7
    kind = "waited-too-long"


class LocalProblem(DownloadFailed):
    """The file cannot be written here."""

    code = 8
    kind = "local"

    @classmethod
    def of(cls, error: OSError, path: os.PathLike[str] | str) -> LocalProblem:
        """The same in words for people."""
        text = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the disk quota is used up",
            errno.EACCES: "no permission to write there",
            errno.EPERM: "no permission to write there",
            errno.EROFS: "the file system is read-only",
            errno.ENOENT: "the folder does not exist",
            errno.ENOTDIR: "a file has the name of its folder",
            errno.EISDIR: "a folder has that name",
            errno.ELOOP: "a symbolic link is in the way",
            errno.EFBIG: "the file is larger than the file system allows",
            errno.ENAMETOOLONG: "the name is too long",
            errno.EBADF: "it is closed",
        }.get(error.errno or 0, error.strerror or str(error))
        if error.errno == errno.ENOENT and os.path.isdir(os.path.dirname(path) or "."):
            # Such as /proc, whose files only the kernel makes.
            text = "the file system takes no new files there"
        return cls(f"cannot write {os.fspath(path)}: {text}")


class NoRoom(DownloadFailed):
    """The file is larger than what is free; `ever`: it would be if nothing else were there."""

    code = LocalProblem.code
    kind = LocalProblem.kind

    def __init__(self, text: str, ever: bool) -> None:
        super().__init__(text)
        self.ever = ever


class Interrupted(DownloadFailed):
    """The caller stopped it; what arrived is kept for the next time."""

    code = 130
    kind = "interrupted"

    def __init__(self) -> None:
        super().__init__("interrupted; run the same command again to go on")
