"""A newcomer before whom nobody waits leaves nothing in any list, or waits in all of them."""

from __future__ import annotations

import random

import pytest

from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Admit, Job, TicketState, Wait
from tidegate.policies.registry import POLICIES, make_policy
from tidegate.policies.settings import PolicySettings

NOW = 1_000.0
#: Of somebody known, and of a stranger.
NETWORKS = ["", "10.0.1.0/24"]
QUEUES = sorted(name for name, kind in POLICIES.items() if kind.gives_tickets)


def _policy(name: str) -> AdmissionPolicy:
    policy = make_policy(name, PolicySettings(slots=1, reserve_small=0), random.Random(1))
    assert policy.changes() == []
    return policy


def _job(client: str, *, present: bool = False, network: str = "", weight: float = 1.0) -> Job:
    networks = (network,) if network else ()
    return Job(client, "/f", 10**7, 10**7, weight, present=present, network=networks)


@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize("network", NETWORKS)
def test_one_that_starts_is_told_as_started_and_leaves_nothing_behind(
    name: str, network: str
) -> None:
    policy = _policy(name)
    # One of a priority class is asked for each time: the first does not start at once.
    admit = policy.offer(_job("a", network=network, weight=2.0), NOW)
    assert isinstance(admit, Admit)
    assert admit.ticket is not None
    (row,) = policy.changes()
    assert (row.number, row.state) == (admit.ticket, TicketState.STARTED)
    assert not policy.anybody_waits()
    assert not policy.holds("a", "/f")
    assert policy.queue.next_deadline() is None
    assert not policy.queue.front
    assert policy.crowds.in_front(network) == (1 if network else 0)
    policy.detach(admit.lease, NOW, 0)
    policy.release(admit.lease, NOW, True)
    (row,) = policy.changes()
    assert (row.number, row.state) == (admit.ticket, TicketState.DONE)
    assert policy.crowds.in_front(network) == 0
    second = policy.offer(_job("b", weight=2.0), NOW)
    assert isinstance(second, Admit)
    assert second.ticket == admit.ticket + 1


@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_one_that_does_not_start_is_ready_and_found_again(
    name: str, present: bool, network: str
) -> None:
    policy = _policy(name)
    policy.close(True)
    wait = policy.offer(_job("a", present=present, network=network), NOW)
    assert isinstance(wait, Wait)
    assert wait.ticket is not None
    assert (wait.place, wait.ready) == (1, True)
    (row,) = policy.changes()
    assert (row.number, row.state) == (wait.ticket, TicketState.READY)
    assert policy.holds("a", "/f")
    assert policy.queue.front == ({network: {wait.ticket}} if network else {})
    assert [number for _, number in policy.queue.here] == ([wait.ticket] if present else [])
    # One that waits here does not run out; else the time to live counts from its return.
    if present:
        assert policy.queue.next_deadline() is None
    else:
        assert policy.queue.next_deadline() == pytest.approx(
            NOW + wait.retry_after_s + policy.settings.ticket_ttl_s
        )
    behind = policy.offer(_job("b"), NOW)
    assert isinstance(behind, Wait)
    assert behind.place == 2
    policy.close(False)
    again = policy.offer(_job("a", network=network), NOW + wait.retry_after_s)
    assert isinstance(again, Admit)
    assert again.ticket == wait.ticket
