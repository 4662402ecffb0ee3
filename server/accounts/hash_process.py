"""Makes or checks one hash of a password in a separate process at low priority.

usage: python -m tidegate.server.accounts.hash_process < ORDER

A thread of low priority would not do: it may lose its core while it holds the interpreter's lock,
and the serving thread then waits for it (p99 of small files 475 ms at a load of 5).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, HashingError, InvalidHashError


def kept_hash(hasher: PasswordHasher, password: str, known: str | None) -> str | None:
    """The hash to store for a password; None when it does not match `known`.

    It is `known` itself unless that was made at another cost. `known` is None for a new password.
    Raises HashingError.
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
    """`kept_hash` in a separate process; blocks. Raises HashingError."""
    cost = hasher.time_cost, hasher.memory_cost, hasher.parallelism
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=json.dumps([cost, password, known]).encode("ascii"),
            capture_output=True,
            # A hash takes 0.2 s. No person waits this long for a login.
            timeout=60.0,
        )
    except subprocess.TimeoutExpired as fault:
        raise HashingError(str(fault)) from fault
    if done.returncode != 0:
        raise HashingError(done.stderr.decode("utf-8", "replace")[-300:].strip())
    kept: str | None = json.loads(done.stdout)
    return kept


def main() -> None:
    """Answer one order: [cost, password, known] on standard input, the hash on standard output."""
    with contextlib.suppress(OSError):
        # On a shared core this process gets a tenth of what the server gets.
        os.nice(10)
    cost, password, known = json.load(sys.stdin.buffer)
    json.dump(kept_hash(PasswordHasher(*cost), password, known), sys.stdout)


if __name__ == "__main__":
    main()
