"""Slows guessing of passwords, by client and by the networks around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.bounded_table import BoundedTable
from ..http.proxies import block_of, prefixes_of


class BrakeTuning(NamedTuple):
    """How many tries are free, and how pauses grow."""

    #: Wrong passwords of one client under one name before the first pause.
    free_tries_name: int = 5
    #: The same under all names.
    free_tries_client: int = 20
    #: The same of all clients of one network, where honest ones mistype, too.
    free_tries_network: int = 40
    #: The first pause; each further try doubles it.
    pause_s: float = 2.0
    #: Bounds a pause: 96 guesses a day.
    pause_max_s: float = 900.0
    #: A client's or network's failures are forgotten after this time without a try.
    forget_s: float = 3600.0


TUNING = BrakeTuning()


@dataclass(slots=True)
class _Score:
    failures: int = 0
    free_at_s: float = 0.0
    last_s: float = 0.0


class LoginBrake:
    """Exponential back-off: after a few failures each further one doubles the pause.

    Failures count for a client (IPv4 whole, IPv6 by /64) under one name, and with higher allowances
    for the client under all names and for the networks around it (`proxies.prefixes_of`). They do
    not count for a name alone: an attacker could lock its owner out. A client that logged in before
    is not held back by its network's failures. Memory is bounded by `limit` entries a table.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._scores: BoundedTable[tuple[str, str], _Score] = BoundedTable(limit)
        #: Clients that logged in, the latest last.
        self._known: BoundedTable[str, None] = BoundedTable(limit)

    def is_known(self, address: str) -> bool:
        """Whether a login from this client succeeded since the start."""
        return block_of(address) in self._known

    def _keys(self, address: str, name: str) -> Iterator[tuple[tuple[str, str], int]]:
        """The scores that a try counts for, narrow to wide, each with its free tries."""
        prefixes = prefixes_of(address)
        yield (prefixes[0], "n:" + name[:64]), TUNING.free_tries_name
        yield (prefixes[0], ""), TUNING.free_tries_client
        if not self.is_known(address):
            yield from (((prefix, ""), TUNING.free_tries_network) for prefix in prefixes[1:])

    def wait_s(self, address: str, name: str, now: float) -> float:
        """Seconds until another try is allowed; 0 when it is allowed now."""
        scores = (self._scores.get(key) for key, _ in self._keys(address, name))
        return max(0.0, *(score.free_at_s - now for score in scores if score is not None), 0.0)

    def start(self, address: str, name: str, now: float) -> None:
        """Count a try as failed before it is checked, so that parallel tries cannot slip by."""
        for key, free in self._keys(address, name):
            score = self._scores.pop(key, None)
            if score is None or now - score.last_s > TUNING.forget_s:
                score = _Score()
            score.failures += 1
            score.last_s = now
            if (over := score.failures - free) >= 0:
                pause_s = TUNING.pause_s * 2.0 ** min(over, 20)
                score.free_at_s = now + min(TUNING.pause_max_s, pause_s)
            self._scores[key] = score

    def succeeded(self, address: str, name: str) -> None:
        """Report a right password: this client's failures under this name are forgiven."""
        (pair, _), (client, _), *wider = self._keys(address, name)
        known = self._scores.pop(pair, None)
        if known is not None:
            for key in (client, *(key for key, _ in wider)):
                if (score := self._scores.get(key)) is not None:
                    score.failures = max(0, score.failures - known.failures)
            if (whole := self._scores.get(client)) is not None:
                whole.free_at_s = 0.0
        self.remember(address)

    def remember(self, address: str) -> None:
        """This client logged in, now or before: no flood from elsewhere keeps it out."""
        self._known[block_of(address)] = None
