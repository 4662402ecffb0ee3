"""The server at a glance: the overview, what feeds its charts, the figures as CSV, the probes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

from pydantic import Field

from ...policies.contract import Snapshot
from ..control.history import SERIES, Series
from ..control.metrics import metrics_text
from ..control.problems import Problem, wrong
from ..control.report import POINTS
from ..control.vitals import Health, Totals
from .app import HandlerCall
from .charts import CHARTS, LEADING, from_first_value, is_empty, lines_of, picture, recorded_since
from .first_day import first_steps
from .openapi import openapi
from .render import clock, moment, stamp
from .router import Routes
from .shapes import Shape, of_fields
from .status_text import Status, keeps_queue, state_of
from .web import Answer, csv_answer, json_answer

api = Routes(tag="server")
pages = Routes()

#: Word in the address -> (seconds, on its link, over the charts).
SPANS = {
    "15m": (900.0, "15 min", "The last 15 minutes"),
    "1h": (3600.0, "1 h", "The last hour"),
    "6h": (21_600.0, "6 h", "The last 6 hours"),
    "24h": (86_400.0, "24 h", "The last 24 hours"),
    "7d": (604_800.0, "7 days", "The last 7 days"),
}


#: The server at a glance: all figures that are no totals; these are in one table.
StateOut = of_fields(
    "StateOut",
    (Status, Snapshot, Health, Totals),
    without=lambda name: name.endswith("_total") or name == "totals",
    now_s=float,
    people_waiting=int,
    totals=dict[str, int],
)


class HistoryQuery(Shape):
    span_s: float = Field(3600.0, gt=0, le=366 * 86_400.0, description="How far back.")
    points: int = Field(240, ge=2, le=2000, description="At most this many points.")


class PeriodQuery(Shape):
    since_s: float = Field(ge=0, le=4e9, description="From this time.")
    until_s: float = Field(ge=0, le=4e9, description="To this time.")
    points: int = Field(1000, ge=2, le=10_000, description="At most so many rows.")


class ArrivalsQuery(Shape):
    span_s: float = Field(86_400.0, gt=0, le=30 * 86_400.0, description="How far back.")
    limit: int = Field(
        20_000, ge=1, le=200_000, description="At most so many large downloads, drawn at random."
    )


class ArrivalOut(Shape):
    """A client's first request for a file; small files are known by their number only."""

    t_s: float
    client: str
    file: str
    size_bytes: int


class ArrivalsOut(Shape):
    arrivals: list[ArrivalOut]


@api.get("/state", answer=StateOut)
async def get_state(ask: HandlerCall) -> Answer:
    """The server at a glance."""
    snapshot, health = ask.server.gate.snapshot(), ask.server.vitals.read()
    state = asdict(state_of(snapshot, health))
    known = {**ask.server.vitals.figures(), **state, "now_s": ask.now}
    known["totals"] = {name: value for name, value in known.items() if name.endswith("_total")}
    return json_answer(StateOut(**{name: known[name] for name in StateOut.model_fields}))


@api.get("/history")
async def get_history(ask: HandlerCall, query: HistoryQuery) -> Series:
    """Recorded series on one time axis."""
    found = await ask.server.history.read(ask.now - query.span_s, ask.now, query.points)
    return Series(found.t, {name: found.series[name] for name in SERIES})


@api.get("/history.csv", media="text/csv")
async def export_history(ask: HandlerCall, query: PeriodQuery) -> Answer:
    """Recorded series of any period as CSV."""
    if query.until_s <= query.since_s:
        raise wrong("until_s", "The end must be after the start.")
    found = await ask.server.history.read(query.since_s, query.until_s, query.points)
    rows = (
        [stamp(at), *values]
        for at, *values in zip(found.t, *(found.series[name] for name in SERIES), strict=True)
    )
    return csv_answer("history.csv", ["time", *SERIES], rows)


@api.get("/arrivals")
async def get_arrivals(ask: HandlerCall, query: ArrivalsQuery) -> ArrivalsOut:
    """Recorded arrivals under pseudonyms, to be played by `simulate`, `plan` and `loadtest`."""
    found = await ask.server.history.arrivals(ask.now - query.span_s, query.limit)
    # A number in the order of arrival says nothing about the client outside this answer.
    names = {client: f"c{n}" for n, client in enumerate(dict.fromkeys(a.client for a in found))}
    return ArrivalsOut(
        arrivals=[
            ArrivalOut(
                t_s=a.at_s,
                client=names[a.client],
                file=unquote(a.file.removeprefix("/")),
                size_bytes=a.size_bytes,
            )
            for a in found
        ]
    )


@api.get("/openapi.json", tag="account", public=True)
async def get_open_api(ask: HandlerCall) -> Answer:
    """This document."""
    routes = (route for route in ask.admin.router.routes if route.tag)
    found = openapi(routes, ask.server.vitals.read().version)
    return Answer(200, json.dumps(found).encode(), (("content-type", "application/json"),))


def _chosen(ask: HandlerCall) -> str:
    word = ask.call.arg("span", "1h")
    return word if word in SPANS else "1h"


@pages.get("/")
async def now(ask: HandlerCall) -> Answer:
    chosen = _chosen(ask)
    span_s, _, title = SPANS[chosen]
    whole = await ask.server.history.drawn(span_s, ask.now, POINTS)
    history = from_first_value(whole)
    zone = ask.zone
    write = clock if span_s <= 86_400 else moment
    pictures = [
        (chart, picture(chart, history, lambda at: write(at, zone)), is_empty(chart, history))
        for chart in CHARTS
    ]
    return ask.page(
        "now.html",
        **await _figures(ask),
        leading=pictures[:LEADING],
        charts=[one for one in pictures[LEADING:] if not one[2]],
        folded=[one for one in pictures[LEADING:] if one[2]],
        periods=[(word, label) for word, (_, label, _) in SPANS.items()],
        chosen=chosen,
        title=title,
        recorded_s=recorded_since(whole, ask.server.vitals.started_s),
    )


async def _figures(ask: HandlerCall) -> dict[str, Any]:
    """What stands above the charts."""
    snapshot, book = ask.server.gate.snapshot(), ask.server.alerting.book
    return {
        "state": state_of(snapshot, ask.server.vitals.read()),
        "snapshot": snapshot,
        "counted": keeps_queue(snapshot) or snapshot.people_waiting,
        "steps": await first_steps(ask),
        "firing": sum(book.firing_since(rule) is not None for rule in book.rules),
    }


@pages.get("/now")
async def now_part(ask: HandlerCall) -> Answer:
    """The figures alone, for htmx."""
    return ask.page("now_part.html", **await _figures(ask))


@pages.get("/history")
async def history(ask: HandlerCall) -> Answer:
    """The charts' numbers, column by column, as uPlot wants them."""
    span_s = SPANS[_chosen(ask)][0]
    found = from_first_value(await ask.server.history.drawn(span_s, ask.now, POINTS))
    body = {chart.name: [list(found.t), *lines_of(chart, found)] for chart in CHARTS}
    return Answer(200, json.dumps(body).encode(), (("content-type", "application/json"),))


@pages.get("/static/{name}", public=True)
# The waiting page's preview asks for its style where visitors find it.
@pages.get("/-/static/{name}", public=True)
async def static(ask: HandlerCall) -> Answer:
    """The static files; kept for ever by browsers, since their address has their tag."""
    name, known = ask.call.params["name"], ask.call.headers.get("if-none-match", "")
    found = ask.admin.pages.static_file(name, f"v={ask.call.arg('v')}".encode(), known.encode())
    if found is None:
        raise Problem(404, f"There is no file {name}.")
    status, fields, body = found
    headers = tuple((name.decode().lower(), value.decode()) for name, value in fields)
    return Answer(status, body, headers)


@pages.get("/metrics", public=True)
async def metrics(ask: HandlerCall) -> Answer:
    """For Prometheus: free for this machine, with an API token from elsewhere."""
    call, server = ask.call, ask.server
    # A request with one of these came through a proxy, so its peer says nothing about who asks.
    by_proxies = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
    forwarded = any(name in call.headers for name in (*by_proxies, "x-real-ip"))
    if call.who is None and not server.may_scrape(
        call.peer, call.headers.get("host", ""), forwarded
    ):
        raise Problem(401, "Send an API token, or ask from a machine that metrics_from names.")
    body = metrics_text(server.vitals, server.revisions, server.mirror_states)
    return Answer(200, body, (("content-type", "text/plain; version=0.0.4; charset=utf-8"),))


@pages.get("/-/live", public=True)
async def alive(ask: HandlerCall) -> Answer:
    return Answer(200, b"live\n", (("content-type", "text/plain"),))


@pages.get("/-/ready", public=True)
async def ready(ask: HandlerCall) -> Answer:
    """The server takes downloads; says the same as the probe of its visitors' side."""
    found = ask.server.vitals.readiness()
    if found is None:
        again = (("retry-after", "5"),)
        raise Problem(
            503, "The server is being stopped or restarted.", code="closed", headers=again
        )
    free = ("tidegate-free", "yes" if found.free else "no")
    return Answer(
        200, found.text.encode("ascii", "replace"), (("content-type", "text/plain"), free)
    )
