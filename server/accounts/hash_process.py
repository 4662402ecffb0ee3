"""Makes or checks one hash of a password, in a process of its own at low priority.

usage: python -m tidegate.server.accounts.hash_process < ORDER

A thread of low priority may lose its core while it holds the interpreter's lock, and then the
thread that serves waits for it: beside an attack, on a machine with a load of 5, small files had a
p99 of 475 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, HashingError, InvalidHashError

#: A tenth of what serving gets on a core that both want.
_NICENESS = 10
#: A hash takes 0.2 s. On a machine that is this late nobody waits for it any more.
_PATIENCE_S = 60.0


def kept_hash(hasher: PasswordHasher, password: str, known: str | None) -> str | None:
    """The hash to keep of a password that has the hash `known`, or has none yet; None: wrong.

    It is a new one where `known` was made at another cost. Raises HashingError.
    """
    if known is not None:
        try:
            hasher.verify(known, password)
        except (Argon2Error, InvalidHashError):
            return None
        if not hasher.check_needs_rehash(known):
            return known
    return hasher.hash(password)


def kept_hash_apart(hasher: PasswordHasher, password: str, known: str | None) -> str | None:
    """The same by the process; blocks. Raises HashingError."""
    cost = hasher.time_cost, hasher.memory_cost, hasher.parallelism
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=json.dumps([cost, password, known]).encode("ascii"),
            capture_output=True,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as fault:
        raise HashingError(str(fault)) from fault
    if done.returncode != 0:
        raise HashingError(done.stderr.decode("utf-8", "replace")[-300:].strip())
    kept: str | None = json.loads(done.stdout)
    return kept


def main() -> None:
    """Run."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    cost, password, known = json.load(sys.stdin.buffer)
    json.dump(kept_hash(PasswordHasher(*cost), password, known), sys.stdout)


if __name__ == "__main__":
    main()
