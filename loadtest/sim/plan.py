"""A release day before it comes: what a crowd would feel on a line, and what line it would take.

The crowd is made from the files themselves and a few numbers. A large crowd is played by a few
hundred clients on a line that is thinner by as much, so that the answer is there in seconds.
"""

from __future__ import annotations

import fnmatch
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ...protocol.units import format_duration, format_rate, format_size
from ..workloads import RELEASE_DAY, File, Visitor, Workload, scaled
from .bounds import alone_s
from .chronology import Chronicle
from .conditions import Conditions
from .engine import Engine
from .metrics import columns, measure
from .outcome import DOWNLOAD_FIELDS, RunRecord, mean
from .scenario import Scenario


class PlayTuning(NamedTuple):
    """How a crowd is played."""

    #: A larger crowd is played by this many clients; each then stands for several.
    most_clients: int = 300
    #: From this size on a file is what people come for; below, what they take beside it.
    large_bytes: int = 1_000_000
    #: How often another line is tried.
    steps: int = 8
    #: A longer crowd is played faster, within this, virtual seconds.
    played_s: float = 900.0


TUNING = PlayTuning()
#: A plain server: all clients at once, each an equal share.
PLAIN = "ps"
BEHIND_GATE = " behind a gate"


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many people come within `within_s` for these files, by their weights."""

    visitors: int
    within_s: float
    large: tuple[tuple[File, float], ...]
    small: tuple[File, ...]
    patience_s: float = math.inf

    @property
    def wanted_bytes(self) -> float:
        """What all of them take, in the mean."""
        weight = sum(one for _, one in self.large)
        mean = sum(file.size_bytes * one for file, one in self.large) / weight if weight else 0.0
        beside = sum(file.size_bytes for file in self.small) / max(1, len(self.small))
        return self.visitors * (mean + beside)


@dataclass(frozen=True, slots=True)
class CrowdSample:
    """The clients that are played for a crowd of `people`, and what they were taken to be."""

    workload: Workload
    people: int
    within_s: float
    wanted_bytes: float
    assumptions: tuple[str, ...]

    @property
    def each(self) -> float:
        return self.people / len(self.workload.visitors)


@dataclass(frozen=True, slots=True)
class Felt:
    """What a crowd feels on a line under a policy; times in seconds, `lost_s` is what they wait."""

    policy: str
    bandwidth_bytes_s: float
    mean_s: float
    p95_s: float
    lost_s: float
    small_s: float
    gave_up: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found. `needed` is on the thinnest line that keeps the wish; None: none does."""

    crowd: CrowdSample
    plain: Felt
    ours: Felt
    wish_s: float
    needed: Felt | None

    def needed_line(self) -> str:
        return format_rate(self.needed.bandwidth_bytes_s) if self.needed is not None else "none"


def files_below(folder: Path) -> list[File]:
    """What a server of this folder would offer. Raises OSError."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place) / name
            if not name.startswith(".") and path.is_file():
                found.append(File(str(path.relative_to(folder)), path.stat().st_size))
    return sorted(found, key=lambda file: file.name)


def _raise(error: OSError) -> None:
    raise error


def make_crowd(
    files: Sequence[File],
    visitors: int,
    within_s: float,
    weights: Sequence[tuple[str, float]] = (),
    patience_s: float = math.inf,
) -> Crowd:
    """Each visitor takes one of the large files and one of the small ones beside it.

    `weights` are patterns and how often such a file is wanted; the last that fits counts, others
    have 1. Raises ValueError where there is nothing to take.
    """

    def weight(file: File) -> float:
        found = [by for pattern, by in weights if fnmatch.fnmatchcase(file.name, pattern)]
        return found[-1] if found else 1.0

    for pattern, _ in weights:
        if not any(fnmatch.fnmatchcase(file.name, pattern) for file in files):
            raise ValueError(f"no file has a name like {pattern!r}")
    wanted = [(file, weight(file)) for file in files if file.size_bytes and weight(file) > 0]
    large = tuple(one for one in wanted if one[0].size_bytes >= TUNING.large_bytes)
    small = tuple(file for file, _ in wanted if file.size_bytes < TUNING.large_bytes)
    if not large:
        large, small = tuple(wanted), ()
    if not large:
        raise ValueError("no file of the folder has content that is wanted; name the release")
    return Crowd(visitors, within_s, large, small, patience_s)


def draw_visitors(crowd: Crowd, count: int) -> Workload:
    """`count` of the crowd, at their moments and on their lines; always the same."""
    rng = random.Random("plan/1")
    arrivals = sorted(rng.uniform(0.0, crowd.within_s) for _ in range(count))
    slow, fast = math.log(RELEASE_DAY.slowest_bytes_s), math.log(RELEASE_DAY.fastest_bytes_s)
    files = [file for file, _ in crowd.large]
    weights = [weight for _, weight in crowd.large]
    visitors = []
    for number, arrival in enumerate(arrivals):
        beside = (rng.choice(crowd.small),) if crowd.small else ()
        visitors.append(
            Visitor(
                f"c{number}",
                arrival,
                math.exp(rng.uniform(slow, fast)),
                (*beside, rng.choices(files, weights)[0]),
                crowd.patience_s,
            )
        )
    wanted = sum(visitor.total_bytes for visitor in visitors)
    return Workload("plan", 1, tuple(visitors), wanted / crowd.within_s)


def sample_crowd(crowd: Crowd) -> CrowdSample:
    workload = draw_visitors(crowd, min(crowd.visitors, TUNING.most_clients))
    beside = " and one of the small ones" if crowd.small else ""
    one = "the large file" if len(crowd.large) == 1 else f"one of {len(crowd.large)} large files"
    found = [
        f"each visitor takes {one}{beside}; for all of them that is "
        f"{format_size(crowd.wanted_bytes)} "
        "(--weight 'PATTERN=3': three times as often as the others)",
        f"they come evenly within {spell_time(crowd.within_s)}, on lines of 8 to 80 Mbit/s",
    ]
    return _sample(workload, crowd.visitors, crowd.within_s, crowd.wanted_bytes, found)


def sample_trace(workload: Workload) -> CrowdSample:
    people, wanted = len(workload.visitors), sum(v.total_bytes for v in workload.visitors)
    within_s = max(1.0, workload.visitors[-1].arrival_s)
    played = scaled(workload, time_scale=1.0, thin=max(1.0, people / TUNING.most_clients))
    found = [
        f"the crowd comes as it was recorded, for {format_size(wanted)} in all",
        "a client whose line was not recorded has one of 0.8 to 80 Mbit/s",
    ]
    return _sample(played, people, within_s, wanted, found)


def _sample(
    workload: Workload, people: int, within_s: float, wanted_bytes: float, found: list[str]
) -> CrowdSample:
    played = len(workload.visitors)
    if people > played:
        found.append(f"{played} clients are played, each for {people / played:.3g} people")
    return CrowdSample(workload, people, within_s, wanted_bytes, tuple(found))


@dataclass(frozen=True, slots=True)
class PlayedCrowd:
    """A crowd that was played `fast` times as fast as it comes."""

    workload: Workload
    conditions: Conditions
    tally: RunRecord
    fast: float


def play(
    workload: Workload,
    each: float,
    policy: str,
    bandwidth_bytes_s: float,
    slots: int = 30,
    chronicle: Chronicle | None = None,
) -> PlayedCrowd:
    """Play the crowd on a line. A policy may end in `BEHIND_GATE`: then it pauses nothing."""
    name = policy.removesuffix(BEHIND_GATE)
    line = bandwidth_bytes_s / each
    # A crowd for days is played faster: everything but the policy's own patience shrinks alike.
    wanted = sum(visitor.total_bytes for visitor in workload.visitors)
    lasts_s = max(workload.visitors[-1].arrival_s, wanted / line)
    fast = max(1.0, lasts_s / TUNING.played_s)
    played = scaled(workload, time_scale=fast)
    scenario = Scenario(
        name,
        slots=slots,
        reserve_small=0 if policy == PLAIN else min(6, slots - 1),
        bandwidth_bytes_s=line * fast,
        can_pause=name == policy,
    )
    usual = scenario.conditions(played)
    # How often the policy looks.
    conditions = replace(
        usual, attempt_s=usual.attempt_s / fast, accept_s=usual.accept_s / fast, tick_s=0.5
    )
    rules = scenario.make_policy(played, 0)
    tally = Engine(played, rules, conditions, 0, chronicle).run()
    return PlayedCrowd(played, conditions, tally, fast)


def feel(workload: Workload, each: float, policy: str, bandwidth_bytes_s: float) -> Felt:
    """Play the crowd on a line, and measure what it feels."""
    run = play(workload, each, policy, bandwidth_bytes_s)
    figures, fast = measure(run.workload, run.conditions, run.tally), run.fast
    alone = mean(alone_s(workload, bandwidth_bytes_s / each))
    return Felt(
        policy,
        bandwidth_bytes_s,
        fast * figures["mean_session_s"],
        fast * figures["p95_session_s"],
        max(0.0, fast * figures["mean_session_s"] - alone),
        fast * figures["small_p99_s"],
        figures["gave_up"],
        figures["utilisation"],
    )


def make_plan(
    crowd: CrowdSample,
    bandwidth_bytes_s: float,
    policy: str,
    wish_s: float,
    told: Callable[[float], object] = lambda part: None,
) -> Plan:
    """Play the crowd here, under a plain server, and on other lines until the wish is just kept.

    `told` hears how much is done, from 0 to 1.
    """
    workload, each = crowd.workload, crowd.each
    steps = TUNING.steps + 2.0
    plain = feel(workload, each, PLAIN, bandwidth_bytes_s)
    told(1 / steps)
    ours = feel(workload, each, policy, bandwidth_bytes_s)
    told(2 / steps)
    # What all clients take must get through in the time, or in little more.
    guess = crowd.wanted_bytes / (crowd.within_s + wish_s)
    needed = thinnest(workload, each, ours, wish_s, guess, lambda n: told((3 + n) / steps))
    told(1.0)
    return Plan(crowd, plain, ours, wish_s, needed)


def thinnest(
    workload: Workload,
    each: float,
    ours: Felt,
    wish_s: float,
    guess: float,
    told: Callable[[int], object] = lambda step: None,
) -> Felt | None:
    """The thinnest line on which each loses no more than `wish_s`, to a tenth; None: none does.

    The search begins at `guess`, beside what was felt already.
    """
    line = ours.bandwidth_bytes_s
    needed = ours if ours.lost_s <= wish_s else None
    low, high = (0.0, line) if needed else (line, math.inf)
    for step in range(TUNING.steps):
        if not low < guess < high:
            guess = math.sqrt(low * high) if low and high < math.inf else 1.3 * low or high / 2
        tried = feel(workload, each, ours.policy, guess)
        if tried.lost_s <= wish_s:
            needed, high = tried, guess
        else:
            low = guess
        if high < 1.1 * low:
            break
        told(step)
    return needed


def spell_time(seconds: float) -> str:
    """A duration; one that no client reached is `never`."""
    return "never" if math.isnan(seconds) else format_duration(seconds)


def _loss(felt: Felt) -> str:
    return "nothing" if felt.lost_s < 0.5 else f"{spell_time(felt.lost_s)} each"


def verdict(plan: Plan) -> str:
    """What there is to decide, in one sentence."""
    ours, plain, needed = plan.ours, plan.plain, plan.needed
    text = f"With {format_rate(ours.bandwidth_bytes_s)}, {plan.crowd.people:,} visitors within "
    text += f"{spell_time(plan.crowd.within_s)} lose {_loss(ours)} to the crowd"
    if plain.lost_s > 1.2 * ours.lost_s and plain.lost_s > 1.0:
        text += f" under {ours.policy}, {spell_time(plain.lost_s)} on a plain server"
    else:
        text += f" under {ours.policy}"
    wish = spell_time(plan.wish_s)
    if needed is None:
        return f"{text}; no line that was tried brings that below {wish}."
    if ours.lost_s <= plan.wish_s:
        if needed.bandwidth_bytes_s < 0.9 * ours.bandwidth_bytes_s:
            enough = format_rate(needed.bandwidth_bytes_s)
            return f"{text}; {enough} would be enough to stay below {wish}."
        return f"{text}, which is below {wish}."
    return f"{text}; below {wish} it takes {format_rate(needed.bandwidth_bytes_s)}."


MEANINGS: Mapping[str, str] = {
    "done, mean": "from arriving to having the last byte",
    "done, 95 of 100": "so long at the most for 95 of 100",
    "lost to the crowd": "of the mean, what each would not need if it were alone",
    "small files, 99 of 100": "from asking for a small file to having it",
    "gave up": "left before the first byte, with --patience",
    "line used": "until the last one was served",
}


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """The figures behind the verdict, a column for each line and policy."""
    columns = [("a plain server", plan.plain), (plan.ours.policy, plan.ours)]
    if plan.needed is not None and plan.needed != plan.ours:
        columns.append((f"{plan.ours.policy}, {plan.needed_line()}", plan.needed))
    felt = [one for _, one in columns]
    found: list[tuple[str, ...]] = [
        ("", *(name for name, _ in columns)),
        ("done, mean", *(spell_time(one.mean_s) for one in felt)),
        ("done, 95 of 100", *(spell_time(one.p95_s) for one in felt)),
        ("lost to the crowd", *(spell_time(one.lost_s) for one in felt)),
        ("line used", *(f"{100 * one.utilisation:.0f} %" for one in felt)),
    ]
    # Those above the server's threshold wait like any other.
    if not any(math.isnan(one.small_s) for one in felt):
        found.append(("small files, 99 of 100", *(spell_time(one.small_s) for one in felt)))
    if any(visitor.patience_s < math.inf for visitor in plan.crowd.workload.visitors):
        found.append(("gave up", *(f"{100 * one.gave_up:.0f} %" for one in felt)))
    return found


@dataclass(frozen=True, slots=True)
class GateCosts:
    """What one thing costs, by `python -m bench.gate` and `python -m bench.gate --waiting 2000`."""

    #: CPU of the gate for a decision with its end report.
    decision_s: float = 185e-6
    #: CPU of the gate for a client that comes and waits inside its request.
    waiting_s: float = 300e-6
    waiting_gate_bytes: int = 10_000
    waiting_mover_bytes: int = 10_000
    #: A client that follows redirects asks again this often while it waits (docs/clients.md).
    asks_again_s: float = 8.0


COSTS = GateCosts()


@dataclass(frozen=True, slots=True)
class GatePlan:
    """What there must be for a crowd at its worst moment; `cpu` is the gate's part of one core."""

    slots: int
    waiting: int
    decisions_a_s: float
    cpu: float

    @property
    def connections(self) -> int:
        """Connections that nginx has open: of clients, and one to the gate for each that waits."""
        return 2 * self.waiting + self.slots

    @property
    def gate_bytes(self) -> int:
        return self.waiting * COSTS.waiting_gate_bytes

    @property
    def mover_bytes(self) -> int:
        return self.waiting * COSTS.waiting_mover_bytes


def filling_slots(workload: Workload, bandwidth_bytes_s: float) -> int:
    """How many downloads at once fill this line, each as fast as its client's own line."""
    wanted = sum(one.total_bytes for one in workload.visitors)
    alone_s = sum(one.total_bytes / one.rate_bytes_s for one in workload.visitors)
    return max(1, math.ceil(bandwidth_bytes_s * alone_s / wanted))


def plan_gate(crowd: CrowdSample, bandwidth_bytes_s: float, policy: str = "ticket") -> GatePlan:
    workload, each = crowd.workload, crowd.each
    slots = filling_slots(workload, bandwidth_bytes_s)
    at_once = max(1, round(slots / each))
    tally = play(workload, each, policy, bandwidth_bytes_s, slots=at_once).tally
    downloads = columns(tally.downloads, DOWNLOAD_FIELDS)
    changes = []
    for asked_s, admitted_s, ended_s in zip(
        *(downloads[name] for name in ("asked_s", "admitted_s", "ended_s")), strict=True
    ):
        until_s = ended_s if math.isnan(admitted_s) else admitted_s
        changes += [(asked_s, 1), (until_s, -1)]
    waiting = most = 0
    for _, change in sorted(changes):
        waiting += change
        most = max(most, waiting)
    wait = math.ceil(most * each)
    files = mean([float(len(one.files)) for one in workload.visitors])
    arrivals_a_s = crowd.people * files / crowd.within_s
    asks_a_s = wait / COSTS.asks_again_s
    cpu = arrivals_a_s * COSTS.decision_s + asks_a_s * COSTS.waiting_s
    return GatePlan(slots, wait, arrivals_a_s + asks_a_s, cpu)


def gate_rows(found: GatePlan) -> list[tuple[str, str, str]]:
    """What is needed: its name, how much, and why; a title first."""
    return [
        ("A gate for this crowd, with nginx in front", "", ""),
        ("slots", f"{found.slots}", "--slots: this many clients fill the line; fair needs none"),
        ("wait at once", f"{found.waiting:,}", "inside their requests, at the worst moment"),
        ("connections of nginx", f"{found.connections:,}", "worker_connections of all workers"),
        ("memory of nginx", format_size(found.mover_bytes), "for those who wait"),
        ("memory of the gate", format_size(found.gate_bytes), "for those who wait"),
        (
            "decisions a second",
            f"{found.decisions_a_s:,.0f}",
            f"{100 * found.cpu:.0f} % of one core of the gate, if all ask again every "
            f"{COSTS.asks_again_s:.0f} s",
        ),
    ]
