"""Ports for servers that are started here."""

from __future__ import annotations

import contextlib
import random
import socket

#: Below those that Linux gives to connections: one of these may be taken at any moment.
_FIRST = 20_000
_LAST = 32_000


def free_port() -> int:
    """A port that no program has just now, whether for connections or for datagrams."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(_FIRST, _LAST)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                stack.enter_context(socket.socket(socket.AF_INET, kind)).bind(("0.0.0.0", port))
            return port
