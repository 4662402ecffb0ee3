"""What stands aside lets others go first: order, place, call, start and told times agree."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.kernel_laws import KernelLaws
from tidegate.policies import registry
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Admit, Decision, Job, Wait
from tidegate.policies.fair import FairPolicy
from tidegate.policies.hooks import Policy
from tidegate.policies.laws.crowds import CROWDS
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings
from tidegate.policies.testing import check_laws

SIZE = 10_000_000
CAPPED = "192.0.2.0/24"
MANUAL = Path(__file__).parent.parent / "docs/writing-a-policy.md"


def example() -> type[Policy]:
    """The policy of the manual."""
    code = re.search(r"```python\n(.*?)```", MANUAL.read_text("utf-8"), re.DOTALL)
    assert code is not None
    assert len(code[1].splitlines()) <= 40
    names: dict[str, Any] = {}
    exec(code[1], names)
    kind = names["CappedPolicy"]
    assert issubclass(kind, Policy)
    return kind


class CappedFair(FairPolicy):
    """The same rule on another order."""

    name = "capped-fair"
    stands_aside = example().stands_aside


@pytest.fixture(params=["capped", "capped-fair"])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kinds = {"capped": example(), "capped-fair": CappedFair}
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, **kinds})
    return request.param


def server(name: str, **changes: Any) -> AdmissionPolicy:
    given = {"slots": 2, "reserve_small": 0, "slots_max": 2, "bandwidth_bytes_s": 1e6, **changes}
    policy = make_policy(name, PolicySettings(**given), random.Random(1))
    return policy


def job(client: str, *, capped: bool, known: bool = True, present: bool = True) -> Job:
    network = (CAPPED,) if capped else (f"10.0.{sum(client.encode())}.0/24",)
    return Job(client, "/f", SIZE, SIZE, network=network, known=known, present=present)


def ask(policy: AdmissionPolicy, asked: Job, now: float) -> Decision:
    decision = policy.offer(asked, now)
    settle(policy, now)
    return decision


def settle(policy: AdmissionPolicy, now: float) -> list[str]:
    """Let those who are called start; who they are."""
    started = []
    for _ in range(20):
        call = policy.advance(now).call
        if not call:
            return started
        for number in call:
            row = policy.ticket(number)
            assert row is not None
            capped = row.client.startswith("n")
            assert isinstance(policy.offer(job(row.client, capped=capped), now, number), Admit)
            started.append(row.client)
    raise AssertionError("settling does not end")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("present", [True, False])
def test_another_network_starts_at_once_beside_a_capped_one(
    name: str, *, known: bool, present: bool
) -> None:
    """It used to wait for 8 to 16 s, as the parked one of the capped network was before it."""
    policy = server(name)
    assert isinstance(ask(policy, job("n0", capped=True, known=known), 0.0), Admit)
    parked = ask(policy, job("n1", capped=True, known=known), 1.0)
    assert isinstance(parked, Wait)
    assert isinstance(ask(policy, job("x", capped=False, present=present), 2.0), Admit)


def test_the_cap_holds_and_its_next_one_starts_as_one_ends(name: str) -> None:
    policy = server(name, slots=4, slots_max=4)
    ask(policy, job("n0", capped=True), 0.0)
    for number in range(1, 4):
        assert isinstance(ask(policy, job(f"n{number}", capped=True), 1.0), Wait)
    for second in range(2, 30):
        assert settle(policy, float(second)) == []
    policy.release(1, 30.0, True)
    assert settle(policy, 30.0) == ["n1"]
    assert settle(policy, 31.0) == []


def test_who_stands_aside_is_behind_all_others_and_told_so(name: str) -> None:
    policy = server(name)
    ask(policy, job("n0", capped=True), 0.0)
    ask(policy, job("a", capped=False), 0.0)
    first = ask(policy, job("n1", capped=True), 1.0)
    others = [ask(policy, job(client, capped=False), 2.0) for client in "bcd"]
    assert isinstance(first, Wait)
    assert first.ticket is not None
    # Fair shows the order of told starts, and the place that was told first: it never rises.
    shows_told = name == "capped-fair"
    places = [other.place for other in others if isinstance(other, Wait)]
    assert places == ([1, 3, 4] if shows_told else [1, 2, 3])
    assert policy.place(first.ticket) == (1 if shows_told else 4)
    order = [row.client for row in policy.tickets()]
    assert order == ["b", "c", "d", "n1"]


def test_waits_of_a_capped_network_add_up(name: str) -> None:
    policy = server(name, slots=8, slots_max=8)
    told = [ask(policy, job(f"n{number}", capped=True), 0.0) for number in range(12)]
    waits = [one.estimate.expected_s for one in told if isinstance(one, Wait) and one.estimate]
    assert waits == sorted(waits)
    assert waits[-1] > 5.0 * waits[0]


def test_a_policy_without_the_rule_lets_them_come_forward(name: str) -> None:
    policy = server(name)
    for number in range(4):
        ask(policy, job(f"n{number}", capped=True), 0.0)
    plain = make_policy("ticket", policy.settings, random.Random(1), previous=policy)
    assert settle(plain, 1.0) == ["n1"]
    assert plain.queue.forward() == len(plain.queue) == 2
    assert plain.queue.forward() == len(plain.queue) == 2


def test_the_laws_hold(name: str) -> None:
    check_laws(name, examples=10, laws=KernelLaws)


class HeldPolicy(Policy):
    """Tickets of some networks stand aside."""

    name = "held"
    summary = "As ticket, but some networks wait."
    reads = CappedFair.reads
    held: ClassVar[set[str]] = set()

    def stands_aside(self, row: int, now: float) -> bool:
        return self.admission.queue.table.subnet[row] in self.held


def test_a_network_is_asked_about_behind_many_that_stand_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, "held": HeldPolicy})
    networks = [f"10.0.{number}.0/24" for number in range(CROWDS.most_at_once + 1)]
    monkeypatch.setattr(HeldPolicy, "held", set(networks))
    policy = server("held")
    for number, network in enumerate(networks):
        asked = Job(f"c{number}", "/f", SIZE, SIZE, network=(network,), known=True)
        assert isinstance(policy.offer(asked, 0.0), Wait)
    HeldPolicy.held.discard(networks[-1])
    for now in (1.0, 2.0):
        policy.advance(now)
    assert policy.place(len(networks)) == 1


def test_one_here_that_a_rule_has_just_stopped_keeps_no_slot_from_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, "held": HeldPolicy})
    monkeypatch.setattr(HeldPolicy, "held", set())
    policy = server("held")
    for client in "ab":
        ask(policy, job(client, capped=False), 0.0)
    assert isinstance(ask(policy, job("n1", capped=True), 1.0), Wait)
    policy.release(1, 2.0, True)
    HeldPolicy.held.add(CAPPED)
    assert isinstance(policy.offer(job("c", capped=False), 2.0), Admit)
