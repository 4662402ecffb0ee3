"""The server at a glance: its state in one sentence, the overview, its charts, CSV, the probes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote

from pydantic import Field

from ...policies.contract import Snapshot
from ...policies.registry import POLICIES
from ...protocol.units import format_duration, format_rate
from ..control.history import SERIES, Series
from ..control.metrics import metrics_text
from ..control.problems import Problem, wrong
from ..control.report import POINTS, counted
from ..control.vitals import Health, Totals
from ..store.usage import begun_ever
from .app import HandlerCall
from .charts import CHARTS, LEADING, from_first_value, is_empty, lines_of, picture, recorded_since
from .files import rule_out
from .policy import PAGE
from .render import clock, moment, stamp
from .router import Routes, openapi
from .shapes import Shape, of_fields
from .web import Answer, csv_answer, json_answer


@dataclass(frozen=True, slots=True)
class FirstStep:
    """What an operator does first, until a crowd came; `done`: it needs nothing more."""

    title: str
    done: bool
    state: str
    words: str
    link: str = ""
    link_text: str = ""
    command: str = ""


async def first_steps(ask: HandlerCall) -> list[FirstStep]:
    """The steps; none once a crowd came, in this run or in an earlier one."""
    # A crowd can be compared. A trial by hand takes fewer downloads.
    crowd = PAGE.compared_least
    figures = ask.server.vitals.figures()
    if figures["people_waiting"] or figures["offers_total"] >= crowd:
        return []
    try:
        begun = await ask.server.store.read(lambda connection: begun_ever(connection, crowd))
    except Exception:  # noqa: BLE001 - a database that does not answer is told in the headline
        return []
    begun = max(begun, figures["begun_downloads_total"])
    if begun >= crowd:
        return []
    own = next(iter(ask.server.vitals.read().totals.listeners), "").rstrip("/")
    return [
        await _files_step(ask, own),
        _line_step(ask),
        _release_step(ask),
        _trial_step(own, begun),
    ]


async def _files_step(ask: HandlerCall, own: str) -> FirstStep:
    _, total = await ask.server.files.read("", "path", 0, 1)
    told = "1 file is served" if total == 1 else f"{total:,} files are served"
    return FirstStep(
        "Share the link",
        total > 0,
        told if total else "no file yet",
        "Visitors find all files here. Behind a proxy, share its address instead.",
        f"{own}/" if own else "",
        f"{own}/",
    )


def _line_step(ask: HandlerCall) -> FirstStep:
    cap = ask.server.revisions.current.settings.get("bandwidth_bytes_s")
    found = ask.server.vitals.read().totals.capacity_bytes_s
    if cap is not None:
        state = f"at most {format_rate(cap)}"
    else:
        state = "not found yet" if found is None else f"{format_rate(found)} found"
    return FirstStep(
        "Say what the line carries",
        cap is not None or found is not None,
        state,
        "Without a limit the server finds what the line carries once downloads fill it.",
        "/policy#f-bandwidth_bytes_s",
        "Change the limit" if cap is not None else "Set a limit",
    )


def _release_step(ask: HandlerCall) -> FirstStep:
    coming = sorted(
        (rule.hidden_until_s, rule.path)
        for rule in map(rule_out, ask.server.rules.all())
        if rule.hidden_until_s is not None and rule.hidden_until_s > ask.now
    )
    state = f"{coming[0][1]} opens {moment(coming[0][0], ask.zone)}" if coming else "nothing hidden"
    return FirstStep(
        "Hide a release until its hour",
        bool(coming),
        state,
        "Copy the files before; nobody sees them until then, and their digests are ready.",
        "/files/rule",
        "Add a rule",
    )


def _trial_step(own: str, begun: int) -> FirstStep:
    return FirstStep(
        "Try it with a crowd",
        False,
        f"{begun} download{'s' if begun != 1 else ''} so far" if begun else "not tried yet",
        "From another machine. The report then shows who waited, and how long.",
        command=f"tidegate loadtest --host {own} \\\n  --release FOLDER --visitors 200 --within 5m",
    )


@dataclass(frozen=True, slots=True)
class Status:
    """`tone` colours the page: calm, busy, queueing or alarm. `more` explains."""

    tone: str
    headline: str
    more: str = ""


def state_of(snapshot: Snapshot, health: Health) -> Status:
    """What is going on, worst news first."""
    active = snapshot.small_active + snapshot.large_active
    if health.draining:
        return Status("alarm", "Draining", f"{counted(active, 'download')} to go, then it stops.")
    if snapshot.closed:
        running = f"{counted(active, 'download')} still running." if active else "Nothing runs."
        waits = _waiting(snapshot) if snapshot.people_waiting else "nobody waits"
        return Status("alarm", f"Doors closed: {waits}", f"{running} Nobody starts until you open.")
    room = _room(snapshot)
    if snapshot.people_waiting:
        found = Status("queueing", _line(snapshot), f"{_parts(snapshot)}{room}")
    elif active == 0:
        found = Status(
            "calm", "Sending by multicast" if health.multicast_receivers else "Quiet", room
        )
    elif not snapshot.link_bound and _free(snapshot) <= _kept_for_small(snapshot):
        if keeps_queue(snapshot):
            headline, more = "Full, and nobody waits", "The next large download waits."
        else:
            headline, more = "Full: clients are told to come back", "This policy has no queue."
        found = Status("busy", headline, f"{room} {more}")
    else:
        found = Status("calm", "Open: everybody starts at once", room)
    if health.multicast_receivers:
        receivers = counted(health.multicast_receivers, "receiver")
        found = Status(found.tone, found.headline, f"{found.more} Multicast reaches {receivers}.")
    if health.totals.fleet_fault:
        found = Status("alarm", found.headline, f"{found.more} {health.totals.fleet_fault}")
    if health.store_degraded:
        more = f"{found.more} The database does not answer ({health.store_fault or 'no reason'}); "
        more += "downloads and the queue go on, history and the journal wait in memory."
        return Status("alarm", found.headline, more)
    return found


def keeps_queue(snapshot: Snapshot) -> bool:
    """Whether the policy counts clients that wait; the others ask again and again."""
    return POLICIES[snapshot.mode].gives_tickets


def _waiting(snapshot: Snapshot) -> str:
    """How many people wait: those who have not started, and those whose download is paused."""
    people = snapshot.people_waiting
    return "1 person is waiting" if people == 1 else f"{people:,} people are waiting"


def _line(snapshot: Snapshot) -> str:
    told = _waiting(snapshot)
    if not snapshot.waiting and not snapshot.ready:
        return f"{told}: all downloads have begun."
    if snapshot.last_wait is None or not snapshot.waiting:
        return f"{told}."
    return f"{told}. The last starts in about {format_duration(snapshot.last_wait.expected_s)}."


def _parts(snapshot: Snapshot) -> str:
    """Which of those who wait have begun, and which may start."""
    parts = ((snapshot.paused, "paused after the start"), (snapshot.ready, "ready to start"))
    return "".join(f"{n:,} of them {'is' if n == 1 else 'are'} {what}. " for n, what in parts if n)


def _free(snapshot: Snapshot) -> int:
    return max(0, snapshot.slots - snapshot.small_active - snapshot.large_used)


def _kept_for_small(snapshot: Snapshot) -> int:
    """Free slots that no large download may take."""
    return max(0, _free(snapshot) - max(0, snapshot.large_slots - snapshot.large_used))


def _room(snapshot: Snapshot) -> str:
    if snapshot.link_bound:
        running = snapshot.small_active + snapshot.large_active - snapshot.paused
        told = counted(running, "download") if running else "No download"
        return f"{told} {'is' if running <= 1 else 'are'} running."
    free, kept = _free(snapshot), _kept_for_small(snapshot)
    promised = min(free - kept, snapshot.ready)
    parts = [f"{free - kept - promised:,} of {snapshot.slots:,} slots free"]
    if promised:
        parts.append(f"{promised:,} kept for those who are ready")
    if kept:
        parts.append(f"{kept:,} kept for small files")
    return ", ".join(parts) + "."


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
    known = {**ask.server.vitals.figures(), **asdict(state_of(snapshot, health)), "now_s": ask.now}
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
    if found.refusal:
        raise Problem(503, found.text, code=found.refusal, headers=(("retry-after", "5"),))
    free = ("tidegate-free", "yes" if found.free else "no")
    return Answer(
        200, found.text.encode("ascii", "replace"), (("content-type", "text/plain"), free)
    )
