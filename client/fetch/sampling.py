"""Compares a few bytes of all mirrors' copies while they work; see `client.schedule.sample_vote`.

Three or more mirrors are asked for the same few bytes near the start before anything else,
so that one with another copy is found before it has given much, and later for some at a random
place of the file, where a copy that was only begun is still empty. Pure.
"""

from __future__ import annotations

from client.fetch import faults
from client.fetch.actions import Action, AskSample
from client.fetch.state import Round, State
from client.schedule.segments import UNKNOWN_SIZE

#: So many bytes of each are compared.
SAMPLE_BYTES = 256
_LEAST_BYTES = 1 << 20
#: How long a download that is whole waits for samples that are still on their way.
_PATIENCE_S = 0.5


def choose(state: State) -> None:
    """The size is known: pick a place."""
    if _LEAST_BYTES <= state.size_bytes < UNKNOWN_SIZE:
        at = state.random.randrange(state.size_bytes - SAMPLE_BYTES)
        state.samples.rounds.append(Round(at, at + SAMPLE_BYTES))


def ask(state: State, lane: int) -> list[Action]:
    """The lane's connection stands."""
    mirror = state.mirror_of(lane)
    if lane not in mirror.lanes[:1] or not mirror.parts:
        return []
    actions: list[Action] = []
    for one in state.samples.rounds:
        if mirror.number not in one.jury.heard:
            one.jury.heard.add(mirror.number)
            actions.append(AskSample(lane, one.start, one.end))
    return actions


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
            text = "its copy differs from the others'"
            actions += faults.convict(state, state.mirrors[number], text)
    return actions


def _second_of_two(state: State, one: Round) -> list[int]:
    """Where nothing else can tell, the mirror that the user named first is believed."""
    if state.board is None or state.vouched or not state.mirrors[0].alive:
        return []
    if len(state.mirrors) != 2 or len(one.jury.said) != 2 or not one.jury.split:
        return []
    return [1]


def awaited(state: State, working: frozenset[int], now: float) -> bool:
    """Whether a whole file should wait for samples of the mirrors that work on, where
    there is no better proof."""
    samples = state.samples
    if state.vouched:
        return False
    outstanding = {n for one in samples.rounds for n in one.jury.heard - one.jury.said}
    if not any(state.usable(state.mirrors[n]) for n in outstanding & working):
        return False
    if samples.late_s is None:
        samples.late_s = now + _PATIENCE_S
    return now < samples.late_s
