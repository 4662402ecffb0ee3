"""Choose a policy, turn its settings, see beforehand what that does, apply, look back, restore."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, NamedTuple

from pydantic import AliasChoices, Field, ValidationError

from ...policies.registry import POLICIES
from ...policies.settings import PolicySettings
from ..accounts.accounts import Scope
from ..control.problems import Problem, invalid, wrong
from ..control.revisions import StaleRevision, diff, shown, usable
from ..store.records import RevisionRecord
from . import forms
from .app import HandlerCall
from .charts import CHARTS
from .forms import ADVANCED, MAIN, WORDS
from .previews import RECORDED, WORKLOADS, Measures, Preview, Side, new_key
from .router import Routes
from .shapes import BeforeQuery, Key, KeyPath, NumberPath, Shape, Text
from .web import Answer, json_answer, redirect

api = Routes(Scope.POLICY, "policy")
pages = Routes(Scope.POLICY)


class PolicyPage(NamedTuple):
    """Bounds of the page."""

    played_s: float = 3600.0
    note_most: int = 500
    #: The mean of fewer downloads tells nothing: one client is more than 3 % of it.
    compared_least: int = 30


PAGE = PolicyPage()
#: Where a form leads that has changed the policy.
_APPLIED = "/policy?applied=1"


def _one_of(words: Iterable[str | None]) -> dict[str, Any]:
    """The words that are known, for the document; the operation itself names them in its fault."""
    return {"enum": list(words)}


class SettingsIn(Shape):
    """A policy with all its settings; what is left out takes its default."""

    policy: str = Field(max_length=32, json_schema_extra=_one_of(POLICIES))
    settings: PolicySettings
    note: Text = Field("", max_length=PAGE.note_most)


class SettingsPatch(Shape):
    """Single settings to change; the rest stays."""

    policy: str | None = Field(None, json_schema_extra=_one_of((*POLICIES, None)))
    settings: dict[str, Any] = Field(default_factory=dict)
    note: Text = Field("", max_length=PAGE.note_most)


class RestoreIn(Shape):
    note: Text = Field("", max_length=PAGE.note_most)


class PolicyForm(RestoreIn):
    """What the page's form says beside the settings; `act` is the button."""

    policy: str = ""
    workload: str = RECORDED
    act: Literal["show", "preview", "apply"] = "apply"


class RevisionsOut(Shape):
    revisions: list[RevisionRecord]


class OverrideOut(Shape):
    """A setting whose value in force is not the configuration file's."""

    name: str
    configured: str = Field(validation_alias=AliasChoices("configured", "before"))
    in_force: str = Field(validation_alias=AliasChoices("in_force", "after"))


class OverridesOut(Shape):
    overrides: list[OverrideOut]


class SettingsHelpOut(Shape):
    policies: list[str]
    settings: list[forms.Setting]


class PreviewIn(SettingsIn):
    workload: str = Field(RECORDED, max_length=32, json_schema_extra=_one_of(WORKLOADS))


class MeasureOut(Shape):
    name: str
    label: str
    unit: str
    now: float | None
    proposed: float | None
    verdict: str


class PreviewOut(Shape):
    key: str
    state: str
    fault: str
    workload: str
    jobs: int
    took_s: float
    measures: list[MeasureOut]


class SidePath(Shape):
    key: Key
    side: Literal["before", "after"] = Field(description="Which of the two.")


# -- what can be done ------------------------------------------------------------------------


def known_policy(name: str) -> str:
    """The name of a policy. Raises Problem 422."""
    if name not in POLICIES:
        raise wrong("policy", f"There is no policy {name!r}; choose one of {', '.join(POLICIES)}.")
    return name


def apply(
    ask: HandlerCall, policy: str, settings: PolicySettings, note: str, expected: int
) -> RevisionRecord:
    """Make a policy current. Raises StaleRevision and Problem 422."""
    return ask.server.revisions.apply(
        known_policy(policy), settings, ask.who, note, expected=expected
    )


async def _revision(ask: HandlerCall, number: int) -> RevisionRecord:
    found = await ask.server.revisions.get(number)
    if found is None:
        raise Problem(404, f"There is no revision {number}.")
    return found


async def begin_preview(
    ask: HandlerCall, policy: str, settings: PolicySettings, workload: str, note: str
) -> Preview:
    """Queue the simulation of a change beside the policy in force."""
    if workload not in WORKLOADS:
        raise wrong("workload", f"Choose one of {', '.join(WORKLOADS)}.")
    known_policy(policy)
    previews, current = ask.admin.previews, ask.server.revisions.current
    if not previews.room():
        again = (("retry-after", "10"),)
        raise Problem(429, "Other previews are running; try again.", headers=again)
    arrivals, capacity = [], None
    if workload == RECORDED:
        # Replayed at most; a busier hour is thinned to this, in the order it came.
        arrivals = await ask.server.history.arrivals(ask.now - PAGE.played_s, 20_000)
        capacity = await _capacity(ask)
        if len(arrivals) < PAGE.compared_least:
            raise Problem(
                409,
                f"Too few arrivals to compare: {len(arrivals)} downloads were asked for within the "
                f"last hour, and a comparison needs {PAGE.compared_least}. Choose one of the other "
                "workloads.",
                code="no-arrivals",
            )
    found = Preview(
        key=new_key(),
        workload=workload,
        jobs=len(arrivals),
        present=Side(current.policy, current.settings),
        proposed=Side(policy, settings.model_dump()),
        base_revision=current.number,
        note=note,
    )
    previews.begin(found, arrivals, capacity)
    return found


async def _capacity(ask: HandlerCall) -> float | None:
    """What the link carries: the configured cap, else the most that was seen within the hour."""
    configured = ask.server.vitals.read().totals.capacity_bytes_s
    if configured is not None:
        return configured
    past = await ask.server.history.read(ask.now - PAGE.played_s, ask.now, 240)
    seen = [rate for rate in past.series.get("goodput_bytes_s", ()) if rate is not None]
    return max(seen, default=0.0) or None


def preview_of(ask: HandlerCall, key: str) -> Preview:
    """A preview that is still known. Raises Problem 404."""
    found = ask.admin.previews.by_key.get(key)
    if found is None:
        raise Problem(404, "This preview is gone; make it again.")
    return found


def compared(found: Preview) -> list[MeasureOut]:
    """The measures side by side; `verdict` is better, worse or empty."""
    before, after = found.before, found.after
    if before is None or after is None:
        return []
    rows = []
    for known in fields(Measures):
        if not known.metadata:
            continue
        old, new = getattr(before, known.name), getattr(after, known.name)
        verdict, meant = "", known.metadata["more_is_worse"] and None not in (old, new)
        if meant and abs(new - old) > max(0.02 * abs(old), 0.01):
            verdict = "better" if new < old else "worse"
        label, unit = known.metadata["label"], known.metadata["unit"]
        row = {"name": known.name, "label": label, "unit": unit, "now": old, "proposed": new}
        rows.append(MeasureOut(**row, verdict=verdict))
    return rows


# -- the API ---------------------------------------------------------------------------------


def etag(revision: RevisionRecord) -> str:
    """The entity tag of the settings as they are in this revision."""
    return f'"r{revision.number}"'


def _expected(ask: HandlerCall) -> int:
    """The revision the caller has read: `If-Match`, in a form `base`.

    Raises Problem 428 without either, StaleRevision.
    """
    current, base = ask.server.revisions.current, ask.call.field("base")
    given = ask.call.headers.get("if-match", f'"r{base}"' if base else None)
    if given is None:
        raise Problem(428, "Send If-Match with the ETag of the settings you have read.")
    tags = [tag.strip() for tag in given.split(",")]
    if "*" not in tags and etag(current) not in tags:
        raise StaleRevision
    return current.number


def _settings(revision: RevisionRecord) -> Answer:
    return json_answer(revision, 200, ("etag", etag(revision)))


@api.get("/settings", answer=RevisionRecord)
async def get_settings(ask: HandlerCall) -> Answer:
    """The policy in force; its ETag."""
    current = ask.server.revisions.current
    if etag(current) in ask.call.headers.get("if-none-match", ""):
        return Answer(304, b"", (("etag", etag(current)),))
    return _settings(current)


@api.put("/settings", answer=RevisionRecord, if_match=True)
async def put_settings(ask: HandlerCall, body: SettingsIn) -> Answer:
    """Replace policy and settings."""
    return _settings(apply(ask, body.policy, body.settings, body.note, _expected(ask)))


@api.patch("/settings", answer=RevisionRecord, if_match=True)
async def patch_settings(ask: HandlerCall, body: SettingsPatch) -> Answer:
    """Change single settings."""
    number, current = _expected(ask), ask.server.revisions.current
    try:
        wanted = json.dumps({**current.settings, **body.settings})
        settings = PolicySettings.model_validate_json(wanted, strict=True)
    except ValidationError as error:
        raise invalid(error, PolicySettings, where="settings") from None
    return _settings(apply(ask, body.policy or current.policy, settings, body.note, number))


@api.get("/settings/help")
async def explain_settings(ask: HandlerCall) -> SettingsHelpOut:
    """Every setting: unit, bounds, default, help."""
    return SettingsHelpOut(policies=list(POLICIES), settings=list(forms.settings_of()))


@api.get("/settings/overrides")
async def list_overrides(ask: HandlerCall) -> OverridesOut:
    """Settings in force that are not what the configuration file says."""
    rows = ask.server.revisions.overrides()
    return OverridesOut(overrides=[OverrideOut.model_validate(one) for one in rows])


@api.get("/revisions")
async def list_revisions(ask: HandlerCall, query: BeforeQuery) -> RevisionsOut:
    """Changes, newest first."""
    found = await ask.server.revisions.listed(query.before, query.limit)
    return RevisionsOut(revisions=found)


@api.post("/revisions/{number}/restore", answer=RevisionRecord, if_match=True)
@pages.post("/policy/revisions/{number}/restore", then=_APPLIED)
async def restore_revision(ask: HandlerCall, path: NumberPath, body: RestoreIn) -> Answer:
    """Make an old revision current again."""
    expected, wanted = _expected(ask), await _revision(ask, path.number)
    settings = usable(wanted)
    if settings is None:
        raise Problem(409, f"Revision {path.number} no longer fits this version; set it up anew.")
    return _settings(
        ask.server.revisions.apply(
            wanted.policy,
            settings,
            ask.who,
            body.note,
            expected=expected,
            restored_from=path.number,
        )
    )


def _preview_out(found: Preview) -> PreviewOut:
    known = {name: getattr(found, name) for name in PreviewOut.model_fields if name != "measures"}
    return PreviewOut(**known, measures=compared(found))


@api.post("/previews", answer=PreviewOut, status=202)
async def begin_preview_(ask: HandlerCall, body: PreviewIn) -> Answer:
    """Simulate a change beside the policy in force."""
    found = await begin_preview(ask, body.policy, body.settings, body.workload, body.note)
    return json_answer(_preview_out(found), 202, ("location", f"/api/v1/previews/{found.key}"))


@api.get("/previews/{key}")
async def get_preview(ask: HandlerCall, path: KeyPath) -> PreviewOut:
    """A preview's result."""
    return _preview_out(preview_of(ask, path.key))


@api.get("/previews/{key}/{side}", media="image/svg+xml")
@pages.get("/policy/preview/{key}/picture/{side}")
async def get_preview_picture(ask: HandlerCall, path: SidePath) -> Answer:
    """The chronology of one side of a preview."""
    found = preview_of(ask, path.key)
    measures = found.before if path.side == "before" else found.after
    if measures is None or not measures.picture_svg:
        raise Problem(404, "There is no such picture (yet).")
    # Its own styles may apply, nothing else; alone it is inert.
    policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    headers = (("content-type", "image/svg+xml"), ("content-security-policy", policy))
    return Answer(200, measures.picture_svg.encode(), headers)


# -- the pages -------------------------------------------------------------------------------


def _grouped(settings: list[forms.Setting]) -> list[tuple[str, list[forms.Setting]]]:
    """The advanced settings by what they are for; those that have no words yet come last."""
    known = {one.name: one for one in settings}
    found = [
        (title, [known.pop(name) for name in names if name in known])
        for title, names in ADVANCED.items()
    ]
    return [(title, some) for title, some in (*found, ("Other", list(known.values()))) if some]


def _form(
    ask: HandlerCall, policy: str, settings: Mapping[str, Any], note: str = "", outcome: str = ""
) -> Answer:
    """The form with these settings, or with what was typed where that was refused."""
    revisions, every = ask.server.revisions, forms.settings_of()
    chosen = str(ask.typed("policy", policy))
    texts = {name: shown(name, value) for name, value in settings.items()}
    texts |= {name: str(ask.typed(forms.PREFIX + name, text)) for name, text in texts.items()}
    was = revisions.current.settings
    mine = [one for one in every if policy in one.policies and one.name not in MAIN]
    # Not offered: Adaptive runs Fair, so it would be a choice without a difference.
    offered = [
        (name, kind.summary)
        for name, kind in POLICIES.items()
        if name != "adaptive" or name in (chosen, revisions.current.policy)
    ]
    return ask.page(
        "policy.html",
        current=revisions.current,
        overrides=revisions.overrides(),
        policy=chosen,
        offered=offered,
        main=sorted((o for o in every if o.name in MAIN), key=lambda o: [*MAIN].index(o.name)),
        groups=_grouped(mine),
        others=[one for one in every if policy not in one.policies and one.name not in MAIN],
        words=WORDS,
        charts={chart.name: chart.title for chart in CHARTS},
        texts=texts,
        changed={name for name, text in texts.items() if forms.is_changed(name, text, was[name])},
        workloads=WORKLOADS,
        bound_text=forms.bound_text,
        prefix=forms.PREFIX,
        note=note,
        outcome=outcome,
    )


@pages.get("/policy")
async def policy(ask: HandlerCall) -> Answer:
    current = ask.server.revisions.current
    chosen = ask.call.field("policy") or ask.call.arg("policy")
    if chosen not in POLICIES:
        chosen = current.policy
    outcome = f"Revision {current.number} is in force." if ask.call.arg("applied") else ""
    return _form(ask, chosen, current.settings, outcome=outcome)


@pages.post("/policy", again=policy)
async def submit(ask: HandlerCall, body: PolicyForm) -> Answer:
    """The form's buttons: look beforehand, or apply at once."""
    chosen = known_policy(body.policy)
    settings = forms.read(ask.call, ask.server.revisions.current.settings)
    if body.act == "show":
        return _form(ask, chosen, settings.model_dump(), body.note)
    if body.act == "preview":
        found = await begin_preview(ask, chosen, settings, body.workload, body.note)
        return redirect(f"/policy/preview/{found.key}")
    apply(ask, chosen, settings, body.note, _expected(ask))
    return redirect(_APPLIED)


@pages.get("/policy/preview/{key}")
async def preview(ask: HandlerCall, path: KeyPath) -> Answer:
    found = preview_of(ask, path.key)
    now, then = found.present, found.proposed
    return ask.page(
        "preview.html",
        preview=found,
        rows=compared(found),
        changes=diff(now.policy, now.settings, then.policy, then.settings),
        workload=WORKLOADS.get(found.workload, found.workload),
        stale=found.base_revision != ask.server.revisions.current.number,
    )


@pages.get("/policy/preview/{key}/edit", scope=Scope.POLICY)
async def preview_edit(ask: HandlerCall, path: KeyPath) -> Answer:
    """Back to the form, with what was proposed."""
    found = preview_of(ask, path.key)
    return _form(ask, found.proposed.policy, found.proposed.settings, found.note)


@pages.post("/policy/preview/{key}", then=_APPLIED)
async def preview_apply(ask: HandlerCall, path: KeyPath, body: RestoreIn) -> None:
    found = preview_of(ask, path.key)
    settings = PolicySettings.model_validate(found.proposed.settings)
    apply(ask, found.proposed.policy, settings, body.note, found.base_revision)


@pages.get("/policy/revisions")
async def revisions(ask: HandlerCall, query: BeforeQuery) -> Answer:
    most = query.limit
    found = await ask.server.revisions.listed(query.before, most + 1)
    rows = [
        (new, diff(old.policy, old.settings, new.policy, new.settings) if old else None)
        for new, old in zip(found[:most], [*found[1:], None], strict=False)
    ]
    more = found[most - 1].number if len(found) > most else None
    current = ask.server.revisions.current
    return ask.page("revisions.html", rows=rows, more=more, current=current)


@pages.get("/policy/revisions/{number}/restore", scope=Scope.POLICY)
async def restore_ask(ask: HandlerCall, path: NumberPath) -> Answer:
    old, current = await _revision(ask, path.number), ask.server.revisions.current
    changes = diff(current.policy, current.settings, old.policy, old.settings)
    return ask.page("restore.html", revision=old, current=current, changes=changes)
