"""What is served and how: files with their digests and counts, rules, pre-queues, statistics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from pydantic import Field

from server.admin.accounts import Scope
from server.admin.app import HandlerCall
from server.admin.events import ask as query_store
from server.admin.file_index import SORTS
from server.admin.router import Operations, PageRoutes
from server.admin.rule_keeper import Sourced
from server.admin.shapes import Hour, Limit, Offset, Search, Shape, Text
from server.admin.sheets import csv_answer
from server.admin.web import Answer, Problem, checked, redirect, wrong
from server.admission.rules import Rule
from server.store.usage import HOUR_S, read_hours

api = Operations("release", Scope.FILES)
pages = PageRoutes(Scope.FILES)

LIMIT = 50
CLASS_MAX = 32
RULES_MAX = 500
_STATISTICS_MOST = 200_000


class PathQuery(Shape):
    path: str = Field(min_length=1, max_length=1024, description="The rule's pattern.")


class FileQuery(Shape):
    q: Search = ""
    offset: Offset = 0
    limit: Limit = 50
    sort: Literal["path", "popular", "bytes", "size"] = Field("path", description="The order.")


class StatisticsQuery(Shape):
    since_s: float = Field(0, ge=0, le=4e9, description="From this time.")
    until_s: float = Field(4e9, ge=0, le=4e9, description="To this time.")
    path: str = Field("", max_length=1024, description="Only this file.")


class FileOut(Shape):
    path: str
    size_bytes: int
    modified_s: float
    sha256: str | None
    digest_state: str
    downloads: int
    sent_bytes: int


class FilesOut(Shape):
    total: int
    files: list[FileOut]


Pattern = Annotated[
    str,
    Field(
        max_length=1024,
        pattern=r"^/[^\x00-\x1f\x7f]*$",
        description="A pattern with * and ?; it starts with a slash.",
    ),
]
ClassName = Annotated[Text, Field(max_length=CLASS_MAX)]
Treatment = Literal["", "small", "large"]
Note = Annotated[Text, Field(max_length=200)]


class RuleIn(Shape):
    path: Pattern
    require_class: ClassName = ""
    treat_as: Treatment = ""
    multicast: bool | None = None
    hidden_until_s: Hour = None
    prequeue_from_s: Hour = None
    note: Note = ""


class RuleOut(Shape):
    path: Pattern
    require_class: ClassName = ""
    treat_as: Treatment = ""
    multicast: bool | None = None
    hidden_until_s: Hour = None
    prequeue_from_s: Hour = None
    note: Note = ""
    source: Literal["configuration", "admin"] = Field(
        "admin", description="Where it comes from; only the admin's can be changed here."
    )


class RulesOut(Shape):
    rules: list[RuleOut]


class PrequeueOut(Shape):
    path: str
    opens_s: float
    entered: int
    commitment: str
    seed: str | None
    audit_url: str


class PrequeuesOut(Shape):
    prequeues: list[PrequeueOut]


# -- what is there, and what can be done -----------------------------------------------------


def rule_out(one: Sourced) -> RuleOut:
    """A rule as it is shown; times as Unix seconds, empty words for what it leaves open."""
    rule = one.rule
    return RuleOut.model_construct(
        path=rule.path,
        require_class=rule.require_class or "",
        treat_as=rule.treat_as or "",
        multicast=rule.multicast,
        hidden_until_s=_seconds(rule.hidden_until),
        prequeue_from_s=_seconds(rule.prequeue_from),
        note=rule.note,
        source=one.source,
    )


def _seconds(moment: datetime | None) -> float | None:
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)


def put_rule(ask: HandlerCall, given: RuleIn) -> RuleOut:
    """Add a rule, or replace the operators' one with the same pattern. Raises Problem 422."""
    opens, registers = given.hidden_until_s, given.prequeue_from_s
    if registers is not None and (opens is None or registers >= opens):
        text = "A pre-queue opens before the release, which needs a time."
        raise wrong("prequeue_from_s", text)
    rule = Rule(
        path=given.path,
        require_class=given.require_class or None,
        treat_as=given.treat_as or None,
        multicast=given.multicast,
        hidden_until=_moment(opens),
        prequeue_from=_moment(registers),
        note=given.note,
    )
    rules = list(ask.server.rules.own)
    at = next((i for i, other in enumerate(rules) if other.path == rule.path), len(rules))
    if at == RULES_MAX:
        raise wrong("path", f"There can be at most {RULES_MAX} rules.")
    rules[at : at + 1] = [rule]
    ask.server.rules.set_own(rules)
    ask.log("rule", f"set the rule for {rule.path}")
    return rule_out(Sourced(rule, "admin"))


def drop_rule(ask: HandlerCall, path: str) -> None:
    """Remove one of the operators' rules. Raises Problem 404 and 409."""
    own = ask.server.rules.own
    kept = [rule for rule in own if rule.path != path]
    if len(kept) == len(own):
        if any(rule.path == path for rule in ask.server.rules.configured):
            raise Problem(409, f"The rule for {path} stands in the configuration file.")
        raise Problem(404, f"There is no rule for {path}.")
    ask.server.rules.set_own(kept)
    ask.log("rule", f"removed the rule for {path}")


def prequeues(ask: HandlerCall) -> list[PrequeueOut]:
    """Every pre-queue: its published commitment, and after the draw the seed that opens it."""
    return [
        PrequeueOut(
            path=draw.path,
            opens_s=draw.opens_s,
            entered=draw.entered,
            commitment=draw.commitment,
            seed=draw.published_seed(ask.now),
            audit_url=draw.audit_url,
        )
        for draw in ask.server.prequeue.draws()
    ]


async def statistics_csv(ask: HandlerCall, since_s: float, until_s: float, path: str) -> Answer:
    """Downloads and bytes by file and hour. Raises StoreSilent and Problem 422."""
    if until_s <= since_s:
        raise wrong("until_s", "The end must be after the start.")
    first_s, url = since_s // HOUR_S * HOUR_S, quote(path, safe="/~!$&'()*+,;=:@")
    rows = await query_store(
        ask.server.store, lambda s: read_hours(s, first_s, until_s, url, _STATISTICS_MOST)
    )
    return csv_answer(
        "downloads.csv",
        ["hour", "file", "downloads", "sent_bytes"],
        ((datetime.fromtimestamp(row[0], UTC).isoformat(), *row[1:]) for row in rows),
    )


# -- the API ---------------------------------------------------------------------------------


@api.get("/files")
async def list_files(ask: HandlerCall, query: FileQuery) -> FilesOut:
    """What is served."""
    rows, total = await ask.server.files.read(query.q, query.sort, query.offset, query.limit)
    return FilesOut(total=total, files=[FileOut.model_validate(row) for row in rows])


@api.get("/files/statistics.csv", media="text/csv")
async def export_statistics(ask: HandlerCall, query: StatisticsQuery) -> Answer:
    """Downloads and bytes of every file by hour (the last 90 days) as CSV."""
    return await statistics_csv(ask, query.since_s, query.until_s, query.path)


@api.get("/rules")
async def list_rules(ask: HandlerCall) -> RulesOut:
    """Rules for files, in the order in which they speak; the last one that does counts."""
    return RulesOut(rules=[rule_out(one) for one in ask.server.rules.all()])


@api.put("/rules")
async def put_rule_(ask: HandlerCall, body: RuleIn) -> RuleOut:
    """Add or replace the rule of a pattern."""
    return put_rule(ask, body)


@api.delete("/rules")
async def remove_rule(ask: HandlerCall, query: PathQuery) -> None:
    """Remove the rule of a pattern."""
    drop_rule(ask, query.path)


@api.get("/prequeues")
async def list_prequeues(ask: HandlerCall) -> PrequeuesOut:
    """Pre-queues and their draws."""
    return PrequeuesOut(prequeues=prequeues(ask))


# -- the pages -------------------------------------------------------------------------------


@pages.get("/files")
async def files(ask: HandlerCall) -> Answer:
    """Files with the rules that speak of them; all rules; pre-queues."""
    call, server = ask.call, ask.server
    search = call.arg("q").strip()[:256]
    sort = call.arg("sort") if call.arg("sort") in SORTS else "path"
    offset = call.number("offset", 0, 0, 10_000_000)
    rows, total = await server.files.read(search, sort, offset, LIMIT)
    return ask.page(
        "files.html",
        files=[(row, server.rules.matching(quote(row.path))) for row in rows],
        total=total,
        busy=server.files.busy,
        search=search,
        sort=sort,
        offset=offset,
        limit=LIMIT,
        base="/files?" + urlencode({"q": search, "sort": sort}) + "&",
        rules=[rule_out(one) for one in server.rules.all()],
        prequeues=prequeues(ask),
    )


@pages.get("/files/statistics.csv")
async def statistics(ask: HandlerCall) -> Answer:
    """The same as the API's, for a browser."""
    days = ask.call.number("days", 7, 1, 90)
    return await statistics_csv(ask, ask.now - days * 86_400.0, ask.now, "")


@pages.get("/files/rule", scope=Scope.FILES)
async def rule_form(ask: HandlerCall) -> Answer:
    """One rule, or a new one."""
    path = ask.call.arg("path")
    found = next(
        (rule for rule in ask.server.rules.own if rule.path == path), Rule(path=path or "/")
    )
    shown = rule_out(Sourced(found, "admin"))
    return _rule_form(ask, shown)


def _rule_form(ask: HandlerCall, rule: RuleIn | RuleOut, problem: Problem | None = None) -> Answer:
    return ask.page(
        "rule.html",
        422 if problem else 200,
        rule=rule,
        fault=problem.detail if problem else "",
        errors={str(e["field"]): str(e["message"]) for e in problem.errors} if problem else {},
        classes=list(ask.server.gate.settings.class_weights),
    )


@pages.post("/files/rule")
async def rule_save(ask: HandlerCall) -> Answer:
    """Keep it, or show what is wrong with it."""
    call = ask.call
    values: dict[str, Any] = {
        "path": call.field("path")[:1024],
        "require_class": call.field("require_class"),
        "treat_as": call.field("treat_as"),
        "multicast": {"yes": True, "no": False}.get(call.field("multicast")),
        "hidden_until_s": ask.form_time("hidden_until"),
        "prequeue_from_s": ask.form_time("prequeue_from"),
        "note": call.field("note")[:200],
    }
    try:
        put_rule(ask, checked(RuleIn, values))
    except Problem as problem:
        return _rule_form(ask, RuleIn.model_construct(None, **values), problem)
    return redirect("/files#rules")


@pages.post("/files/rule/remove")
async def rule_drop(ask: HandlerCall) -> Answer:
    """Remove it."""
    drop_rule(ask, ask.call.field("path"))
    return redirect("/files#rules")
