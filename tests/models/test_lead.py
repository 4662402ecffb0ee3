"""Never two leaders that write: all states of the lead, and the code that it stands for."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import OperationalError

from tests.databases import POSTGRESQL, database, postgres
from tests.models import explorer, lead
from tests.models.lead import LEASE, START, Cluster, Lead, Machine
from tests.roots import ROOT
from tidegate.server.cluster.election import Candidacy, Standing
from tidegate.server.store.cluster import LEASE as TABLE
from tidegate.server.store.cluster import Fenced, campaign, check_epoch, release, renew
from tidegate.server.store.database import Database

__all__ = ["database", "postgres"]

DOCUMENT = ROOT / "docs" / "decisions" / "models.md"
NOW_S = 1_000.0


@pytest.mark.parametrize("clocks_run", [True, False])
def test_no_write_is_taken_in_an_epoch_that_is_over(clocks_run: bool) -> None:
    """Nor do two processes lead in one epoch, nor are two sure that they lead while clocks run."""
    model = Lead(clocks_run=clocks_run)
    found = explorer.explore(START, model.steps, model.check)
    told = f"{len(found.steps):,} states and {found.transitions:,} transitions".replace(",", " ")
    assert told in " ".join(DOCUMENT.read_text("utf-8").split())


@pytest.mark.parametrize(
    ("without", "fault"),
    [
        ("fenced", "a write of epoch 1 in epoch 2"),
        ("locked", "a write of epoch 1 in epoch 2"),
        ("counted", "two processes lead in epoch 1"),
        ("asked", "two processes lead in epoch 1"),
    ],
)
def test_without_a_guard_there_is_a_way_to_a_fault(without: str, fault: str) -> None:
    model = Lead(**{without: False})
    with pytest.raises(explorer.CounterExample, match=fault):
        explorer.explore(START, model.steps, model.check)


def test_a_leader_whose_lease_counts_from_the_answer_is_not_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same for a guard that stands in the code itself."""
    right = lead.answered

    def late(*seen: Any, campaigns: bool) -> Candidacy:
        *known, _asked_s, lease_s = seen
        return right(*known, 0.0, lease_s, campaigns=campaigns)

    monkeypatch.setattr(lead, "answered", late)
    with pytest.raises(explorer.CounterExample, match="2 machines are sure"):
        explorer.explore(START, Lead().steps, Lead().check)


@pytest.mark.parametrize("left", range(LEASE + 1))
@pytest.mark.parametrize("holder", ["a", "b", ""])
def test_the_model_and_the_database_agree_on_the_lease(
    database: Database, left: int, holder: str
) -> None:
    """Whatever machine a may ask of a row that names it, another machine or nobody."""
    row = {"id": 1, "epoch": 7, "holder": holder, "place": "", "expires_s": NOW_S + left}
    follows = [Machine(holds=holder == "a"), Machine(holds=holder == "b")]
    expected = _after(Cluster(7, left, (), frozenset(), tuple(follows)), "campaign")
    with database.engine.connect() as connection:
        connection.execute(TABLE.delete())
        connection.execute(insert(TABLE).values(row))
        seen = campaign(connection, "a", "a:1", LEASE, NOW_S)
        found = connection.execute(select(TABLE.c.expires_s)).scalar_one()
        connection.rollback()
    assert (seen.epoch - 7, round(found - NOW_S)) == expected
    for own in (7, 6):
        leads = Machine(Standing.LEADS, own=own, holds=holder == "a")
        with database.engine.connect() as connection:
            connection.execute(TABLE.delete())
            connection.execute(insert(TABLE).values(row))
            seen = renew(connection, own, LEASE, NOW_S)
            kept = connection.execute(select(TABLE.c.expires_s)).scalar_one()
            release(connection, own)
            given_back = connection.execute(select(TABLE.c.holder, TABLE.c.expires_s)).one()
            connection.rollback()
        state = Cluster(7, left, (), frozenset(), (leads, follows[1]))
        assert (seen.epoch - 7, round(kept - NOW_S)) == _after(state, "renew")
        after = lead.released(state._replace(left=round(kept - NOW_S)), own)
        assert round(max(0.0, given_back.expires_s - NOW_S)) == after.left
        assert bool(given_back.holder) == any(one.holds for one in after.machines)


def _after(state: Cluster, action: str) -> tuple[int, int]:
    """By how much the epoch grows when the first machine does this, and what the lease is then."""
    [after] = [one for name, one in Lead().ask(state, 0) if name == action]
    return after.epoch - state.epoch, after.left


# SQLite has one writer at a time, and no cluster.
@pytest.mark.parametrize("database", [POSTGRESQL], indirect=True)
def test_a_successor_waits_for_what_its_predecessor_is_writing(database: Database) -> None:
    """What `Lead.locked` stands for."""
    with database.engine.begin() as connection:
        connection.execute(TABLE.delete())
        connection.execute(insert(TABLE).values(id=1, epoch=1, holder="a", place="", expires_s=0.0))
    engine = database.engine
    with engine.connect() as leader, engine.connect() as successor:
        check_epoch(leader, 1)
        successor.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(OperationalError, match="lock timeout"):
            campaign(successor, "b", "b:1", LEASE)
        successor.rollback()
        leader.commit()
        assert campaign(successor, "b", "b:1", LEASE).epoch == 2
        successor.commit()
        with pytest.raises(Fenced):
            check_epoch(leader, 1)
