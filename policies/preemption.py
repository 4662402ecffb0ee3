"""Preemption: which downloads run, which run in the background, and which are paused.

The downloads whose own speeds fill the line run. The one that fills it and a few beyond run in the
*background*: they get what the others leave (`keep_alive.BACKGROUND_WEIGHT`). So they take nothing
from those before them, and the line stays full while one download follows another.

A *probe* is a first short run of a client whose speed is unknown: the guard needs it.

No download stands still for long: one that was paused for `longest_pause_s` has a *turn*, a probe
in the background. One that began before the line was known has longer turns more often, as its
client watches it without a page that tells the end (`Lease.unwarned`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice, takewhile

from .leases import Lease, LeasePool
from .running import Running


@dataclass(frozen=True, slots=True)
class PreemptionTuning:
    """Times are seconds."""

    #: A probe lasts for two looks at the progress of a live transfer ...
    probe_s: float = 0.5
    #: ... or until this, while its client's speed has still not been seen.
    longest_probe_s: float = 2.0
    #: This part of a line's demand runs beyond it, in the background. `make laws`: "background".
    beyond: float = 0.2
    #: A pause ends with a turn after this: no client sees a stalled download for 10 s.
    longest_pause_s: float = 9.5
    #: A turn lasts for one look at the progress of a live transfer. With 0.5 and a turn after 8 s
    #: the mean of Experiment 2 is 1.2 % longer than without turns, so 0.8 %.
    turn_s: float = 0.25
    #: The same of a download whose client was not warned: its progress can be seen. Six browsers
    #: that came within a second to 6 Mbit/s had less than 16 kB in up to 20 s without this.
    unwarned_pause_s: float = 5.0
    unwarned_turn_s: float = 1.0
    #: No more of these have a turn at once before `longest_pause_s`. With 4 after 3 s browsers in a
    #: burst at an unknown line need 4 % longer in the mean than without these turns; so, 0 %.
    unwarned_at_once: int = 2


PREEMPTION = PreemptionTuning()

Ids = tuple[int, ...]


class Preemption:
    """Pauses and resumes leases of one policy; some of them are being probed."""

    def __init__(self, pool: LeasePool, running: Running) -> None:
        self._pool = pool
        self._running = running
        self._unpaused: dict[int, Lease] = {}
        #: Those that are paused and have run before; the one that has been so for longest first.
        self._paused: dict[int, Lease] = {}
        #: Those of them whose clients were not warned, in the same order.
        self._unwarned: dict[int, Lease] = {}
        #: Leases that run whatever their rank: since when, the latest last.
        self._probes: dict[Lease, float] = {}
        #: Those of them that have a turn.
        self._turns: set[Lease] = set()

    @property
    def count(self) -> int:
        """How many stand back that have run before: they are paused, or have a turn."""
        return len(self._paused) + len(self._turns)

    def add(self, lease: Lease) -> None:
        """A lease has begun, perhaps under another policy."""
        self._running.changed = True
        if not lease.paused:
            self._unpaused[lease.id] = lease
        elif not lease.opened:
            self._stands_back(lease)

    def _stands_back(self, lease: Lease) -> None:
        self._paused[lease.id] = lease
        if lease.unwarned:
            self._unwarned[lease.id] = lease

    def probe(self, lease: Lease, now: float) -> None:
        """Let a newcomer run for a moment, to see what its client can take."""
        self._probes.pop(lease, None)
        self._turns.discard(lease)
        self._probes[lease] = now

    def remove(self, lease: Lease) -> None:
        """A lease is over."""
        self._unpaused.pop(lease.id, None)
        self._paused.pop(lease.id, None)
        self._unwarned.pop(lease.id, None)
        self._probes.pop(lease, None)
        self._turns.discard(lease)

    def choose(self, now: float) -> tuple[Ids, Ids]:
        """Pause and resume: on each line the first run until their speeds meet its demand."""
        ended, begun = self._end_probes(now), self._begin_turns(now)
        if not (self._pool.can_pause and (ended or begun or self._running.changed)):
            return (), ()
        self._running.changed = False
        runs: dict[int, Lease] = {}
        behind: dict[int, Lease] = {}
        #: Lines on which a client may be faster than it was seen to be.
        perhaps_full: set[str] = set()
        for lease, before, after in self._running.first_ones(1.0 + PREEMPTION.beyond):
            runs[lease.id] = lease
            lease.stood_back_bytes = 0
            # The one that fills the line is behind, but never the first that takes something.
            fills = before > 0.0 and after >= 1.0 and lease.connections
            if fills or (lease.yields and lease.line in perhaps_full):
                behind[lease.id] = lease
            if lease.connections and (lease.cap_is_floor or lease.cap_bytes_s == math.inf):
                perhaps_full.add(lease.line)
        for lease in self._probes:
            if lease not in self._turns:
                behind.pop(lease.id, None)
            elif lease.id not in runs:
                behind[lease.id] = lease
            runs[lease.id] = lease
        pause = [lease for number, lease in self._unpaused.items() if number not in runs]
        resume = [lease for lease in runs.values() if lease.paused]
        for lease in pause:
            self._pool.pause(lease, now)
            if not lease.opened:
                self._stands_back(lease)
                lease.stood_back_bytes = lease.rank_bytes
            del self._unpaused[lease.id]
        for lease in resume:
            self._pool.resume(lease)
            self._paused.pop(lease.id, None)
            self._unwarned.pop(lease.id, None)
            self._unpaused[lease.id] = lease
        self._pool.set_background(behind)
        return tuple([lease.id for lease in pause]), tuple([lease.id for lease in resume])

    def _end_probes(self, now: float) -> bool:
        """Whether any is over."""
        over: list[Lease] = []
        for lease, began_s in self._probes.items():
            if now < began_s + PREEMPTION.turn_s:
                break
            if (lease in self._turns and now >= began_s + _turn_s(lease)) or (
                now >= began_s + PREEMPTION.probe_s
                and (lease.cap_bytes_s < math.inf or now >= began_s + PREEMPTION.longest_probe_s)
            ):
                over.append(lease)
        for lease in over:
            del self._probes[lease]
            self._turns.discard(lease)
        return bool(over)

    def _begin_turns(self, now: float) -> bool:
        """Whether any begins."""
        paused, longest_s = self._paused.values(), PREEMPTION.longest_pause_s
        due = list(takewhile(lambda one: one.stopped_s + longest_s <= now, paused))
        most = PREEMPTION.unwarned_at_once - sum(one.unwarned for one in self._turns)
        due_s = now - PREEMPTION.unwarned_pause_s
        due += takewhile(
            lambda one: one.stopped_s <= due_s, islice(self._unwarned.values(), max(0, most))
        )
        self._probes.update(dict.fromkeys(due, now))
        self._turns.update(due)
        return bool(due)

    def next_s(self, now: float) -> float | None:
        """When the next probe is over, or the next turn begins, at the soonest."""
        ends: list[float] = []
        # Thousands may be overdue while no speed is known: only the others are walked.
        for lease, began_s in reversed(self._probes.items()):
            if began_s + PREEMPTION.probe_s <= now:
                break
            lasts_s = _turn_s(lease) if lease in self._turns else PREEMPTION.probe_s
            ends.append(began_s + lasts_s)
        soonest = min((end for end in ends if end > now), default=None)
        if soonest is None and self._probes:
            soonest = now + PREEMPTION.probe_s
        for lease in islice(self._paused.values(), 1):
            due_s = lease.stopped_s + PREEMPTION.longest_pause_s
            soonest = due_s if soonest is None else min(soonest, due_s)
        return soonest


def _turn_s(lease: Lease) -> float:
    return PREEMPTION.unwarned_turn_s if lease.unwarned else PREEMPTION.turn_s
