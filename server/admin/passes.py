"""Priority passes: issued as a sheet, counted, revoked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from pydantic import Field

from server.admin.accounts import Scope
from server.admin.app import HandlerCall
from server.admin.router import Operations, PageRoutes
from server.admin.shapes import ListQuery, SerialPath, Shape, Text
from server.admin.sheets import csv_answer
from server.admin.web import Answer, Problem, checked, redirect, wrong
from server.store.queries import revoke_pass, write_passes
from server.store.records import PassRecord

api = Operations("release", Scope.FILES)
pages = PageRoutes(Scope.FILES)

LIMIT = 50
AT_ONCE = 10_000
_WEEK_S = 7 * 86_400.0


class PassesIn(Shape):
    count: int = Field(1, ge=1, le=AT_ONCE)
    kind: str = Field(min_length=1, max_length=64, description="A class of the policy's weights.")
    path: Text = Field("*", min_length=1, max_length=1024)
    not_before_s: float | None = Field(None, ge=0, le=4e9, description="Null: from now.")
    expires_s: float = Field(gt=0, le=4e9)
    max_uses: int = Field(1, ge=1, le=1_000_000)
    note: Text = Field("", max_length=200)


class PassOut(Shape):
    serial: str
    kind: str
    weight: float
    path: str
    not_before_s: float
    expires_s: float
    max_uses: int
    used: int
    revoked: bool
    issued_s: float
    who: str
    note: str
    token: str | None = Field(None, repr=False, description="Only in the answer that issues it.")


class PassesOut(Shape):
    total: int
    passes: list[PassOut]


def pass_out(record: PassRecord, who: str = "", token: str | None = None) -> PassOut:
    """A pass as it is shown."""
    return PassOut(
        serial=record.serial,
        kind=record.priority_class,
        weight=record.weight,
        path=record.path,
        not_before_s=record.not_before_s,
        expires_s=record.expires_s,
        max_uses=record.max_uses,
        used=record.uses,
        revoked=record.revoked,
        issued_s=record.issued_s,
        who=who,
        note=record.note,
        token=token,
    )


def issue(ask: HandlerCall, wanted: PassesIn) -> list[PassOut]:
    """Make passes; their tokens are known only now. Raises Problem 422."""
    settings = ask.server.gate.settings
    if wanted.kind not in settings.class_weights:
        names = ", ".join(settings.class_weights) or "none is set up on the policy page"
        raise wrong("kind", f"There is no class {wanted.kind!r}; known: {names}.")
    start_s = ask.now if wanted.not_before_s is None else wanted.not_before_s
    if wanted.expires_s <= start_s:
        raise wrong("expires_s", "The end must be after the start.")
    made = [
        ask.server.passes.issue(
            priority_class=wanted.kind,
            weight=settings.weight_of(wanted.kind),
            path=wanted.path,
            not_before_s=start_s,
            expires_s=wanted.expires_s,
            max_uses=wanted.max_uses,
            now=ask.now,
            note=wanted.note,
        )
        for _ in range(wanted.count)
    ]
    records = [record for _, record in made]
    ask.server.store.must(lambda session: write_passes(session, records))
    passes = "pass" if len(made) == 1 else "passes"
    ask.log("passes", f"issued {len(made)} {passes} of class {wanted.kind} for {wanted.path}")
    return [pass_out(record, ask.who, token) for token, record in made]


def revoke(ask: HandlerCall, serial: str) -> None:
    """Make a pass worthless. Raises Problem 404."""
    book = ask.server.passes
    known = any(one.serial == serial and not one.revoked for one in book.records())
    if not known or not book.revoke(serial):
        raise Problem(404, f"There is no pass {serial}, or it is revoked already.")

    def write(session: Any) -> None:
        revoke_pass(session, serial)

    ask.server.store.must(write)
    ask.log("passes", f"revoked pass {serial}")


def passes_like(ask: HandlerCall, search: str) -> list[PassRecord]:
    """Issued passes, newest first."""
    return [
        one
        for one in ask.server.passes.records()
        if search in one.serial or search in one.priority_class or search in one.note
    ]


# -- the API ---------------------------------------------------------------------------------


@api.get("/passes")
async def list_passes(ask: HandlerCall, query: ListQuery) -> PassesOut:
    """Issued priority passes."""
    found = passes_like(ask, query.q)
    page = found[query.offset : query.offset + query.limit]
    return PassesOut(total=len(found), passes=[pass_out(one) for one in page])


@api.post("/passes", status=201)
async def issue_passes(ask: HandlerCall, body: PassesIn) -> PassesOut:
    """Issue priority passes."""
    made = issue(ask, body)
    return PassesOut(total=len(made), passes=made)


@api.delete("/passes/{serial}")
async def revoke_pass_(ask: HandlerCall, path: SerialPath) -> None:
    """Make a priority pass worthless."""
    revoke(ask, path.serial)


# -- the pages -------------------------------------------------------------------------------


@pages.get("/passes")
async def passes(ask: HandlerCall) -> Answer:
    """Issue some; all that were issued."""
    return _passes(ask)


def _passes(ask: HandlerCall, problem: Problem | None = None) -> Answer:
    search = ask.call.arg("q").strip()[:128]
    offset = ask.call.number("offset", 0, 0, 10_000_000)
    found = passes_like(ask, search)
    return ask.page(
        "passes.html",
        422 if problem else 200,
        passes=[pass_out(one) for one in found[offset : offset + LIMIT]],
        total=len(found),
        search=search,
        offset=offset,
        limit=LIMIT,
        base="/passes?" + urlencode({"q": search}) + "&",
        classes=ask.server.gate.settings.class_weights,
        fault=problem.detail if problem else "",
        errors={str(e["field"]): str(e["message"]) for e in problem.errors} if problem else {},
        default_end=ask.now + _WEEK_S,
        default_start=ask.now,
    )


@pages.post("/passes")
async def passes_issue(ask: HandlerCall) -> Answer:
    """Issue and hand over as CSV at once: the tokens are not kept."""
    call = ask.call
    try:
        end = ask.form_time("expires")
        if end is None:
            raise wrong("expires", "Say until when they are good.")
        values = {
            "count": call.whole("count", 1),
            "kind": call.field("kind"),
            "path": call.field("path") or "*",
            "not_before_s": ask.form_time("not_before"),
            "expires_s": end,
            "max_uses": call.whole("max_uses", 1),
            "note": call.field("note")[:200],
        }
        found = issue(ask, checked(PassesIn, values))
    except Problem as problem:
        return _passes(ask, problem)
    return csv_answer(
        "passes.csv",
        ["serial", "class", "path", "not_before", "expires", "max_uses", "token"],
        (
            (
                *(one.serial, one.kind, one.path, _stamp(one.not_before_s)),
                *(_stamp(one.expires_s), one.max_uses, one.token or ""),
            )
            for one in found
        ),
    )


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


@pages.get("/passes/{serial}/revoke", scope=Scope.FILES)
async def pass_ask(ask: HandlerCall) -> Answer:
    """Really?"""
    return ask.page(
        "confirm.html",
        title=f"Revoke pass {ask.call.params['serial'][:80]}?",
        text="Its holder is treated like everybody else from now on. This cannot be undone.",
        facts=[],
        button="Revoke the pass",
        back="/passes",
    )


@pages.post("/passes/{serial}/revoke")
async def pass_revoke(ask: HandlerCall) -> Answer:
    """Do it."""
    revoke(ask, ask.call.params["serial"])
    return redirect("/passes")
