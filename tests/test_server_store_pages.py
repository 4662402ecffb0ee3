"""What the pages ask of the store: charts of any span, searches of a long queue."""

from __future__ import annotations

import pytest
from sqlalchemy import insert

from tests.databases import database, postgres
from tidegate.policies.contract import TicketState
from tidegate.server.store import history, journal
from tidegate.server.store.database import Database
from tidegate.server.store.models import HISTORY, TICKETS

__all__ = ["database", "postgres"]

DAY = 86_400.0
NOW = 100 * DAY + 1234.0


@pytest.fixture
def recorded(database: Database) -> Database:
    """A month of a series whose value is always 7, thinned as a running server has it."""
    rows = [
        {"resolution_s": step, "series": "waiting", "at_s": at, "mean": 7.0, "peak": 9.0}
        for step, first in ((3600, NOW - 30 * DAY), (60, NOW - 7 * DAY), (0, NOW - 3600))
        for at in _steps(first, step or 5)
    ]
    with database.engine.begin() as connection:
        connection.execute(insert(HISTORY), rows)
    return database


def _steps(first: float, step: int) -> list[float]:
    start = first - first % step
    return [start + step * n for n in range(int((NOW - NOW % step - start) / step))]


def test_a_chart_has_no_gap_and_no_false_value_at_any_span(recorded: Database) -> None:
    for span_s in (900.0, 3600.0, 6 * 3600.0, DAY, 7 * DAY, 30 * DAY):
        with recorded.engine.begin() as connection:
            axis, found = history.read_binned(
                connection, ["waiting", "held"], NOW - span_s, NOW, 240
            )
        assert len(axis) <= 241
        # A week is read by the hour, and only its rest from finer samples.
        assert span_s != 7 * DAY or len(axis) == 168
        assert NOW - span_s < axis[0] < axis[-1] < NOW, span_s
        assert set(found["waiting"][1:-1]) == {7.0}, span_s
        assert 7.0 in found["waiting"][-2:], "the newest step comes from the finest samples"
        assert set(found["held"]) == {None}, span_s


@pytest.fixture
def queue(database: Database) -> Database:
    """300 tickets, every tenth ready, half of them over."""
    rows = [
        {
            **dict.fromkeys(("size_bytes", "remaining_bytes", "weight", "issued_s", "polls"), 1),
            "number": n,
            "client": f"192.0.2.{n % 10}#0",
            "file": f"/{n % 7}_%.iso",
            "changed_s": 1.0,
            "early_polls": 0,
            "state": ("ready" if n % 10 == 0 else "waiting" if n % 2 else "done"),
        }
        for n in range(1, 301)
    ]
    with database.engine.begin() as connection:
        connection.execute(insert(TICKETS), rows)
    return database


STATES = (TicketState.READY, TicketState.WAITING)


def test_pages_of_a_search_join_to_the_whole_with_ready_tickets_first(queue: Database) -> None:
    with queue.engine.begin() as connection:
        for text in ("", "192.0.2.3", "_%.iso", "77", "nobody"):
            whole, total = journal.search_tickets(connection, text, STATES, 0, 1000)
            assert total == len(whole) == len(set(whole))
            for limit in (1, 7, 50):
                # Page by page through all of them where they are few, through the first else.
                few = min(total, 40 * limit)
                pages = [
                    journal.search_tickets(connection, text, STATES, offset, limit)
                    for offset in range(0, few + 2 * limit, limit)
                ]
                found = [number for numbers, _ in pages for number in numbers]
                assert found == whole[: len(pages) * limit], (text, limit)
                assert {told for _, told in pages} == {total}
        # Signs are no wildcards.
        numbers, total = journal.search_tickets(connection, "", STATES, 0, 1000)
        assert numbers == [*range(10, 301, 10), *range(1, 301, 2)]
        assert journal.search_tickets(connection, "%.iso", STATES, 0, 5)[1] == total
        assert journal.search_tickets(connection, "192%", STATES, 0, 5) == ([], 0)
        assert journal.search_tickets(connection, "77", STATES, 0, 5) == ([77], 1)


def test_a_long_list_is_counted_only_so_far(
    queue: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "COUNTED_MOST", 20)
    with queue.engine.begin() as connection:
        numbers, total = journal.search_tickets(connection, "192", (TicketState.WAITING,), 0, 10)
    assert len(numbers) == 10
    assert total == 21
