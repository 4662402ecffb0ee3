"""How clients used their slots: slots that idled away, and bytes that were delivered."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...protocol.bounded_table import BoundedTable

#: Clients that are remembered. The one that idled longest ago is forgotten first.
_REMEMBERED = 10_000
#: Beyond this many times nothing gets worse.
_MOST = 8


class Reputation:
    """How often each client let a slot idle away lately before it had used it (`was_used`)."""

    def __init__(self) -> None:
        self._times: BoundedTable[str, int] = BoundedTable(_REMEMBERED)

    def times(self, client: str) -> int:
        """How often since its last honest download."""
        return self._times.get(client, 0)

    def idled(self, client: str) -> None:
        """A slot of this client has run out unused."""
        self._times[client] = min(_MOST, self.times(client) + 1)

    def used(self, client: str) -> None:
        """The client has finished a download."""
        self._times.pop(client, None)


class Delivered:
    """Bytes that the leases of each unfinished download have delivered."""

    def __init__(self) -> None:
        self._bytes: BoundedTable[tuple[str, str], int] = BoundedTable(_REMEMBERED)

    def __len__(self) -> int:
        """Downloads that have delivered anything."""
        return len(self._bytes)

    def bytes(self, client: str, file: str) -> int:
        """What this client has of this file."""
        return self._bytes.get((client, file), 0)

    def note(self, client: str, file: str, more_bytes: int) -> None:
        """A lease has ended after `more_bytes`; 0: the download is finished."""
        key = client, file
        if not more_bytes:
            self._bytes.pop(key, None)
            return
        self._bytes[key] = self._bytes.get(key, 0) + more_bytes


@dataclass(frozen=True, slots=True)
class FirstUseTuning:
    """How the latest strangers tell of the next ones."""

    #: Half of what is remembered is forgotten in this time, seconds.
    half_s: float = 20.0
    #: Clients that are imagined to have used their slot: one idler changes nothing.
    prior: float = 1.0
    #: One on trial counts as this part of a slot at least.
    least: float = 1.0 / 32.0


FIRST_USE = FirstUseTuning()


class FirstUses:
    """How far slots of strangers count that have not shown yet whether they are used.

    Use it or lose it takes a slot back after some seconds, so a botnet of idle readers, each from a
    network of its own, holds all slots for as many times these seconds as it has networks for each
    slot. Nothing tells its members from honest newcomers before they start. So the downloads of
    strangers that have not shown yet whether they use their slot are *on trial*, and count only as
    far as those before them did: where nine of ten lately used nothing, ten on trial count as one.
    The more idlers there are, the more of them are tried at once, and the sooner all are known.
    """

    def __init__(self) -> None:
        self._used = self._wasted = 0.0
        self._noted_s = 0.0

    def note(self, now: float, *, used: bool) -> None:
        """A stranger has shown whether its slot is used."""
        fading = self._fading(now)
        self._used = self._used * fading + used
        self._wasted = self._wasted * fading + (not used)
        self._noted_s = now

    def doubted(self, on_trial: int, now: float) -> int:
        """How many of the slots on trial are taken not to be used."""
        wasted = self._wasted * self._fading(now)
        if wasted < 1.0:
            return 0
        used = self._used * self._fading(now) + FIRST_USE.prior
        counts = max(FIRST_USE.least, used / (used + wasted))
        return on_trial - math.ceil(on_trial * counts - 0.5)

    def _fading(self, now: float) -> float:
        return math.exp2(-max(0.0, now - self._noted_s) / FIRST_USE.half_s)
