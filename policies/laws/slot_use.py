"""Use it or lose it: which downloads keep their slot while others wait, and which get one again.

A download loses its slot in one of three ways, and goes on without one:

- It took less than `least_rate_bytes_s` for a whole look (`look_s`).
- It never took any since it started, which shows sooner; slots of strangers that are not yet
  looked at are *on trial* and count as far as those before them were used
  (`policies.laws.reputation`).
- Its crowd holds slots beyond its part that were only *lent* to it (`policies.laws.crowds`).

One without a slot that takes its share all the same pauses until a slot is free, for some seconds
at a stretch. The order of starts is in `policies.admission`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..hooks import Policy
from ..leases import Lease
from ..room import Room
from ..settings import PolicySettings
from ..state import AdmissionState


@dataclass(frozen=True, slots=True)
class SlotUseTuning:
    """Times are seconds."""

    #: A download that took this much, or a tenth of what it wanted, has been used.
    used_bytes: int = 1 << 20
    #: How often the use that leases make of their slots is looked at.
    look_s: float = 10.0
    #: One that has not taken its part since it started shows that in this time ...
    first_look_s: float = 3.0
    #: ... and was measured this often meanwhile: it is not the server that stood still.
    first_looks: int = 6
    #: How long a download without a slot pauses at a stretch.
    longest_pause_s: float = 10.0
    #: Slower than any modem: a reader that takes less stands still, bytes/s.
    least_bytes_s: float = 2_000.0


SLOT_USE = SlotUseTuning()


def was_used(lease: Lease) -> bool:
    """Whether the download took enough to be believed."""
    taken = lease.started_bytes - lease.remaining_bytes
    return taken >= min(SLOT_USE.used_bytes, lease.started_bytes // 10)


class SlotUse:
    """Downloads that take too little of their slot's share lose it while others wait."""

    def __init__(
        self, state: AdmissionState, settings: PolicySettings, policy: Policy, room: Room
    ) -> None:
        self._pool = state.pool
        self._queue = state.queue
        self._crowds = state.crowds
        self._capacity = state.capacity
        self._first_uses = state.first_uses
        self._settings = settings
        self._policy = policy
        self._room = room
        self._looked_s = self._shared_s = -math.inf
        #: Large leases whose use was not looked at since they started, and how often each was
        #: measured.
        self._unseen: dict[int, int] = {}
        #: Those of them that strangers have.
        self._on_trial: set[int] = set()
        self._pool.doubted = 0
        #: Pauses that another policy left behind, and those that are to begin.
        self._inherited = [lease for lease in self._pool.leases.values() if lease.paused]
        self._to_pause: list[Lease] = []

    # -- the life of a large lease -----------------------------------------------------------------

    def lease_begins(self, lease: Lease, now: float) -> None:
        """A large download has a slot, and its network is known."""
        self._unseen[lease.id] = 0
        if lease.network:
            self._on_trial.add(lease.id)
            self._doubt(now)
        self._crowds.count(lease, 1)

    def lease_measured(self, lease: Lease, now: float) -> None:
        """Look at its first use, sooner than at others': nothing was lost on the way.

        One that takes its part by now only started slowly, over a long path. Where the link
        decides, downloads are paused soon after they start.
        """
        if lease.id not in self._unseen or self._policy.link_bound:
            return
        passed_s = now - lease.started_s
        self._unseen[lease.id] += 1
        if passed_s < SLOT_USE.first_look_s:
            return
        taken = lease.started_bytes - lease.remaining_bytes
        looked_at = lease.connections and not lease.paused and not lease.slotless
        least_bytes_s = self.least_rate_bytes_s()
        if taken >= least_bytes_s * passed_s or lease.rate_bytes_s >= least_bytes_s:
            self._tried(lease, now, used=True)
            self._unseen.pop(lease.id, None)
        elif len(self._queue) and self._unseen[lease.id] >= SLOT_USE.first_looks:
            del self._unseen[lease.id]
            if looked_at:
                self._remove_slot(lease, now)

    def lease_ends(self, lease: Lease, now: float, *, used: bool) -> None:
        """It is over; before the pool forgets it. Small ones are told, too."""
        self._tried(lease, now, used=used)
        self._unseen.pop(lease.id, None)
        self._crowds.count(lease, -1)

    # -- as time passes ----------------------------------------------------------------------------

    def time_passes(self, now: float) -> None:
        """Take slots that are not used, or only lent, from those that have them."""
        self._look(now)
        self._give_back_lent(now)
        self._doubt(now)
        self._crowds.time_passes(now)

    def wake_s(self, now: float) -> float | None:
        """When to look again at the latest."""
        if not (self._pool.slotless or self._queue.here):
            return None
        wakes = []
        if self._pool.slotless and not self._policy.link_bound:
            paused = (lease.stopped_s for lease in self._pool.slotless.values() if lease.paused)
            wakes.append(min(paused, default=math.inf) + SLOT_USE.longest_pause_s)
        if self._queue.here and self._pool.leases:
            wakes.append(self._looked_s + SLOT_USE.look_s)
            if self._crowds.beyond():
                wakes.append(max(now, self._shared_s) + SLOT_USE.first_look_s)
        return min((one for one in wakes if one < math.inf), default=None)

    def pauses(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Leases without a slot that would take a share pause until one is free, and go on.

        Not longer than `longest_pause_s` at a stretch. Pauses that another policy left behind end.
        """
        resume = []
        for lease in (*self._inherited, *self._pool.slotless.values()):
            if not lease.paused:
                continue
            free = lease.slotless and self._room.large_unused() > 0 and self._may_regain(lease, now)
            if free:
                self._return_slot(lease)
            if free or not lease.slotless or now >= lease.stopped_s + SLOT_USE.longest_pause_s:
                self._pool.resume(lease)
                lease.stopped_s = now
                resume.append(lease.id)
        pause = []
        for lease in self._to_pause:
            if lease.id in self._pool.slotless and not lease.paused and self._pool.can_pause:
                self._pool.pause(lease, now)
                pause.append(lease.id)
        self._inherited, self._to_pause = [], []
        return tuple(pause), tuple(resume)

    def faults(self) -> Iterator[str]:
        """Leases without a slot are large; those on trial run, and have a slot."""
        for lease in self._pool.slotless.values():
            if not lease.large or not lease.slotless:
                yield f"lease {lease.id} has a slot"
        held = self._pool.leases.keys() - self._pool.slotless.keys()
        if not self._on_trial <= held:
            yield f"on trial without a slot: {sorted(self._on_trial - held)}"
        if not 0 <= self._pool.doubted <= len(self._on_trial):
            yield f"{self._pool.doubted} of {len(self._on_trial)} on trial are doubted"

    def least_rate_bytes_s(self) -> float:
        """What a download must take to hold a slot while others wait.

        A stated part of its slot's share of the link; while the link is unknown, of what a
        typical client takes, but more than readers that stand still could pass off as typical.
        """
        part = self._settings.slot_use_fraction
        if math.isfinite(self._capacity.rate_bytes_s):
            return part * self._capacity.rate_bytes_s / max(1, self._pool.slots_used)
        return max(
            part * self._capacity.typical_client_bytes_s, SLOT_USE.least_bytes_s if part else 0.0
        )

    def _look(self, now: float) -> None:
        # As `wake_s` adds it: else rounding may let time stand still.
        if now < self._looked_s + SLOT_USE.look_s:
            return
        passed_s = now - self._looked_s
        least = self.least_rate_bytes_s() * passed_s
        pool, waited_for = self._pool, len(self._queue) > 0
        for lease in pool.leases.values():
            taken = lease.seen_bytes - lease.remaining_bytes
            lease.seen_bytes = lease.remaining_bytes
            looked_at = lease.large and lease.connections and not lease.paused
            if not looked_at or lease.background or lease.started_s > self._looked_s:
                continue
            if not lease.slotless:
                if waited_for and taken < least and lease.stopped_s <= self._looked_s:
                    self._remove_slot(lease, now)
            elif taken >= least:
                if self._room.large_free() > 0 and self._may_regain(lease, now):
                    self._return_slot(lease)
                elif not self._policy.link_bound:
                    self._to_pause.append(lease)
        self._looked_s = now

    def _give_back_lent(self, now: float) -> None:
        """While others wait, a crowd that has slots beyond its part gives up the youngest.

        Those downloads go on as others without a slot do.
        """
        if now < self._shared_s + SLOT_USE.first_look_s or not len(self._queue):
            return
        if self._room.large_free() > 0:
            return
        self._shared_s = now
        others_wait = self._crowds.others_wait
        beyond = {one: more for one, more in self._crowds.beyond().items() if others_wait(one)}
        if not beyond:
            return
        for lease in reversed(list(self._pool.leases.values())):
            if len(self._pool.slotless) >= self._settings.slots_max:
                return
            if beyond.get(lease.network, 0) <= 0 or lease.slotless or not lease.large:
                continue
            beyond[lease.network] -= 1
            self._crowds.count(lease, -1)
            lease.lent = True
            self._pool.remove_slot(lease)
            self._on_trial.discard(lease.id)
            self._unseen.pop(lease.id, None)
            if lease.connections and not lease.paused:
                self._to_pause.append(lease)

    # -- slots removed and returned ----------------------------------------------------------------

    def _remove_slot(self, lease: Lease, now: float) -> None:
        self._tried(lease, now, used=False)
        if len(self._pool.slotless) < self._settings.slots_max:
            self._crowds.count(lease, -1)
            self._pool.remove_slot(lease)
            self._crowds.count(lease, 1)
            self._crowds.owe(lease.network)

    def _return_slot(self, lease: Lease) -> None:
        self._crowds.count(lease, -1)
        self._pool.return_slot(lease)
        self._crowds.count(lease, 1)

    def _may_regain(self, lease: Lease, now: float) -> bool:
        """Whether a free slot is this lease's, rather than of others that its crowd gave way to."""
        if not lease.lent or not self._crowds.others_wait(lease.network):
            return True
        return not self._crowds.is_full(lease.network, now)

    def _tried(self, lease: Lease, now: float, *, used: bool) -> None:
        """A large lease has shown whether it uses its slot, or is over."""
        if lease.id not in self._unseen and lease.id not in self._on_trial:
            return
        if used:
            self._crowds.repay(lease.network)
        if lease.id in self._on_trial:
            self._on_trial.discard(lease.id)
            self._first_uses.note(now, used=used)
            self._doubt(now)

    def _doubt(self, now: float) -> None:
        on_trial = len(self._on_trial) if self._room.network_shares else 0
        self._pool.doubted = self._first_uses.doubted(on_trial, now) if on_trial else 0
