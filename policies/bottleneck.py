"""What the line carries, found by looking: no configured bandwidth, no test traffic.

**Observed**, about four times a second: the bytes that clients have acknowledged (each download,
and all together), the bytes under way, whether the cap holds a download back, which sockets are
full, and which clients have shut their window. The kernel says the last one (`tcpi_rwnd_limited`):
there the client's program is the limit, and the download says nothing about the line. The kernel
cannot tell the server's line from the client's own line; a full socket looks alike on both.

**Believed**: the line is unknown (infinite), or carries a number of bytes a second. In the second
case the cap stands `cap_part` of it, so the queue stands in the server, where it can be ordered,
and not in the network (the idea of cake-autorate).

**Experiments** decide between two hypotheses each:

- *Is the line full, or does each client use up its own line?* Where most downloads lose packets at
  the same time, they share a full queue. Otherwise some downloads send less or more, and
  the others take over the difference on a full line only. A *trial* holds back `trial_part` of the
  goodput for that, those with most left, because shortest first would hold them back too. Downloads
  that come and go are natural trials. They decide over `evidence_s` once they weigh `evidence`, or
  sooner if the goodput stands still meanwhile.
- *Has the line more?* A *probe* raises the cap by `grown` for a moment, as BBR does. If more than
  `followed` arrives, the line has more. What a probe leaves in a queue is drained at `drain_part`.
- *Has the line fallen?* Less than `fallen` of it arrives, and all downloads lost at once, which
  lines of their own would not do. The queue before the line is drained at `fall_drain_part`, what
  arrives meanwhile is the line, and then a probe of twice that tests the fall. While nothing
  arrives at all there is an outage, and nothing is judged.

Each experiment is judged twice in a row. After one without effect the next comes later.
docs/decisions/line.md says why.

Cardwell et al., "BBR: congestion-based congestion control", ACM Queue 14(5), 2016.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class FinderTuning:
    """Parts and factors have no unit, times are seconds.

    "Half" and "double" say how the mean session over the cells of `python -m bench.sensitivity`
    changes. Windows of other lengths are multiples of `window_s`.
    """

    #: The part of the line at which the cap stands. Half: +79 %, 1.0 and more: +24 %.
    cap_part: float = 0.98
    #: Rates are looked at over this. Half: +1.5 %, double: +1.8 %, a fall +15 %.
    window_s: float = 1.0
    #: Less than this part is a fall, and more than this part of a crowd is all of it. Half: the
    #: 200 Mbit/s cell +1.5 %, 1.0 and more: +50 %.
    fallen: float = 0.8
    #: One judgement lowers the line by this factor at most: a line that stands still for half a
    #: second looks like one that carries nothing. No cell has such a stall; tests do.
    most_fall: float = 8.0
    #: The part of the goodput that a trial holds back. Half: a fall -1 %, double: a fall +16 %.
    trial_part: float = 0.3
    #: On a full line the others take over this part of a difference; half of it is not full. Half:
    #: the trace huge +9 %, 1.0 and more: +17 %.
    takeover: float = 0.6
    #: Comings and goings count this long, and a trial or drain lasts no longer. Double: 5 Mbit/s
    #: +1.5 %.
    evidence_s: float = 8.0
    #: Sum of squares of what came and went, in parts of the goodput, that is enough. Half: the
    #: trace huge +2 %.
    evidence: float = 0.1
    #: The same while the goodput stands still. Half: a fall +1.6 %, double: the trace huge +1.2 %.
    still_evidence: float = 0.008
    #: The goodput stands still if what came and went weighs this many times its own changes. No
    #: cell moves. Crowds that do not fill their line depend on it (tests).
    stillness: float = 5.0
    #: Fruitless probes before a known line is tried, doubled by each trial: the same slow clients
    #: stood still again and again (`python -m tests.random_days --first 1026 --days 1`).
    doubts: int = 3
    #: From a finding to the next trial, and half of the time between probes. Doubled after each
    #: trial without effect, 32-fold at most. Half: a rise -6 %, a fall -9 %, the trace huge +4 %,
    #: and every other download pays for twice as many probes.
    retry_s: float = 2.0
    #: A probe raises the cap by this factor, and a crowd that grew by it is tried anew. Below 1:
    #: +29 %, double: a bound twice too high +1.6 %.
    grown: float = 1.25
    #: A probe has found more if this factor of the line arrives. Below 1: +19 %.
    followed: float = 1.06
    #: The part of the line that is sent while what a probe left under way drains. Half: +1.2 %,
    #: 1.0 and more: what probes leave stands there for ever (tests).
    drain_part: float = 0.75
    #: The same for the queue before a line that was just found: it is longer. Half: 200 Mbit/s
    #: +2 %, 1.0 and more: a fall +1.7 %.
    fall_drain_part: float = 0.6
    #: A line is full while this part of the downloads has lost bytes. Behind a router whose queue
    #: was full 60 to 100 % had, and none once the line was found (10 Mbit/s, round trips of 20 ms).
    #: A download that fills its client's own line has some for one round trip of many.
    lossy_part: float = 0.5
    #: It is full at once if at least this many ...
    surge_count: int = 8
    #: ... are twice as many as two looks ago while no more arrives: on lines of their own they
    #: would fill these. A burst of 120 is found after 0.6 instead of 1.3 s (live, 20 ms).
    surge: float = 2.0

    @property
    def short_s(self) -> float:
        """Trials and probes are judged by half of a window."""
        return 0.5 * self.window_s


FINDER = FinderTuning()


class Sample(NamedTuple):
    """One running download at a tick.

    `acked_bytes` grows from its start and is what its peer has acknowledged; `stuck` says that its
    sockets take no more just now (and that nothing else holds it back), `shut` that its peer's
    window is shut: its program is what limits it, and it tells nothing of the line. `lossy` says
    that bytes of it were lost on the way and have not arrived again, as far as that is known.
    `in_slow_start`: it grows by itself, so its rate counts as that of a newcomer. `round_trip_s` is
    the shortest one that its connection has seen; 0: not known.
    """

    lease: int
    acked_bytes: int
    remaining_bytes: int
    stuck: bool
    shut: bool = False
    lossy: bool = False
    in_slow_start: bool = False
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LineOrders:
    """What to do until the next tick.

    `cap_bytes_s` is for the pacer (None: none), `line_bytes_s` what the line is taken to carry for
    downloads (infinite: unknown), `hold` the leases that must send nothing just now. `clear` says
    that the line limits no client beyond the cap; then `limited` has those that take all that their
    own lines carry.
    """

    cap_bytes_s: float | None = None
    line_bytes_s: float = math.inf
    hold: frozenset[int] = frozenset()
    clear: bool = False
    limited: frozenset[int] = frozenset()

    def held_back(self, lease: int, stuck: bool, in_slow_start: bool = False) -> bool | None:
        """Whether the server let this download have no more; None: that cannot be told just now.

        On a known line slow start counts so, too: its client would look as if it were idle.
        """
        known = self.line_bytes_s < math.inf
        if not stuck and known:
            # It waits for its turn under a cap that the line is known to carry.
            return True
        if not self.clear or stuck != (lease in self.limited):
            return True if known and in_slow_start else None
        return not stuck


@dataclass(slots=True)
class _LineLook:
    """What was seen at one tick; `acked` has none that was in slow start."""

    now: float
    acked_total: int
    acked: dict[int, int]
    count: int


@dataclass(slots=True)
class _LevelTrial:
    began_s: float
    #: Rates before it, of those held back and of the others.
    held: dict[int, float]
    kept: dict[int, float]
    goodput_bytes_s: float
    verdicts: int = 0


@dataclass(slots=True)
class _Probe:
    began_s: float
    factor: float
    #: What had not been acknowledged when it began.
    flying_bytes: int
    #: It is over, and this part of the line is sent until its queue is gone; None: it goes on.
    drain_part: float | None = None
    #: The queue is that of a line that was just found.
    found: bool = False
    #: A trial follows.
    doubtful: bool = False
    #: The line seems to have fallen. A probe tests that as soon as the queue is gone.
    fell: bool = False
    #: How long it takes until what is sent more arrives: a round trip and the queue.
    lag_s: float = 0.0
    #: What had arrived when it, or the probe that is drained, began to show, and when that was.
    acked_bytes: int = 0
    acked_s: float = -math.inf
    #: The greatest mean of what arrived since then, where that is what the line carries.
    most_bytes_s: float = 0.0


class Bottleneck:
    """Finds and follows one line. Feed it every quarter of a second or so; jitter does no harm.

    `ceiling_bytes_s` is the operator's bound: the cap is never above it. It tells nothing of the
    line until this much has arrived while it held a client back.
    """

    def __init__(self, ceiling_bytes_s: float | None = None) -> None:
        self.ceiling_bytes_s = ceiling_bytes_s
        self._line = math.inf
        self._looks: deque[_LineLook] = deque()
        #: Of the ticks within the window, which had a client held back by the cap.
        self._held: deque[tuple[float, bool]] = deque()
        #: Of the looks while the line is unknown: which part of the downloads had lost bytes.
        self._losses: deque[tuple[float, float]] = deque()
        self._stuck_since_s = math.inf
        #: Lease -> since when it has been stuck although the line limited no client.
        self._stuck: dict[int, float] = {}
        self._murky_until_s = -math.inf
        self._trial: _LevelTrial | None = None
        #: Whom the latest trial held back, while that can be seen in a rate, and until when.
        self._tried: frozenset[int] = frozenset()
        self._tried_s = -math.inf
        self._next_trial_s = -math.inf
        self._again_s = FINDER.retry_s
        #: What arrived, and what each took, when the last trial found no full line.
        self._crowd: tuple[float, Mapping[int, float]] = (0.0, {})
        self._probe: _Probe | None = None
        self._next_probe_s = -math.inf
        #: Fruitless probes, and how many there are before a trial.
        self._doubts, self._most_doubts = 0, FINDER.doubts
        self._falls = 0
        #: What comings and goings told at the last tick.
        self._natural = 0
        #: When; the goodput; what all others, and what those who stayed, took more than a moment
        #: before, in parts of it.
        self._evidence: deque[tuple[float, float, float, float]] = deque()

    def observe(
        self,
        now: float,
        acked_bytes_total: int,
        flying_bytes: int,
        held_back: bool,
        samples: Sequence[Sample],
    ) -> LineOrders:
        """One tick: all that was acknowledged since the start, what is under way, the running.

        `held_back`: the cap keeps a transfer that could send waiting. `samples` has every running
        download, those of the last `LineOrders.hold` too, but none that the policy paused.
        """
        acked = {sample.lease: sample.acked_bytes for sample in samples if not sample.in_slow_start}
        telling = [sample for sample in samples if not sample.shut]
        looks = self._looks
        if looks and now <= looks[-1].now:
            return self._orders()
        looks.append(_LineLook(now, acked_bytes_total, acked, len(samples)))
        while len(looks) > 2 and looks[1].now <= now - 2.0 * FINDER.window_s:
            looks.popleft()
        self._held.append((now, held_back))
        while self._held[0][0] <= now - FINDER.short_s:
            self._held.popleft()
        self._reach_ceiling(now)
        self._natural = verdict = self._comings_and_goings(now)
        if self._fell_together(now, telling):
            pass
        elif (lossy_bytes_s := self._lose_together(now, telling)) > 0.0:
            self._full(lossy_bytes_s, now)
        elif verdict > 0:
            self._full(self._rates(FINDER.window_s)[0], now)
        elif self._trial is not None:
            self._judge(self._trial, now)
        elif self._probe is not None:
            self._follow(self._probe, now, flying_bytes, telling)
        else:
            self._watch(now, flying_bytes, telling)
        if self._probe is not None:
            self._murky_until_s = max(self._murky_until_s, now + 0.5 * 1.5 * FINDER.window_s)
        # What a full line has left in a socket tells nothing until it has been taken.
        since_s = math.inf if now < self._murky_until_s else now
        stuck = self._stuck if since_s == now and self._clear else {}
        self._stuck = {
            sample.lease: stuck.get(sample.lease, since_s) for sample in samples if sample.stuck
        }
        return self._orders()

    @property
    def _clear(self) -> bool:
        """Whether the line limits no client beyond the cap, nor has done so a moment ago."""
        now = self._looks[-1].now
        if self._stuck_since_s < math.inf or self._trial is not None or now < self._murky_until_s:
            return False
        if self._line < math.inf:
            # Near the cap and held back by nothing: the cap may stand a little above the line.
            near = self._rates(FINDER.window_s)[0] >= FINDER.fallen * FINDER.cap_part * self._line
            return self._held_part() >= 0.5 or not near
        if self._natural < 0:
            return True
        then, took = self._crowd
        if took:
            return self._rates(FINDER.window_s)[0] <= FINDER.grown * then
        # One or two are taken to be limited by themselves until a crowd shows better.
        return self._looks[-1].count < 3

    def _orders(self) -> LineOrders:
        line = self._line
        cap = math.inf
        if line < math.inf:
            if self._probe is None:
                cap = FINDER.cap_part * line
            else:
                part = self._probe.drain_part
                cap = line * (self._probe.factor if part is None else part)
        if self.ceiling_bytes_s is not None:
            cap = min(cap, self.ceiling_bytes_s)
            if line < math.inf:
                line = min(line, self.ceiling_bytes_s)
        hold = frozenset(self._trial.held) if self._trial is not None else frozenset[int]()
        clear = self._clear
        least_s = self._looks[-1].now - 0.2 * FINDER.window_s
        limited = frozenset(lease for lease, since_s in self._stuck.items() if since_s <= least_s)
        return LineOrders(
            cap if cap < math.inf else None, line, hold, clear, limited if clear else frozenset()
        )

    # -- what is seen --------------------------------------------------------------------------

    def _round_trip_s(self, samples: Sequence[Sample]) -> float:
        """The mean of all that was sent lately; of those whose rates are known."""
        _, rates = self._rates(FINDER.short_s)
        told = [(rates.get(one.lease, 0.0), one.round_trip_s) for one in samples]
        sent = sum([rate for rate, _ in told])
        return sum([rate * trip_s for rate, trip_s in told]) / sent if sent > 0.0 else 0.0

    def _since(self, seconds: float) -> _LineLook | None:
        """The latest look that is at least so old."""
        until_s = self._looks[-1].now - seconds + 1e-6
        return next((look for look in reversed(self._looks) if look.now <= until_s), None)

    def _rates(self, seconds: float) -> tuple[float, Mapping[int, float]]:
        """Goodput, and by lease for those who ran all the time, over the last seconds."""
        latest, before = self._looks[-1], self._since(seconds) or self._looks[0]
        passed = latest.now - before.now
        if passed <= 0.0:
            return 0.0, {}
        rates = {
            lease: (count - before.acked[lease]) / passed
            for lease, count in latest.acked.items()
            if lease in before.acked
        }
        return (latest.acked_total - before.acked_total) / passed, rates

    def _fell_together(self, now: float, samples: Sequence[Sample]) -> bool:
        """Whether all of these have slowed down at once, which lines of their own would not do.

        Quicker than a trial: what is held back of that arrives until its sockets are empty.
        """
        middle, old = self._since(FINDER.window_s), self._looks[0]
        if self._line == math.inf or self._trial is not None or middle is None:
            return False
        # Less was sent a moment ago.
        probes = self._probe is not None and self._probe.drain_part is None
        murky = now < self._murky_until_s and not probes
        passed = middle.now - old.now
        goodput, rates = self._rates(FINDER.short_s)
        fell = passed >= FINDER.short_s and goodput < FINDER.fallen * self._line
        if fell and not murky:
            before = {
                lease: (middle.acked[lease] - old.acked[lease]) / passed
                for lease in [sample.lease for sample in samples]
                if lease in old.acked and lease in middle.acked and lease in rates
            }
            slower = sum(
                rates[lease] < 0.5 * (1.0 + FINDER.fallen) * rate for lease, rate in before.items()
            )
            less = sum(rates[lease] for lease in before) < FINDER.fallen * sum(before.values())
            fell = len(before) >= 3 and slower >= FINDER.fallen * len(before) and less
        self._falls = self._falls + 1 if fell and not murky else 0
        if self._falls < 2:
            return False
        self._falls, self._probe = 0, None
        self._full(goodput, now)
        return True

    def _lose_together(self, now: float, samples: Sequence[Sample]) -> float:
        """What arrives while most of these have lost bytes, which own lines would not do; else 0.

        Not of a crowd that was just found not to fill the line: its networks lose by themselves.
        """
        losses, count = self._losses, len(samples)
        if self._line < math.inf or count < 3 or count <= FINDER.grown * len(self._crowd[1]):
            losses.clear()
            return 0.0
        losses.append((now, sum(sample.lossy for sample in samples) / count))
        while losses[0][0] < now - 1.5 * FINDER.window_s:
            losses.popleft()
        parts, least = [part for _, part in losses], FINDER.lossy_part
        goodput = self._stands_in_surge() if count >= FINDER.surge_count else 0.0
        if goodput > 0.0:
            parts, least = parts[-2:], FINDER.fallen * least  # Newcomers had no time to lose any.
        elif now - losses[0][0] >= 1.2 * FINDER.window_s:
            goodput = self._rates(1.5 * FINDER.window_s)[0]
        return goodput if sum(parts) >= least * len(parts) else 0.0

    def _stands_in_surge(self) -> float:
        """What arrives (by the lower look) if it grows far less than the number does; else 0."""
        if len(self._looks) < 3:
            return 0.0
        old, middle, latest = [self._looks[place] for place in (-3, -2, -1)]
        before = (middle.acked_total - old.acked_total) / (middle.now - old.now)
        after = (latest.acked_total - middle.acked_total) / (latest.now - middle.now)
        surges = latest.count >= FINDER.surge * max(1, old.count)
        stands = FINDER.fallen * before <= after <= FINDER.grown * before
        return min(before, after) if surges and stands else 0.0

    def _held_part(self) -> float:
        return sum(held for _, held in self._held) / len(self._held)

    @property
    def _bounded(self) -> bool:
        """Whether the line is known to carry the ceiling."""
        ceiling = self.ceiling_bytes_s
        return ceiling is not None and math.inf > FINDER.cap_part * self._line >= 0.999 * ceiling

    def _reach_ceiling(self, now: float) -> None:
        """While the ceiling holds a client back, and all of it arrives, the line carries it."""
        ceiling, seen = self.ceiling_bytes_s, self._since(FINDER.short_s) is not None
        if ceiling is None or self._bounded or self._held_part() < 0.5 or not seen:
            return
        if self._rates(FINDER.short_s)[0] < FINDER.cap_part * ceiling:
            return
        self._trial = self._probe = None
        self._line = ceiling / FINDER.cap_part
        self._again_s, self._crowd = FINDER.retry_s, (0.0, {})
        self._next_trial_s = now + FINDER.retry_s
        self._evidence.clear()

    # -- nothing special -----------------------------------------------------------------------

    def _watch(self, now: float, flying_bytes: int, samples: Sequence[Sample]) -> None:
        if self._since(FINDER.window_s - 0.05) is None:
            return
        stuck_since_s, self._stuck_since_s = self._stuck_since_s, math.inf
        if self._line < math.inf and self._held_part() >= 0.5:
            if not self._bounded and now >= self._next_probe_s:
                self._raise(FINDER.grown, now, flying_bytes)
            return
        goodput, rates = self._rates(FINDER.window_s)
        crowd = _telling(samples, rates)
        stuck = sum(sample.stuck for sample in crowd)
        if len(crowd) < 2 or stuck < FINDER.fallen * len(crowd) or goodput <= 0.0:
            return
        then, took = self._crowd
        before = {lease: rate for lease, rate in took.items() if lease in rates}
        slowed = FINDER.grown * sum(rates[lease] for lease in before) < sum(before.values())
        grew = len(crowd) > FINDER.grown * len(took) or goodput > FINDER.grown * then
        changed = bool(took) and (grew or slowed)
        sooner_s = max(0.5 * self._again_s, self._again_s - FINDER.evidence_s) if changed else 0.0
        if now < self._next_trial_s - sooner_s:
            return
        self._stuck_since_s = min(stuck_since_s, now)
        if now - self._stuck_since_s >= FINDER.short_s:
            self._try(now, crowd, rates, goodput)

    def _comings_and_goings(self, now: float) -> int:
        """What natural trials tell: 1 that the line is full, -1 that it is not, 0 nothing yet.

        Downloads that stay make room for those that come and take over from those that go, or do
        not: the slope of the one against the other, over the last seconds.
        """
        if self._trial is None and now > self._tried_s + 2 * FINDER.short_s:
            self._tried = frozenset()
        middle, old = self._since(FINDER.short_s), self._since(2 * FINDER.short_s)
        evidence = self._evidence
        while evidence and evidence[0][0] < now - FINDER.evidence_s:
            evidence.popleft()
        fresh = not evidence or evidence[-1][0] <= now - FINDER.short_s
        if self._probe is not None or (self._line < math.inf and self._held_part() > 0.0):
            # What the cap holds back makes room whatever the line is. (Below a ceiling that was
            # not reached it is not the cap that makes the goodput stand still.)
            evidence.clear()
            return 0
        if middle is not None and old is not None and fresh and middle.now > old.now:
            passed = middle.now - old.now
            goodput, rates = self._rates(FINDER.short_s)
            before = (middle.acked_total - old.acked_total) / passed
            if goodput <= 0.0 or before <= 0.0:
                return 0
            stayed = {
                lease: (count - old.acked[lease]) / passed
                for lease, count in middle.acked.items()
                if lease in old.acked and lease in rates and lease not in self._tried
            }
            gained = sum(rates[lease] - rate for lease, rate in stayed.items())
            most = max(goodput, before)
            if sum(stayed.values()) >= FINDER.trial_part * before:
                others = (goodput - before - gained) / most
                evidence.append((now, most, others, gained / most))
        level = FINDER.fallen * max((most for _, most, _, _ in evidence), default=0.0)
        if self._line == math.inf and _stood_still(evidence, level):
            return 1
        told = [
            (others, gained)
            for _, most, others, gained in evidence
            if most * (1.0 - abs(others + gained)) >= level
        ]
        weight, slope = _slope(told)
        if weight < FINDER.evidence:
            return 0
        return 1 if slope >= FINDER.takeover else -1 if slope <= FINDER.takeover / 2.0 else 0

    # -- trials --------------------------------------------------------------------------------

    def _try(
        self, now: float, crowd: Sequence[Sample], rates: Mapping[int, float], goodput: float
    ) -> None:
        """Hold back the last in the order of shortest remaining first, if that is not too much."""
        total = sum(rates[sample.lease] for sample in crowd)
        held, rate = dict[int, float](), 0.0
        for sample in sorted(crowd, key=lambda sample: -sample.remaining_bytes):
            more = rates[sample.lease]
            if rate >= FINDER.trial_part * total or len(held) >= max(1, len(crowd) // 2):
                break
            if more > 0.0 and (rate + more <= 0.6 * total or len(crowd) == 2):
                held[sample.lease] = more
                rate += more
        if rate < FINDER.trial_part / 2.0 * total:
            # One has nearly all, as with dozens of connections: the others alone tell nothing.
            first = max(crowd, key=lambda sample: rates[sample.lease]).lease
            held = {first: rates[first]}
        kept = {s.lease: rates[s.lease] for s in crowd if s.lease not in held}
        self._trial = _LevelTrial(now, held, kept, goodput)
        self._tried = frozenset(held)

    def _judge(self, trial: _LevelTrial, now: float) -> None:
        """Whether the others took over what was set free; see the module's head."""
        self._tried_s = now
        lasted_s = now - trial.began_s
        if lasted_s < FINDER.window_s - 0.05:
            return
        goodput, rates = self._rates(FINDER.short_s)
        kept = [lease for lease in trial.kept if lease in rates]
        gained = sum(rates[lease] - trial.kept[lease] for lease in kept)
        # What all others, held back, gone or new, take more than before; the kept ones make room
        # for it, or take over what it falls short, if they share a full line, and else do not.
        others = goodput - trial.goodput_bytes_s - gained
        least = FINDER.trial_part / 2.0 * trial.goodput_bytes_s
        # Where all take less, that tells nothing of who limits them.
        if abs(others) >= max(1.0, least) and max(others, gained) >= -0.5 * least:
            taken = -gained / others >= 0.5
            trial.verdicts = max(1, trial.verdicts + 1) if taken else min(-1, trial.verdicts - 1)
            if trial.verdicts >= 2:
                self._full(max(goodput, trial.goodput_bytes_s), now)
                return
            if trial.verdicts <= -2:
                self._not_full(trial.goodput_bytes_s, trial.held | trial.kept, now)
                return
        most_s = FINDER.evidence_s if self._line == math.inf else 2.5 * FINDER.window_s
        if lasted_s >= most_s:
            # Too much came and went to tell: newcomers soon take what is free of a known line.
            self._trial = None
            self._wait_longer(now)

    def _full(self, goodput_bytes_s: float, now: float) -> None:
        """The line carries just that; or what it is bound to, if that is so near."""
        self._trial = None
        if goodput_bytes_s <= 0.0:
            # Nothing arrives at all: that is an outage and tells nothing of the line.
            return
        news, ceiling = goodput_bytes_s < FINDER.fallen * self._line, self.ceiling_bytes_s
        fell = news and self._line < math.inf
        if fell:
            goodput_bytes_s = max(goodput_bytes_s, self._line / FINDER.most_fall)
        if ceiling is not None and goodput_bytes_s >= FINDER.cap_part * ceiling:
            goodput_bytes_s = ceiling / FINDER.cap_part
        self._line = goodput_bytes_s
        self._murky_until_s = now + 1.5 * FINDER.window_s
        self._again_s, self._crowd = FINDER.retry_s, (0.0, {})
        self._next_trial_s = now + FINDER.retry_s
        self._next_probe_s = now + FINDER.retry_s
        self._stuck_since_s = math.inf
        self._evidence.clear()
        if news:
            self._doubts, self._most_doubts = 0, FINDER.doubts
            # What stands before the line slows down all who begin; it can wait in the server.
            acked, part = self._looks[-1].acked_total, FINDER.fall_drain_part
            self._probe = _Probe(now, 1.0, 0, part, found=True, fell=fell, acked_bytes=acked)

    def _not_full(self, goodput_bytes_s: float, rates: Mapping[int, float], now: float) -> None:
        """Each client is limited by itself. A cap that held any was wrong."""
        self._trial = None
        if not self._bounded and goodput_bytes_s >= 0.9 * FINDER.cap_part * self._line:
            self._line = math.inf
        self._crowd = (goodput_bytes_s, rates)
        self._wait_longer(now)

    def _wait_longer(self, now: float) -> None:
        """A trial cost something and changed nothing: the next one is later."""
        self._again_s = min(32.0 * FINDER.retry_s, 2.0 * self._again_s)
        self._next_trial_s = now + self._again_s
        self._stuck_since_s = math.inf

    # -- probes --------------------------------------------------------------------------------

    def _raise(self, factor: float, now: float, flying_bytes: int) -> None:
        goodput = self._rates(FINDER.short_s)[0]
        lag_s = min(FINDER.short_s, flying_bytes / goodput) if goodput > 0.0 else 0.0
        self._probe = _Probe(now, factor, flying_bytes, lag_s=lag_s)

    def _follow(
        self, probe: _Probe, now: float, flying_bytes: int, samples: Sequence[Sample]
    ) -> None:
        lasted_s = now - probe.began_s
        if probe.drain_part is not None:
            self._let_drain(probe, probe.drain_part, now, flying_bytes, samples)
            return
        if lasted_s >= probe.lag_s and probe.acked_s == -math.inf:
            probe.acked_bytes, probe.acked_s = self._looks[-1].acked_total, now
        if lasted_s < FINDER.short_s + probe.lag_s - 0.05:
            return
        goodput, rates = self._rates(FINDER.short_s)
        if goodput > FINDER.followed * self._line:
            self._line = goodput
            factor = min(2.0, probe.factor * FINDER.grown)
            self._raise(factor, now, probe.flying_bytes)
            self._doubts, self._most_doubts = 0, FINDER.doubts
            return
        beyond = (flying_bytes - probe.flying_bytes) / lasted_s
        stands = beyond >= FINDER.takeover * (probe.factor - 1.0) * self._line
        if lasted_s < FINDER.window_s + probe.lag_s - 0.05:
            if not stands or goodput > self._line / FINDER.cap_part:
                return
            # What a token bucket had saved up may have left in so short a time, too.
            goodput = min(goodput, self._line)
        else:
            goodput, rates = self._rates(FINDER.window_s)
        self._doubts += 1
        crowd = [sample for sample in samples if sample.lease in rates]
        doubtful = self._doubts >= self._most_doubts and len(crowd) >= 3
        if doubtful:
            self._doubts, self._most_doubts = 0, 2 * self._most_doubts
        self._probe = drain = _Probe(now, 1.0, 0, FINDER.drain_part, doubtful=doubtful)
        if self._held_part() >= 0.5 and goodput + beyond >= FINDER.followed * self._line:
            # More was sent than arrived: until that has drained, the line carries what arrives.
            drain.acked_bytes, drain.acked_s = probe.acked_bytes, probe.acked_s
        # Perhaps there is nothing to drain.
        self._let_drain(drain, FINDER.drain_part, now, flying_bytes, samples)

    def _let_drain(
        self,
        probe: _Probe,
        part: float,
        now: float,
        flying_bytes: int,
        samples: Sequence[Sample],
    ) -> None:
        """Send less until nothing stands before the line: what is new would stand behind it."""
        lasted_s = now - probe.began_s
        least, line_bytes_s = 1.0 - 0.5 * (1.0 - part), self._line
        if probe.acked_s > -math.inf:
            # What was lost arrives late and all at once, so only the mean since the start tells.
            arrived = self._looks[-1].acked_total - probe.acked_bytes
            probe.most_bytes_s = max(probe.most_bytes_s, arrived / (now - probe.acked_s))
            most = min(probe.most_bytes_s, FINDER.followed * line_bytes_s)
            line_bytes_s = max(0.9 * line_bytes_s, most)
        if probe.found and not probe.fell and lasted_s >= FINDER.window_s:
            # While a queue stands, all that arrives is the line. It was found while the crowd grew.
            arrived = self._looks[-1].acked_total - probe.acked_bytes
            self._line = line_bytes_s = max(line_bytes_s, arrived / lasted_s)
        # What is on its way through an empty line is no queue.
        empty_s = 1.0 - FINDER.cap_part + self._round_trip_s(samples)
        drained = flying_bytes <= empty_s * line_bytes_s
        if lasted_s >= FINDER.short_s:
            drained = drained or self._rates(FINDER.short_s)[0] < least * line_bytes_s
        if not drained and lasted_s < FINDER.evidence_s:
            if probe.fell and lasted_s >= FINDER.window_s:
                # The fall was seen half over.
                self._line = min(self._line, self._rates(FINDER.window_s)[0])
            return
        self._line = line_bytes_s
        if probe.fell:
            # A line that only stood still for a moment is found again at once.
            self._raise(2.0, now, flying_bytes)
            return
        self._probe = None
        self._next_probe_s = now + 2.0 * FINDER.retry_s
        goodput, rates = self._rates(FINDER.window_s)
        crowd = [sample for sample in samples if sample.lease in rates]
        if probe.doubtful and len(crowd) >= 3:
            self._try(now, crowd, rates, goodput)


def _slope(told: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """How much others came and went (squares), and what part of it those who stayed took over."""
    weight = sum(others * others for others, _ in told)
    return weight, -sum(others * gained for others, gained in told) / weight if weight else 0.0


def _stood_still(evidence: Sequence[tuple[float, float, float, float]], level: float) -> bool:
    """Whether the goodput has stood still up to now, for a while, although enough came and went."""
    told: list[tuple[float, float]] = []
    moved = 0.0
    for _, most, others, gained in reversed(evidence):
        if most * (1.0 - abs(others + gained)) < level:
            break
        told.append((others, gained))
        moved += (others + gained) ** 2
        weight, slope = _slope(told)
        if slope < FINDER.takeover:
            continue
        if weight >= max(FINDER.still_evidence, FINDER.stillness * moved):
            return True
    return False


def _telling(samples: Sequence[Sample], rates: Mapping[int, float]) -> list[Sample]:
    """Those that tell something of the line: one that takes nearly nothing is stuck by itself.

    Else a few readers that stand still could make a line look full that has room.
    """
    here = [sample for sample in samples if sample.lease in rates]
    goodput = sum(rates[sample.lease] for sample in here)
    least = (1.0 - FINDER.cap_part) * goodput / max(1, len(here))
    return [sample for sample in here if rates[sample.lease] >= least]
