"""Open files: as many as the system lets us have, and no more connections than they carry."""

from __future__ import annotations

import resource
from dataclasses import replace

from twisted.logger import Logger

from server.http.limits import HttpLimits

_log = Logger()

_WANTED = 262_144
#: Files, the database, threads, listeners; and a download has its socket twice.
_RESERVED = 300
_PER_CONNECTION = 2


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

    A connection beyond them could not even be refused: it would hang in the backlog.
    Warns when there are less than half of what was asked.
    """
    most = max(16, (open_files - _RESERVED) // _PER_CONNECTION)
    wanted = limits.max_connections or most
    if 2 * most < limits.max_connections:
        _log.warn(
            "Only {most} connections at once: the limit on open files is {files}; raise it "
            "(ulimit -n, LimitNOFILE=).",
            most=most,
            files=open_files,
        )
    return replace(limits, max_connections=min(wanted, most))
