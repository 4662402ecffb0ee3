"""What is served and how: files with their digests and counts, rules, pre-queues, statistics."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import Field

from ..accounts.accounts import Scope
from ..admission.rules import Rule, seconds_of
from ..control.events import ask as query_store
from ..control.file_index import FileView
from ..control.problems import Problem, wrong
from ..control.set_up import Sourced
from ..store.history import HOUR
from ..store.usage import read_hours
from .app import HandlerCall
from .render import stamp
from .router import Routes
from .shapes import Hour, ListQuery, Shape, Text
from .web import Answer, csv_answer

api = Routes(Scope.FILES, "release")
pages = Routes(Scope.FILES)


class PathQuery(Shape):
    path: str = Field(min_length=1, max_length=1024, description="The rule's pattern.")


class FileQuery(ListQuery):
    sort: Literal["path", "popular", "bytes", "size"] = Field("path", description="The order.")


class StatisticsQuery(Shape):
    since_s: float = Field(0, ge=0, le=4e9, description="From this time.")
    until_s: float = Field(4e9, ge=0, le=4e9, description="To this time.")
    path: Text = Field("", max_length=1024, description="Only this file.")


class FilesOut(Shape):
    total: int
    files: list[FileView]


Pattern = Annotated[
    str,
    Field(
        max_length=1024,
        pattern=r"^/[^\x00-\x1f\x7f]*$",
        description="A pattern with * and ?; it starts with a slash.",
    ),
]
ClassName = Annotated[Text, Field(max_length=32)]
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


class RuleOut(RuleIn):
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


# -- the pages -------------------------------------------------------------------------------


@pages.get("/files")
async def files(ask: HandlerCall, query: FileQuery) -> Answer:
    found, rules = await list_files(ask, query), ask.server.rules
    return ask.listing(
        "files.html",
        query,
        files=[(row, rules.matching(quote(row.path))) for row in found.files],
        total=found.total,
        busy=ask.server.files.busy,
        rules=(await list_rules(ask)).rules,
        prequeues=(await list_prequeues(ask)).prequeues,
    )


@pages.get("/files/statistics.csv")
async def statistics_sheet(ask: HandlerCall) -> Answer:
    return await export_statistics(ask, StatisticsQuery(since_s=ask.now - 7 * 86_400.0))


@pages.get("/files/rule", scope=Scope.FILES)
async def rule_form(ask: HandlerCall) -> Answer:
    """One rule, or a new one."""
    path = ask.call.arg("path", "/")
    own = (rule for rule in ask.server.rules.own if rule.path == path)
    rule = rule_out(Sourced(next(own, Rule(path=path or "/")), "admin"))
    classes = {"": "no pass needed"} | {one: one for one in ask.server.gate.settings.class_weights}
    return ask.page("rule.html", rule=rule, classes=classes.items())


# -- what can be read and done: by the API and by the forms of the pages ---------------------


@api.get("/files")
async def list_files(ask: HandlerCall, query: FileQuery) -> FilesOut:
    """What is served."""
    rows, total = await ask.server.files.read(query.q, query.sort, query.offset, query.limit)
    return FilesOut(total=total, files=rows)


@api.get("/files/statistics.csv", media="text/csv")
async def export_statistics(ask: HandlerCall, query: StatisticsQuery) -> Answer:
    """Begun and complete downloads and bytes of every file by hour (90 days) as CSV."""
    if query.until_s <= query.since_s:
        raise wrong("until_s", "The end must be after the start.")
    first_s, url = query.since_s // HOUR * HOUR, quote(query.path, safe="/~!$&'()*+,;=:@")
    store, until_s = ask.server.store, query.until_s
    rows = await query_store(store, lambda s: read_hours(s, first_s, until_s, url, 200_000))
    return csv_answer(
        "downloads.csv",
        ["hour", "file", "begun", "complete", "sent_bytes"],
        ((stamp(row[0]), *row[1:]) for row in rows),
    )


@api.get("/rules")
async def list_rules(ask: HandlerCall) -> RulesOut:
    """Rules for files, in the order in which they speak; the last one that does counts."""
    return RulesOut(rules=[rule_out(one) for one in ask.server.rules.all()])


def rule_out(one: Sourced) -> RuleOut:
    """A rule as it is shown; times as Unix seconds, empty words for what it leaves open."""
    rule = one.rule
    return RuleOut.model_construct(
        path=rule.path,
        require_class=rule.require_class or "",
        treat_as=rule.treat_as or "",
        multicast=rule.multicast,
        hidden_until_s=seconds_of(rule.hidden_until) if rule.hidden_until else None,
        prequeue_from_s=seconds_of(rule.prequeue_from) if rule.prequeue_from else None,
        note=rule.note,
        source=one.source,
    )


@api.put("/rules")
@pages.post("/files/rule", then="/files#rules", again=rule_form)
async def put_rule(ask: HandlerCall, body: RuleIn) -> RuleOut:
    """Add or replace the rule of a pattern."""
    opens, registers = body.hidden_until_s, body.prequeue_from_s
    if registers is not None and (opens is None or registers >= opens):
        raise wrong("prequeue_from_s", "A pre-queue opens before the release, which needs a time.")
    if body.require_class:
        known_class(ask, body.require_class, "require_class")
    given = body.model_dump(exclude_defaults=True)
    # A moment is Unix seconds here and a time with its zone there; what is left open stays out.
    rule = Rule.model_validate({name.removesuffix("_s"): value for name, value in given.items()})
    rules = list(ask.server.rules.own)
    at = next((i for i, other in enumerate(rules) if other.path == rule.path), len(rules))
    before = rules[at].hidden_until if at < len(rules) else None
    # A form has no seconds.
    kept = opens and before and abs(seconds_of(before) - opens) < 60.0
    if opens is not None and opens <= ask.now and not kept:
        raise wrong("hidden_until_s", "This time is past: the files would be shown at once.")
    if at == 500:
        raise wrong("path", "There can be at most 500 rules.")
    rules[at : at + 1] = [rule]
    ask.server.rules.set_own(rules)
    ask.log("rule", f"set the rule for {rule.path}")
    return rule_out(Sourced(rule, "admin"))


def known_class(ask: HandlerCall, name: str, field: str) -> None:
    """Raises Problem 422 where no pass can have that class."""
    if name not in (classes := ask.server.gate.settings.class_weights):
        names = ", ".join(classes) or "none is set up on the policy page"
        raise wrong(field, f"There is no class {name!r}; known: {names}.")


@api.delete("/rules")
@pages.post("/files/rule/remove", then="/files#rules")
async def remove_rule(ask: HandlerCall, query: PathQuery) -> None:
    """Remove the rule of a pattern."""
    path, own = query.path, ask.server.rules.own
    kept = [rule for rule in own if rule.path != path]
    if len(kept) == len(own):
        if any(rule.path == path for rule in ask.server.rules.configured):
            raise Problem(409, f"The rule for {path} stands in the configuration file.")
        raise Problem(404, f"There is no rule for {path}.")
    ask.server.rules.set_own(kept)
    ask.log("rule", f"removed the rule for {path}")


@api.get("/prequeues")
async def list_prequeues(ask: HandlerCall) -> PrequeuesOut:
    """Pre-queues and their draws."""
    rows = [
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
    return PrequeuesOut(prequeues=rows)
