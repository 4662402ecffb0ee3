"""What keeps paused downloads alive, and what that costs."""

from __future__ import annotations

import math
import random
from collections import deque
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.in_order import InOrder
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.capacity import Capacity
from tidegate.policies.contract import Admit, Job, LeaseView, TicketState, Wait
from tidegate.policies.first_bytes import FirstBytes
from tidegate.policies.hooks import AdmissionView
from tidegate.policies.keep_alive import (
    KEEP_ALIVE,
    KeepAliveBudget,
    kept_alive_bytes_s,
    most_paused,
    most_with_first_bytes,
)
from tidegate.policies.leases import Lease, LeasePool
from tidegate.policies.preemption import PREEMPTION
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

#: What the common speed limits are: bytes a second, the mean of so many seconds.
LIMIT_BYTES_S, MEAN_S = 1_000.0, 5.0


class SpeedLimit:
    """A client that gives up once the mean of its last 5 s was too low for so long."""

    def __init__(self, now: float) -> None:
        self.got: deque[tuple[float, int]] = deque()
        self.fine_s = now
        self.longest_s = self.longest_silence_s = 0.0
        self.received_s = now
        self.burst_s, self.longest_gap_s = -math.inf, 0.0

    def take(self, now: float, count: int) -> None:
        self.longest_silence_s = max(self.longest_silence_s, now - self.received_s)
        self.received_s = now
        self.got.append((now, count))

    def look(self, now: float) -> None:
        while self.got and self.got[0][0] <= now - MEAN_S:
            self.got.popleft()
        if sum(count for _, count in self.got) >= LIMIT_BYTES_S * MEAN_S:
            self.fine_s = now
        self.longest_s = max(self.longest_s, now - self.fine_s)


def kept_alive(rate: float, counting: int, others: int) -> tuple[list[SpeedLimit], int]:
    """So many paused downloads for a minute on one budget; and what all took."""
    budget = KeepAliveBudget(0.0)
    clients = [SpeedLimit(0.0) for _ in range(counting + others)]
    chance = random.Random(counting)
    due = [(chance.uniform(0.0, KEEP_ALIVE.interval_s), number) for number in range(len(clients))]
    taken = 0
    for step in range(1, 601):
        now = 0.1 * step
        budget.fill(rate, now)
        interval_s = budget.interval_s(len(clients))
        for place, (due_s, number) in enumerate(due):
            client = clients[number]
            if due_s <= now:
                count = budget.share(now - client.burst_s, counts=number < counting)
                budget.spend(count)
                taken += count
                if count >= KEEP_ALIVE.burst_bytes:
                    client.longest_gap_s = max(client.longest_gap_s, now - max(0.0, client.burst_s))
                    client.burst_s = now
                client.take(now, count)
                due[place] = now + interval_s, number
            client.look(now)
    return clients, taken


@given(st.floats(1e4, 1e9), st.integers(0, 40), st.integers(0, 40))
def test_keeping_alive_takes_no_more_than_its_part_of_the_line(
    rate: float, counting: int, others: int
) -> None:
    _, taken = kept_alive(rate, counting, others)
    assert taken <= KEEP_ALIVE.line_part * rate * (60.0 + 2.0) + 5 * KEEP_ALIVE.burst_bytes
    assert kept_alive_bytes_s(rate, 40) * 40 <= KEEP_ALIVE.line_part * rate * 1.001


@pytest.mark.parametrize(
    ("counting", "others", "least_s"), [(20, 20, 15.0), (100, 300, 15.0), (450, 50, 30.0)]
)
def test_who_counts_bytes_lives_on(counting: int, others: int, least_s: float) -> None:
    clients, _ = kept_alive(2.5e6, counting, others)
    assert max(client.longest_s for client in clients[:counting]) < least_s
    assert max(client.longest_silence_s for client in clients) <= KEEP_ALIVE.interval_s + 0.2


@pytest.mark.parametrize(("counting", "others"), [(20, 20), (100, 100)])
def test_who_counts_bytes_sees_no_stalled_download_for_10_s(counting: int, others: int) -> None:
    clients, _ = kept_alive(2.5e6, counting, others)
    assert max(client.longest_gap_s for client in clients[:counting]) < 10.0


@given(st.floats(1e3, 1e11))
def test_places_cost_a_small_part_of_the_line(rate: float) -> None:
    together = most_paused(rate) + most_with_first_bytes(rate)
    assert together * kept_alive_bytes_s(rate, 1) <= 0.125 * rate
    if rate >= 2e6:
        assert together * kept_alive_bytes_s(rate, 1) <= 0.0451 * rate


def test_who_counts_bytes_is_opened_before_its_turn_and_has_its_turn_later() -> None:
    policy = make_policy("fair", PolicySettings(bandwidth_bytes_s=1e6), random.Random(1))
    line = 1e6

    def settle(now: float) -> tuple[list[int], list[int]]:
        policy.observe(line, True, now, line)
        advance = policy.advance(now)
        return list(advance.call), list(advance.pause)

    def ask(name: str, size: int, now: float, *, counts: bool) -> Admit | Wait:
        network = (f"{name}/32", "10.1.1/24") if name.startswith("c") else ()
        job = Job(name, "f", size, size, present=True, counts_body=counts, network=network)
        decision = policy.offer(job, now)
        assert isinstance(decision, Admit | Wait)
        return decision

    policy.observe(line, True, 0.0, line)
    # Those that run take the line, and as many are paused as it bears.
    tickets: dict[int | None, str] = {}
    for number in range(200):
        decision = ask(f"r{number}", 10_000_000, 0.01 * number, counts=False)
        tickets[decision.ticket] = f"r{number}"
        settle(0.01 * number)
    for number in range(200):
        decision = ask(f"c{number}", 20_000_000, 10.0, counts=True)
        assert isinstance(decision, Wait)
        tickets[decision.ticket] = f"c{number}"
    opened: list[int] = []
    for step in range(40):
        now = 17.0 + 0.05 * step
        for _ in range(50):
            called = [ticket for ticket in settle(now)[0] if ticket in tickets]
            if not called:
                break
            for ticket in called:
                name = tickets[ticket]
                size = 20_000_000 if name.startswith("c") else 10_000_000
                decision = ask(name, size, now, counts=name.startswith("c"))
                if isinstance(decision, Admit) and name.startswith("c"):
                    opened.append(decision.lease)
                    assert now >= 18.0
    # Half of the first bytes may be of one network of strangers.
    assert (
        0.5 * most_with_first_bytes(line) <= len(opened) < 0.5 * most_with_first_bytes(line) + 1.0
    )
    paused = {view.lease for view in policy.leases() if view.paused}
    assert paused >= set(opened)
    # When all others have ended or left, it is their turn.
    for row in tuple(policy.tickets()):
        policy.withdraw(row.number, 30.0)
    for view in policy.leases():
        if view.lease not in opened:
            policy.release(view.lease, 30.0, True)
    policy.observe(line, True, 30.0, line)
    assert set(policy.advance(30.0).resume) & set(opened)


def _row_of(policy: AdmissionPolicy, lease: int) -> LeaseView | None:
    return next((view for view in policy.leases() if view.lease == lease), None)


def _is_paused(policy: AdmissionPolicy, lease: int) -> bool:
    view = _row_of(policy, lease)
    return view is not None and view.paused


def test_an_opened_download_lives_through_closed_doors_and_other_policies() -> None:
    settings = PolicySettings(bandwidth_bytes_s=1e6)
    policy = make_policy("fair", settings, random.Random(1))
    policy.observe(1e6, True, 0.0, 1e6)
    for number in range(200):
        now = 0.01 * number
        policy.offer(Job(f"r{number}", "f", 10_000_000, 10_000_000, present=True), now)
        policy.observe(1e6, True, now, 1e6)
        policy.advance(now)
    job = Job("w", "f", 20_000_000, 20_000_000, present=True, counts_body=True)
    waits = policy.offer(job, 10.0)
    assert isinstance(waits, Wait)
    assert waits.ticket is not None
    # Others come first: in their turn, or as they were told.
    admit: object = None
    for step in range(100):
        policy.observe(1e6, True, 18.1 + 0.05 * step, 1e6)
        called = policy.advance(18.1 + 0.05 * step).call
        if waits.ticket in called:
            admit = policy.offer(job, 18.1 + 0.05 * step)
            break
        for number in called:
            crowd = Job(f"r{number - 1}", "f", 10_000_000, 10_000_000, present=True)
            policy.offer(crowd, 18.1 + 0.05 * step)
    assert isinstance(admit, Admit)
    lease = admit.lease
    policy.advance(25.0)
    assert policy.pool.leases[lease].opened
    assert _is_paused(policy, lease)
    # What a journal has of it: after a crash it need not wait anew.
    assert {row.number: row.state for row in policy.changes()}[waits.ticket] is TicketState.STARTED
    policy.close(True)
    policy.advance(26.0)
    assert _is_paused(policy, lease)
    # Another policy lets it go on. Back under Fair it is one that has had its turn.
    for name in ("ticket", "fair"):
        policy = make_policy(name, settings, random.Random(1), policy)
        policy.observe(1e6, True, 27.0, 1e6)
        policy.advance(27.0)
        assert _is_paused(policy, lease) == (name == "fair")
    assert not policy.pool.leases[lease].opened
    # With the doors closed all that have begun come to their end.
    for view in policy.leases():
        if view.lease != lease:
            policy.release(view.lease, 28.0, True)
    assert policy.advance(28.0).resume == (lease,)
    # Its client goes away.
    policy.detach(lease, 29.0, 19_000_000)
    policy.advance(29.0 + settings.lease_idle_s + 1.0)
    assert _row_of(policy, lease) is None
    assert policy.estimate(waits.ticket, 99.0) is None


class _Waiting:
    """Tickets that all wait, numbered from 1, and what is opened of them as time passes."""

    def __init__(self, networks: list[str], rate: float, slots_max: int) -> None:
        self.table = table = SimpleNamespace(
            number=range(len(networks) + 1),
            present=[True] * (len(networks) + 1),
            network=["", *networks],
        )
        self.pool = LeasePool()
        admission = SimpleNamespace(
            pool=self.pool,
            settings=PolicySettings(slots_max=slots_max),
            capacity=SimpleNamespace(rate_bytes_s=rate),
            queue=SimpleNamespace(table=table),
            row=lambda ticket: None if ticket in self.leases else ticket,
        )
        self.leases: dict[int, Lease] = {}
        self.first_bytes = FirstBytes(cast(AdmissionView, admission))
        for number in range(1, len(networks) + 1):
            self.first_bytes.wants(number, 0.0)

    def pass_time(self, now: float) -> None:
        while called := self.first_bytes.next(now):
            (number,) = called
            assert self.first_bytes.may_start(number, now)
            lease = self.leases[number] = self.pool.open(
                Job(str(number), "f", 9, 9), now, number, True
            )
            lease.network = self.table.network[number]
            self.first_bytes.started(lease)


def test_who_finds_no_room_in_its_network_keeps_no_other_waiting_and_is_looked_at_again() -> None:
    rate = 1e6
    half = 0.5 * most_with_first_bytes(rate)
    waiting = _Waiting(["10.1.1/24"] * 100 + ["10.2.2/24"], rate, 4096)
    waiting.pass_time(7.0)
    assert not waiting.leases
    waiting.pass_time(8.0)
    assert half <= len(waiting.leases) - 1 < half + 1.0
    assert 101 in waiting.leases
    before = len(waiting.leases)
    waiting.first_bytes.over(waiting.leases[1])
    waiting.pass_time(16.0)
    assert len(waiting.leases) == before + 1
    # Nobody is looked at for ever.
    waiting.first_bytes.over(waiting.leases[2])
    waiting.pass_time(39.0)
    assert len(waiting.leases) == before + 1


def test_on_a_fast_line_first_bytes_leave_slots_to_those_whose_turn_has_come() -> None:
    waiting = _Waiting([""] * 100, 1e9, 80)
    waiting.pass_time(8.0)
    assert len(waiting.leases) == 20


def test_a_probe_lasts_until_the_speed_has_been_seen_but_not_for_ever() -> None:
    pool, capacity = LeasePool(), Capacity()
    order = InOrder(capacity, pool)
    preemption = order.preemption
    seen, unseen = (
        pool.open(Job(name, "f", 9, 9, present=True), 0.0, None, True) for name in ("a", "b")
    )
    preemption.probe(seen, 0.0)
    preemption.probe(unseen, 0.0)
    seen.cap_bytes_s = 5.0
    busy, other = (pool.open(Job(name, "f", 9, 9), 0.0, None, True) for name in ("c", "d"))
    busy.cap_bytes_s = other.cap_bytes_s = 1e3
    capacity.observe(1e3, link_busy=True, more_wanted=True, line_bytes_s=1e3)

    def paused(now: float) -> tuple[int, ...]:
        return order.choose((busy, other, seen, unseen), now)[0]

    assert paused(0.9 * PREEMPTION.probe_s) == ()
    assert preemption.next_s(0.9 * PREEMPTION.probe_s) == PREEMPTION.probe_s
    assert paused(PREEMPTION.probe_s) == (seen.id,)
    assert paused(2.0 * PREEMPTION.probe_s) == ()
    assert paused(60.0) == (unseen.id,)
    assert preemption.count == 2
    # The one that was paused for so long has a turn.
    assert not seen.paused
    assert preemption.next_s(60.0) == 60.0 + PREEMPTION.turn_s


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["", "b"]), st.integers(1, 9)), max_size=40
    ),
    st.lists(st.integers(0, 39)),
    st.integers(1, 7),
)
def test_those_with_first_bytes_stand_where_a_sorted_list_has_them(
    begun: list[tuple[int, str, int]], over: list[int], most: int
) -> None:
    waiting = _Waiting([""] * len(begun), 1e6, 4096)
    leases = []
    for number, (key, line, left) in enumerate(begun, 1):
        lease = Lease(number, Job(str(number), "f", left, left, line=line), 0.0, number, True)
        lease.key = float(key)
        waiting.first_bytes.started(lease)
        leases.append(lease)
    for number in over:
        if number < len(leases) and leases[number].opened:
            waiting.first_bytes.over(leases[number])
    opened = [one for one in leases if one.opened]
    looked: list[Lease] = []
    for _ in range(-(-len(opened) // most)):
        looked += waiting.first_bytes.some(most)
    assert looked == opened
    for lease in opened:
        lease.key = 9.0 - lease.key
    waiting.first_bytes.some(most)
    opened.sort(key=lambda one: (one.key, one.id))
    assert waiting.first_bytes.leases() == opened
    for entry in ((4.0, 3), (9.0, 20), (math.inf, 0)):
        before = [one for one in opened if (one.key, one.id) < entry]
        assert waiting.first_bytes.bytes_before(entry) == sum(one.size_bytes for one in before)
        assert waiting.first_bytes.before(entry, "b") == sum(one.line == "b" for one in before)
