"""Requests that wait while the line is full: by network, in turn, and never for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate.policies.network_shares import BURST_BYTES
from tidegate.server.files.request_queue import (
    LONGEST_S,
    RequestQueue,
    levels_of,
    network_of,
)

QUIET, GREEDY, NEIGHBOUR = "192.0.2.1", "198.51.100.1", "198.51.100.2"


def greedy(queue: RequestQueue, address: str = GREEDY) -> None:
    queue.busy = True
    queue.granted_bytes = 1e6
    queue.charge(address, 2 * BURST_BYTES)


class Answered:
    """Stands for requests: what was answered and what was sent away."""

    def __init__(self, queue: RequestQueue, cost: int = 1000) -> None:
        self.queue = queue
        self.cost = cost
        self.went: list[Any] = []
        self.refused: list[Any] = []

    def wait(self, key: Any, address: str, now: float = 0.0) -> None:
        def go() -> None:
            self.went.append(key)
            self.queue.charge(address, self.cost)
            self.queue.granted_bytes -= self.cost

        self.queue.wait(key, address, now, go, lambda until_s: self.refused.append(key))


def test_levels_are_address_network_and_what_surrounds_it() -> None:
    assert levels_of("192.0.2.7") == ("192.0.2.7", "192.0.2.0/24", "192.0.0.0/16")
    assert levels_of("2001:db8:1:2::3")[1:] == ("2001:db8:1::/48", "2001:db8::/40", "2001:db8::/32")
    assert levels_of("2001:db8:1:2::/64") == levels_of("2001:db8:1:2::3")
    assert levels_of("") == ("local",)
    assert network_of("192.0.2.7") == "192.0.2.0/24"


def test_who_was_quiet_passes_beside_any_number_of_greedy_networks() -> None:
    queue = RequestQueue()
    for number in range(200):
        greedy(queue, f"10.{number}.0.1")
        assert not queue.passes(f"10.{number}.0.1")
    assert queue.passes(QUIET)


def test_a_network_waits_as_a_whole_and_within_it_each_address_has_its_turn() -> None:
    queue = RequestQueue()
    answered = Answered(queue)
    greedy(queue)
    assert not queue.passes(NEIGHBOUR)
    for number in range(3):
        answered.wait(("g", number), GREEDY)
    answered.wait(("n", 0), NEIGHBOUR)
    queue.granted_bytes = 1e9
    queue.serve(within_share=False)
    assert answered.went == [("g", 0), ("n", 0), ("g", 1), ("g", 2)]
    assert not len(queue)


@pytest.mark.parametrize(("first", "part"), [("10.1.{}.1", 1 / 4), ("2001:db8:{}::1", 1 / 16)])
def test_the_networks_of_a_provider_have_a_part_of_all_shares(first: str, part: float) -> None:
    """With two shares most visitors of a popular one were sent away beside 500 downloads."""
    for shares in (4, 640):
        queue = RequestQueue()
        queue.busy, queue.granted_bytes = True, 1e12
        queue.earn(0.0, 1e6, shares, 0.0)
        passed = 0
        while queue.passes(first.format(passed)):
            queue.charge(first.format(passed), BURST_BYTES)
            passed += 1
        assert 0 <= passed - max(2, int(part * shares)) <= 1


def test_a_later_request_of_an_address_overtakes_no_earlier_one() -> None:
    queue = RequestQueue()
    answered = Answered(queue)
    queue.busy, queue.granted_bytes = True, 1e6
    assert queue.passes(QUIET)
    answered.wait("first", QUIET)
    assert not queue.passes(QUIET)
    assert queue.passes("192.0.2.2")
    queue.forget("first")
    assert queue.passes(QUIET)


def test_within_its_share_it_goes_on_as_the_share_grows() -> None:
    queue = RequestQueue()
    answered = Answered(queue, 10_000)
    greedy(queue)
    for number in range(5):
        answered.wait(number, GREEDY)
    queue.granted_bytes = 1e9
    queue.serve(within_share=True)
    assert answered.went == []
    queue.shares.earn(BURST_BYTES + 1)
    queue.serve(within_share=True)
    assert answered.went == [0]
    queue.shares.earn(10_000 + 1024)
    queue.serve(within_share=True)
    assert answered.went == [0, 1]


def test_nobody_waits_for_ever() -> None:
    queue = RequestQueue()
    answered = Answered(queue)
    greedy(queue)
    answered.wait("old", GREEDY, now=0.0)
    answered.wait("new", GREEDY, now=10.0)
    queue.refuse_oldest(LONGEST_S - 0.1)
    assert answered.refused == []
    queue.refuse_oldest(LONGEST_S + 0.1)
    assert answered.refused == ["old"]
    assert len(queue) == 1


def test_who_leaves_waits_no_longer_and_all_go_when_there_is_no_cap() -> None:
    queue = RequestQueue()
    answered = Answered(queue)
    greedy(queue)
    for number in range(3):
        answered.wait(number, GREEDY)
    queue.forget(1)
    queue.forget("never came")
    queue.let_all_go()
    assert answered.went == [0, 2]
    assert not queue.busy
    assert queue.networks == 0
    # What it was given while nothing was scarce counts in no later cap.
    assert not queue.is_beyond_share(GREEDY)


@given(st.integers(1, 50), st.integers(1, 50))
def test_two_networks_are_served_alike_however_many_requests_each_has(few: int, many: int) -> None:
    queue = RequestQueue()
    answered = Answered(queue)
    for address in (QUIET, GREEDY):
        greedy(queue, address)
    for number in range(max(few, many)):
        if number < few:
            answered.wait(("q", number), QUIET)
        answered.wait(("g", number), GREEDY)
    both = 2 * min(few, many)
    queue.granted_bytes = both * (answered.cost + 512) - 1.0
    queue.serve(within_share=False)
    kinds = [kind for kind, _ in answered.went[:both]]
    assert abs(kinds.count("q") - kinds.count("g")) <= 1


def test_who_is_alone_gathers_no_excess() -> None:
    queue = RequestQueue()
    answered = Answered(queue, 100_000)
    greedy(queue)
    for number in range(100):
        answered.wait(number, GREEDY)
    queue.granted_bytes = 1e9
    queue.serve(within_share=False, alone=True)
    assert len(answered.went) == 100
    queue.shares.earn(100_000 + 1024)
    assert not queue.is_beyond_share(GREEDY)


class Waiting(RuleBasedStateMachine):
    """Any order of coming, leaving, serving and running out: each request ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = RequestQueue()
        self.queue.busy = True
        self.answered = Answered(self.queue, 50_000)
        self.now = 0.0
        self.came = 0
        self.here: set[int] = set()
        self.left: set[int] = set()

    @rule(address=st.sampled_from([QUIET, GREEDY, NEIGHBOUR, "2001:db8::1", ""]))
    def come(self, address: str) -> None:
        tag = self.queue.shares.finish_tag(levels_of(address))
        may_pass = self.queue.passes(address)
        assert self.queue.shares.finish_tag(levels_of(address)) == tag, "it was charged for asking"
        if may_pass:
            self.queue.charge(address, 50_000)
        else:
            self.answered.wait(self.came, address, self.now)
            self.here.add(self.came)
            self.came += 1

    @rule(grant=st.integers(0, 500_000), within=st.booleans())
    def serve(self, grant: int, within: bool) -> None:
        self.queue.granted_bytes = float(grant)
        self.queue.serve(within_share=within)

    @rule(earned=st.integers(0, 300_000), passed_s=st.floats(0, 15))
    def pass_time(self, earned: int, passed_s: float) -> None:
        self.now += passed_s
        self.queue.shares.earn(float(earned))
        self.queue.refuse_oldest(self.now)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.here)))
        self.queue.forget(key)
        if key not in self.answered.went and key not in self.answered.refused:
            self.left.add(key)
        self.here.discard(key)

    @invariant()
    def each_ends_once(self) -> None:
        ended = [*self.answered.went, *self.answered.refused, *self.left]
        assert len(ended) == len(set(ended))
        assert len(self.queue) == self.came - len(ended)

    def teardown(self) -> None:
        self.queue.let_all_go()
        assert len(self.answered.went) + len(self.answered.refused) + len(self.left) == self.came


TestWaiting = Waiting.TestCase


def test_who_asks_and_leaves_again_and_again_fills_no_memory() -> None:
    queue = RequestQueue()
    answered = Answered(queue)
    greedy(queue)
    for number in range(1000):
        answered.wait(number, GREEDY)
        queue.forget(number)
    assert len(queue._order) == 1
    answered.wait("stays", GREEDY)
    queue.granted_bytes = 1e9
    queue.serve(within_share=False)
    assert answered.went == ["stays"]
