"""The journal of tickets, from which a restarted server restores its queue. All functions block."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, func, not_, or_, select

from ...policies.contract import ELSEWHERE, TicketRow, TicketState
from .models import COUNTERS, TICKETS
from .rows import RowInsert, put

_NUMBERS = "ticket numbers"
#: Overwrites the columns that change in the life of a ticket.
_TICKETS = RowInsert(
    TICKETS,
    TicketRow._fields,
    key="number",
    changing=(
        *("remaining_bytes", "weight", "priority_class", "state", "changed_s"),
        *("polls", "early_polls", "network", "stands_back"),
    ),
)


@dataclass(frozen=True, slots=True)
class JournalState:
    """What the journal holds when a server starts.

    `live` is ordered by number; `over` has the numbers of finished tickets. Numbers from
    `next_number` on were never issued.
    """

    live: tuple[TicketRow, ...]
    over: tuple[int, ...]
    next_number: int


def write_tickets(connection: Connection, rows: Iterable[TicketRow]) -> None:
    """Insert or overwrite one row per ticket; the last of several rows of one ticket counts."""
    _TICKETS.write(connection, {row.number: row for row in rows}.values())


def reserve_numbers(connection: Connection, below: int) -> None:
    """Record that numbers below `below` may be issued from now on."""
    put(connection, COUNTERS, {"name": _NUMBERS, "value": below})


#: A search counts no further than this.
COUNTED_MOST = 10_000


#: A download that had delivered everything: its ticket is used, see `LeaseManager.ending`.
_ENDING = and_(TICKETS.c.state == TicketState.STARTED, TICKETS.c.remaining_bytes == 0)
#: Finished tickets; naming their states lets a database use its index.
_OVER = or_(TICKETS.c.state.in_([one for one in TicketState if one.is_over]), _ENDING)


def read_journal(connection: Connection) -> JournalState:
    """All tickets that a starting server must know."""
    collects = gc.isenabled()
    # The rows are no garbage; collecting while they grow takes a third of the time.
    gc.disable()
    try:
        return _read_journal(connection)
    finally:
        if collects:
            gc.enable()


def _read_journal(connection: Connection) -> JournalState:
    # As tuples: 100 000 objects take seconds, and a start waits for them.
    columns = [TICKETS.c[name] for name in TicketRow._fields]
    # A started one had a download that ended with the process.
    live = [state for state in TicketState if not state.is_over]
    wanted = select(*columns).where(TICKETS.c.state.in_(live), not_(_ENDING))
    found = _driver_rows(connection, wanted)
    # Sorted here: the index returns the rows state by state, each in order.
    rows = tuple(sorted(_tickets(found), key=itemgetter(0)))
    over = connection.scalars(select(TICKETS.c.number).where(_OVER)).all()
    promised = connection.scalar(select(COUNTERS.c.value).where(COUNTERS.c.name == _NUMBERS)) or 1
    own = bisect_left(rows, ELSEWHERE, key=itemgetter(0))
    highest = max(
        rows[own - 1].number if own else 0, max((one for one in over if one < ELSEWHERE), default=0)
    )
    return JournalState(
        live=rows,
        over=tuple(over),
        next_number=max(promised, highest + 1),
    )


def forget_tickets(connection: Connection, before_s: float) -> None:
    """Delete finished tickets that last changed before `before_s`: their tokens have expired."""
    connection.execute(delete(TICKETS).where(_OVER, TICKETS.c.changed_s < before_s))


def _driver_rows(connection: Connection, wanted: Select[Any]) -> Sequence[Sequence[Any]]:
    """The driver's own rows: SQLAlchemy's wrapping takes longer than fetching."""
    text = wanted.compile(connection.engine, compile_kwargs={"literal_binds": True})
    found: Any = connection.exec_driver_sql(str(text))
    rows: Sequence[Sequence[Any]] = found.cursor.fetchall()
    found.close()
    return rows


def _tickets(found: Sequence[Sequence[Any]]) -> Iterable[TicketRow]:
    columns: list[Iterable[Any]] = list(zip(*found, strict=True))
    if not columns:
        return ()
    states, at = {state.value: state for state in TicketState}, TicketRow._fields.index("state")
    columns[at] = map(states.__getitem__, columns[at])
    return map(TicketRow._make, zip(*columns, strict=True))


def search_tickets(
    connection: Connection, text: str, states: Sequence[str], offset: int, limit: int
) -> tuple[list[int], int]:
    """One page of ticket numbers whose number, client or file contains `text`, and their count.

    Ordered by state and number. Each state is one walk along its index, which ends when the page is
    full. At most `COUNTED_MOST` + 1 are counted. Case does not matter.
    """
    fits: list[ColumnElement[bool]] = [
        TICKETS.c.client.icontains(text, autoescape=True),
        TICKETS.c.file.icontains(text, autoescape=True),
    ]
    if text.isascii() and text.isdigit() and len(text) < 19:
        fits.append(TICKETS.c.number == int(text))
    numbers: list[int] = []
    total = 0
    for state in states:
        wanted = (TICKETS.c.state == state, or_(*fits))
        found = select(TICKETS.c.number).where(*wanted).order_by(TICKETS.c.number)
        room = limit - len(numbers)
        rows = connection.scalars(found.offset(max(0, offset - total)).limit(room)).all()
        numbers += rows
        if len(rows) < room and (rows or offset <= total):
            total += max(0, offset - total) + len(rows)
        else:
            few = found.order_by(None).limit(COUNTED_MOST + 1).subquery()
            total += connection.scalar(select(func.count()).select_from(few)) or 0
    return numbers, total
