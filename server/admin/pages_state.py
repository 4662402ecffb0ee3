"""The overview, what feeds its charts, the static files and the probes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from server.admin.app import Admin, Page, is_loopback
from server.admin.charts import CHARTS, from_first_value, levels_of, lines_of, svg, totals_of
from server.admin.render import Assets, clock, moment
from server.admin.web import Answer, Call, Problem, html
from server.admin.words import state_of

SPANS = {"15m": 900.0, "1h": 3600.0, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0}
_LABELS = {"15m": "15 min", "1h": "1 h", "6h": "6 h", "24h": "24 h", "7d": "7 days"}
_TITLES = {
    "15m": "The last 15 minutes",
    "1h": "The last hour",
    "6h": "The last 6 hours",
    "24h": "The last 24 hours",
    "7d": "The last 7 days",
}
_POINTS = 240


def _chosen(call: Call) -> str:
    word = call.arg("span", "1h")
    return word if word in SPANS else "1h"


async def now(admin: Admin, call: Call) -> Answer:
    chosen = _chosen(call)
    context = admin.context
    whole = await context.history(call.now - SPANS[chosen], call.now, _POINTS)
    history = from_first_value(whole)
    write = clock if SPANS[chosen] <= 86_400 else moment
    pictures = [(chart, svg(chart, history, write)) for chart in CHARTS]
    snapshot = context.snapshot()
    return admin.page(
        call,
        "now.html",
        state=state_of(snapshot, context.health()),
        snapshot=snapshot,
        charts=pictures,
        periods=list(_LABELS.items()),
        chosen=chosen,
        span_s=SPANS[chosen],
        title=_TITLES[chosen],
        recorded_s=history.t[0] if len(history.t) < len(whole.t) else None,
    )


async def now_part(admin: Admin, call: Call) -> Answer:
    """The figures alone, for htmx."""
    snapshot, health = admin.context.snapshot(), admin.context.health()
    text = admin.templates.get_template("admin/now_part.html").render(
        state=state_of(snapshot, health), snapshot=snapshot, health=health
    )
    return html(text)


async def history(admin: Admin, call: Call) -> Answer:
    """The charts' numbers, column by column, as uPlot wants them."""
    span_s = SPANS[_chosen(call)]
    found = from_first_value(await admin.context.history(call.now - span_s, call.now, _POINTS))
    body: dict[str, Any] = {
        chart.name: [list(found.t), *(values for _, values in lines_of(chart, found))]
        for chart in CHARTS
    }
    return Answer(200, json.dumps(body).encode(), (("content-type", "application/json"),))


async def live(admin: Admin, call: Call) -> Answer:
    """One event a second with the newest point of every chart."""
    return Answer(
        200,
        headers=(("content-type", "text/event-stream"), ("x-accel-buffering", "no")),
        follow=follower(admin, call),
    )


def follower(admin: Admin, call: Call) -> Callable[[], bytes]:
    """Gives the next event, or nothing once the one who asked may no longer look."""
    last: dict[str, float] = {}
    last_at = 0.0

    def follow() -> bytes:
        nonlocal last, last_at
        if not _still_welcome(admin, call):
            return b""
        at = admin.context.now()
        snapshot, health = admin.context.snapshot(), admin.context.health()
        sample, totals = levels_of(snapshot, health), totals_of(snapshot, health)
        if not last or at <= last_at:
            # Rates need two looks; a point without them would tear the lines.
            last, last_at = totals, at
            return b": here\n\n"
        for name, total in totals.items():
            # A counter that fell has begun anew.
            sample[name] = max(0.0, total - last[name]) / (at - last_at)
        points = {chart.name: [sample.get(line.series) for line in chart.lines] for chart in CHARTS}
        last, last_at = totals, at
        return b"data: " + json.dumps({"t": at, "points": points}).encode() + b"\n\n"

    return follow


def _still_welcome(admin: Admin, call: Call) -> bool:
    who = call.who
    if who is None:
        return False
    if who.session is not None:
        return who.session.key in admin.sessions.by_key
    return True


def static(assets: Assets) -> Callable[[Admin, Call], Any]:
    """The static files; kept for ever by browsers, since their address has their tag."""

    async def serve(admin: Admin, call: Call) -> Answer:
        asset = assets.by_name.get(call.params["name"])
        if asset is None:
            raise Problem(404, f"There is no file {call.params['name']}.")
        tag = f'"{asset.tag}"'
        keep = "public, max-age=31536000, immutable" if call.arg("v") == asset.tag else "no-cache"
        headers = (("cache-control", keep), ("etag", tag))
        if tag in call.headers.get("if-none-match", ""):
            return Answer(304, b"", headers)
        media = f"{asset.media}; charset=utf-8"
        return Answer(200, asset.body, (("content-type", media), *headers))

    return serve


async def logo(admin: Admin, call: Call) -> Answer:
    """The operator's logo, for the preview of the waiting page."""
    look = admin.context.waiting_look()
    if not look.logo:
        raise Problem(404, "There is no logo.")
    return Answer(200, look.logo, (("content-type", look.logo_type),))


async def metrics(admin: Admin, call: Call) -> Answer:
    """For Prometheus: free for this machine, with an API token from elsewhere."""
    if call.who is None and not is_loopback(call) and not admin.context.may_scrape(call.peer):
        raise Problem(401, "Send an API token, or ask from a machine that metrics_from names.")
    body = admin.context.metrics()
    return Answer(200, body, (("content-type", "text/plain; version=0.0.4; charset=utf-8"),))


async def alive(admin: Admin, call: Call) -> Answer:
    return Answer(200, b"alive\n", (("content-type", "text/plain"),))


async def ready(admin: Admin, call: Call) -> Answer:
    if admin.context.health().draining:
        return Answer(503, b"draining\n", (("content-type", "text/plain"), ("retry-after", "5")))
    return Answer(200, b"ready\n", (("content-type", "text/plain"),))


def pages(assets: Assets) -> list[Page]:
    return [
        Page("GET", "/", now),
        Page("GET", "/now", now_part),
        Page("GET", "/history", history),
        Page("GET", "/live", live),
        Page("GET", "/static/{name}", static(assets), public=True),
        # The waiting page's preview asks for its style where visitors find it.
        Page("GET", "/-/static/{name}", static(assets), public=True),
        Page("GET", "/-/logo", logo),
        Page("GET", "/metrics", metrics, public=True),
        Page("GET", "/-/live", alive, public=True),
        Page("GET", "/-/ready", ready, public=True),
    ]
