"""Small rules of a download, each by itself: votes, lease connections, patience."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.client.fetch.actions import Action, Disconnect
from tidegate.client.fetch.decide import decide
from tidegate.client.fetch.events import ConnectionSilent, StatusReceived
from tidegate.client.fetch.options import Options
from tidegate.client.fetch.state import SampleVote, State
from tidegate.client.net.retry import Granted
from tidegate.client.net.urls import parse


def state_of(mirrors: int, now: float = 0.0) -> State:
    """A download from so many mirrors, each with one connection; nothing has come."""
    state = State(Options(), Random(1), now, lambda host: None)
    for number in range(mirrors):
        state.add(parse(f"https://m{number}.example/f"), listed=True)
    return state


def disconnected(actions: list[Action]) -> list[int]:
    return [action.lane for action in actions if isinstance(action, Disconnect)]


# -- votes --------------------------------------------------------------------------------------


def voted(*answers: bytes) -> SampleVote:
    vote = SampleVote()
    for mirror, data in enumerate(answers):
        vote.add(mirror, data)
    return vote


@pytest.mark.parametrize(
    ("answers", "convicted"),
    [
        ((), []),
        ((b"a",), []),
        ((b"a", b"b"), []),
        ((b"a", b"a", b"a"), []),
        ((b"a", b"b", b"a"), [1]),
        ((b"a", b"b", b"c"), []),
        # As many say one thing as another: nobody is convicted.
        ((b"a", b"b", b"a", b"b"), []),
        ((b"a", b"b", b"b", b"b"), [0]),
        ((b"a", b"a", b"b", b"c"), []),
        ((b"a", b"a", b"b", b"c", b"a"), [2, 3]),
    ],
)
def test_a_vote_convicts_by_more_than_half_of_three_or_more(
    answers: tuple[bytes, ...], convicted: list[int]
) -> None:
    assert voted(*answers).minority() == convicted


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=9))
def test_fewer_are_convicted_than_agree(answers: list[bytes]) -> None:
    convicted = voted(*answers).minority()
    assert 2 * len(convicted) < max(1, len(answers))
    assert len({data for mirror, data in enumerate(answers) if mirror not in convicted}) <= (
        1 if convicted else 3
    )


@pytest.mark.parametrize(
    ("answers", "among", "differ"),
    [
        ((b"a", b"b"), [0, 1], [1]),
        ((b"a", b"b", b"b"), [0, 1, 2], [0]),
        ((b"a", b"b", b"b"), [0, 1], [1]),
        ((b"a", b"a"), [0, 1], []),
        ((), [0, 1], []),
    ],
)
def test_where_nobody_else_answers_most_are_believed_and_else_the_first(
    answers: tuple[bytes, ...], among: list[int], differ: list[int]
) -> None:
    assert voted(*answers).differing_from_first(among) == differ


# -- connections of a lease ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "kept"), [(None, [0, 1, 2, 3]), (1, [2]), (2, [0, 2]), (3, [0, 1, 2])]
)
def test_a_lease_keeps_as_many_connections_as_it_allows(
    allowed: int | None, kept: list[int]
) -> None:
    """The one that was told stays, and the oldest of the others."""
    state = state_of(1)
    mirror = state.mirrors[0]
    while len(mirror.lanes) < 4:
        state.lane(mirror)
    first = mirror.lanes[0]
    lanes = [lane - first for lane in mirror.lanes]
    assert lanes == [0, 1, 2, 3]
    told = StatusReceived(mirror.lanes[2], Granted(None, allowed), 0.0)
    gone = disconnected(decide(state, told, 0.0))
    assert [lane - first for lane in mirror.lanes] == kept
    assert sorted(lane - first for lane in gone) == [one for one in lanes if one not in kept]


# -- patience -----------------------------------------------------------------------------------


def test_bytes_that_queue_on_a_narrow_line_are_waited_for() -> None:
    """At 8 kB/s the 64 KiB before a slow mirror's bytes take 8 s; at 8 MB/s no time."""
    lost = {}
    for rate_bytes_s in (8e3, 8e6):
        state = state_of(2)
        state.first_byte_s = 0.0
        state.mirrors[0].counts.received_bytes = int(10.0 * rate_bytes_s)
        lane = state.mirrors[1].lanes[0]
        silent_s = state.options.stall_s + 4.0
        event = ConnectionSilent(lane, silent_s, 0.01, False)
        lost[rate_bytes_s] = lane in disconnected(decide(state, event, 10.0))
    assert lost == {8e3: False, 8e6: True}
