"""Never two owners, never used twice, never a place lost: all states, and the code beside them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeConnection
from tests.models import explorer
from tests.models.replay import Replay, expected
from tests.models.tickets import Life, Queue, Tickets, canonical, in_order
from tests.roots import ROOT
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.driver import PolicyDriver
from tidegate.server.admission import gate
from tidegate.server.admission.leases import LeaseManager
from tidegate.server.admission.number_allocator import Numbers
from tidegate.server.app import bootstrap
from tidegate.server.app.settings import ServerConfig
from tidegate.server.store.database import Database, sqlite_url

DOCUMENT = ROOT / "docs" / "decisions" / "models.md"
#: Traces of the model that are played on the real thing, and how long each is. With four sets
#: of seeds each fault below was found within four traces.
TRACES = 15
STEPS = 40
MODEL = Tickets()
#: What is not played: the policy does the one by itself, and only an impatient model the other.
_NOT_PLAYED = ("call", "last bytes leave")
ACTIONS = {
    *("issue", "return", "wait here", "leave", "restore", "replay", "end"),
    *("last bytes", "commit", "lose start", "break off", "idle out"),
    *("lead", "lead, landed", "lead, stale", "stale start", "stale commit"),
}


@pytest.mark.parametrize("size", [{}, {"most": 3, "lag": 3}])
def test_no_ticket_is_used_twice_and_no_place_is_lost(size: dict[str, int]) -> None:
    model = Tickets(**size)
    found = explorer.explore(Queue(), model.steps, model.check)
    told = f"{len(found.steps):,} states and {found.transitions:,} transitions".replace(",", " ")
    assert told in " ".join(DOCUMENT.read_text("utf-8").split())


@pytest.mark.parametrize(
    ("without", "fault"),
    [
        ("patient", "a ticket is used twice"),
        ("fenced", "a ticket is used twice"),
        ("remembered", "a ticket is used twice"),
        ("reserved", "a number has two owners"),
        ("answered_late", "a place is lost: nothing proves"),
        ("restored", "a place is lost: the leader does not know"),
    ],
)
def test_without_a_guard_there_is_a_way_to_a_fault(without: str, fault: str) -> None:
    model = Tickets(**{without: False})
    with pytest.raises(explorer.CounterExample, match=fault):
        explorer.explore(Queue(), model.steps, model.check)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Database]]:
    """Three machines of a cluster with one database."""
    # What a node sends has a ticket from its start, see `Job.elsewhere`.
    monkeypatch.setattr(FakeConnection, "elsewhere", True)
    found = {name: Database(sqlite_url(tmp_path / "tidegate.db")) for name in ("a", "b", "c")}
    found["a"].migrate()
    yield found
    for one in found.values():
        one.close()


def play(
    machines: dict[str, Database], config: ServerConfig, model: Tickets, traces: int
) -> Counter[tuple[Queue, str]]:
    """Play traces that prefer what was played least; what was played, by state and action.

    Raises AssertionError where the real thing is in no state that the model allows.
    """
    played: Counter[tuple[Queue, str]] = Counter()
    for seed in range(traces):
        _play_one(Replay(machines, config), model, random.Random(seed), played)
    return played


def _play_one(
    replay: Replay, model: Tickets, rng: random.Random, played: Counter[tuple[Queue, str]]
) -> None:
    possible, trace = {Queue()}, []
    for _ in range(STEPS):
        state = min(possible)
        kind = canonical(state, "")
        weights = {}
        for action, at, after in model.actions(state):
            if action in _NOT_PLAYED or (action == "restore" and replay.token(at) is None):
                continue
            # What changes nothing, and a new leader, who costs most, are played less.
            dear = 10 if canonical(after, action) == kind else 4 if "lead" in action else 1
            weights[action, at] = 1.0 / dear / (1 + played[kind, action])
        [(action, at)] = rng.choices(list(weights), list(weights.values()))
        here = rng.random() < 0.5
        played[kind, action] += 1
        trace.append(f"{action} {at}" if at >= 0 else action)
        replay.do(action, at, here=here)
        after = {
            each
            for one in possible
            for name, of, each in model.actions(one)
            if (name, of) == (action, at)
        }
        allowed = _with_calls(model, after)
        possible = {one for one in allowed if replay.looks_like(one)}
        told = "\n".join(map(str, [*trace, replay.seen(), *map(expected, allowed)]))
        assert possible, f"not what the model allows:\n{told}"


def _with_calls(model: Tickets, states: set[Queue]) -> set[Queue]:
    """These, and what follows from them by calls in the order of turn."""
    found, new = set(states), states
    while new:
        new = {
            after
            for state in new
            for action, at, after in model.actions(state)
            if action == "call" and at == _first_here(state)
        } - found
        found |= new
    return found


def _first_here(state: Queue) -> int:
    return next(at for at in in_order(state) if state.tickets[at].here)


@pytest.fixture(autouse=True)
def _no_answer_waits_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the model no time passes for who waits for the journal, so nobody is parked meanwhile."""
    monkeypatch.setattr(gate, "BOUNDS", replace(gate.BOUNDS, unstored_s=3_600.0))


@pytest.mark.parametrize("policy", ["ticket", "fair"])
def test_the_code_does_what_the_model_allows(
    machines: dict[str, Database], tmp_path: Path, policy: str
) -> None:
    played = play(machines, ServerConfig(state=tmp_path, policy=policy), MODEL, TRACES)
    assert {action for _, action in played} == ACTIONS
    assert len({state for state, _ in played}) > 250


class LostStartsAreOver(Tickets):
    """A wrong model: who loses a start has no place."""

    def actions(self, state: Queue) -> Iterator[tuple[str, int, Queue]]:
        for action, at, after in super().actions(state):
            if action == "idle out":
                tickets = list(after.tickets)
                tickets[at] = tickets[at]._replace(memory=Life.OVER, spent=False)
                after = after._replace(tickets=tuple(tickets))
            yield action, at, after


def test_a_wrong_model_does_not_pass_for_the_code(
    machines: dict[str, Database], tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="not what the model allows"):
        play(machines, ServerConfig(state=tmp_path, policy="ticket"), LostStartsAreOver(), TRACES)


def _nothing(*_: object, **__: object) -> None:
    """A guard that is not there."""


@pytest.mark.parametrize(
    ("where", "name", "instead"),
    [
        (LeaseManager, "ending", lambda self, delivery, safe: safe()),
        (AdmissionPolicy, "_may_come_back", lambda self, row: False),
        (Numbers, "is_over", lambda self, number: False),
        (AdmissionPolicy, "restore", _nothing),
        (AdmissionPolicy, "absent", _nothing),
        (PolicyDriver, "end", _nothing),
        (Database, "fence", _nothing),
        (bootstrap, "reserve_numbers", _nothing),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_code_without_a_guard_does_not_pass_for_the_model(
    machines: dict[str, Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    instead: Callable[..., Any],
) -> None:
    monkeypatch.setattr(where, name, instead)
    with pytest.raises(AssertionError):
        play(machines, ServerConfig(state=tmp_path, policy="ticket"), MODEL, TRACES)
