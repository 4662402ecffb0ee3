"""Who runs, who only takes what others leave, who is paused, and who is measured.

The downloads whose own speeds fill the line run. The one that fills it, for which less than its
speed is left, and some beyond run in the *background*: the pacer gives them what the others leave,
and hardly any more. So they take nothing from those before them, and the line stays full while one
download follows another, however roughly speeds are known.

A *probe* is a first short run of a client whose speed nobody knows: rank needs the speed. What
keeps a paused client from giving up is sent by the data plane (`policies.keep_alive`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .capacity import Capacity
from .leases import Lease, LeasePool
from .running import Running

#: A probe lasts this long, two looks at the progress of a live transfer; while its client's speed
#: has still not been seen, up to the second of these, seconds.
PROBE_S, _PROBE_MOST_S = 0.5, 2.0
#: Beyond what fills the line such a part of it runs in the background.
_BEYOND = 0.2
#: A line counts as filled by this part of its demand: two ways of adding up speeds differ by less.
_ENOUGH = 1.0 - 1e-9
#: The last that runs where all do.
_ALL = (math.inf, math.inf)
#: Speeds below this are none, bytes/s.
_NOTHING = 1e-9


class Preemption:
    """The paused leases of one policy, and those that are being measured."""

    __slots__ = ("_ahead", "_behind", "_filled", "_last", "_order", "_pool", "_probes", "count")

    def __init__(self, pool: LeasePool) -> None:
        self._pool = pool
        #: The order of the last decision, and on each line key and number of the last that ran.
        self._order: list[Lease] | None = None
        self._last: dict[str, tuple[float, float]] = {}
        #: Of each line the first that can take something, and the one that fills it.
        self._filled: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {}
        #: See `turned`.
        self._behind: list[int] = []
        self._ahead: list[int] = []
        #: Those that run whatever their rank: since when, the latest last.
        self._probes: dict[Lease, float] = {}
        #: How many are paused that have had a turn, or a place out of turn.
        self.count = 0

    def inherit(self) -> None:
        """Another policy left a lease paused."""
        self.count += 1

    def probe(self, lease: Lease, now: float) -> None:
        """Let a newcomer run for a moment, to see what its client can take."""
        self._probes.pop(lease, None)
        self._probes[lease] = now

    def drop(self, lease: Lease) -> None:
        """The lease is over."""
        self.count -= lease.paused and not lease.opened
        self._probes.pop(lease, None)

    @property
    def probes(self) -> int:
        """Newcomers that are being measured now."""
        return len(self._probes)

    def choose(
        self, running: Running, capacity: Capacity, now: float
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases stop and which go on.

        On each line they run in their order until their speeds meet its demand, and some beyond.
        """
        over = self._end_probes(now)
        order = running.in_order()
        moved, running.moved = running.moved, []
        if order is self._order and running.summed:
            decided = self._follow(running, (*over, *moved), capacity, now)
            self._turn(running)
            return decided
        if order is self._order:
            # Something has happened since they were put in order, and more will.
            running.sum_up(left=False)
        self._order = order
        decided = self._walk(running, capacity, now)
        self._turn(running)
        return decided

    def _end_probes(self, now: float) -> list[Lease]:
        """Those whose probe has told what it can."""
        over: list[Lease] = []
        for lease, began_s in self._probes.items():
            if now < began_s + PROBE_S:
                break
            if lease.cap_bytes_s < math.inf or now >= began_s + _PROBE_MOST_S:
                over.append(lease)
        for lease in over:
            del self._probes[lease]
        return over

    def _walk(
        self, running: Running, capacity: Capacity, now: float
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Decide on all of them."""
        probes = self._probes
        pause: list[int] = []
        resume: list[int] = []
        self._last, self._filled = {}, {}
        # Of each line: what it has room for beside those that go on.
        room: dict[str, float] = {}
        line, left, beyond = None, 0.0, 0.0
        first = filler = _ALL
        for lease in running.in_order():
            if lease.line != line:
                # Nearly always there is one line only.
                if line is not None:
                    room[line] = left
                    self._filled[line] = first, filler
                line = lease.line
                fills = _ENOUGH * capacity.demand_of(line)
                beyond = _BEYOND * fills
                left = room.get(line, fills + beyond)
                first, filler = self._filled.get(line, (_ALL, _ALL))
            if left > 0.0:
                if lease.connections:
                    left -= lease.speed_bytes_s
                    if first == _ALL:
                        first = lease.key, lease.id
                    if filler == _ALL and left <= beyond < math.inf:
                        filler = lease.key, lease.id
                    if left <= 0.0:
                        self._last[line] = lease.key, lease.id
                if lease.paused:
                    resume.append(self._resume(lease))
            elif lease in probes:
                if lease.paused:
                    resume.append(self._resume(lease))
            elif not lease.paused:
                pause.append(self._pause(lease, now))
        if line is not None:
            self._filled[line] = first, filler
        return tuple(pause), tuple(resume)

    def _follow(
        self, running: Running, moved: Iterable[Lease], capacity: Capacity, now: float
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Decide on those for whom it may have changed; `moved` are some, the others lie between
        the last that ran before and the last that runs now.
        """
        probes = self._probes
        pause: list[int] = []
        resume: list[int] = []
        for line in running.lines():
            before = self._last.get(line, _ALL)
            fills = _ENOUGH * capacity.demand_of(line)
            first = running.last_before(_NOTHING, line)
            self._filled[line] = first, running.last_before(fills, line)
            last = running.last_before(fills + _BEYOND * fills, line)
            self._last[line] = last
            if last > before:
                for lease in running.between(before, last, line):
                    if lease.paused:
                        resume.append(self._resume(lease))
            elif last < before:
                for lease in running.between(last, before, line):
                    if not lease.paused and lease not in probes:
                        pause.append(self._pause(lease, now))
        for lease in moved:
            if lease not in running:
                continue
            runs = (lease.key, lease.id) <= self._last.get(lease.line, _ALL) or lease in probes
            if runs and lease.paused:
                resume.append(self._resume(lease))
            elif not runs and not lease.paused:
                pause.append(self._pause(lease, now))
        return tuple(pause), tuple(resume)

    def _turn(self, running: Running) -> None:
        """Let those from the one that fills its line on have what others leave, but no first."""
        probes, wanted = self._probes, set()
        for line, (first, filler) in self._filled.items():
            after = first if filler <= first else (filler[0], filler[1] - 0.5)
            for lease in running.between(after, self._last.get(line, _ALL), line):
                if lease.connections and not lease.paused and lease not in probes:
                    wanted.add(lease.id)
                    if not lease.background:
                        self._pool.put_behind(lease, background=True)
                        self._behind.append(lease.id)
        for number in self._pool.background.keys() - wanted:
            self._pool.put_behind(self._pool.background[number], background=False)
            self._ahead.append(number)

    def turned(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which have come to run in the background since the last call, and which in front."""
        behind, ahead = tuple(self._behind), tuple(self._ahead)
        self._behind, self._ahead = [], []
        return behind, ahead

    def _resume(self, lease: Lease) -> int:
        self._pool.resume(lease)
        self.count -= not lease.opened
        return lease.id

    def _pause(self, lease: Lease, now: float) -> int:
        self._pool.pause(lease, now)
        self.count += not lease.opened
        return lease.id

    def next_s(self, now: float) -> float | None:
        """When the next probe is over at the soonest."""
        soonest: float | None = None
        # Thousands may be overdue while no speed is known: only the others are walked.
        for began_s in reversed(self._probes.values()):
            if began_s + PROBE_S <= now:
                break
            soonest = began_s + PROBE_S
        return now + PROBE_S if soonest is None and self._probes else soonest
