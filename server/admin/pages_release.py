"""What is served and how it is handed out: files and rules, preference tickets, waiting page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from server.admin import acts
from server.admin.accounts import Role
from server.admin.app import Admin, Page
from server.admin.context import WAITING_STATES, PassView, Rule
from server.admin.web import Answer, Call, Problem, html, redirect

LIMIT = 50
_SORTS = ("path", "popular", "bytes", "size")


def _who(call: Call) -> str:
    return call.who.name if call.who else "-"


def _time(call: Call, name: str) -> float | None:
    """A `datetime-local` field (UTC) as Unix time; None when empty."""
    text = call.field(name)
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Problem(422, f"{name}: write a time like 2030-01-31T12:00 (UTC).") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return found.timestamp()


async def files(admin: Admin, call: Call) -> Answer:
    search = call.arg("q").strip()[:256]
    sort = call.arg("sort", "path")
    if sort not in _SORTS:
        sort = "path"
    offset = call.number("offset", 0, 0, 10_000_000)
    page = await admin.context.files(search, sort, offset, LIMIT)
    rules = admin.context.rules()
    return admin.page(
        call,
        "files.html",
        files=[(file, acts.rule_for(rules, file.path)) for file in page.rows],
        total=page.total,
        busy=page.busy,
        search=search,
        sort=sort,
        sorts=_SORTS,
        offset=offset,
        limit=LIMIT,
        base="/files?" + urlencode({"q": search, "sort": sort}) + "&",
        rules=rules,
        prequeues=admin.context.prequeues(),
    )


async def rule_form(admin: Admin, call: Call) -> Answer:
    path = call.arg("path")
    found = next((rule for rule in admin.context.rules() if rule.path == path), Rule(path))
    return _rule_form(admin, call, found)


def _rule_form(
    admin: Admin, call: Call, rule: Rule, fault: str = "", errors: dict[str, str] | None = None
) -> Answer:
    return admin.page(
        call,
        "rule.html",
        422 if fault else 200,
        rule=rule,
        fault=fault,
        errors=errors or {},
        classes=list(admin.context.current().settings.get("class_weights", {})),
    )


async def rule_save(admin: Admin, call: Call) -> Answer:
    rule = Rule(
        path=call.field("path")[:1024],
        require_class=call.field("require_class")[:64],
        treat_as=call.field("treat_as"),
        multicast={"yes": True, "no": False}.get(call.field("multicast")),
        hidden_until_s=_time(call, "hidden_until"),
        prequeue_from_s=_time(call, "prequeue_from"),
        note=call.field("note")[:200],
    )
    try:
        acts.put_rule(admin.context, _who(call), rule)
    except Problem as problem:
        errors = {str(e["field"]): str(e["message"]) for e in problem.errors}
        return _rule_form(admin, call, rule, problem.detail, errors)
    return redirect("/files#rules")


async def rule_drop(admin: Admin, call: Call) -> Answer:
    acts.drop_rule(admin.context, _who(call), call.field("path"))
    return redirect("/files#rules")


# -- preference tickets


async def passes(admin: Admin, call: Call) -> Answer:
    return await _passes(admin, call)


async def _passes(
    admin: Admin, call: Call, fault: str = "", errors: dict[str, str] | None = None
) -> Answer:
    search = call.arg("q").strip()[:128]
    offset = call.number("offset", 0, 0, 10_000_000)
    rows, total = await admin.context.passes(search, offset, LIMIT)
    return admin.page(
        call,
        "passes.html",
        422 if fault else 200,
        passes=rows,
        total=total,
        search=search,
        offset=offset,
        limit=LIMIT,
        base="/passes?" + urlencode({"q": search}) + "&",
        classes=admin.context.current().settings.get("class_weights", {}),
        fault=fault,
        errors=errors or {},
        default_end=call.now + 7 * 86_400,
        default_start=call.now,
    )


def _whole(call: Call, name: str, default: int) -> int:
    text = call.field(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Problem(422, f"{name}: This must be a whole number.")
    return int(text)


async def passes_issue(admin: Admin, call: Call) -> Answer:
    """Issue and hand over as CSV at once: the tokens are not kept."""
    try:
        start = _time(call, "not_before") or call.now
        end = _time(call, "expires")
        if end is None:
            raise Problem(422, "expires: Say until when they are good.")
        found = acts.issue_passes(
            admin.context,
            _who(call),
            count=_whole(call, "count", 1),
            kind=call.field("kind"),
            path=call.field("path") or "*",
            not_before_s=start,
            expires_s=end,
            max_uses=_whole(call, "max_uses", 1),
            note=call.field("note")[:200],
        )
    except Problem as problem:
        errors = {str(e["field"]): str(e["message"]) for e in problem.errors}
        return await _passes(admin, call, problem.detail, errors)
    return csv_answer(found)


def csv_answer(found: Sequence[PassView]) -> Answer:
    """The tickets with their tokens as a file to download."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(["serial", "class", "path", "not_before", "expires", "max_uses", "token"])
    for one in found:
        stamps = (
            datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
            for at in (one.not_before_s, one.expires_s)
        )
        cells = [one.serial, one.kind, one.path, *stamps, one.max_uses, one.token or ""]
        writer.writerow([_inert(cell) for cell in cells])
    headers = (
        ("content-type", "text/csv; charset=utf-8"),
        ("content-disposition", 'attachment; filename="tickets.csv"'),
    )
    return Answer(200, out.getvalue().encode(), headers)


def _inert(cell: object) -> object:
    """A cell no spreadsheet takes for a formula."""
    return "'" + cell if isinstance(cell, str) and cell[:1] in "=+-@\t\r" and cell else cell


async def pass_ask(admin: Admin, call: Call) -> Answer:
    return admin.page(
        call,
        "confirm.html",
        title=f"Revoke ticket {call.params['serial'][:80]}?",
        text="Whoever holds it is treated like everybody else from now on. This cannot be undone.",
        facts=[],
        button="Revoke the ticket",
        back="/passes",
    )


async def pass_revoke(admin: Admin, call: Call) -> Answer:
    acts.revoke_pass(admin.context, _who(call), call.params["serial"])
    return redirect("/passes")


# -- the waiting page


async def waiting(admin: Admin, call: Call) -> Answer:
    return _waiting(admin, call)


def _waiting(admin: Admin, call: Call, fault: str = "") -> Answer:
    state = call.arg("state", "waiting")
    language = call.arg("lang", "en")
    return admin.page(
        call,
        "waiting.html",
        422 if fault else 200,
        look=admin.context.waiting_look(),
        states=WAITING_STATES,
        state=state if state in WAITING_STATES else "waiting",
        language=language if language in ("en", "de") else "en",
        fault=fault,
    )


async def waiting_save(admin: Admin, call: Call) -> Answer:
    given = call.form.get("logo", [b""])[0]
    logo = b"" if call.field("drop_logo") else given or None
    try:
        acts.set_look(
            admin.context, _who(call), call.field("title")[:120], call.field("text")[:2000], logo
        )
    except Problem as problem:
        return _waiting(admin, call, problem.errors[0]["message"])
    return redirect("/waiting")


async def waiting_preview(admin: Admin, call: Call) -> Answer:
    state, language = call.arg("state", "waiting"), call.arg("lang", "en")
    if state not in WAITING_STATES or language not in ("en", "de"):
        raise Problem(404, "There is no such state.")
    body = admin.context.waiting_preview(state, language, admin.context.waiting_look())
    return html(body.decode())


def pages() -> list[Page]:
    operator = Role.OPERATOR
    return [
        Page("GET", "/files", files),
        Page("GET", "/files/rule", rule_form, operator),
        Page("POST", "/files/rule", rule_save, operator),
        Page("POST", "/files/rule/remove", rule_drop, operator),
        Page("GET", "/passes", passes),
        Page("POST", "/passes", passes_issue, operator),
        Page("GET", "/passes/{serial}/revoke", pass_ask, operator),
        Page("POST", "/passes/{serial}/revoke", pass_revoke, operator),
        Page("GET", "/waiting", waiting),
        Page("POST", "/waiting", waiting_save, operator),
        Page("GET", "/waiting/preview", waiting_preview),
    ]
