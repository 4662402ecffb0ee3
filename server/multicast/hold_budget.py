"""How long each client is still held: one window for a visit in vain, not one for each file. Pure.

A client that fetches a folder asks for many files. Held for a window in vain it is alone with its
wishes; to hold it again for the next file, and the next, would add the windows up. It is held again
once a session came about with it, or after it was away for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

#: In windows: a client that did not ask for so long begins anew.
_FORGET = 4
_SWEEP_EVERY = 1000


@dataclass(slots=True)
class _Visit:
    until: float
    seen: float


class Patience:
    """Of all clients that say who they are; the others ("") are held for the whole window."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._visits: dict[str, _Visit] = {}

    def until(self, client: str, now: float) -> float:
        """Until when the client may be held that asks now; not after `now` if not at all."""
        if not client:
            return now + self._window_s
        visit = self._visits.get(client)
        if visit is None or now - visit.seen > _FORGET * self._window_s:
            visit = self._visits[client] = _Visit(now + self._window_s, now)
            if len(self._visits) % _SWEEP_EVERY == 0:
                self._sweep(now)
        visit.seen = now
        return visit.until

    def rewarded(self, client: str) -> None:
        """A session came about with the client: waiting was worth it."""
        self._visits.pop(client, None)

    def _sweep(self, now: float) -> None:
        then = now - _FORGET * self._window_s
        for client in [name for name, visit in self._visits.items() if visit.seen < then]:
            del self._visits[client]
