"""Adaptive: plain while the server copes, small jobs first when they meet a crowd, then tickets.

Three modes, each entered when it is needed and left after `calm_s` without need:

- *plain*: whoever asks is served. Slots are added while the link has room for more, so that slow
  clients do not keep fast ones out; they are taken back when nobody needs them, or when adding
  them made the server slower.
- *reserve*: a small job found every slot taken. Large ones leave some free from now on.
- *tickets*: a large job must wait, as the link is full and so are the slots. From now on there are
  tickets and the shortest remaining goes first, as in Fair.

What is watched is the server's goodput and who had to wait. Download times say little here: they
are mostly size over client speed, and a rising mean may only mean larger files.
"""

from __future__ import annotations

import math
import random

from policies.base import Hall
from policies.fair import FairPolicy
from policies.job import Decision, Job, Wait
from policies.settings import PolicySettings

_MODES = ("plain", "reserve", "tickets")
_PLAIN, _RESERVE, _TICKETS = range(3)
#: Weight of the latest job in "the part of jobs that met a busy server".
_LATEST = 0.1
_GROWTH = 1.25
#: Goodput that falls below this part of what it was before slots were added was hurt by them.
_WORSE = 0.97
#: A link is crowded when at least so many downloads could together take so much more than it has.

_CROWD, _CROWDED = 4, 1.2


class AdaptivePolicy(FairPolicy):
    """Changes between plain admission, a reserve and tickets by load; adapts the slots."""

    name = "adaptive"
    link_bound = False

    def __init__(
        self, settings: PolicySettings, rng: random.Random, hall: Hall | None = None
    ) -> None:
        super().__init__(settings, rng, hall)
        self._level = _TICKETS if len(self._book) or self._pauses.count else _PLAIN
        self._needed_s = -math.inf
        self._small_waits = 0.0
        self._large_waits = 0.0
        self._running_slots = max(settings.slots, len(self._leases) - self._pauses.count)
        self._crowded_s = math.inf
        self._stepped_s = -math.inf
        self._goodput_before = 0.0
        self._grew = False
        self._size_slots()

    # -- modes ---------------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """plain, reserve or tickets."""
        return _MODES[self._level]

    @property
    def gives_tickets(self) -> bool:
        """Only in the tickets mode."""
        return self._level == _TICKETS

    @property
    def large_cap(self) -> int:
        """All slots in plain mode, all but the reserved ones in the others."""
        if self._level == _PLAIN:
            return self._slots
        return self._slots - min(self.settings.reserve_small, self._slots - 1)

    def _enter(self, level: int, now: float) -> None:
        self._needed_s = now
        self._level = max(self._level, level)
        self._last = None

    def _calm_down(self, now: float) -> None:
        if self._level == _TICKETS and (len(self._book) or self._pauses.count):
            self._needed_s = now
        elif self._level > _PLAIN and now - self._needed_s >= self.settings.calm_s:
            self._level -= 1
            self._last = None
            self._needed_s = now
            self._small_waits = self._large_waits = 0.0

    # -- offers --------------------------------------------------------------------------------

    def _offer_large(self, job: Job, now: float, ticket: int | None) -> Decision:
        if self._level == _TICKETS or len(self._book):
            return super()._offer_large(job, now, ticket)
        if self.large_free() > 0 or self._add_slot():
            self._large_waits *= 1.0 - _LATEST
            return self._start(job, now, None, True)
        self._large_waits += _LATEST * (1.0 - self._large_waits)
        if self._large_waits >= self.settings.overload_wait_fraction:
            self._enter(_TICKETS, now)
            return super()._offer_large(job, now, ticket)
        return Wait(self._plain_retry_s())

    def _make_room(self, now: float) -> bool:
        """Small jobs never wait for large ones: one more slot, and a reserve from now on."""
        self._small_waits += _LATEST * (1.0 - self._small_waits)
        if self._small_waits >= self.settings.small_wait_fraction:
            self._enter(_RESERVE, now)
        if self._slots < self.settings.slots_max:
            self._running_slots += 1
            self._size_slots()
            return True
        return False

    # -- slots ---------------------------------------------------------------------------------

    def _add_slot(self) -> bool:
        """One more slot for a large job, while the link has room for it."""
        if self._capacity.full or self._slots >= self.settings.slots_max:
            return False
        self._running_slots += 1
        self._size_slots()
        return True

    def _size_slots(self) -> None:
        """A paused download keeps its slot without using the link: it comes on top."""
        most = max(self.settings.slots, self.settings.slots_max)
        self._slots = min(most, max(self._running_slots + self._pauses.count, len(self._leases)))

    def observe(self, goodput_bytes_s: float, link_busy: bool, now: float) -> None:
        """See `AdmissionPolicy.observe`."""
        super().observe(goodput_bytes_s, link_busy, now)
        self._watch_crowd(now)
        if now - self._stepped_s < self.settings.slots_step_s:
            return
        self._stepped_s = now
        settings = self.settings
        running = len(self._leases) - self._pauses.count
        slots = self._running_slots
        worse = self._grew and goodput_bytes_s < _WORSE * self._goodput_before
        self._grew = False
        if link_busy and worse:
            slots = int(slots / _GROWTH)
        elif not link_busy and self.large_free() <= 0:
            slots = math.ceil(slots * _GROWTH)
            self._grew = True
        elif running < slots // 2:
            slots = min(slots - 1, int(slots * 0.95))
        self._goodput_before = goodput_bytes_s
        self._running_slots = max(settings.slots, running, min(slots, settings.slots_max))
        self._size_slots()

    def _watch_crowd(self, now: float) -> None:
        """Tickets are due, too, when many share a link that could serve a few of them better."""
        if not self._is_crowded():
            self._crowded_s = math.inf
        else:
            self._crowded_s = min(self._crowded_s, now)
            if now - self._crowded_s >= self.settings.overload_full_s:
                self._enter(_TICKETS, now)

    def _is_crowded(self) -> bool:
        capacity = self._capacity
        running = [lease for lease in self._order if lease.connections and not lease.paused]
        if not capacity.full or len(running) < _CROWD:
            return False
        wanted = sum(capacity.speed(lease) for lease in running)
        return wanted > _CROWDED * capacity.rate_bytes_s

    # -- time ----------------------------------------------------------------------------------

    def _choose(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        self._calm_down(now)
        pause, resume = super()._choose(now)
        self._size_slots()
        return pause, resume

    def _demand(self) -> float:
        return super()._demand() if self._level == _TICKETS else math.inf
