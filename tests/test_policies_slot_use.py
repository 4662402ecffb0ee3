"""Who keeps a slot: counts stay true, and none is lost that is used or that nobody wants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidegate.policies.contract import Job, TicketState
from tidegate.policies.hooks import AdmissionView, Policy
from tidegate.policies.laws.reputation import FirstUses
from tidegate.policies.laws.slot_use import SlotUse, was_used
from tidegate.policies.leases import Lease
from tidegate.policies.room import Room
from tidegate.policies.settings import PolicySettings
from tidegate.policies.state import AdmissionState

BIG = 50_000_000
SLOTS = 4
LINE_BYTES_S = 4e6


class Slots:
    """A few slots of one line, its leases, and others who wait for them."""

    def __init__(self, **changes: Any) -> None:
        self.settings = PolicySettings(slots=SLOTS, reserve_small=0, **changes)
        self.state = AdmissionState()
        self.state.capacity.configure(LINE_BYTES_S)
        self.now = 0.0
        self.asked = 0
        self.waiting: list[int] = []
        self.switch()

    def switch(self) -> None:
        """Another policy takes over what runs."""
        policy = Policy(cast(AdmissionView, SimpleNamespace(settings=self.settings)))
        self.room = Room(self.state, self.settings, policy)
        self.use = SlotUse(self.state, self.settings, policy, self.room)
        self.state.crowds.configure(policy.large_slots, self.room.network_shares)

    def starts(self, network: str = "") -> Lease:
        self.asked += 1
        lease = self.state.pool.open(Job(f"c{self.asked}", "file", BIG, BIG), self.now, None, True)
        lease.network = network
        self.use.lease_begins(lease, self.now)
        return lease

    def comes(self) -> None:
        self.asked += 1
        job = Job(f"w{self.asked}", "file", BIG, BIG)
        row = self.state.queue.issue(job, BIG, self.now)
        self.state.queue.set_present(row, True)
        self.waiting.append(self.state.queue.table.number[row])

    def goes(self) -> None:
        queue = self.state.queue
        queue.end(queue.table.rows[self.waiting.pop()], TicketState.WITHDRAWN, self.now)

    def run(self, lease: Lease, seconds: float, rate_bytes_s: float) -> None:
        """It takes that rate, measured and looked at four times a second."""
        for _ in range(int(4 * seconds)):
            self.now += 0.25
            lease.took(max(0, lease.remaining_bytes - int(rate_bytes_s / 4)))
            lease.rate_bytes_s = rate_bytes_s
            self.use.lease_measured(lease, self.now)
            self.use.time_passes(self.now)

    def is_held_against(self, network: str) -> bool:
        """Whether a ticket of this network waits longer for slots that it lost."""
        crowds, queue = self.state.crowds, self.state.queue
        row = queue.issue(Job("one", "file", BIG, BIG, network=(network,)), BIG, self.now)
        queue.stand_back(row)
        try:
            return crowds.weighs(row, self.now + 10_000.0) == 0.0
        finally:
            queue.end(row, TicketState.WITHDRAWN, self.now)

    def ends(self, lease: Lease) -> None:
        self.use.lease_ends(lease, self.now, used=was_used(lease))
        self.state.pool.close(lease)


@pytest.mark.parametrize(
    ("waits", "rate_bytes_s", "loses"),
    [(True, 0.0, True), (True, LINE_BYTES_S, False), (False, 0.0, False)],
)
def test_a_slot_is_lost_by_who_takes_nothing_while_others_wait(
    waits: bool, rate_bytes_s: float, loses: bool
) -> None:
    slots = Slots()
    lease = slots.starts()
    if waits:
        slots.comes()
    slots.run(lease, 25.0, rate_bytes_s)
    assert lease.slotless is loses
    assert slots.room.large_unused() == SLOTS - (not loses)


def test_nobody_loses_a_slot_where_no_use_is_asked_for() -> None:
    slots = Slots(slot_use_fraction=0.0)
    lease = slots.starts()
    slots.comes()
    slots.run(lease, 25.0, 0.0)
    assert not lease.slotless


def test_one_that_takes_its_share_again_has_its_slot_at_the_next_look() -> None:
    slots = Slots()
    lease = slots.starts()
    slots.comes()
    slots.run(lease, 12.0, 0.0)
    assert lease.slotless
    slots.run(lease, 20.0, LINE_BYTES_S)
    assert not lease.slotless, "a slot is free"


def test_one_without_a_slot_that_takes_a_share_pauses_ten_seconds_at_a_stretch() -> None:
    slots = Slots()
    lease = slots.starts()
    slots.comes()
    slots.run(lease, 12.0, 0.0)
    assert lease.slotless
    others = [slots.starts() for _ in range(SLOTS)]
    while not lease.paused:
        slots.run(lease, 0.25, LINE_BYTES_S)
        slots.use.pauses(slots.now)
        assert slots.now < 40.0
    assert slots.use.wake_s(slots.now) == pytest.approx(slots.now, abs=10.0)
    assert slots.use.pauses(slots.now + 9.9) == ((), ())
    assert slots.use.pauses(slots.now + 10.0) == ((), (lease.id,))
    slots.state.crowds.lease_idled(others[0], slots.now)


def test_a_download_that_was_paused_for_most_of_a_look_does_not_lose_its_slot_for_that() -> None:
    slots = Slots()
    lease = slots.starts()
    slots.comes()
    slots.run(lease, 12.0, 0.0)
    others = [slots.starts() for _ in range(SLOTS)]
    while not lease.paused:
        slots.run(lease, 0.25, LINE_BYTES_S)
        slots.use.pauses(slots.now)
        assert slots.now < 40.0
    slots.run(lease, 9.5, 0.0)
    slots.ends(others.pop())
    assert slots.use.pauses(slots.now) == ((), (lease.id,))
    assert not lease.slotless
    # It takes its share from now on; the look ends a moment later.
    slots.run(lease, 1.0, 2 * slots.use.least_rate_bytes_s())
    assert not lease.slotless


def test_a_crowd_gives_up_lent_slots_and_those_that_end_forgive_no_lost_one() -> None:
    slots = Slots(network_shares=16)
    leases = [slots.starts("a") for _ in range(SLOTS)]
    for _ in range(2):
        slots.comes()
    slots.use.time_passes(slots.now)
    assert [lease.lent for lease in leases] == [False, False, True, True]
    slots.run(leases[0], 12.0, 0.0)
    assert leases[0].slotless
    slots.ends(leases[3])
    slots.ends(leases[2])
    assert slots.is_held_against("a")
    slots.ends(leases[0])
    slots.ends(leases[1])
    assert not slots.is_held_against("a")


def test_a_lent_slot_comes_back_once_nobody_else_waits() -> None:
    slots = Slots(network_shares=16)
    leases = [slots.starts("a") for _ in range(SLOTS)]
    slots.comes()
    slots.use.time_passes(slots.now)
    slots.run(leases[0], 12.0, 0.0)
    slots.use.pauses(slots.now)
    assert leases[3].paused
    slots.goes()
    assert slots.use.pauses(slots.now) == ((), (leases[3].id, leases[2].id))
    assert not leases[3].slotless
    assert slots.is_held_against("a"), "the other one used nothing"


def test_a_look_takes_place_when_it_was_to_although_times_are_rounded() -> None:
    """It was due at the same time again and again: the server did nothing else."""
    slots = Slots(network_shares=0)
    slots.now = 1017.1309433132448
    slots.starts()
    slots.comes()
    slots.use.time_passes(slots.now)
    wake_s = slots.use.wake_s(slots.now)
    assert wake_s is not None
    slots.use.time_passes(wake_s)
    assert (slots.use.wake_s(wake_s) or 0.0) > wake_s


class Life(RuleBasedStateMachine):
    """Leases of three crowds and of known clients, with others that come and go."""

    @initialize(shares=st.sampled_from([0, 16]))
    def begins(self, shares: int) -> None:
        self.slots = Slots(network_shares=shares)
        self.leases: list[Lease] = []
        self.waited = False

    @rule(network=st.sampled_from(["", "a", "b", "c"]))
    def one_starts(self, network: str) -> None:
        if self.slots.room.large_free() > 0:
            self.leases.append(self.slots.starts(network))

    @rule()
    def somebody_comes(self) -> None:
        self.slots.comes()
        self.waited = True

    @precondition(lambda self: self.slots.waiting)
    @rule()
    def somebody_goes(self) -> None:
        self.slots.goes()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 4.0, 11.0]), fast=st.booleans())
    def one_runs(self, data: st.DataObject, seconds: float, fast: bool) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.slots.run(lease, seconds, 0.0 if lease.paused or not fast else LINE_BYTES_S)

    @rule()
    def pauses_are_looked_at(self) -> None:
        paused = {lease.id for lease in self.leases if lease.paused}
        pause, resume = self.slots.use.pauses(self.slots.now)
        assert not paused & set(pause)
        assert set(resume) <= paused

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), idle=st.booleans())
    def one_ends(self, data: st.DataObject, idle: bool) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        if idle and not was_used(lease):
            self.slots.state.crowds.lease_idled(lease, self.slots.now)
        self.slots.ends(lease)

    @rule()
    def another_policy_takes_over(self) -> None:
        self.slots.switch()
        self.slots.use.time_passes(self.slots.now)

    @invariant()
    def counts_are_those_of_the_leases(self) -> None:
        pool, crowds = self.slots.state.pool, self.slots.state.crowds
        without = [lease for lease in self.leases if lease.slotless]
        assert sorted(pool.slotless) == sorted(lease.id for lease in without)
        assert 0 <= pool.doubted <= len(self.leases) - len(without)
        for network in "abc":
            held = [one for one in self.leases if one.network == network and not one.slotless]
            assert crowds.in_front(network) == len(held)
            lost = [one for one in without if one.network == network and not one.lent]
            assert self.slots.is_held_against(network) == bool(lost)

    @invariant()
    def nobody_loses_a_slot_that_nobody_else_wanted(self) -> None:
        assert self.waited or not self.slots.state.pool.slotless

    def teardown(self) -> None:
        for lease in self.leases:
            self.slots.ends(lease)
        self.slots.use.time_passes(self.slots.now)
        pool = self.slots.state.pool
        assert (pool.slots_used, pool.doubted, len(pool.slotless)) == (0, 0, 0)
        assert all(self.slots.state.crowds.in_front(network) == 0 for network in "abc")


Life.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase


def test_what_strangers_used_long_ago_says_little_of_the_next_ones() -> None:
    uses = FirstUses()
    for _ in range(8):
        uses.note(0.0, used=True)
    for _ in range(9):
        uses.note(200.0, used=False)
    assert uses.doubted(10, 200.0) == 9
    # What they wasted is forgotten as well.
    assert uses.doubted(10, 400.0) == 0


def test_however_much_was_wasted_one_of_thirty_two_on_trial_counts() -> None:
    uses = FirstUses()
    for _ in range(10_000):
        uses.note(0.0, used=False)
    assert uses.doubted(64, 0.0) == 62
