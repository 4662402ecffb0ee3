"""What has happened, and the neighbours as they stand: mirrors and multicast sessions."""

from __future__ import annotations

from pydantic import Field

from ..control.server import StatusLine
from .app import HandlerCall
from .router import Routes
from .shapes import Before, Limit, Search, Shape, Text
from .web import Answer

api = Routes(tag="server")
pages = Routes()


class EventQuery(Shape):
    before: Before = None
    limit: Limit = 50
    kind: Text = Field("", max_length=64, description="Only of this kind.")
    q: Search = ""


class EventOut(Shape):
    number: int
    at_s: float
    kind: str
    who: str
    text: str


class EventsOut(Shape):
    events: list[EventOut]


class RowsOut(Shape):
    rows: list[StatusLine]


@api.get("/mirrors")
async def list_mirrors(ask: HandlerCall) -> RowsOut:
    """Mirrors as they stand."""
    return RowsOut(rows=ask.server.mirror_rows())


@api.get("/multicast")
async def list_multicast(ask: HandlerCall) -> RowsOut:
    """What is multicast now."""
    return RowsOut(rows=ask.server.multicast_rows())


@api.get("/events")
async def list_events(ask: HandlerCall, query: EventQuery) -> EventsOut:
    """The log, newest first."""
    found = await ask.server.events.read(query.before, query.limit, query.kind, query.q)
    return EventsOut(events=[EventOut.model_validate(event) for event in found])


@pages.get("/network")
async def network(ask: HandlerCall) -> Answer:
    return ask.page(
        "network.html",
        mirrors=ask.server.mirror_rows(),
        multicast=ask.server.multicast_rows(),
        listeners=ask.server.vitals.read().totals.listeners,
    )


@pages.get("/log")
async def log(ask: HandlerCall, query: EventQuery) -> Answer:
    found = await ask.server.events.read(query.before, query.limit + 1, query.kind, query.q)
    shown = found[: query.limit]
    older = shown[-1].number if len(found) > len(shown) else None
    return ask.listing("log.html", query, events=shown, older=older)
