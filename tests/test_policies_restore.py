"""Tickets taken up together stand as if they had been taken up one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate.policies.queue.ranked
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Decision, Job, TicketRow, TicketState, Wait
from tidegate.policies.registry import POLICIES, make_policy
from tidegate.policies.settings import PolicySettings

NOW = 1_000.0
SIZES = st.sampled_from([1_000, 2_000_000, 3_000_000, 50_000_000])
TICKETS = st.lists(
    st.builds(
        TicketRow,
        number=st.integers(1, 60),
        client=st.sampled_from([f"10.0.{n % 3}.{n}" for n in range(12)]),
        file=st.sampled_from(["a", "b", "c"]),
        size_bytes=SIZES,
        remaining_bytes=st.integers(1, 1_000),
        weight=st.sampled_from([1.0, 1.0, 0.5, 4.0]),
        issued_s=st.floats(0.0, NOW),
        state=st.sampled_from(TicketState),
        changed_s=st.floats(0.0, NOW),
        polls=st.sampled_from([0, 3, 1 << 20]),
        early_polls=st.sampled_from([0, 2, 1 << 20]),
        priority_class=st.sampled_from(["", "staff"]),
        network=st.sampled_from(["", "10.0.1.0/24", "10.0.2.0/24"]),
        stands_back=st.booleans(),
    ),
    max_size=40,
)


def offer(policy: AdmissionPolicy, client: str, file: str, now: float) -> Decision:
    return policy.offer(Job(client, file, 2_000_000, 2_000_000), now)


def used(name: str) -> AdmissionPolicy:
    """A policy with tickets of its own, one of which has left."""
    fields = PolicySettings(slots=2, reserve_small=1, bandwidth_bytes_s=1e6, ready_list=2)
    policy = make_policy(name, fields, random.Random(5))
    policy.changes()
    answers = [offer(policy, f"10.0.0.{n}", "a", NOW - 9.0) for n in range(5)]
    gone = [one.ticket for one in answers if isinstance(one, Wait) and one.ticket is not None]
    for ticket in gone[1:3]:
        policy.withdraw(ticket, NOW - 8.0)
    policy.changes()
    return policy


def seen(policy: AdmissionPolicy) -> list[Any]:
    """All that can be told of the queue, and how it goes on."""
    out: list[Any] = []

    def look(now: float) -> None:
        waiting = list(policy.tickets())
        out.append(waiting)
        for row in waiting:
            out.append((policy.place(row.number), policy.estimate(row.number, now)))
        out.extend((policy.snapshot(now), policy.changes(), policy.leases()))

    look(NOW)
    out.append(policy.advance(NOW))
    look(NOW)
    for step in range(8):
        # Some come back, some are new, of a network that has others in the line.
        out.append(offer(policy, f"10.0.1.{step}", "b", NOW + step))
    look(NOW + 9.0)
    for later in (60.0, 600.0, 6_000.0):
        out.append(policy.advance(NOW + later))
        look(NOW + later)
    return out


def fresh(name: str) -> AdmissionPolicy:
    fields = PolicySettings(slots=2, reserve_small=0, bandwidth_bytes_s=1e6)
    policy = make_policy(name, fields, random.Random(5))
    policy.changes()
    return policy


@pytest.mark.parametrize("begun", [fresh, used])
@pytest.mark.parametrize("name", sorted(POLICIES))
@given(tickets=TICKETS)
@settings(max_examples=20, deadline=None)
def test_restoring_together_is_restoring_one_by_one(
    begun: Callable[[str], AdmissionPolicy], name: str, tickets: list[TicketRow]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tidegate.policies.queue.ranked, "_FULL", 4)
        together, singly = begun(name), begun(name)
        together.restore(iter(tickets), NOW, 70)
        for ticket in sorted(tickets, key=lambda ticket: ticket.number):
            singly.restore([ticket], NOW, 1)
        singly.restore([], NOW, 70)
        # One by one: the difference of two long lists takes minutes to be written.
        for one, other in zip(seen(together), seen(singly), strict=True):
            assert one == other


def test_a_ticket_that_comes_and_goes_takes_no_more_room_each_time() -> None:
    policy = fresh("ticket")
    for number in range(1, 3_000):
        row = TicketRow(number, "c", "f", 9, 9, 1.0, 0.0, TicketState.WAITING, 0.0)
        policy.restore([row], NOW, 1)
        policy.withdraw(number, NOW)
    assert len(policy.queue.table.number) < 1_000  # type: ignore[attr-defined]
