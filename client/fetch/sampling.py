"""Compares a few bytes of all mirrors' copies while they work; see `client.schedule.sample_vote`.

Three or more mirrors are asked for the same few bytes near the start before anything else,
so that one with another copy is found before it has given much, and later for some at a random
place of the file, where a copy that was only begun is still empty. Mirrors whose copies bear
different dates, where no digest will tell, are compared all over the file. Pure.
"""

from __future__ import annotations

from ..schedule.openings import OPENING_BYTES, SAMPLE_BYTES
from ..schedule.segments import UNKNOWN_SIZE
from . import faults
from .actions import Action, AskSample
from .events import Opened
from .state import Depth, Round, State

#: A shorter file comes from one mirror.
_LEAST_BYTES = OPENING_BYTES + 1
#: Where dates differ: a place for so much of the file, and so many at most.
_PLACE_BYTES = 256 << 10
_MOST_PLACES = 16
#: Each costs a mirror that takes one request at a time a round trip or a connection.
_MOST_SINGLE = 3
#: How long a download that is whole waits for samples that are still on their way.
_PATIENCE_S = 0.5
_DIFFERS = "its copy differs from the others'"


def choose(state: State) -> None:
    """The size is known: pick a place."""
    if _LEAST_BYTES <= state.size_bytes < UNKNOWN_SIZE:
        at = state.random.randrange(state.size_bytes - SAMPLE_BYTES)
        state.samples.rounds.append(Round(at, at + SAMPLE_BYTES))


def opened(state: State, event: Opened) -> list[Action]:
    """The lane's connection stands: what was asked for on another one is lost."""
    number = state.lane_mirrors[event.lane]
    for one in state.samples.rounds:
        if event.anew and number not in one.jury.said:
            one.jury.heard.discard(number)
    return ask(state, event.lane)


def ask(state: State, lane: int) -> list[Action]:
    """Ask for what this mirror was not asked for yet."""
    mirror = state.mirror_of(lane)
    if lane not in mirror.lanes[:1] or not mirror.parts:
        return []
    single = mirror.depth is Depth.ONE
    actions: list[Action] = []
    for one in state.samples.rounds[: _MOST_SINGLE if single else None]:
        if mirror.number not in one.jury.heard:
            one.jury.heard.add(mirror.number)
            actions.append(AskSample(lane, one.start, one.end))
    return actions


def tick(state: State) -> list[Action]:
    """Compare the next places, all of them by the middle of the download."""
    samples, board = state.samples, state.board
    if board is None or state.vouched or not _LEAST_BYTES <= state.size_bytes < UNKNOWN_SIZE:
        return []
    if not samples.doubtful:
        if _alike(state):
            return []
        _doubt(state)
    done = 1 - board.wanted.total / state.size_bytes
    while samples.later and 2 * done * samples.doubtful >= samples.doubtful - len(samples.later):
        samples.rounds.append(samples.later.pop(0))
    return [
        action
        for mirror in state.alive
        if mirror.depth is not Depth.ONE and mirror.lanes and mirror.lanes[0] in board.lanes
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
    most = -(-state.size_bytes // _PLACE_BYTES)
    count = samples.doubtful = min(_MOST_PLACES, most)
    share = state.size_bytes // count
    for number in range(count):
        at = number * share + state.random.randrange(share - SAMPLE_BYTES)
        samples.later.append(Round(at, at + SAMPLE_BYTES))
    dates = {mirror.modified for mirror in state.alive if mirror.answered}
    if None not in dates:
        text = "the mirrors give the file different dates and no digest is known"
        state.notes.append(f"{text}: their copies were compared at {count} places")


def rest(state: State) -> list[Action]:
    """Every byte is here: the places that were not compared yet, and then who is believed."""
    samples = state.samples
    if state.vouched:
        return []
    actions = tick(state)
    samples.rounds += samples.later
    samples.later.clear()
    for mirror in state.alive:
        if mirror.lanes and state.board is not None and mirror.lanes[0] in state.board.lanes:
            actions += ask(state, mirror.lanes[0])[: 1 if mirror.depth is Depth.ONE else None]
    return actions


def verdict(state: State) -> list[Action]:
    """Nothing more will be said: where mirrors differ, most or else the first are believed."""
    if state.vouched:
        return []
    for one in state.samples.rounds:
        for number in one.jury.against_first([mirror.number for mirror in state.alive]):
            return faults.convict(state, state.mirrors[number], _DIFFERS)
    return []


def wanted_at(state: State, lane: int, start: int, end: int) -> bool:
    """Whether a whole answer on this lane passes through bytes that should be compared."""
    number = state.lane_mirrors[lane]
    return any(
        one.start < end and start < one.end and number not in one.jury.said
        for one in state.samples.rounds
    )


def passed(state: State, lane: int, position: int, data: bytes) -> list[Action]:
    """A mirror that sends the whole file has come to these bytes of it."""
    number = state.lane_mirrors[lane]
    actions: list[Action] = []
    for one in list(state.samples.rounds):
        first, last = max(one.start, position), min(one.end, position + len(data))
        if first >= last or number in one.jury.said:
            continue
        found = state.samples.passing.setdefault((number, one.start), bytearray())
        found += data[first - position : last - position]
        if len(found) == one.end - one.start:
            one.jury.heard.add(number)
            actions += testified(state, lane, one.start, bytes(found))
    return actions


def testified(state: State, lane: int, start: int, data: bytes) -> list[Action]:
    """A mirror's bytes: who differs from the majority is convicted."""
    actions: list[Action] = []
    for one in state.samples.rounds:
        if one.start != start:
            continue
        one.jury.testify(state.lane_mirrors[lane], data)
        for number in one.jury.liars() or _second_of_two(state, one):
            actions += faults.convict(state, state.mirrors[number], _DIFFERS)
    return actions


def _second_of_two(state: State, one: Round) -> list[int]:
    """Where nothing else can tell, the mirror that the user named first is believed."""
    alive = [mirror.number for mirror in state.alive]
    if state.board is None or state.vouched or len(alive) != 2 or not one.jury.said >= set(alive):
        return []
    return one.jury.against_first(alive)


def awaited(state: State, working: frozenset[int], now: float) -> bool:
    """Whether a whole file should wait for samples of the mirrors that work on, where
    there is no better proof."""
    samples = state.samples
    if state.vouched:
        return False
    outstanding = {n for one in samples.rounds for n in one.jury.heard - one.jury.said} & working
    if samples.doubtful:
        # Bytes of it are in the file. Its connection may be on its way anew.
        outstanding |= {
            mirror.number
            for mirror in state.mirrors
            if mirror.counts.received_bytes and mirror.parts and mirror.depth is not Depth.ONE
            for one in samples.rounds
            if mirror.number not in one.jury.said
        }
    if not any(state.usable(state.mirrors[n]) for n in outstanding):
        return False
    if samples.late_s is None:
        samples.late_s = now + _PATIENCE_S
    return now < samples.late_s
