"""Alert rules as they stand, and a test message."""

from __future__ import annotations

from ..accounts.accounts import Scope
from ..control.alerting import SentTest
from .app import HandlerCall
from .router import Routes
from .shapes import Shape
from .web import Answer

api = Routes(Scope.POLICY, "server")
pages = Routes(Scope.POLICY)


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


@api.post("/alerts/test")
async def test_alerts(ask: HandlerCall) -> SentTestsOut:
    """Send a test message to every place."""
    sent = await ask.server.alerting.test()
    failed = sum(bool(one.fault) for one in sent)
    ask.log("alert", f"sent {len(sent)} test messages, {failed} of them failed")
    return SentTestsOut(sent=sent)


@pages.get("/alerts")
async def alerts(ask: HandlerCall) -> Answer:
    return ask.page("alerts.html", found=await get_alerts(ask), sent=None)


@pages.post("/alerts", again=alerts)
async def alerts_test(ask: HandlerCall) -> Answer:
    tested = await test_alerts(ask)
    return ask.page("alerts.html", found=await get_alerts(ask), sent=tested.sent)
