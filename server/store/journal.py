"""The queue on disk: what must survive a crash of every ticket. All functions block."""

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
from .rows import RowInsert, insert_for

#: States of tickets that still have a place, or a download that died with the process.
LIVE = (TicketState.WAITING, TicketState.READY, TicketState.STARTED)
#: Those of tickets that are over; naming them lets a database find them by its index.
OVER = tuple(state for state in TicketState if state not in LIVE)
_NUMBERS = "ticket numbers"
_COLUMNS = TicketRow._fields
#: Where the state stands among them, and its values by their words.
_STATE = _COLUMNS.index("state")
_STATES = {state.value: state for state in TicketState}
#: What a later row of a ticket changes; who it is for and what it is about stays.
_CHANGING = (
    *("remaining_bytes", "weight", "priority_class", "state", "changed_s"),
    *("polls", "early_polls", "network", "stands_back"),
)
_TICKETS = RowInsert(TICKETS, _COLUMNS, key="number", changing=_CHANGING)


@dataclass(frozen=True, slots=True)
class JournalState:
    """What a server finds at its start.

    `live` in the order of their numbers; `over` are the numbers of finished tickets that are
    remembered; no number from `next_number` on was ever given away.
    """

    live: tuple[TicketRow, ...]
    over: tuple[int, ...]
    next_number: int


def write_tickets(connection: Connection, rows: Iterable[TicketRow]) -> None:
    """Insert or overwrite one row per ticket; of several rows of a ticket the last one counts."""
    _TICKETS.write(connection, {row.number: row for row in rows}.values())


def reserve_numbers(connection: Connection, below: int) -> None:
    """Promise that numbers below `below` may be given away from now on."""
    statement = insert_for(connection)(COUNTERS).values(name=_NUMBERS, value=below)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[COUNTERS.c.name], set_={"value": statement.excluded.value}
        )
    )


#: A search that finds more than this says only that.
COUNTED_MOST = 10_000


#: A download of which nothing was wanted any more: its ticket is used, see `LeaseManager.ending`.
_ENDING = and_(TICKETS.c.state == TicketState.STARTED, TICKETS.c.remaining_bytes == 0)
_OVER = or_(TICKETS.c.state.in_([*OVER]), _ENDING)


def read_journal(connection: Connection) -> JournalState:
    """Everything that a starting server must know about tickets."""
    collects = gc.isenabled()
    # Nothing of it is garbage, and walking the growing rows again and again takes a third of this.
    gc.disable()
    try:
        return _read_journal(connection)
    finally:
        if collects:
            gc.enable()


def _read_journal(connection: Connection) -> JournalState:
    # As tuples: a hundred thousand objects take seconds, and a start waits for it.
    columns = [TICKETS.c[name] for name in _COLUMNS]
    wanted = select(*columns).where(TICKETS.c.state.in_([*LIVE]), not_(_ENDING))
    found = _driver_rows(connection, wanted)
    # Not ordered by the database: the rows come state by state, each in order already.
    live = tuple(sorted(_tickets(found), key=itemgetter(0)))
    over = connection.scalars(select(TICKETS.c.number).where(_OVER)).all()
    counted = select(COUNTERS.c.value).where(COUNTERS.c.name == _NUMBERS)
    promised = connection.scalar(counted) or 1
    own = bisect_left(live, ELSEWHERE, key=itemgetter(0))
    highest = max(
        live[own - 1].number if own else 0, max((one for one in over if one < ELSEWHERE), default=0)
    )
    return JournalState(
        live=live,
        over=tuple(over),
        next_number=max(promised, highest + 1),
    )


def forget_tickets(connection: Connection, before_s: float) -> None:
    """Drop finished tickets that changed last before `before_s`: their tokens have expired."""
    connection.execute(delete(TICKETS).where(_OVER, TICKETS.c.changed_s < before_s))


def _driver_rows(connection: Connection, wanted: Select[Any]) -> Sequence[Sequence[Any]]:
    """The rows as the driver makes them: wrapping each takes longer than fetching it."""
    text = wanted.compile(connection.engine, compile_kwargs={"literal_binds": True})
    found: Any = connection.exec_driver_sql(str(text))
    rows: Sequence[Sequence[Any]] = found.cursor.fetchall()
    found.close()
    return rows


def _tickets(found: Sequence[Sequence[Any]]) -> Iterable[TicketRow]:
    columns: list[Iterable[Any]] = list(zip(*found, strict=True))
    if not columns:
        return ()
    columns[_STATE] = map(_STATES.__getitem__, columns[_STATE])
    return map(TicketRow._make, zip(*columns, strict=True))


def search_tickets(
    connection: Connection, text: str, states: Sequence[str], offset: int, limit: int
) -> tuple[list[int], int]:
    """Numbers of the tickets whose number, client or file fits, by state and number; and how many.

    A state is one walk along its index that ends when the page is full; of a long list no more
    than `COUNTED_MOST` + 1 are counted. Capitals do not matter.
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
