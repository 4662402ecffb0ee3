"""Compares a few bytes of all mirrors' copies while they work.

Three or more mirrors are asked for the same few bytes near the start before anything else,
so that one with another copy is found before it has given much, and later for some at a random
place of the file, where a copy that was only begun is still empty. Mirrors whose copies bear
different dates, where no digest will tell, are compared all over the file. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from ...protocol.intervals import Span
from ..schedule.segments import UNKNOWN_SIZE
from . import faults
from .actions import Action, RequestSample
from .events import ConnectionOpened
from .state import Depth, Mirror, MirrorState, Round, Serves, State


class SampleTuning(NamedTuple):
    """How copies are compared. Half and double of the sizes change what a lie costs, not the rate:
    a sample of 256 bytes is less than its answer's head."""

    #: Each of several mirrors is asked for this much before the size is known.
    first_range_bytes: int = 128 << 10
    #: Compared at one place of the file.
    sample_bytes: int = 256
    #: Fewer mirrors have no majority.
    least_voters: int = 3
    #: Where dates differ, one place is compared for each of these.
    place_bytes: int = 256 << 10
    #: Bounds the requests for a large file.
    most_places: int = 16
    #: For a mirror that takes one request at a time; each sample costs it a round trip.
    most_single: int = 3
    #: A complete file waits this long for samples that are on their way.
    patience_s: float = 0.5


TUNING = SampleTuning()


def first_request(state: State, lane: int) -> tuple[Span | None, Span | None]:
    """A sample to compare first (None: no need), and what to ask for (None: the whole file)."""
    mirror = state.mirror_of(lane)
    count = sum(1 for _ in state.alive)
    if mirror.serves is Serves.LAST_RESORT:
        return None, None
    step = TUNING.first_range_bytes
    span = None if count == 1 else (lane * step, (lane + 1) * step)
    if count < TUNING.least_voters:
        return None, span
    # These can tell which of them has another copy, so a sample comes before anything else.
    rounds = state.samples.rounds
    if not rounds:
        at = state.random.randrange(step - TUNING.sample_bytes)
        rounds.append(Round(at, at + TUNING.sample_bytes))
    rounds[0].votes.asked.add(mirror.number)
    return (rounds[0].start, rounds[0].end), span


#: A shorter file comes from one mirror.
_LEAST_BYTES = TUNING.first_range_bytes + 1


def choose(state: State) -> None:
    """The size is known: pick a place."""
    size, first = state.size_bytes, unheard_first(state)
    if (_LEAST_BYTES if first is None else 1) <= size < UNKNOWN_SIZE:
        at = state.random.randrange(max(1, size - TUNING.sample_bytes))
        state.samples.rounds.append(Round(at, min(size, at + TUNING.sample_bytes)))


def connection_opened(state: State, event: ConnectionOpened) -> list[Action]:
    """The lane's connection stands: what was asked for on another one is lost."""
    number = state.lane_mirrors[event.lane]
    for one in state.samples.rounds:
        if event.anew and number not in one.votes.answered:
            one.votes.asked.discard(number)
    return ask(state, event.lane)


def ask(state: State, lane: int) -> list[Action]:
    """Ask for what this mirror was not asked for yet."""
    mirror = state.mirror_of(lane)
    if lane not in mirror.lanes[:1] or not mirror.parts:
        return []
    fresh = [one for one in _due_rounds(state, mirror) if mirror.number not in one.votes.asked]
    for one in fresh:
        one.votes.asked.add(mirror.number)
    return [RequestSample(lane, one.start, one.end) for one in fresh]


def _due_rounds(state: State, mirror: Mirror) -> list[Round]:
    """The places at which this mirror's copy is compared so far."""
    return state.samples.rounds[: TUNING.most_single if mirror.depth is Depth.ONE else None]


def tick(state: State) -> list[Action]:
    """Compare the next places, all of them by the middle of the download."""
    samples, segments = state.samples, state.segments
    if segments is None or state.vouched or not _LEAST_BYTES <= state.size_bytes < UNKNOWN_SIZE:
        return []
    if not samples.doubtful:
        if _alike(state):
            return []
        _doubt(state)
    done = 1 - segments.wanted.total / state.size_bytes
    while samples.later and 2 * done * samples.doubtful >= samples.doubtful - len(samples.later):
        samples.rounds.append(samples.later.pop(0))
    return [
        action
        for mirror in state.alive
        if mirror.depth is not Depth.ONE and mirror.lanes and mirror.lanes[0] in segments.lanes
        for action in ask(state, mirror.lanes[0])
    ]


def _alike(state: State) -> bool:
    """Whether the copies that are known bear the same mark or date, so far."""
    known = [mirror for mirror in state.alive if mirror.answered]
    for mirror in known[1:]:
        first = known[0]
        same_mark = first.validator is not None and first.validator == mirror.validator
        if not same_mark and (first.modified is None or first.modified != mirror.modified):
            return False
    return True


def _doubt(state: State) -> None:
    samples = state.samples
    most = -(-state.size_bytes // TUNING.place_bytes)
    count = samples.doubtful = min(TUNING.most_places, most)
    share = state.size_bytes // count
    for number in range(count):
        at = number * share + state.random.randrange(share - TUNING.sample_bytes)
        samples.later.append(Round(at, at + TUNING.sample_bytes))
    dates = {mirror.modified for mirror in state.alive if mirror.answered}
    if None not in dates:
        text = "the mirrors give the file different dates and no digest is known"
        state.notes.append(f"{text}: their copies were compared at {count} places")


def request_remaining(state: State) -> list[Action]:
    """Every byte is here: the places that were not compared yet, and then the vote."""
    samples = state.samples
    if state.vouched:
        return []
    actions = tick(state)
    samples.rounds += samples.later
    samples.later.clear()
    for mirror in state.alive:
        if mirror.lanes and state.segments is not None and mirror.lanes[0] in state.segments.lanes:
            actions += ask(state, mirror.lanes[0])[: 1 if mirror.depth is Depth.ONE else None]
    return actions


def settle_votes(state: State) -> list[Action]:
    """Nothing more will be said: where mirrors differ, most or else the first are believed."""
    if state.vouched:
        return []
    for one in state.samples.rounds:
        for number in one.votes.differing_from_first([mirror.number for mirror in state.alive]):
            return faults.convict(state, state.mirrors[number], faults.DropReason.DIFFERS)
    return []


def is_sampled(state: State, lane: int, start: int, end: int) -> bool:
    """Whether a whole answer on this lane passes through bytes that should be compared."""
    number = state.lane_mirrors[lane]
    return any(
        one.start < end and start < one.end and number not in one.votes.answered
        for one in state.samples.rounds
    )


def sample_passed(state: State, lane: int, position: int, data: bytes) -> list[Action]:
    """A mirror that sends the whole file has come to these bytes of it."""
    number = state.lane_mirrors[lane]
    actions: list[Action] = []
    for one in list(state.samples.rounds):
        first, last = max(one.start, position), min(one.end, position + len(data))
        if first >= last or number in one.votes.answered:
            continue
        found = state.samples.passing.setdefault((number, one.start), bytearray())
        found += data[first - position : last - position]
        if len(found) == one.end - one.start:
            one.votes.asked.add(number)
            actions += sample_received(state, lane, one.start, bytes(found))
    return actions


def sample_received(state: State, lane: int, start: int, data: bytes) -> list[Action]:
    """A mirror's bytes: mirrors that differ from the majority are convicted."""
    actions: list[Action] = []
    for one in state.samples.rounds:
        if one.start != start:
            continue
        one.votes.add(state.lane_mirrors[lane], data)
        for number in one.votes.minority() or _second_of_two(state, one):
            actions += faults.convict(state, state.mirrors[number], faults.DropReason.DIFFERS)
    return actions


def _second_of_two(state: State, one: Round) -> list[int]:
    """Where nothing else can tell, the mirror that the user named first is believed."""
    alive = [mirror.number for mirror in state.alive]
    if (
        state.segments is None
        or state.vouched
        or len(alive) != 2
        or not one.votes.answered >= set(alive)
    ):
        return []
    return one.votes.differing_from_first(alive)


def unheard_first(state: State) -> Mirror | None:
    """The mirror that the user named first, if it was asked and has sent nothing of its copy."""
    first = next((mirror for mirror in state.alive if mirror.listed), None)
    if first is None or first.answered or first.beyond or first.size_bytes == 0:
        return None
    asked = first.state in (MirrorState.READY, MirrorState.WAITING)
    return first if asked and len(state.mirrors) > 1 and not state.vouched else None


def should_wait(state: State, working: frozenset[int], now: float) -> bool:
    """Whether a whole file without proof should wait for the first mirror, and for samples."""
    samples = state.samples
    if state.vouched:
        return False
    first = unheard_first(state)
    if first is not None and state.usable(first):
        samples.first_late_s = samples.first_late_s or now + state.options.stall_s
        if now < samples.first_late_s:
            return True
    outstanding = {
        n for one in samples.rounds for n in one.votes.asked - one.votes.answered
    } & working
    if samples.doubtful:
        # Bytes of it are in the file. Its connection may be on its way anew.
        outstanding |= {
            mirror.number
            for mirror in state.mirrors
            if mirror.counts.received_bytes and mirror.parts
            for one in _due_rounds(state, mirror)
            if mirror.number not in one.votes.answered
        }
    if not any(state.usable(state.mirrors[n]) for n in outstanding):
        return False
    if samples.late_s is None:
        late_s = TUNING.patience_s if samples.first_late_s is None else state.options.stall_s
        samples.late_s = now + late_s
    return now < samples.late_s
