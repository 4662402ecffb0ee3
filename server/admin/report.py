"""The report of a span or a release: figures, sentences, charts, CSV, and a link to share it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

from itsdangerous import BadSignature, Signer
from pydantic import Field

from ..accounts.accounts import Scope
from ..control.problems import Problem, wrong
from ..control.report import (
    Beside,
    Peak,
    Period,
    Report,
    arrivals_to_play,
    sentences,
)
from ..control.set_up import Sourced
from ..store.reports import LISTED
from .app import HandlerCall
from .charts import CHARTS, from_first_value, is_empty, picture
from .files import rule_out
from .policy import PAGE
from .previews import RECORDED, Preview, Side
from .render import moment, stamp
from .router import Routes
from .shapes import Hour, Shape, Text
from .web import Answer, csv_answer, redirect

api = Routes(Scope.READ, "report")
pages = Routes(Scope.READ)

_DAY_S = 86_400.0
#: Spans end at a full five minutes, so a page that is loaded again finds the same report.
_GRAIN_S = 300.0


class ReportQuery(Shape):
    since_s: Hour = Field(None, description="From this time; null: a day before its end.")
    until_s: Hour = Field(None, description="To this time; null: now.")
    path: Text = Field("", max_length=1024, description="Only files that fit this pattern.")

    def period(self, now: float) -> Period:
        """The period that is asked for. Raises Problem 422."""
        until_s = self.until_s if self.until_s is not None else now - now % _GRAIN_S + _GRAIN_S
        since_s = self.since_s if self.since_s is not None else max(0.0, until_s - _DAY_S)
        if until_s <= since_s:
            raise wrong("until_s", "The end must be after the start.")
        return Period(since_s, until_s, self.path)


class ShareIn(ReportQuery):
    days: int = Field(7, ge=1, le=90, description="The link works for this many days.")


class SharePath(Shape):
    token: str = Field(min_length=1, max_length=4096, description="What the link carries.")


class ShareOut(Shape):
    path: str = Field(description="The address below the administration's own.")
    expires_s: float


class ComparisonOut(Shape):
    """The same arrivals in the simulator; `state` is too-few, waiting, running, done or failed."""

    state: str
    fault: str = ""
    found: Beside | None = None


class ReportOut(Shape):
    period: Period
    words: list[str]
    figures: Report
    comparison: ComparisonOut


def releases(rules: list[Sourced], now: float) -> list[Period]:
    """The releases that had their hour, newest first."""
    found = []
    for rule in map(rule_out, rules):
        at_s, end_s = rule.hidden_until_s, now - now % _GRAIN_S
        if at_s is not None and at_s < end_s:
            # The report of a release reaches to this long after its hour.
            found.append(Period(at_s, min(at_s + 3 * _DAY_S, end_s), rule.path))
    return sorted(found, key=lambda one: -one.since_s)


# -- beside nginx ----------------------------------------------------------------------------


async def _compare(ask: HandlerCall, period: Period, report: Report) -> ComparisonOut:
    """What became of the simulation of this report, which the first look begins."""
    previews, key = ask.admin.previews, f"report of {period}"
    found = previews.by_key.get(key)
    if found is None and report.downloads < PAGE.compared_least:
        return ComparisonOut(state="too-few")
    if found is None:
        if not previews.room():
            return ComparisonOut(state="waiting")
        found = await _begin(ask, period, report, key)
    here, nginx = found.before, found.after
    if not (here and nginx) or here.session_mean_s is None or nginx.session_mean_s is None:
        return ComparisonOut(state=found.state, fault=found.fault)
    beside = Beside(
        found.jobs, here.session_mean_s, nginx.session_mean_s, here.abandoned, nginx.abandoned
    )
    return ComparisonOut(state=found.state, found=beside)


async def _begin(ask: HandlerCall, period: Period, report: Report, key: str) -> Preview:
    current, peak = ask.server.revisions.current, report.peak_goodput
    arrivals = await arrivals_to_play(ask.server, period, report)
    line = ask.server.vitals.read().totals.capacity_bytes_s
    found = Preview(
        key=key,
        workload=RECORDED,
        jobs=len(arrivals),
        present=Side(current.policy, current.settings),
        # A plain server: all that have come share the line.
        proposed=Side("ps", current.settings),
        base_revision=current.number,
    )
    ask.admin.previews.begin(found, arrivals, line or (peak.value if peak else None))
    return ask.admin.previews.by_key[key]


# -- the API ---------------------------------------------------------------------------------


@api.get("/report")
async def get_report(ask: HandlerCall, query: ReportQuery) -> ReportOut:
    """The report of a period, which the recorded history gives at any time."""
    period = query.period(ask.now)
    report, _ = await ask.admin.reports.read(period)
    comparison = await _compare(ask, period, report)
    words = sentences(report, comparison.found, moment)
    return ReportOut(period=period, words=words, figures=report, comparison=comparison)


@api.get("/report.csv", media="text/csv")
@pages.get("/report.csv")
async def export_report(ask: HandlerCall, query: ReportQuery) -> Answer:
    """The report of a period as CSV: what is counted, its name, and the count."""
    period = query.period(ask.now)
    report, _ = await ask.admin.reports.read(period)
    span = [("period", "from", stamp(period.since_s)), ("period", "to", stamp(period.until_s))]
    return csv_answer("report.csv", ["what", "name", "value"], [*span, *_rows(report)])


def _rows(report: Report) -> Iterator[tuple[str, str, object]]:
    """Every field of a report. A row without a name is of the whole."""
    for field in fields(report):
        what, value = field.name, getattr(report, field.name)
        if isinstance(value, Peak):
            yield what, "", value.value
            yield f"{what}_at", "", stamp(value.at_s)
        elif what == "files":
            for one in value:
                yield "begun", one.path, one.begun
                yield "complete", one.path, one.complete
                yield "sent_bytes", one.path, one.sent_bytes
        elif isinstance(value, list):
            yield from ((what, one.name, one.count) for one in value)
        else:
            yield what, "", value


# -- sharing ---------------------------------------------------------------------------------


def _signer(ask: HandlerCall) -> Signer:
    ended = ask.server.documents.read("report-links").get("ended", "")
    salt = f"tidegate.admin.report{ended}"
    return Signer(ask.admin.sessions.key, salt=salt, digest_method=hashlib.sha256)


@api.delete("/report/links", scope=Scope.FILES)
@pages.post("/report/links/end", scope=Scope.FILES, then="/report")
async def end_links(ask: HandlerCall) -> None:
    """End all links that show a report: those made so far work no more."""
    ended = ask.server.documents.read("report-links").get("ended", 0)
    ask.server.documents.write("report-links", {"ended": ended + 1})
    ask.log("report", "ended all links to reports")


@api.post("/report/links", scope=Scope.FILES, status=201)
async def share_report(ask: HandlerCall, body: ShareIn) -> ShareOut:
    """Make a signed link that shows this report without a login, until it expires."""
    period = body.period(ask.now)
    expires_s = ask.now + body.days * _DAY_S
    fields = [period.since_s, period.until_s, period.path, round(expires_s)]
    text = json.dumps(fields, separators=(",", ":")).encode().hex()
    ask.log("report", f"shared a report by a link that works for {body.days} days")
    return ShareOut(path=f"/report/shared/{_signer(ask).sign(text).decode()}", expires_s=expires_s)


def _shared(ask: HandlerCall, token: str) -> ReportQuery:
    """What a link shows. Raises Problem 404 for one that is forged or over."""
    try:
        text = bytes.fromhex(_signer(ask).unsign(token).decode())
        since_s, until_s, path, expires_s = json.loads(text)
    except (BadSignature, ValueError):
        raise Problem(404, "This link is not one of ours, or was ended.") from None
    if ask.now > expires_s:
        raise Problem(404, "This link has expired; ask for another one.")
    return ReportQuery(since_s=since_s, until_s=until_s, path=path)


# -- the pages -------------------------------------------------------------------------------


async def _page(ask: HandlerCall, query: ReportQuery, template: str, **values: Any) -> Answer:
    period = query.period(ask.now)
    report, whole = await ask.admin.reports.read(period)
    comparison = await _compare(ask, period, report)
    history, zone = from_first_value(whole), ask.zone
    charts = [
        one
        for one in CHARTS
        if one.name in ("queue", "goodput", "flow", "wait", "eta", "faults")
        and not is_empty(one, history)
    ]
    # Rows of each table on the page; the CSV has all.
    return ask.page(
        template,
        query=query,
        period=period,
        report=report,
        comparison=comparison,
        sentences=sentences(report, comparison.found, lambda at: moment(at, zone)),
        pictures=[(one, picture(one, history, lambda at: moment(at, zone)[:16])) for one in charts],
        rows=20,
        listed=LISTED,
        needed=PAGE.compared_least,
        **values,
    )


def _address(period: Period) -> str:
    fields = {"since_s": f"{period.since_s:.0f}", "until_s": f"{period.until_s:.0f}"}
    return urlencode(fields | ({"path": period.path} if period.path else {}))


async def _own(ask: HandlerCall, query: ReportQuery, link: ShareOut | None = None) -> Answer:
    end_s = ask.now - ask.now % _GRAIN_S + _GRAIN_S
    spans = {"24 hours": _DAY_S, "7 days": 7 * _DAY_S, "30 days": 30 * _DAY_S}
    secure, host = ask.call.secure, ask.call.headers.get("host", "")
    return await _page(
        ask,
        query,
        "report.html",
        spans=[(word, _address(Period(end_s - span_s, end_s))) for word, span_s in spans.items()],
        releases=[(one, _address(one)) for one in releases(ask.server.rules.all(), ask.now)],
        address=_address(query.period(ask.now)),
        link=f"http{'s' if secure else ''}://{host}{link.path}" if link else "",
        expires_s=link.expires_s if link else None,
    )


@pages.get("/report")
async def report(ask: HandlerCall, query: ReportQuery) -> Answer:
    """A period's report; without one that of the last day, under an address that stays."""
    if (query.since_s is None or query.until_s is None) and ask.problem is None:
        return redirect(f"/report?{_address(query.period(ask.now))}")
    return await _own(ask, query)


@pages.post("/report/share", scope=Scope.FILES, again=report)
async def report_share(ask: HandlerCall, body: ShareIn) -> Answer:
    link = await share_report(ask, body)
    return await _own(ask, ReportQuery(**body.model_dump(exclude={"days"})), link)


@pages.get("/report/shared/{token}", public=True)
async def report_shared(ask: HandlerCall, path: SharePath) -> Answer:
    """The report behind a link; networks are only counted."""
    return await _page(ask, _shared(ask, path.token), "report_shared.html")
