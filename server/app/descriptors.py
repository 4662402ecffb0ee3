"""Open files: as many as the system lets us have, and no more connections than they carry."""

from __future__ import annotations

import resource
from dataclasses import replace

from twisted.logger import Logger

from ..http.limits import HttpLimits

_log = Logger()

_WANTED = 262_144
#: For files, the database, threads and listeners; but never more than this part of all.
_RESERVED, _RESERVED_PART = 900, 1 / 3


def raise_limit() -> int:
    """Lift the soft limit on open files to the hard one; what holds from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def affordable(limits: HttpLimits, open_files: int) -> HttpLimits:
    """The same limits with no more connections than so many open files carry.

    A connection beyond them could not even be refused: it would hang in the backlog. Says so where
    no number was asked for (0), and warns when there are less than half of what was asked.
    """
    most = max(16, open_files - int(min(_RESERVED, open_files * _RESERVED_PART)))
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
