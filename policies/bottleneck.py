"""What the line carries, found by looking: no configured bandwidth, no test traffic.

While nobody is held back by the server itself, a crowd may be limited by the server's line or each
client by its own. Seen from a socket both look alike: it takes no more. They are told apart by a
*trial*: a part of the crowd is held back for about a second. On a full line the others take over
what is set free, on lines of their own they cannot. (Holding back those with most left costs
nobody: shortest first would do the same.)

Once the line is known the pacer is capped a little below it, so the queue stands in the server,
where it can be ordered, and not in the network: cake-autorate's idea. Sometimes the cap is raised
for a moment, a *probe* as BBR makes them: if more arrives, the line has more. When the crowd
takes less than the cap although nothing holds it back, a trial tells whether the line has fallen.
Trials are repeated while the cap holds, too: a cap that was put on a crowd that did not fill its
line is lifted by the first of them.

Cardwell et al., "BBR: congestion-based congestion control", ACM Queue 14(5), 2016.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: The cap stands at this part of what the line was seen to carry.
_BELOW = 0.98
#: Rates are looked at over this long, in a trial or probe over the shorter, seconds.
_LONG_S, _SHORT_S = 1.0, 0.5
#: The line has fallen when goodput is below this part of it, and at least so much of a crowd got
#: less than so much of what it got a second before, all at once.
_FALLEN, _TOGETHER, _LESS = 0.8, 0.8, 0.85
#: A line falls by no more than this factor at once: a line that stands still for half a second
#: looks like one that carries nothing.
_MOST_FALL = 8.0
#: Looks are kept so long, seconds.
_KEPT_S = 2.0
#: A crowd counts as stuck when this part of it cannot take more, for so long, seconds.
_STUCK, _STUCK_S = 0.7, 0.5
#: A trial holds back about this part of the goodput; it is judged once so much of it is missing,
#: by whether the others took over more than the half of it. What is held back goes on arriving
#: until the sockets are empty: seconds, where a slow line is shared by many.
_HELD, _MISSING, _TAKEN = 0.3, 0.15, 0.5
_TRIAL_S, _TRIAL_MOST_S = 0.75, 6.0
#: Comings and goings are compared over windows of the first, seconds, and count for the second.
#: They tell something when the squares of what came and went, in parts of the goodput, sum up to
#: so much, and if those who stayed moved by so much of it the other way.
_SPAN_S, _EVIDENCE_S = 0.5, 8.0
_ENOUGH, _SLOPE_FULL, _SLOPE_NOT = 0.1, 0.6, 0.3
#: Less is enough to find a line when the whole stood still meanwhile: so many looks, so much, and
#: so many times the squares of what the goodput moved by.
_LOOKS, _LITTLE, _STILLER = 3, 0.008, 5.0
#: Room at a goodput below this part of today's says nothing of the line now, and those who stayed
#: must have had so much of it before: nobody else could have made room.
_LEVEL, _STAYED = 0.85, 0.25
#: A client is limited by itself once it took no more for so long while nothing else limited it,
#: seconds. What the sockets held of a full line has left after so long, seconds.
_LIMITED_S, _MURKY_S = 0.2, 1.5
#: A cap that holds somebody back at so much of all looks is what limits the crowd.
_HOLDS = 0.9
#: and a ceiling is what the line carries at least once it does so while this part of it arrives.
_REACHED = 0.97
#: A crowd that filled no line may since have done so when more than this arrives.
_GREW = 1.25
#: A cap just above the line leaves so much of the crowd stuck, and is lowered by this, once a
#: second.
_TRIMMED, _TRIM = 0.6, 0.98
#: So many judgements in a row must agree.
_AGREE = 2
#: Until the next trial after one that found no full line: doubled each time, seconds.
_AGAIN_S, _AGAIN_MOST_S = 2.0, 60.0
#: A crowd that changed by this factor since is tried anew in half the time, at most so long after,
#: seconds.
_CHANGED, _SOONER_S = 1.5, 8.0
#: A probe raises the cap by this, more after each that was followed; one follows so long after
#: another, and ends after so long, seconds.
_PROBE, _PROBE_MORE, _PROBE_MOST = 1.25, 1.2, 2.0
_PROBE_EVERY_S, _PROBE_S = 4.0, 1.0
#: A download below this part of the mean of all tells nothing of the line.
_TELLS = 0.02
#: What arrives must grow by this part of what was known before it is believed.
_FOLLOWED = 1.06
#: and a fruitless one tells what the line carries if at least so much more was sent meanwhile
#: (a busy machine may not manage to send what the cap allows).
_SENT = 1.1
#: What stands before a line drains until no more than so many seconds of it are under way, or until
#: what arrives has fallen this part of the way to what is sent: then nothing stands there any more.
_UNDER_WAY_S, _DRAINED = 0.02, 0.5
#: A probe is fruitless as soon as this part of what it sends beyond the line is under way, and no
#: more arrives than so much of it.
_STANDS, _SAME = 0.6, 1.02
#: One of so many fruitless probes is followed by a trial.
_DOUBT = 3


class Sample(NamedTuple):
    """One running download at a tick.

    `acked_bytes` grows from its start and is what its peer has acknowledged; `stuck` says that its
    sockets take no more just now (and that nothing else holds it back), `shut` that its peer's
    window is shut: its program is what limits it, and it tells nothing of the line.
    """

    lease: int
    acked_bytes: int
    remaining_bytes: int
    stuck: bool
    shut: bool = False


@dataclass(frozen=True, slots=True)
class LineOrders:
    """What to do until the next tick.

    `cap_bytes_s` is for the pacer (None: none), `line_bytes_s` what the line is taken to carry for
    downloads (infinite: unknown), `hold` the leases that must send nothing just now. `clear` says
    that the line limits nobody beyond the cap; then `limited` has those who take all that their own
    lines carry.
    """

    cap_bytes_s: float | None = None
    line_bytes_s: float = math.inf
    hold: frozenset[int] = frozenset()
    clear: bool = False
    limited: frozenset[int] = frozenset()

    def held_back(self, lease: int, stuck: bool) -> bool | None:
        """Whether the server let this download have no more; None: that cannot be told just now."""
        if not stuck and self.line_bytes_s < math.inf:
            # It waits for its turn under a cap that the line is known to carry.
            return True
        if not self.clear or stuck != (lease in self.limited):
            return None
        return not stuck


@dataclass(slots=True)
class _Look:
    """What was seen at one tick."""

    now: float
    acked_total: int
    acked: dict[int, int]


@dataclass(slots=True)
class _LevelTrial:
    began_s: float
    #: Rates before it, of those held back and of the others.
    held: dict[int, float]
    kept: dict[int, float]
    goodput_bytes_s: float
    verdicts: int = 0


@dataclass(frozen=True, slots=True)
class _Drain:
    """The part of the line that is sent until a queue before it is gone, and for how long.

    The line loses nothing by it while there is one.
    """

    part: float
    most_s: float


#: What a probe left in the sockets; what stood before a line that has just been found to be full.
_LEFT, _FOUND = _Drain(0.75, 8.0), _Drain(0.6, 30.0)


@dataclass(slots=True)
class _Probe:
    began_s: float
    factor: float
    #: What had not been acknowledged when it began.
    flying_bytes: int
    #: What it has come to, and whether a trial follows.
    drain: _Drain | None = None
    doubtful: bool = False
    #: The line seems to have fallen, which is tested as soon as its queue is gone.
    fell: bool = False


class Bottleneck:
    """Finds and follows one line. Feed it every quarter of a second or so; jitter does no harm.

    `ceiling_bytes_s` is the operator's bound: the cap is never above it. It tells nothing of the
    line until so much has arrived while it held somebody back.
    """

    __slots__ = (
        "_again_s",
        "_crowd",
        "_doubts",
        "_evidence",
        "_falls",
        "_held",
        "_line",
        "_looks",
        "_murky_until_s",
        "_natural",
        "_next_probe_s",
        "_next_trial_s",
        "_next_trim_s",
        "_probe",
        "_stuck",
        "_stuck_since_s",
        "_sure",
        "_trial",
        "_tried",
        "_tried_s",
        "ceiling_bytes_s",
    )

    def __init__(self, ceiling_bytes_s: float | None = None) -> None:
        self.ceiling_bytes_s = ceiling_bytes_s
        self._line = math.inf
        #: What it was when it was last seen for sure.
        self._sure = math.inf
        self._next_trim_s = -math.inf
        self._looks: deque[_Look] = deque()
        #: Of the ticks within the window, which had somebody held back by the cap.
        self._held: deque[tuple[float, bool]] = deque()
        self._stuck_since_s = math.inf
        #: Lease -> since when it has been stuck although the line limited nobody.
        self._stuck: dict[int, float] = {}
        self._murky_until_s = -math.inf
        self._trial: _LevelTrial | None = None
        #: Whom the latest trial held back, while that can be seen in a rate, and until when.
        self._tried: frozenset[int] = frozenset()
        self._tried_s = -math.inf
        self._next_trial_s = -math.inf
        self._again_s = _AGAIN_S
        #: How much arrived, and for how many, when the last trial found no full line.
        self._crowd = (0.0, 0)
        self._probe: _Probe | None = None
        self._next_probe_s = -math.inf
        self._doubts = 0
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

        `held_back`: the cap keeps somebody who could send waiting. `samples` has every running
        download, those of the last `LineOrders.hold` too, but none that the policy paused.
        """
        acked = {sample.lease: sample.acked_bytes for sample in samples}
        telling = [sample for sample in samples if not sample.shut]
        looks = self._looks
        if looks and now <= looks[-1].now:
            return self._orders()
        looks.append(_Look(now, acked_bytes_total, acked))
        while len(looks) > 2 and looks[1].now <= now - _KEPT_S:
            looks.popleft()
        self._held.append((now, held_back))
        while self._held[0][0] <= now - _SHORT_S:
            self._held.popleft()
        self._reach_ceiling(now)
        self._natural = verdict = self._comings_and_goings(now)
        if self._fell_together(now, telling):
            pass
        elif verdict > 0:
            self._full(self._rates(_LONG_S)[0], now)
        elif self._trial is not None:
            self._judge(self._trial, now)
        elif self._probe is not None:
            self._follow(self._probe, now, flying_bytes, telling)
        else:
            self._watch(now, flying_bytes, telling)
        if self._probe is not None:
            self._murky_until_s = max(self._murky_until_s, now + 0.5 * _MURKY_S)
        # What a full line has left in a socket tells nothing until it has been taken.
        since_s = math.inf if now < self._murky_until_s else now
        stuck = self._stuck if since_s == now and self._clear else {}
        self._stuck = {
            sample.lease: stuck.get(sample.lease, since_s) for sample in samples if sample.stuck
        }
        return self._orders()

    @property
    def _clear(self) -> bool:
        """Whether the line limits nobody beyond the cap, nor has done so a moment ago."""
        now = self._looks[-1].now
        if self._stuck_since_s < math.inf or self._trial is not None or now < self._murky_until_s:
            return False
        if self._line < math.inf:
            if self._held_part() >= _HOLDS:
                return True
            # Near the cap and held back by nothing: the cap may stand a little above the line.
            near = self._rates(_LONG_S)[0] >= _LEVEL * _BELOW * self._line
            return not near or self._held_part() >= 0.5
        if self._natural < 0:
            return True
        then, count = self._crowd
        if count > 0:
            return self._rates(_LONG_S)[0] <= _GREW * then
        # One or two are taken to be limited by themselves until a crowd shows better.
        return len(self._looks[-1].acked) < 3

    def _orders(self) -> LineOrders:
        line = self._line
        cap = math.inf
        if line < math.inf:
            if self._probe is None:
                cap = _BELOW * line
            else:
                drain = self._probe.drain
                cap = line * (self._probe.factor if drain is None else drain.part)
        if self.ceiling_bytes_s is not None:
            cap = min(cap, self.ceiling_bytes_s)
            if line < math.inf:
                line = min(line, self.ceiling_bytes_s)
        hold = frozenset(self._trial.held) if self._trial is not None else frozenset[int]()
        clear = self._clear
        least_s = self._looks[-1].now - _LIMITED_S
        limited = frozenset(lease for lease, since_s in self._stuck.items() if since_s <= least_s)
        return LineOrders(
            cap if cap < math.inf else None, line, hold, clear, limited if clear else frozenset()
        )

    # -- what is seen --------------------------------------------------------------------------

    def _since(self, seconds: float) -> _Look | None:
        """The latest look that is at least so old."""
        now = self._looks[-1].now
        for look in reversed(self._looks):
            if look.now <= now - seconds + 1e-6:
                return look
        return None

    def _rates(self, seconds: float) -> tuple[float, Mapping[int, float]]:
        """Goodput, and by lease for those who ran all the time, over the last so many seconds."""
        latest = self._looks[-1]
        before = self._since(seconds) or self._looks[0]
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
        middle, old = self._since(_LONG_S), self._looks[0]
        if self._line == math.inf or self._trial is not None or middle is None:
            return False
        if self._probe is not None and self._probe.drain is _FOUND:
            return False
        passed = middle.now - old.now
        goodput, rates = self._rates(_SHORT_S)
        if passed < _SHORT_S or goodput >= _FALLEN * self._line:
            self._falls = 0
            return False
        before = {
            lease: (middle.acked[lease] - old.acked[lease]) / passed
            for lease in [sample.lease for sample in samples]
            if lease in old.acked and lease in middle.acked and lease in rates
        }
        fell = sum(rates[lease] < _LESS * rate for lease, rate in before.items())
        less = sum(rates[lease] for lease in before) < _FALLEN * sum(before.values())
        if len(before) < 3 or fell < _TOGETHER * len(before) or not less:
            self._falls = 0
            return False
        self._falls += 1
        if self._falls < _AGREE:
            return False
        self._falls = 0
        self._probe = None
        self._full(goodput, now)
        return True

    def _held_part(self) -> float:
        return sum(held for _, held in self._held) / len(self._held)

    @property
    def _bounded(self) -> bool:
        """Whether the line is known to carry the ceiling."""
        ceiling = self.ceiling_bytes_s
        return ceiling is not None and math.inf > _BELOW * self._line >= 0.999 * ceiling

    def _reach_ceiling(self, now: float) -> None:
        """While the ceiling holds somebody back, and all of it arrives, the line carries it."""
        ceiling = self.ceiling_bytes_s
        if ceiling is None or self._bounded or self._held_part() < 0.5:
            return
        if self._since(_SHORT_S) is None or self._rates(_SHORT_S)[0] < _REACHED * ceiling:
            return
        self._trial = self._probe = None
        self._line = self._sure = ceiling / _BELOW
        self._again_s, self._crowd = _AGAIN_S, (0.0, 0)
        self._next_trial_s = now + _AGAIN_S
        self._evidence.clear()

    # -- nothing special -----------------------------------------------------------------------

    def _watch(self, now: float, flying_bytes: int, samples: Sequence[Sample]) -> None:
        if self._since(_LONG_S - 0.05) is None:
            return
        held_part = self._held_part()
        known = self._line < math.inf
        if known and not self._bounded and self._trim(now, samples):
            return
        if known and held_part >= 0.5:
            self._stuck_since_s = math.inf
            if not self._bounded and now >= self._next_probe_s:
                self._probe = _Probe(now, _PROBE, flying_bytes)
            return
        goodput, rates = self._rates(_LONG_S)
        crowd = _telling(samples, rates)
        stuck = sum(sample.stuck for sample in crowd)
        if len(crowd) < 2 or stuck < _STUCK * len(crowd) or goodput <= 0.0:
            self._stuck_since_s = math.inf
            return
        then, count = self._crowd
        changed = count > 0 and (
            len(crowd) > _CHANGED * count or not then / _CHANGED < goodput < _CHANGED * then
        )
        sooner_s = max(0.5 * self._again_s, self._again_s - _SOONER_S) if changed else 0.0
        if now < self._next_trial_s - sooner_s:
            self._stuck_since_s = math.inf
            return
        self._stuck_since_s = min(self._stuck_since_s, now)
        if now - self._stuck_since_s >= _STUCK_S:
            self._try(now, crowd, rates, goodput)

    def _trim(self, now: float, samples: Sequence[Sample]) -> bool:
        """Lower a cap that stands a little above the line: the crowd is stuck just below it.

        By no more than a tenth below what was known for sure: a crowd that is limited by itself
        may look like that.
        """
        goodput, rates = self._rates(_LONG_S)
        stuck = [sample.stuck for sample in _telling(samples, rates)]
        cap = _BELOW * self._line
        if len(stuck) < 3 or sum(stuck) < _TRIMMED * len(stuck) or goodput < 0.9 * cap:
            return False
        if now < self._next_trim_s or goodput > cap / _TRIM or self._line <= 0.9 * self._sure:
            return False
        self._next_trim_s = now + _LONG_S
        self._line = max(0.9 * self._sure, _TRIM * min(self._line, goodput / _BELOW))
        return True

    def _comings_and_goings(self, now: float) -> int:
        """What natural trials tell: 1 that the line is full, -1 that it is not, 0 nothing yet.

        Downloads that stay make room for those that come and take over from those that go, or do
        not: the slope of the one against the other, over the last seconds.
        """
        if self._trial is None and now > self._tried_s + 2 * _SPAN_S:
            self._tried = frozenset()
        middle, old = self._since(_SPAN_S), self._since(2 * _SPAN_S)
        evidence = self._evidence
        while evidence and evidence[0][0] < now - _EVIDENCE_S:
            evidence.popleft()
        fresh = not evidence or evidence[-1][0] <= now - _SHORT_S
        if self._probe is not None or (self._line < math.inf and self._held_part() > 0.0):
            # What the cap holds back makes room whatever the line is. (Below a ceiling that was
            # not reached it is not the cap that makes the goodput stand still.)
            evidence.clear()
            return 0
        if middle is not None and old is not None and fresh and middle.now > old.now:
            passed = middle.now - old.now
            goodput, rates = self._rates(_SPAN_S)
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
            if sum(stayed.values()) >= _STAYED * before:
                others = (goodput - before - gained) / most
                evidence.append((now, most, others, gained / most))
        level = _LEVEL * max((most for _, most, _, _ in evidence), default=0.0)
        if self._line == math.inf and _stood_still(evidence, level):
            return 1
        told = [
            (others, gained)
            for _, most, others, gained in evidence
            if most * (1.0 - abs(others + gained)) >= level
        ]
        weight, slope = _slope(told)
        if weight < _ENOUGH:
            return 0
        return 1 if slope >= _SLOPE_FULL else -1 if slope <= _SLOPE_NOT else 0

    # -- trials --------------------------------------------------------------------------------

    def _try(
        self, now: float, crowd: Sequence[Sample], rates: Mapping[int, float], goodput: float
    ) -> None:
        """Hold back the last in the order of shortest remaining first, if that is not too much."""
        total = sum(rates[sample.lease] for sample in crowd)
        held: dict[int, float] = {}
        rate = 0.0
        for sample in sorted(crowd, key=lambda sample: -sample.remaining_bytes):
            more = rates[sample.lease]
            if rate >= _HELD * total or len(held) >= max(1, len(crowd) // 2):
                break
            if more > 0.0 and (rate + more <= 0.6 * total or len(crowd) == 2):
                held[sample.lease] = more
                rate += more
        if rate < _MISSING * total:
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
        if lasted_s < _TRIAL_S - 0.05:
            return
        goodput, rates = self._rates(_SHORT_S)
        kept = [lease for lease in trial.kept if lease in rates]
        gained = sum(rates[lease] - trial.kept[lease] for lease in kept)
        # What all others, held back, gone or new, take more than before; the kept ones make room
        # for it, or take over what it falls short, if they share a full line, and else do not.
        others = goodput - trial.goodput_bytes_s - gained
        least = _MISSING * trial.goodput_bytes_s
        # Where all take less, that tells nothing of who limits them.
        if abs(others) >= max(1.0, least) and max(others, gained) >= -0.5 * least:
            taken = -gained / others >= _TAKEN
            trial.verdicts = max(1, trial.verdicts + 1) if taken else min(-1, trial.verdicts - 1)
            if trial.verdicts >= _AGREE:
                self._full(max(goodput, trial.goodput_bytes_s), now)
                return
            if trial.verdicts <= -_AGREE:
                self._not_full(trial.goodput_bytes_s, len(trial.held) + len(trial.kept), now)
                return
        if lasted_s >= _TRIAL_MOST_S:
            # Too much came and went to tell.
            self._trial = None
            self._wait_longer(now)

    def _full(self, goodput_bytes_s: float, now: float) -> None:
        """The line carries just that; or what it is bound to, if that is so near."""
        self._trial = None
        if goodput_bytes_s <= 0.0:
            # Nothing arrives at all: that is an outage and tells nothing of the line.
            return
        news = goodput_bytes_s < _FALLEN * self._line
        fell = news and self._line < math.inf
        if fell:
            goodput_bytes_s = max(goodput_bytes_s, self._line / _MOST_FALL)
        ceiling = self.ceiling_bytes_s
        if ceiling is not None and goodput_bytes_s >= _REACHED * ceiling:
            goodput_bytes_s = ceiling / _BELOW
        self._line = self._sure = goodput_bytes_s
        self._murky_until_s = now + _MURKY_S
        self._next_trim_s = now + _LONG_S
        self._again_s, self._crowd = _AGAIN_S, (0.0, 0)
        self._next_trial_s = now + _AGAIN_S
        self._next_probe_s = now + _AGAIN_S
        self._stuck_since_s = math.inf
        self._evidence.clear()
        self._doubts = 0
        if news:
            # What stands before the line slows down all who begin; it can wait in the server.
            self._probe = _Probe(now, 1.0, 0, _FOUND, fell=fell)

    def _not_full(self, goodput_bytes_s: float, count: int, now: float) -> None:
        """Each client is limited by itself. A cap that stood has been wrong if it held anybody."""
        self._trial = None
        if not self._bounded and goodput_bytes_s >= 0.9 * _BELOW * self._line:
            self._line = math.inf
        self._crowd = (goodput_bytes_s, count)
        self._wait_longer(now)

    def _wait_longer(self, now: float) -> None:
        """A trial cost something and changed nothing: the next one is later."""
        self._again_s = min(_AGAIN_MOST_S, 2.0 * self._again_s)
        self._next_trial_s = now + self._again_s
        self._stuck_since_s = math.inf

    # -- probes --------------------------------------------------------------------------------

    def _follow(
        self, probe: _Probe, now: float, flying_bytes: int, samples: Sequence[Sample]
    ) -> None:
        lasted_s = now - probe.began_s
        if probe.drain is not None:
            self._let_drain(probe, probe.drain, now, flying_bytes, samples)
            return
        if lasted_s < _SHORT_S - 0.05:
            return
        goodput, rates = self._rates(_SHORT_S)
        if goodput > _FOLLOWED * self._line:
            self._line = self._sure = goodput
            factor = min(_PROBE_MOST, probe.factor * _PROBE_MORE)
            self._probe = _Probe(now, factor, probe.flying_bytes)
            self._doubts = 0
            return
        beyond = (flying_bytes - probe.flying_bytes) / lasted_s
        stands = beyond >= _STANDS * (probe.factor - 1.0) * self._line
        if lasted_s < _PROBE_S - 0.05:
            if not stands or goodput > _SAME * self._line:
                return
            # What a token bucket had saved up may have left in so short a time, too.
            goodput = min(goodput, self._line)
        else:
            goodput, rates = self._rates(_LONG_S)
        if self._held_part() >= 0.5 and goodput + beyond >= _SENT * self._line:
            # More was sent than arrived: this is what the line carries, to the byte.
            self._line = max(0.9 * self._line, min(goodput, _FOLLOWED * self._line))
            self._sure = self._line
        self._doubts += 1
        crowd = [sample for sample in samples if sample.lease in rates]
        doubtful = self._doubts % _DOUBT == 0 and len(crowd) >= 3
        self._probe = _Probe(now, 1.0, 0, _LEFT, doubtful)

    def _let_drain(
        self,
        probe: _Probe,
        drain: _Drain,
        now: float,
        flying_bytes: int,
        samples: Sequence[Sample],
    ) -> None:
        """Send less until nothing stands before the line: what is new would stand behind it."""
        lasted_s = now - probe.began_s
        least = 1.0 - _DRAINED * (1.0 - drain.part)
        drained = lasted_s >= _SHORT_S and self._rates(_SHORT_S)[0] < least * self._line
        drained = drained or flying_bytes <= _UNDER_WAY_S * self._line
        if not drained and lasted_s < drain.most_s:
            return
        if probe.fell:
            # A line that only stood still for a moment is found again at once.
            self._probe = _Probe(now, _PROBE_MOST, flying_bytes)
            return
        self._probe = None
        self._next_probe_s = now + _PROBE_EVERY_S
        goodput, rates = self._rates(_LONG_S)
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
        if len(told) < _LOOKS or slope < _SLOPE_FULL:
            continue
        if weight >= max(_LITTLE, _STILLER * moved):
            return True
    return False


def _telling(samples: Sequence[Sample], rates: Mapping[int, float]) -> list[Sample]:
    """Those that tell something of the line: who takes hardly anything is stuck by itself.

    Else a few readers that stand still could make a line look full that has room.
    """
    here = [sample for sample in samples if sample.lease in rates]
    least = _TELLS * sum(rates[sample.lease] for sample in here) / max(1, len(here))
    return [sample for sample in here if rates[sample.lease] >= least]
