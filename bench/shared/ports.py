"""Ports for servers that are started here."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A port that no program has just now, whether for connections or for datagrams."""
    chance = random.SystemRandom()
    while True:
        # Below those that Linux gives to connections: one of these may be taken at any moment.
        port = chance.randrange(20_000, 32_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                stack.enter_context(socket.socket(socket.AF_INET, kind)).bind(("0.0.0.0", port))
            return port
