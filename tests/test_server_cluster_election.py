"""One machine leads: the real lease table under machines that stop, are cut off, and die."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, insert
from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel, capturedLogs, formatEvent

from tests.databases import SQLITE, database, postgres
from tidegate.server.app.machine import Machine
from tidegate.server.cluster.election import Candidacy, Candidate, Standing, answered, passed
from tidegate.server.store.cluster import (
    LEASE,
    Fenced,
    Seat,
    Secret,
    add_node,
    campaign,
    check_epoch,
    read_nodes,
    read_seat,
    read_secrets,
    release,
    remove_node,
    renew,
    write_secrets,
)
from tidegate.server.store.database import Database, StoreUnavailable
from tidegate.server.store.models import METADATA

__all__ = ["database", "postgres"]

LEASE_S = 2.0
MACHINES = ("a", "b", "c")
machines = st.sampled_from(MACHINES)


@pytest.fixture
def new_table(database: Database) -> Iterator[Callable[[], Connection]]:
    """Makes a connection to a lease table in which nobody leads."""
    connection = database.engine.connect()

    def clear() -> Connection:
        connection.rollback()
        for table in reversed(METADATA.sorted_tables):
            connection.execute(table.delete())
        connection.execute(insert(LEASE).values(id=1, epoch=0, holder="", place="", expires_s=0.0))
        connection.commit()
        return connection

    yield clear
    connection.close()


@pytest.fixture
def table(new_table: Callable[[], Connection]) -> Connection:
    return new_table()


class Cluster(RuleBasedStateMachine):
    """Three machines, one table; every machine has a clock of its own, which may stand still."""

    def __init__(self, table: Connection) -> None:
        super().__init__()
        self.table = table
        self.now = 1000.0
        self.states = dict.fromkeys(MACHINES, Candidacy())
        self.cut: set[str] = set()
        #: Machines whose nodes are with the machine.
        self.commits: list[tuple[int, str]] = []
        self.leaders: dict[int, str] = {}

    @rule(name=machines, late_s=st.floats(0, 5))
    def ask(self, name: str, late_s: float) -> None:
        """A machine asks the database, and hears the answer some time later."""
        if name in self.cut:
            return
        state, asked_s = self.states[name], self.now
        if state.standing is Standing.RETIRED:
            return
        if state.standing is Standing.LEADS:
            seen = renew(self.table, state.leader.epoch, LEASE_S, self.now)
        else:
            seen = campaign(self.table, name, f"{name}:1", LEASE_S, self.now)
        self.table.commit()
        self.now += late_s
        self.states[name] = answered(state, name, seen, asked_s, LEASE_S)
        if self.states[name].standing is Standing.LEADS:
            assert self.leaders.setdefault(seen.epoch, name) == name

    @rule(name=machines)
    def write(self, name: str) -> None:
        """A leader, or one that still takes itself for it, writes a batch of the journal."""
        state = self.states[name]
        if state.standing is not Standing.LEADS or name in self.cut:
            return
        try:
            check_epoch(self.table, state.leader.epoch)
        except Fenced:
            self.states[name] = answered(state, name, read_seat(self.table), self.now, LEASE_S)
            assert self.states[name].standing is Standing.RETIRED
            return
        self.commits.append((state.leader.epoch, name))

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name, state in self.states.items():
            self.states[name] = passed(state, self.now)

    @rule(name=machines)
    def cut_off(self, name: str) -> None:
        self.cut.add(name)

    @rule(name=machines)
    def join_again(self, name: str) -> None:
        self.cut.discard(name)

    @rule(name=machines)
    def die(self, name: str) -> None:
        """Its process is killed, or has retired; the next one begins by following."""
        self.states[name] = Candidacy()

    @precondition(lambda self: any(s.standing is Standing.LEADS for s in self.states.values()))
    @rule()
    def hand_over(self) -> None:
        for name, state in self.states.items():
            if state.standing is Standing.LEADS and name not in self.cut:
                release(self.table, state.leader.epoch)
                self.table.commit()
                self.states[name] = Candidacy(leader=state.leader)

    @invariant()
    def epochs_never_go_back_and_have_one_leader(self) -> None:
        epochs = [epoch for epoch, _ in self.commits]
        assert epochs == sorted(epochs)
        assert len({epoch for epoch, _ in self.commits}) == len(set(self.commits))

    @invariant()
    def at_most_one_has_a_lease(self) -> None:
        sure = [
            name
            for name, state in self.states.items()
            if state.standing is Standing.LEADS and self.now < state.until_s
        ]
        assert len(sure) <= 1, sure


def test_machines_never_have_two_leaders(
    database: Database, new_table: Callable[[], Connection]
) -> None:
    examples = 150 if database.dialect == SQLITE else 40
    run_state_machine_as_test(
        lambda: Cluster(new_table()),
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None),
    )


def test_a_leader_ends_when_the_database_does_not_renew_its_lease(table: Connection) -> None:
    seat = campaign(table, "a", "a:1", LEASE_S, 10.0)
    state = answered(Candidacy(), "a", seat, 10.0, LEASE_S)
    assert passed(state, 11.9).standing is Standing.LEADS
    assert passed(state, 12.0).standing is Standing.RETIRED
    # The lease counts from the question on, however late the answer is.
    renewed = answered(state, "a", seat, 11.0, LEASE_S)
    assert passed(renewed, 12.9).standing is Standing.LEADS
    assert passed(renewed, 13.0).standing is Standing.RETIRED


def test_an_answer_of_an_earlier_epoch_comes_too_late() -> None:
    follows = answered(Candidacy(), "a", Seat(5, "b", "b:1"), 10.0, LEASE_S)
    for late in (Seat(4, "c", "c:1"), Seat(4, "a", "a:1"), Seat()):
        assert answered(follows, "a", late, 11.0, LEASE_S) == follows


def test_a_process_that_does_not_campaign_never_leads(
    database: Database, table: Connection
) -> None:
    """The lease may name its machine: an earlier process, which could not give it back, led."""
    row = {"epoch": 4, "holder": "a", "place": "a:1", "expires_s": 1e12}
    table.execute(LEASE.update().values(row))
    table.commit()
    reactor, heard = Clock(), Event()
    told: list[Candidacy] = []

    def changed(candidacy: Candidacy) -> None:
        told.append(candidacy)
        heard.set()

    reactor.callFromThread = lambda call, found: call(found)
    candidate = Candidate(reactor, database, "a", "a:2", LEASE_S, changed, campaigns=False)
    candidate.start()
    try:
        assert heard.wait(60.0)
    finally:
        candidate.stop()
    assert told == [Candidacy(Standing.FOLLOWS, Seat(4, "a", "a:1"))]


def test_a_lease_counts_from_the_question_though_the_database_answers_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another machine may lead from the moment at which the database lets it lapse."""
    now_s, heard, looked = [100.0], Event(), Event()
    clock = SimpleNamespace(monotonic=lambda: now_s[0])

    def campaigns(*given: object) -> Seat:
        now_s[0] += 0.75 * LEASE_S
        return Seat(1, "a", "a:1")

    def renews(*given: object) -> Seat:
        looked.wait(60.0)
        return Seat(1, "a", "a:1")

    for name, value in (("time", clock), ("campaign", campaigns), ("renew", renews)):
        monkeypatch.setattr(f"tidegate.server.cluster.election.{name}", value)
    reactor: Any = Clock()
    reactor.callFromThread = lambda call, found: heard.set()
    database: Any = SimpleNamespace(begin=nullcontext)
    candidate = Candidate(reactor, database, "a", "a:1", LEASE_S, lambda seen: None)
    candidate.start()
    try:
        assert heard.wait(60.0)
        leads = Candidacy(Standing.LEADS, Seat(1, "a", "a:1"), 100.0 + LEASE_S)
        assert candidate.state == leads
    finally:
        candidate.stop()
        looked.set()


class _Ended(Exception):
    """The process would have ended here."""


@pytest.mark.parametrize("fault", [StoreUnavailable("it is away"), ValueError("unforeseen")])
def test_a_machine_that_cannot_build_its_server_gives_the_lease_back(fault: Exception) -> None:
    """Else its lease would be renewed for ever, and nobody would lead."""
    done: list[str] = []

    def fail() -> None:
        raise fault

    def end(status: int) -> None:
        raise _Ended(f"{status}")

    machine: Any = SimpleNamespace(
        log=Logger(),
        _stop_following=lambda: None,
        _database=SimpleNamespace(begin=fail),
        _candidate=SimpleNamespace(release=lambda: done.append("released")),
        _end=end,
    )
    try:
        with pytest.raises(_Ended, match="1"), capturedLogs() as logs:
            Machine._lead(machine, 3)
    finally:
        gc.enable()
    assert done == ["released"]
    assert [formatEvent(event) for event in logs if event["log_level"] >= LogLevel.error]


def test_the_lease_is_taken_when_it_has_run_out_or_was_ours_or_was_given_back(
    table: Connection,
) -> None:
    assert campaign(table, "a", "a:1", LEASE_S, 10.0).epoch == 1
    assert campaign(table, "b", "b:1", LEASE_S, 11.9).holder == "a"
    again = campaign(table, "a", "a:2", LEASE_S, 11.0)
    assert (again.epoch, again.place) == (2, "a:2")
    assert renew(table, 2, LEASE_S, 12.9).epoch == 2
    assert campaign(table, "b", "b:1", LEASE_S, 13.5).holder == "a"
    assert campaign(table, "b", "b:1", LEASE_S, 14.9).epoch == 3
    release(table, 3)
    assert campaign(table, "a", "a:1", LEASE_S, 15.0).epoch == 4
    # The old one is told who leads, and may write nothing.
    assert renew(table, 3, LEASE_S, 15.1).holder == "a"
    with pytest.raises(Fenced, match="epoch 4 instead of 3"):
        check_epoch(table, 3)
    check_epoch(table, 4)


def test_secrets_and_nodes_are_kept(table: Connection) -> None:
    write_secrets(table, "ticket", [Secret("new", "n", 2.0), Secret("old", "o", 1.0)])
    write_secrets(table, "link", [Secret("only", "x", 1.0)])
    assert [one.name for one in read_secrets(table, "ticket")] == ["new", "old"]
    write_secrets(table, "ticket", [Secret("newest", "m", 3.0)])
    assert [one.name for one in read_secrets(table, "ticket")] == ["newest"]
    assert read_secrets(table, "link")[0].text == "x"
    add_node(table, "a/node-0", "a", 1.0)
    add_node(table, "a/node-0", "a", 2.0)
    add_node(table, "b/node-0", "b", 2.0)
    remove_node(table, "b/node-0")
    assert read_nodes(table) == {"a/node-0": "a"}
