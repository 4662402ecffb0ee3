"""Choose a policy, turn its settings, see beforehand what that does, apply, look back, restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from twisted.internet.defer import Deferred

from policies.settings import PolicySettings
from server.admin import acts, forms
from server.admin.accounts import Role
from server.admin.app import Admin, Page, stale
from server.admin.context import Revision
from server.admin.preview import RECORDED, WORKLOADS, Preview, Side, new_key
from server.admin.web import Answer, Call, Problem, redirect

HOUR_S = 3600.0
#: Replayed at most; a busier hour is thinned to this, in the order it came.
ARRIVALS_MAX = 20_000
_REVISIONS = 30


def _form(
    admin: Admin,
    call: Call,
    policy: str,
    texts: Mapping[str, str],
    errors: Mapping[str, str],
    note: str = "",
    status: int = 200,
    said: str = "",
) -> Answer:
    current = admin.context.current()
    held = {name: forms.shown(value) for name, value in current.settings.items()}
    mine: list[forms.Setting] = []
    others: list[forms.Setting] = []
    for setting in forms.settings_of():
        (mine if policy in setting.policies else others).append(setting)
    return admin.page(
        call,
        "policy.html",
        status,
        current=current,
        policy=policy,
        names=[
            (name, *forms.POLICY_WORDS.get(name, (name, ""))) for name in admin.context.policies()
        ],
        mine=mine,
        others=others,
        texts=texts,
        errors=errors,
        changed={name for name, text in texts.items() if text != held.get(name, "")},
        workloads=WORKLOADS,
        bound_text=forms.bound_text,
        prefix=forms.PREFIX,
        note=note,
        said=said,
    )


async def policy(admin: Admin, call: Call) -> Answer:
    current = admin.context.current()
    chosen = call.arg("policy", current.policy)
    if chosen not in admin.context.policies():
        chosen = current.policy
    texts = {name: forms.shown(value) for name, value in current.settings.items()}
    said = f"Revision {current.number} is in force." if call.arg("applied") else ""
    return _form(admin, call, chosen, texts, {}, said=said)


def _read(admin: Admin, call: Call) -> tuple[str, forms.Filled]:
    chosen = call.field("policy")
    if chosen not in admin.context.policies():
        raise Problem(422, "Choose one of the policies.")
    return chosen, forms.read(call, admin.context.current().settings)


def _base(call: Call) -> int:
    text = call.field("base")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Problem(422, "This form is incomplete; load the page again.")
    return int(text)


async def submit(admin: Admin, call: Call) -> Answer:
    """The form's buttons: look beforehand, or apply at once."""
    chosen, filled = _read(admin, call)
    note = call.field("note")[:500]
    if filled.settings is None:
        return _form(admin, call, chosen, filled.texts, filled.errors, note, 422)
    if call.field("act") == "show":
        return _form(admin, call, chosen, filled.texts, {}, note)
    if call.field("act") == "preview":
        found = await begin_preview(
            admin,
            call.who.name if call.who else "-",
            chosen,
            filled.settings,
            call.field("workload") or RECORDED,
            note,
            call.now,
        )
        return redirect(f"/policy/preview/{found.key}")
    who = call.who.name if call.who else "-"
    acts.apply(admin.context, who, chosen, filled.settings, note, _base(call))
    return redirect("/policy?applied=1")


async def begin_preview(
    admin: Admin,
    who: str,
    chosen: str,
    settings: PolicySettings,
    workload: str,
    note: str,
    now: float,
) -> Preview:
    """Queue the simulation of a change beside the policy in force."""
    if workload not in WORKLOADS:
        raise Problem(422, f"workload: choose one of {', '.join(WORKLOADS)}.")
    if chosen not in admin.context.policies():
        raise Problem(422, f"policy: choose one of {', '.join(admin.context.policies())}.")
    if not admin.previews.room():
        raise Problem(
            429, "Other previews are running; try again.", headers=(("retry-after", "10"),)
        )
    current = admin.context.current()
    arrivals = (
        await admin.context.arrivals(now - HOUR_S, ARRIVALS_MAX) if workload == RECORDED else ()
    )
    if workload == RECORDED and not arrivals:
        raise Problem(
            409,
            "Nobody has come within the last hour, so there is nothing to replay; choose one of "
            "the other workloads.",
            code="no-arrivals",
        )
    found = Preview(
        key=new_key(),
        who=who,
        at_s=now,
        workload=workload,
        jobs=len(arrivals),
        present=Side(current.policy, current.settings),
        proposed=Side(chosen, settings.model_dump()),
        base_revision=current.number,
        note=note,
    )
    capacity = await _capacity(admin, now) if workload == RECORDED else None
    admin.previews.begin(found, arrivals, capacity)
    Deferred.fromCoroutine(admin.previews.work())
    return found


async def _capacity(admin: Admin, now: float) -> float | None:
    """What the link carries: the configured cap, else the most that was seen within the hour."""
    configured = admin.context.health().capacity_bytes_s
    if configured is not None:
        return configured
    history = await admin.context.history(now - HOUR_S, now, 240)
    seen = [rate for rate in history.series.get("goodput_bytes_s", ()) if rate is not None]
    return max(seen, default=0.0) or None


def _preview(admin: Admin, key: str) -> Preview:
    found = admin.previews.by_key.get(key)
    if found is None:
        raise Problem(404, "This preview is gone; make it again.")
    return found


MEASURES = (
    ("wait_small_mean_s", "Small files: mean wait", "s"),
    ("wait_small_p95_s", "Small files: 95 % wait less than", "s"),
    ("wait_large_mean_s", "Large files: mean wait", "s"),
    ("wait_large_p95_s", "Large files: 95 % wait less than", "s"),
    ("paused_large_mean_s", "Large files: then paused, mean", "s"),
    ("session_mean_s", "Whole visit, mean", "s"),
    ("abandoned", "Left without their file", "count"),
    ("attempts", "Attempts per download", "ratio"),
    ("slots_used", "Slots used on average", "slots"),
)
#: Where more is neither better nor worse.
_NEUTRAL = frozenset({"slots_used"})


def compared(found: Preview) -> list[dict[str, Any]]:
    """The measures side by side; `verdict` is better, worse or empty."""
    if found.before is None or found.after is None:
        return []
    before, after = asdict(found.before), asdict(found.after)
    rows = []
    for name, label, unit in MEASURES:
        old, new = before[name], after[name]
        verdict = ""
        known = old is not None and new is not None and name not in _NEUTRAL
        if known and abs(new - old) > max(0.02 * abs(old), 0.01):
            verdict = "better" if new < old else "worse"
        rows.append(
            {"name": name, "label": label, "unit": unit, "old": old, "new": new, "verdict": verdict}
        )
    return rows


async def preview(admin: Admin, call: Call) -> Answer:
    found = _preview(admin, call.params["key"])
    return admin.page(
        call,
        "preview.html",
        preview=found,
        rows=compared(found),
        changes=forms.diff(
            found.present.policy,
            found.present.settings,
            found.proposed.policy,
            found.proposed.settings,
        ),
        workload=WORKLOADS.get(found.workload, found.workload),
        stale=found.base_revision != admin.context.current().number,
    )


async def picture(admin: Admin, call: Call) -> Answer:
    """The chronology of one side, as a picture of its own."""
    found = _preview(admin, call.params["key"])
    side = {"before.svg": found.before, "after.svg": found.after}.get(call.params["side"])
    if side is None or not side.picture_svg:
        raise Problem(404, "There is no such picture.")
    return picture_answer(side.picture_svg)


def picture_answer(svg: str) -> Answer:
    """A picture. Its own styles may apply, nothing else; opened alone it is inert."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    headers = (("content-type", "image/svg+xml"), ("content-security-policy", policy))
    return Answer(200, svg.encode(), headers)


async def preview_apply(admin: Admin, call: Call) -> Answer:
    found = _preview(admin, call.params["key"])
    acts.apply(
        admin.context,
        call.who.name if call.who else "-",
        found.proposed.policy,
        PolicySettings.model_validate(found.proposed.settings),
        call.field("note")[:500],
        found.base_revision,
    )
    return redirect("/policy?applied=1")


async def preview_edit(admin: Admin, call: Call) -> Answer:
    found = _preview(admin, call.params["key"])
    texts = {name: forms.shown(value) for name, value in found.proposed.settings.items()}
    return _form(admin, call, found.proposed.policy, texts, {}, found.note)


async def revisions(admin: Admin, call: Call) -> Answer:
    before = call.number("before", 0, 0, 1 << 60) or None
    found = list(await admin.context.revisions(before, _REVISIONS + 1))
    rows: list[tuple[Revision, list[forms.Change]]] = []
    for index, revision in enumerate(found[:_REVISIONS]):
        older = found[index + 1] if index + 1 < len(found) else None
        changes = (
            forms.diff(older.policy, older.settings, revision.policy, revision.settings)
            if older
            else []
        )
        rows.append((revision, changes))
    more = found[_REVISIONS - 1].number if len(found) > _REVISIONS else None
    return admin.page(call, "revisions.html", rows=rows, more=more, current=admin.context.current())


async def restore_ask(admin: Admin, call: Call) -> Answer:
    revision = await admin.context.revision(_revision_number(call))
    if revision is None:
        raise Problem(404, "There is no such revision.")
    current = admin.context.current()
    return admin.page(
        call,
        "restore.html",
        revision=revision,
        current=current,
        changes=forms.diff(current.policy, current.settings, revision.policy, revision.settings),
    )


def _revision_number(call: Call) -> int:
    text = call.params["number"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Problem(404, "There is no such revision.")
    return int(text)


async def restore(admin: Admin, call: Call) -> Answer:
    base = _base(call)
    if base != admin.context.current().number:
        raise stale()
    await acts.restore(
        admin.context,
        call.who.name if call.who else "-",
        _revision_number(call),
        call.field("note")[:500],
        base,
    )
    return redirect("/policy?applied=1")


def pages() -> list[Page]:
    operator = Role.OPERATOR
    return [
        Page("GET", "/policy", policy),
        Page("POST", "/policy", submit, operator),
        Page("GET", "/policy/preview/{key}", preview),
        Page("GET", "/policy/preview/{key}/edit", preview_edit, operator),
        Page("GET", "/policy/preview/{key}/{side}", picture),
        Page("POST", "/policy/preview/{key}", preview_apply, operator),
        Page("GET", "/policy/revisions", revisions),
        Page("GET", "/policy/revisions/{number}/restore", restore_ask, operator),
        Page("POST", "/policy/revisions/{number}/restore", restore, operator),
    ]
