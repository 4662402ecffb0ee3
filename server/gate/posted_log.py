"""Ends of clients that were sent to a CDN: it posts its log, a JSON object a line."""

from __future__ import annotations

import hmac
from pathlib import Path

from ...protocol.bounded_table import BoundedTable
from ..http.clock import Clock
from ..http.request import Request
from .moves import Moves
from .reports import read_log

#: After a wrong secret an address waits this long, with the right one too.
_BRAKE_S = 1


def read_secret(file: Path) -> bytes:
    """What a post carries as `Authorization: Bearer`. Raises ValueError and OSError."""
    secret = file.read_bytes().strip()
    if len(secret) < 16:
        raise ValueError(f"{file} needs a line of 16 characters or more")
    return secret


class PostedLog:
    """Answers posts to `/-/gate/log`. The parser bounds their size (64 KiB)."""

    def __init__(self, clock: Clock, moves: Moves, secret: bytes) -> None:
        self._clock = clock
        self._moves = moves
        self._expected = b"Bearer " + secret
        self._braked_until: BoundedTable[str, float] = BoundedTable(10_000)

    def answer(self, request: Request) -> None:
        """Take the lines of a post that knows the secret."""
        now, address = self._clock.seconds(), request.client_address
        if now < self._braked_until.get(address, 0.0):
            again = [(b"Retry-After", b"%d" % _BRAKE_S)]
            request.refuse(429, "too-many-tries", "A wrong secret came from here just now.", again)
        elif hmac.compare_digest(request.headers.get(b"authorization", b""), self._expected):
            for lease, count in read_log(request.body):
                self._moves.logged(lease, count)
            request.respond(204)
        else:
            self._braked_until[address] = now + _BRAKE_S
            request.refuse(403, "not-allowed", "The secret is missing or wrong.")
