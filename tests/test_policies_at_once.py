"""Who finds room for more starts at once: without a ticket, and unknown to the policy's order."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import ELSEWHERE, Admit, Job, TicketState, Wait
from tidegate.policies.hooks import Policy
from tidegate.policies.registry import POLICIES, make_policy
from tidegate.policies.room import Room
from tidegate.policies.settings import PolicySettings

LINE = 1_000_000.0
#: Policies with a queue that say what room there is.
WITH_ROOM = sorted(name for name, kind in POLICIES.items() if kind.gives_tickets)


def _made(name: str, slots: int = 3) -> AdmissionPolicy:
    policy = make_policy(
        name, PolicySettings(slots=slots, slots_max=slots, reserve_small=0), random.Random(1)
    )
    policy.changes()
    return policy


def _job(client: str, *, weight: float = 1.0, line: str = "") -> Job:
    return Job(client, "/f", 10**7, 10**7, weight, line=line)


def _start(policy: AdmissionPolicy, client: str, now: float) -> Admit:
    admit = policy.offer(_job(client), now)
    assert isinstance(admit, Admit)
    return admit


@pytest.mark.parametrize("name", WITH_ROOM)
def test_it_holds_a_slot_at_once_and_leaves_nothing_when_it_is_over_at_once(name: str) -> None:
    policy = _made(name)
    admits = [_start(policy, client, 1.0) for client in "abc"]
    assert [admit.ticket for admit in admits] == [None] * 3
    assert list(policy.pool.fresh) == [admit.lease for admit in admits]
    assert policy.snapshot(1.0).large_active == 3
    for admit in admits:
        policy.release(admit.lease, 1.0, True)
    assert policy.pool.fresh == policy.pool.without_ticket == policy.pool.leases == {}
    assert policy.snapshot(1.0).completed_total == 3
    assert policy.advance(1.0).call == ()
    assert policy.changes() == []


@pytest.mark.parametrize("name", WITH_ROOM)
def test_thousands_of_small_ones_that_wait_cost_no_look_each(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one stalled download they took a quarter of a core."""
    policy = _made(name, slots=1)
    first = policy.offer(Job("a", "/small", 1_000, 1_000), 1.0)
    for number in range(300):
        wait = policy.offer(Job(f"c{number}", "/small", 1_000, 1_000), 1.0)
        assert isinstance(wait, Wait)
        policy.present(wait.ticket, 1.0)
    looks = 0
    for_small = Room.for_small

    def counted(room: Room, now: float, before: float = math.inf) -> bool:
        nonlocal looks
        looks += 1
        return for_small(room, now, before)

    monkeypatch.setattr(Room, "for_small", counted)
    assert policy.advance(2.0).call == ()
    assert looks <= 3
    assert isinstance(first, Admit)
    policy.release(first.lease, 2.5, True)
    assert policy.advance(2.5).call == (1,)


@pytest.mark.parametrize("name", WITH_ROOM)
def test_all_that_run_have_tickets_before_the_first_that_waits(name: str) -> None:
    policy = _made(name)
    leases = [_start(policy, client, 1.0 + number).lease for number, client in enumerate("abc")]
    assert [policy.ticket_of(lease) for lease in leases] == [None] * 3
    wait = policy.offer(_job("d"), 5.0)
    assert isinstance(wait, Wait)
    assert [policy.ticket_of(lease) for lease in leases] == [1, 2, 3]
    assert wait.ticket == 4
    rows = {row.number: row for row in policy.changes()}
    assert [rows[number].state for number in (1, 2, 3)] == [TicketState.STARTED] * 3
    assert [rows[number].issued_s for number in (1, 2, 3)] == [1.0, 2.0, 3.0]
    # After a crash those who ran come before those who waited.
    after = make_policy(name, policy.settings, random.Random(1))
    after.restore(rows.values(), 6.0, 100)
    assert [row.client for row in after.tickets()] == ["a", "b", "c", "d"]
    policy.release(leases[0], 7.0, True)
    [row] = policy.changes()
    assert (row.number, row.state) == (1, TicketState.DONE)
    assert policy.ticket_of(leases[0]) is None


def test_thousands_that_run_get_their_tickets_piece_by_piece() -> None:
    policy = _made("ticket", slots=1_000)
    for number in range(1_000):
        _start(policy, f"c{number}", 1.0)
    assert isinstance(policy.offer(_job("waits"), 2.0), Wait)
    now = 2.0
    given = [1_000 - len(policy.pool.without_ticket)]
    while policy.pool.without_ticket:
        wake = policy.advance(now).wake_at
        assert wake is not None
        assert not policy.pool.without_ticket or now <= wake <= now + 0.1
        now = wake
        given.append(1_000 - len(policy.pool.without_ticket))
    assert given[0] < 1_000
    assert max(b - a for a, b in pairwise(given)) <= 200
    assert {policy.ticket_of(lease) for lease in policy.pool.leases}.isdisjoint({None})


@pytest.mark.parametrize("job", [_job("x", weight=2.0), _job("x", line="a")])
def test_who_must_be_shown_elsewhere_or_has_a_class_is_asked_for(job: Job) -> None:
    admit = _made("ticket").offer(job, 1.0)
    assert isinstance(admit, Admit)
    assert admit.ticket is not None


def test_without_a_leader_each_has_a_ticket() -> None:
    policy = _made("ticket")
    policy.restore((), 0.0, ELSEWHERE)
    admit = policy.offer(_job("a"), 1.0)
    assert isinstance(admit, Admit)
    assert admit.ticket == ELSEWHERE


def test_closed_doors_let_nobody_start_at_once() -> None:
    policy = _made("ticket")
    _start(policy, "a", 1.0)
    policy.close(True)
    assert isinstance(policy.offer(_job("b"), 1.0), Wait)


def test_no_more_start_at_once_than_the_line_has_room_for() -> None:
    policy = make_policy("fair", PolicySettings(bandwidth_bytes_s=LINE), random.Random(1))
    policy.observe(0.0, False, 1.0, LINE)
    policy.advance(1.0)
    answers = [policy.offer(_job(f"c{number}"), 1.0) for number in range(100)]
    at_once = sum(isinstance(one, Admit) and one.ticket is None for one in answers)
    # The last of them need not fit in whole.
    capacity = policy.capacity
    assert at_once == math.ceil(capacity.demand_bytes_s / capacity.typical_client_bytes_s)
    assert policy.anybody_waits()


class NoRoom(RuleBasedStateMachine):
    """Two of one policy, one of which is asked for each start: they decide the same.

    Time passes after each event, as nothing is told of those that are over within one moment.
    """

    name: ClassVar[str] = "fair"

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.both = []
        for at_once in (True, False):
            policy = make_policy(
                self.name,
                PolicySettings(
                    slots=4, slots_max=12, reserve_small=0, lease_idle_s=5.0, ticket_ttl_s=20.0
                ),
                random.Random(3),
            )
            if not at_once:
                policy.policy.spare = lambda now: (0, 0.0)  # type: ignore[method-assign]
            self.both.append(policy)
        self.leases: dict[int, int] = {}

    def settle(self) -> None:
        seen = []
        for policy in self.both:
            advance = policy.advance(self.now)
            expired = sorted(self._owner(policy, number) for number in advance.expired)
            called = [self._owner(policy, number) for number in advance.call]
            seen.append((advance.pause, advance.resume, advance.idled_out, expired, called))
        assert seen[0] == seen[1]
        for lease in seen[0][2]:
            del self.leases[lease]

    def _owner(self, policy: AdmissionPolicy, number: int) -> str:
        row = policy.ticket(number)
        assert row is not None
        return row.client

    @rule(client=st.integers(0, 9), size=st.sampled_from([200_000, 5_000_000]), known=st.booleans())
    def ask(self, client: int, size: int, known: bool) -> None:
        job = Job(f"c{client}", "/f", size, size, network=("n",), known=known)
        answers = []
        for policy in self.both:
            answer = policy.offer(job, self.now)
            if isinstance(answer, Wait):
                answers.append((answer.place, answer.ready, answer.retry_after_s, answer.estimate))
            else:
                lease = answer.lease if isinstance(answer, Admit) else 0
                answers.append((type(answer), lease, getattr(answer, "joined", None)))
            if isinstance(answer, Admit):
                self.leases[answer.lease] = size
        assert answers[0] == answers[1]
        self.settle()

    @rule(passed=st.floats(0.01, 3.0))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.settle()

    @precondition(lambda self: self.leases)
    @rule(pick=st.integers(0, 99), done=st.booleans())
    def end(self, pick: int, done: bool) -> None:
        lease = sorted(self.leases)[pick % len(self.leases)]
        for policy in self.both:
            policy.release(lease, self.now, done)
        del self.leases[lease]
        self.settle()

    @precondition(lambda self: self.leases)
    @rule(pick=st.integers(0, 99), part=st.floats(0.0, 1.0), rate=st.floats(0.0, 1e6))
    def progress(self, pick: int, part: float, rate: float) -> None:
        lease = sorted(self.leases)[pick % len(self.leases)]
        left = int(self.leases[lease] * part)
        for policy in self.both:
            policy.progress(lease, self.now, left, rate)

    @rule(goodput=st.floats(0.0, LINE), busy=st.booleans(), known=st.booleans())
    def observe(self, goodput: float, busy: bool, known: bool) -> None:
        for policy in self.both:
            policy.observe(goodput, busy, self.now, LINE if known else math.inf)
        self.settle()

    @invariant()
    def who_waits_finds_all_that_run_with_tickets(self) -> None:
        for policy in self.both:
            if policy.anybody_waits():
                assert not policy.pool.without_ticket
            assert all(not lease.fresh for lease in policy.pool.leases.values())


@pytest.mark.parametrize("name", WITH_ROOM)
def test_it_decides_the_same_as_if_each_were_asked_for(name: str) -> None:
    class Case(NoRoom):
        pass

    Case.name = name
    case = Case.TestCase
    case.settings = examples(max_examples=30, stateful_step_count=40, deadline=None)
    case().runTest()


def test_a_policy_that_does_not_say_what_room_there_is_is_asked_each_time() -> None:
    assert Policy.spare(_made("ticket").policy, 0.0) == (0, 0.0)
