"""What has happened, the neighbours as they stand (mirrors, multicast), and alert rules."""

from __future__ import annotations

from pydantic import Field

from ..accounts.accounts import Scope
from ..control.alerting import SentTest
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


class AlertOut(Shape):
    name: str
    severity: str
    summary: str
    advice: str
    firing_since_s: float | None


class AlertsOut(Shape):
    alerts: list[AlertOut]
    places: list[str]


class SentTestsOut(Shape):
    sent: list[SentTest]


@api.get("/alerts")
async def get_alerts(ask: HandlerCall) -> AlertsOut:
    """Alert rules, which of them fire, and where alerts are sent."""
    alerting = ask.server.alerting
    return AlertsOut(
        alerts=[
            AlertOut(
                name=rule.name,
                severity=rule.severity,
                summary=rule.summary,
                advice=rule.advice,
                firing_since_s=alerting.book.firing_since(rule),
            )
            for rule in alerting.book.rules
        ],
        places=[one.shown for one in alerting.outlets],
    )


@api.post("/alerts/test", scope=Scope.POLICY)
async def test_alerts(ask: HandlerCall) -> SentTestsOut:
    """Send a test message to every place."""
    sent = await ask.server.alerting.test()
    failed = sum(bool(one.fault) for one in sent)
    ask.log("alert", f"sent {len(sent)} test messages, {failed} of them failed")
    return SentTestsOut(sent=sent)


@pages.get("/alerts")
async def alerts(ask: HandlerCall) -> Answer:
    return ask.page("alerts.html", found=await get_alerts(ask), sent=None)


@pages.post("/alerts", scope=Scope.POLICY, again=alerts)
async def alerts_test(ask: HandlerCall) -> Answer:
    tested = await test_alerts(ask)
    return ask.page("alerts.html", found=await get_alerts(ask), sent=tested.sent)
