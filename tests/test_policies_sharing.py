"""Whose share of the line a download counts as."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.policies import virtual_sharing
from tidegate.policies.sharing import Strangers
from tidegate.policies.virtual_sharing import VirtualSharing

LINK = 1_000_000.0
NETWORK = ("203.0.113.7", "203.0.113.0/24")


def test_strangers_count_with_their_network_and_who_is_known_does_not() -> None:
    strangers = Strangers()
    strangers.note("a", NETWORK[-1])
    assert strangers.network_of("a") == NETWORK[-1]
    strangers.note("a", "")
    assert strangers.network_of("a") == ""
    strangers.note("b", "")
    assert strangers.network_of("b") == strangers.network_of("nobody") == ""


def test_a_crowd_of_names_weighs_as_few_in_the_virtual_sharing() -> None:
    virtual = VirtualSharing()
    virtual.run_to(0.0, LINK)
    marks = [virtual.add(f"a{number}", 10_000_000, LINK, "n", 4) for number in range(100)]
    honest = virtual.add("honest", 10_000_000, LINK)
    # As beside four others; a tenth more before the crowd is weighed anew.
    assert 50.0 <= virtual.left_s("honest", honest) <= 55.0
    for number, mark in enumerate(marks):
        assert virtual.left_s(f"a{number}", mark) == pytest.approx(1250.0, rel=0.1)
    # As they leave, those who stay have more, up to that of anybody else.
    for number in range(97):
        virtual.end(f"a{number}", False)
    assert virtual.left_s("honest", honest) == pytest.approx(40.0)
    assert virtual.left_s("a99", marks[99]) == pytest.approx(40.0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 50), st.integers(1, 50)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 16),
)
def test_a_crowd_that_is_all_of_one_network_is_shared_as_any_other(
    jobs: list[tuple[int, int, int]], most: int
) -> None:
    """Before, its downloads came one after another, and Fair hardly put the short ones first."""
    alone, crowd = VirtualSharing(), VirtualSharing()
    with patch.object(virtual_sharing, "_REWEIGHED", 1.0):  # weighed anew at every change
        marks = {}
        for number, (at, size, speed) in enumerate(sorted(jobs)):
            client, size_bytes, takes = f"c{number}", 100_000 * size, LINK * speed / 50
            for virtual in (alone, crowd):
                virtual.run_to(float(at), LINK)
            marks[client] = alone.add(client, size_bytes, takes)
            crowd.add(client, size_bytes, takes, "n", most)
        for later_s in (31.0, 40.0, 100.0, 300.0):
            for virtual in (alone, crowd):
                virtual.run_to(later_s, LINK)
            for client, mark in marks.items():
                theirs = pytest.approx(alone.left_s(client, mark), rel=1e-6, abs=1e-5)
                assert crowd.left_s(client, mark) == theirs
    assert len(alone) == len(crowd) == 0


def test_a_client_that_fetches_much_at_once_is_one_flow() -> None:
    """Thirty files of one client, a little each, are no thirty people with slow lines."""
    virtual = VirtualSharing()
    virtual.run_to(0.0, LINK)
    marks = [virtual.add(f"other{number}", 10_000_000, LINK) for number in range(10)]
    for _ in range(30):
        virtual.add("greedy", 10_000_000, 0.03 * LINK)
    virtual.set_speeds({"greedy": 0.9 * LINK})
    assert virtual.left_s("other0", marks[0]) == pytest.approx(110.0)
