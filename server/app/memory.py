"""Memory: how much of the machine's may hold small files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: Of what this process may have; between these bounds, and never less however many processes share.
_PART = 1 / 64
_LEAST_BYTES, _MOST_BYTES = 32 << 20, 256 << 20


def small_files_bytes(asked_bytes: int | None, processes: int) -> int:
    """What one of so many processes may hold small files in; None asked: a part of all there is."""
    if asked_bytes is not None:
        return asked_bytes // processes
    most = min(_MOST_BYTES, int(_usable_bytes() * _PART))
    return max(_LEAST_BYTES, most // processes)


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
