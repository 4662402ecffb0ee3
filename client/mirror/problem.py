"""What can go wrong at a mirror, each with a stable name and one sentence; the old tree stays."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tuf.api import exceptions as tuf

from ...protocol.errors import ProtocolError
from .transport import TooSlow


class MirrorProblem(Exception):
    """A named trouble; `code` is stable (docs/mirrors.md lists them), the text says what to do.

    `passing`: trying again later, unchanged, can help.
    """

    def __init__(self, code: str, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.passing = passing


_BY_ERRNO = {
    errno.ENOSPC: ("disk-full", "The disk is full; make room. {} The mirror keeps its version."),
    errno.EDQUOT: ("disk-full", "The quota is used up; raise it. {} The mirror keeps its version."),
    errno.EACCES: (
        "wrong-owner",
        "{} may not be written by this user; run as the owner of the mirror, or change the owner.",
    ),
    errno.EPERM: (
        "wrong-owner",
        "{} may not be changed by this user; run as the owner of the mirror, or change the owner.",
    ),
    errno.EROFS: ("read-only", "The file system of {} is read-only; mount it writable."),
    errno.ENAMETOOLONG: ("bad-name", "{} is too long a name for this file system."),
    errno.EILSEQ: ("bad-name", "{} is not a name this file system can hold."),
    errno.EXDEV: (
        "other-filesystem",
        "{} lies on another file system than the mirror's state; put --state beside it.",
    ),
    errno.EBUSY: (
        "mount-point",
        "{} is a mount point, which cannot be switched; follow into a directory below it.",
    ),
}


@contextmanager
def named() -> Iterator[None]:
    """Give every known trouble of the block its `MirrorProblem`."""
    try:
        yield
    except ProtocolError as fault:
        code = fault.code if fault.code != "bad-manifest" else "corrupt-update"
        raise MirrorProblem(code, str(fault)) from fault
    except tuf.ExpiredMetadataError as fault:
        raise MirrorProblem(
            "frozen",
            f"The origin shows metadata that has expired ({fault}): someone holds back newer "
            "versions, or the publisher has stopped signing. Nothing was changed.",
            passing=True,
        ) from fault
    except tuf.UnsignedMetadataError as fault:
        raise MirrorProblem(
            "bad-signature", f"The origin's metadata is not signed by the trusted keys: {fault}."
        ) from fault
    except tuf.BadVersionNumberError as fault:
        raise MirrorProblem(
            "rolled-back", f"The origin shows an older state than this mirror has seen: {fault}."
        ) from fault
    except tuf.LengthOrHashMismatchError as fault:
        raise MirrorProblem(
            "mixed",
            f"Parts of the origin's metadata do not belong together: {fault}.",
            passing=True,
        ) from fault
    except tuf.RepositoryError as fault:
        raise MirrorProblem(
            "bad-metadata", f"The origin's metadata is unusable: {fault}."
        ) from fault
    except TooSlow as fault:
        raise MirrorProblem(
            "slow",
            f"The origin sends next to nothing: {fault}. Tried again, less and less often.",
            passing=True,
        ) from fault
    except tuf.DownloadError as fault:
        raise MirrorProblem(
            "unreachable", f"The origin did not answer: {fault}.", passing=True
        ) from fault
    except MemoryError as fault:
        raise MirrorProblem(
            "too-little-memory",
            "The machine has less memory free than --memory allows; give less there, or make room.",
            passing=True,
        ) from fault
    except OSError as fault:
        if fault.errno in _BY_ERRNO:
            code, text = _BY_ERRNO[fault.errno]
            raise MirrorProblem(code, text.format(fault.filename or "")) from fault
        raise MirrorProblem(
            "disk-trouble",
            f"{fault.filename or 'The disk'}: {fault.strerror or fault}. The mirror keeps its "
            "version and tries again.",
            passing=True,
        ) from fault
