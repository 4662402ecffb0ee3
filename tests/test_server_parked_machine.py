"""Parked requests under random use: none is ever forgotten, and none waits beside a free slot.

Gate, policy driver, leases and parked requests are the real ones; sockets are not.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.logger import LogLevel, globalLogPublisher

from tests.fakes import Asked, House
from tidegate.policies.contract import TicketState
from tidegate.policies.settings import PolicySettings
from tidegate.server.admission.actions import QueueActions
from tidegate.server.admission.responses import STATUS_PREFIX
from tidegate.server.control.events import FaultCount

ADDRESSES = ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
FILES = ["/a.iso", "/b.iso"]
#: Two uses of one program, so of one client: parked inside its request, and told to come back.
PARKED: dict[str, str] = {"agent": "curl/8.0"}
TOLD: dict[str, str] = {"agent": "curl/8.0", "accept": "application/json"}
SETTINGS: dict[str, Any] = {
    "slots": 3,
    "reserve_small": 1,
    "slots_max": 4,
    "connections_per_lease": 2,
    "lease_idle_s": 3.0,
    "ticket_ttl_s": 6.0,
    "tickets_per_client": 2,
    "retry_max_s": 10.0,
    "bandwidth_bytes_s": 10_000_000.0,
}


def who(asked: Asked) -> tuple[str, str]:
    request = asked.request
    file = request.target.partition(b"?")[0].decode()
    return request.client_address, file.removeprefix(STATUS_PREFIX)


def token_of(asked: Asked) -> str | None:
    name = "tidegate-ticket"
    return asked.connection.fields.get(name) or asked.start_fields.get(name)


class Crowd(RuleBasedStateMachine):
    """A few clients that ask several times each, so that requests share downloads and tickets."""

    policy = "ticket"

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        globalLogPublisher.addObserver(self.observe)
        self.house = House(self.policy, **SETTINGS)
        self.gate = self.house.gate
        self.actions = QueueActions(self.gate)
        self.asked: list[Asked] = []

    def observe(self, event: dict[str, Any]) -> None:
        if event.get("log_level") in (LogLevel.error, LogLevel.critical):
            self.faults.append(str(event.get("log_format")))

    def teardown(self) -> None:
        globalLogPublisher.removeObserver(self.observe)
        self.gate.close()

    @rule(
        address=st.sampled_from(ADDRESSES),
        file=st.sampled_from(FILES),
        program=st.sampled_from([PARKED, TOLD]),
        with_ticket=st.booleans(),
    )
    def ask(self, address: str, file: str, program: dict[str, str], with_ticket: bool) -> None:
        token = None
        if with_ticket:
            shown = [token_of(one) for one in self.asked if who(one) == (address, file)]
            shown = [token for token in shown if token is not None]
            token = shown[-1] if shown else None
        self.asked.append(self.house.ask(address, file=file, token=token, **program))

    @rule(which=st.integers(0, 100), wait_s=st.sampled_from([0, 1, 20]))
    def a_page_watches(self, which: int, wait_s: int) -> None:
        shown = [(who(one), token) for one in self.asked if (token := token_of(one)) is not None]
        if shown:
            (address, file), token = shown[which % len(shown)]
            self.asked.append(self.house.watch(address, token, wait_s, file))

    @rule(which=st.integers(0, 100), whole=st.booleans())
    def a_body_ends(self, which: int, whole: bool) -> None:
        self.end_a_body(which, whole)
        self.house.clock.advance(0)

    @rule(which=st.integers(0, 100), whole=st.booleans(), waiter=st.integers(0, 100))
    def its_sister_asks_the_instant_a_body_ends(self, which: int, whole: bool, waiter: int) -> None:
        waiting = [one for one in self.asked if one.connection.alive and not one.started]
        self.end_a_body(which, whole)
        if waiting:
            address, file = who(waiting[waiter % len(waiting)])
            self.ask(address, file, TOLD, True)

    def end_a_body(self, which: int, whole: bool) -> None:
        running = [t for one in self.asked for t in one.transfers if not t.over]
        if running:
            running[which % len(running)].end(whole)

    @rule(which=st.integers(0, 100))
    def a_client_leaves(self, which: int) -> None:
        alive = [one for one in self.asked if one.connection.alive and not one.connection.status]
        if alive:
            alive[which % len(alive)].leave()
            self.house.clock.advance(0)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.house.wait(seconds)

    @rule(which=st.integers(0, 100), act=st.sampled_from(["cancel", "withdraw", "promote"]))
    def an_operator_acts(self, which: int, act: str) -> None:
        if act == "cancel":
            leases = [view.lease for view in self.gate.policy.leases()]
            if leases:
                assert self.actions.cancel(leases[which % len(leases)], "test")
        else:
            numbers = [row.number for row in self.gate.policy.tickets()]
            if numbers:
                number = numbers[which % len(numbers)]
                assert getattr(self.actions, act)(number)
        self.house.clock.advance(0)

    @rule(policy=st.sampled_from(["ticket", "fcfs", "reserve", "fair", "adaptive"]))
    def the_policy_changes(self, policy: str) -> None:
        self.gate.apply(policy, PolicySettings(**SETTINGS))
        self.house.clock.advance(0)

    @invariant()
    def everybody_parked_is_awaited(self) -> None:
        for request in self.gate.parked:
            assert self.gate.is_awaited(request), request.waits_for
        assert self.faults == []

    def idle_slots(self) -> int:
        """Free slots for large files beyond those kept for owners who are told to come just now."""
        seen = self.gate.policy.snapshot(self.house.clock.seconds())
        away = sum(
            row.state is TicketState.READY and not self.gate.parked.with_ticket(row.number)
            for row in self.gate.policy.tickets()
        )
        return seen.large_slots - seen.large_active - away

    @invariant()
    def a_free_slot_and_a_parked_request_start(self) -> None:
        if self.gate.policy.name != "ticket" or not self.gate.parked.placed:
            return
        if self.idle_slots() > 0:
            # A slot that a network had for nothing is free for others first, until the next tick.
            self.house.wait(0.25)
            assert not self.gate.parked.placed or self.idle_slots() <= 0 or self.all_have_wasted()

    def all_have_wasted(self) -> bool:
        """Whether all who are parked are of networks that hold what those they wasted leave."""
        policy = self.gate.leases.policy
        now = self.house.clock.seconds()
        numbers = [request.ticket for request in self.gate.parked if request.ticket is not None]
        rows = policy.queue.table.rows
        return all(policy.crowds.stands_aside(rows[number], now) for number in numbers)

    @invariant()
    def what_runs_is_known_to_both(self) -> None:
        assert {view.lease for view in self.gate.policy.leases()} == set(self.gate.downloads)
        running = sum(not t.over for one in self.asked for t in one.transfers)
        assert running == sum(view.connections for view in self.gate.policy.leases())


class CrowdFair(Crowd):
    policy = "fair"


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCrowdFair = CrowdFair.TestCase
TestCrowdFair.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_requests_of_one_client_share_the_ticket_and_all_of_them_are_served() -> None:
    house = House("ticket", slots=1)
    first = house.ask("192.0.2.9")
    held = [house.ask("192.0.2.1", **PARKED) for _ in range(4)]
    other = house.ask("192.0.2.1", **TOLD)
    first.transfer.finish()
    house.clock.advance(0)
    assert [one.started for one in held] == [True] * 4, "its asking made nobody absent"
    for one in held:
        one.transfer.finish()
    assert not other.started
    assert len(house.gate.parked) == 0


def test_a_client_that_takes_the_ticket_of_parked_ones_takes_them_along() -> None:
    house = House("ticket", slots=1, connections_per_lease=2)
    first = house.ask("192.0.2.9")
    token = house.ask("192.0.2.1", **TOLD).token
    held = [house.ask("192.0.2.1", **PARKED) for _ in range(3)]
    first.transfer.finish()
    # It asks within the instant in which the slot has become free, before anybody is called.
    quick = house.ask("192.0.2.1", **TOLD, token=token)
    assert quick.started
    assert [one.started for one in held] == [True, False, False]
    quick.transfer.end(False)
    house.clock.advance(0)
    assert [one.started for one in held] == [True, True, False]
    held[0].transfer.finish()
    house.clock.advance(0)
    # The file is delivered: nobody joins that, and its lease lasts while a body is on its way.
    assert not held[2].started
    held[1].transfer.finish()
    house.clock.advance(0.1)
    assert held[2].started


def test_a_request_that_was_forgotten_is_found_said_and_served() -> None:
    house = House("ticket")
    said: list[Any] = []
    counted: Any = FaultCount()
    globalLogPublisher.addObserver(said.append)
    globalLogPublisher.addObserver(counted)
    try:
        first = house.ask("192.0.2.9")
        held = house.ask("192.0.2.1", **PARKED)
        number = next(iter(house.gate.parked)).ticket
        assert number is not None
        # What must never happen: the ticket goes and nobody tells those who wait with it.
        house.gate.leases.policy.withdraw(number, house.clock.seconds())
        house.wait(5)
        assert [e for e in said if "forgotten" in str(e.get("log_format"))]
        assert counted.total
        # It asked anew: it was started by now, or waits with a ticket that lives.
        assert held.started or house.gate.is_awaited(next(iter(house.gate.parked)))
        first.transfer.finish()
        house.wait(30)
        assert held.started
    finally:
        globalLogPublisher.removeObserver(said.append)
        globalLogPublisher.removeObserver(counted)
