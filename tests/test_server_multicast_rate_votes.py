"""One vote a network: what lies cost the others, and who decides."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidegate.protocol.session import ReceiverReport
from tidegate.server.http.proxies import prefixes_of
from tidegate.server.multicast import rate
from tidegate.server.multicast.rate import RateControl, RateVotes, elect

RATE = 12_500_000.0
WISHES = st.floats(0.25, 1.0)
NETWORKS = st.sampled_from(
    ["198.51.100.7", "198.51.100.8", "203.0.113.9", "192.0.2.1", "2001:db8::1", "2001:db8:9::1"]
)


@given(st.lists(WISHES, min_size=1, max_size=40), st.lists(WISHES, max_size=40))
@example([1.0] * 4, [0.9])
@example([1.0] * 4, [0.25])
def test_a_fifth_of_the_voters_costs_the_others_a_tenth_at_most(
    honest: list[float], lies: list[float]
) -> None:
    lies = lies[: len(honest) // 4]
    assert elect(honest + lies) >= 0.9 * min(honest) - 1e-9


@given(st.lists(WISHES, min_size=1, max_size=20), st.lists(WISHES, max_size=20))
def test_half_of_the_voters_costs_the_others_little_more_than_a_quarter(
    honest: list[float], lies: list[float]
) -> None:
    lies = lies[: len(honest)]
    kept = len(honest) / (len(honest) + len(lies))
    assert elect(honest + lies) >= min(honest) * kept**0.473
    assert elect(honest + lies) >= 0.72 * min(honest)


@given(st.lists(WISHES, min_size=1, max_size=40))
def test_the_majority_is_served_and_a_slower_one_decides(wishes: list[float]) -> None:
    elected = elect(wishes)
    assert elected in (*wishes, 1.0)
    assert 2 * sum(wish >= elected for wish in wishes) >= len(wishes)


@given(
    NETWORKS,
    st.lists(WISHES, min_size=1, max_size=20),
    st.dictionaries(NETWORKS, WISHES),
    st.sampled_from([elect, median]),
)
def test_many_members_of_a_network_have_the_vote_of_one(where, wishes, others, count) -> None:
    many, single = RateVotes(count), RateVotes(count)
    inside = RateVotes(count)
    address = prefixes_of(where)[0]
    for number, wish in enumerate(wishes):
        for votes in (many, inside):
            votes.join(f"m{number}", prefixes_of(where))
            votes.wish(f"m{number}", wish)
    single.join("one", prefixes_of(where))
    single.wish("one", inside.share)
    assert min(wishes) <= inside.share <= 1.0
    for other, wish in others.items():
        if prefixes_of(other)[0] != address:
            for votes in (many, single):
                votes.join(other, prefixes_of(other))
                votes.wish(other, wish)
    assert many.share == single.share


class Voting(RuleBasedStateMachine):
    """Members come, wish and go; the votes are those of a count from scratch."""

    def __init__(self) -> None:
        super().__init__()
        self.votes = RateVotes()
        self.model: dict[str, tuple[tuple[str, ...], float]] = {}
        self.limit = pytest.MonkeyPatch()
        self.limit.setattr(rate, "MOST_VOTES", 8)

    def teardown(self) -> None:
        self.limit.undo()

    @rule(member=st.sampled_from([f"m{number}" for number in range(12)]), address=NETWORKS)
    def join(self, member: str, address: str) -> None:
        if member in self.model:
            return
        networks = prefixes_of(address)
        before = self.voters()
        self.votes.join(member, networks)
        gone = [name for name in before if name not in self.voters()]
        for name in gone:
            widest = Counter(of[-1] for of, _ in self.model.values())
            # Nobody is pushed out by a network that has as many.
            assert widest[self.model[name][0][-1]] >= widest[networks[-1]]
            del self.model[name]
        if member in self.voters():
            self.model[member] = networks, 1.0

    def voters(self) -> list[str]:
        return list(self.votes.members)

    @rule(member=st.sampled_from([f"m{number}" for number in range(12)]), share=WISHES)
    def wish(self, member: str, share: float) -> None:
        self.votes.wish(member, share)
        if member in self.model:
            self.model[member] = self.model[member][0], share

    @rule(member=st.sampled_from([f"m{number}" for number in range(12)]))
    def leave(self, member: str) -> None:
        self.votes.leave(member)
        self.model.pop(member, None)

    @invariant()
    def votes_are_those_of_the_model(self) -> None:
        assert set(self.votes.members) == set(self.model)
        assert len(self.model) <= 8
        paths = {(*reversed(of), name): share for name, (of, share) in self.model.items()}
        assert self.votes.share == counted(paths)


def counted(paths: dict[tuple[str, ...], float]) -> float:
    inside: dict[str, dict[tuple[str, ...], float]] = {}
    for path, share in paths.items():
        inside.setdefault(path[0], {})[path[1:]] = share
    shares = [of[()] if () in of else counted(of) for of in inside.values()]
    return elect(shares) if shares else 1.0


TestVoting = Voting.TestCase


# --- with reports --------------------------------------------------------------------------------


@given(
    st.integers(5, 12),
    st.lists(
        st.tuples(
            st.integers(0, 3000), st.integers(0, 500), st.integers(0, 200), st.integers(0, 2000)
        ),
        min_size=1,
        max_size=30,
    ),
    st.floats(1.0, math.inf),
)
def test_whatever_a_fifth_of_the_networks_reports(voters, lies, declared) -> None:
    """Lost, overruns, queue and lag as the liar likes; the others get all and stay."""
    control = RateControl(RATE)
    liars = voters // 5
    for number in range(voters):
        networks = prefixes_of(f"10.{number}.0.1")
        control.join(f"m{number}", networks, declared if number < liars else math.inf)
    received, overruns = [0] * voters, 0
    for step, (lost, more_overruns, queue_ms, lag_ms) in enumerate(lies, 1):
        now, expected = 0.6 * step, 3000 * step
        overruns += more_overruns
        for number in range(voters):
            is_liar = number < liars
            received[number] += 3000 - (lost if is_liar else 0)
            report = ReceiverReport(
                f"m{number}",
                "receiving",
                expected=expected,
                received=received[number],
                overruns=overruns if is_liar else 0,
                queue_ms=queue_ms if is_liar else 0,
                lag_ms=lag_ms if is_liar else 0,
            )
            control.report(report, now, 0.03)
            assert control.rate_bytes_s >= 0.9 * RATE
            assert is_liar or not control.is_too_fast_for(f"m{number}", now)
