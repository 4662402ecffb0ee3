"""Priority passes: issued as a sheet, counted, revoked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, Field

from ...protocol.ticket import Pass
from ..accounts.accounts import Scope
from ..control.problems import Problem, wrong
from ..store import queries
from .app import HandlerCall
from .files import known_class
from .render import stamp
from .router import Routes
from .shapes import AsTime, Hour, ListQuery, SerialPath, Shape, Text
from .web import Answer, csv_answer

api = Routes(Scope.FILES, "release")
pages = Routes(Scope.FILES)


class PassesIn(Shape):
    count: int = Field(1, ge=1, le=10_000)
    kind: str = Field(min_length=1, max_length=64, description="A class of the policy's weights.")
    path: Text = Field("*", min_length=1, max_length=1024)
    not_before_s: Annotated[Hour, Field(description="Null: from now.")] = None
    expires_s: Annotated[float, AsTime] = Field(gt=0, le=4e9)
    max_uses: int = Field(1, ge=1, le=1_000_000)
    note: Text = Field("", max_length=200)


class PassOut(Shape):
    serial: str
    kind: str = Field(validation_alias=AliasChoices("kind", "priority_class"))
    weight: float
    path: str
    not_before_s: float
    expires_s: float
    max_uses: int
    used: int = Field(validation_alias=AliasChoices("used", "uses"))
    revoked: bool
    issued_s: float
    who: str = ""
    note: str
    token: str | None = Field(None, repr=False, description="Only in the answer that issues it.")


class PassesOut(Shape):
    total: int
    passes: list[PassOut]


# -- the pages -------------------------------------------------------------------------------


@pages.get("/passes")
async def passes(ask: HandlerCall, query: ListQuery) -> Answer:
    found = await list_passes(ask, query)
    weights = ask.server.gate.settings.class_weights
    return ask.listing(
        "passes.html",
        query,
        passes=found.passes,
        total=found.total,
        classes=[(name, f"{name} (weight {weight:g})") for name, weight in weights.items()],
        default_end=ask.now + 7 * 86_400.0,
        default_start=ask.now,
    )


@pages.post("/passes", again=passes)
async def passes_sheet(ask: HandlerCall, body: PassesIn) -> Answer:
    """Issue and hand over as CSV at once: the tokens are not kept."""
    made = await issue_passes(ask, body)
    return csv_answer(
        "passes.csv",
        ["serial", "class", "path", "not_before", "expires", "max_uses", "token"],
        (
            (
                *(one.serial, one.kind, one.path, stamp(one.not_before_s)),
                *(stamp(one.expires_s), one.max_uses, one.token or ""),
            )
            for one in made.passes
        ),
    )


@pages.get("/passes/{serial}/revoke", scope=Scope.FILES)
async def pass_ask(ask: HandlerCall, path: SerialPath) -> Answer:
    return ask.page(
        "confirm.html",
        title=f"Revoke pass {path.serial}?",
        text="Its holder is treated like everybody else from now on. This cannot be undone.",
        facts=[],
        button="Revoke the pass",
        back="/passes",
    )


# -- what can be read and done: by the API and by the forms of the pages ---------------------


@api.get("/passes")
async def list_passes(ask: HandlerCall, query: ListQuery) -> PassesOut:
    """Issued priority passes."""
    found = [
        one
        for one in ask.server.passes.records()
        if query.q in one.serial or query.q in one.priority_class or query.q in one.note
    ]
    rows = [PassOut.model_validate(one) for one in query.page(found)]
    return PassesOut(total=len(found), passes=rows)


@api.post("/passes", status=201)
async def issue_passes(ask: HandlerCall, body: PassesIn) -> PassesOut:
    """Issue priority passes."""
    settings = ask.server.gate.settings
    known_class(ask, body.kind, "kind")
    start_s = ask.now if body.not_before_s is None else body.not_before_s
    if body.expires_s <= start_s:
        raise wrong("expires_s", "The end must be after the start.")
    weight = settings.weight_of(body.kind)
    terms = Pass("", body.kind, weight, body.path, start_s, body.expires_s, body.max_uses)
    made = [ask.server.passes.issue(terms, ask.now, body.note) for _ in range(body.count)]
    records = [record for _, record in made]
    ask.server.store.must(lambda connection: queries.write_passes(connection, records))
    noun = "pass" if len(made) == 1 else "passes"
    ask.log("passes", f"issued {len(made)} {noun} of class {body.kind} for {body.path}")
    shown = [
        PassOut.model_validate(record).model_copy(update={"who": ask.who, "token": token})
        for token, record in made
    ]
    return PassesOut(total=len(shown), passes=shown)


@api.delete("/passes/{serial}")
@pages.post("/passes/{serial}/revoke", then="/passes")
async def revoke_pass(ask: HandlerCall, path: SerialPath) -> None:
    """Make a priority pass worthless."""
    serial, book = path.serial, ask.server.passes
    known = any(one.serial == serial and not one.revoked for one in book.records())
    if not known or not book.revoke(serial):
        raise Problem(404, f"There is no pass {serial}, or it is revoked already.")

    def write(session: Any) -> None:
        queries.revoke_pass(session, serial)

    ask.server.store.must(write)
    ask.log("passes", f"revoked pass {serial}")
