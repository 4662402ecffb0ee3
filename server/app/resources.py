"""What this machine affords: memory for small files, and open files for connections."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import replace
from pathlib import Path

from twisted.logger import Logger

from ..http.limits import HttpLimits
from .config import CannotStart

_log = Logger()


def raise_limit() -> int:
    """Raise the soft limit on open files to the hard one; the new limit. Raises CannotStart."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 262_144  # More than any server here uses.
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if wanted < 128:  # Up to 30 are the server's own, and a download needs two.
        text = f"The limit on open files is {wanted}, and a server needs 128 at least"
        raise CannotStart(f"{text}: raise the hard limit (ulimit -Hn, LimitNOFILE=).")
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def affordable(limits: HttpLimits, open_files: int) -> HttpLimits:
    """The same limits with no more connections than `open_files` carry.

    A connection beyond them could not even be refused: it would hang in the backlog. Logs the
    number if none was configured (0), and warns if it is less than half of the configured one.
    """
    # The others are for the files of as many downloads, the database, threads and listeners.
    most = max(16, open_files - min(900, 40 + open_files // 2))
    asked = limits.max_connections
    if not asked or 2 * most < asked:
        say = _log.warn if asked else _log.info
        say(
            "Up to {most} connections at once: the limit on open files is {files}; for more, raise "
            "the hard limit (ulimit -Hn, LimitNOFILE=).",
            most=most,
            files=open_files,
        )
    most = min(asked or most, most)
    # Those that are being refused stand beside them, and files need descriptors as well.
    refusals = min(limits.max_refusals, max(1, (open_files - most) // 4))
    return replace(limits, max_connections=most, max_refusals=refusals)


def kept_files(open_files: int) -> int:
    """How many files of the release may stay open while no download needs them."""
    return min(512, open_files // 8)


def small_files_bytes(asked_bytes: int | None, processes: int) -> int:
    """The memory for small files in one of `processes`; `asked_bytes` None: by the machine."""
    if asked_bytes is not None:
        return asked_bytes // processes
    return max(32 << 20, min(256 << 20, _usable_bytes() // 64) // processes)


def _usable_bytes() -> int:
    """The machine's memory, or the bound that a container or a unit sets below it."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                group /= line[4:]
        # "max" where there is none.
        found = min(found, int((group / "memory.max").read_text()))
    return found
