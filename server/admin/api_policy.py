"""The API's settings: read, change under If-Match, look beforehand, restore."""

from __future__ import annotations

import json
from dataclasses import asdict

from pydantic import ValidationError

from policies.settings import PolicySettings
from server.admin import acts, forms, schema
from server.admin.accounts import Role
from server.admin.app import Admin, stale
from server.admin.context import Revision
from server.admin.pages_policy import begin_preview, compared, picture_answer
from server.admin.preview import Preview
from server.admin.router import Asked, Operation
from server.admin.web import Answer, Problem, invalid, json_answer


def etag(revision: Revision) -> str:
    """The entity tag of the settings as they are in this revision."""
    return f'"r{revision.number}"'


def expected(asked: Asked, current: Revision) -> int:
    """The revision the caller has read; raises Problem 428 without If-Match, 412 when stale."""
    given = asked.call.headers.get("if-match")
    if given is None:
        raise Problem(428, "Send If-Match with the ETag of the settings you have read.")
    tags = [tag.strip() for tag in given.split(",")]
    if "*" not in tags and etag(current) not in tags:
        raise stale()
    return current.number


class PolicyApi:
    """The operations on policy and settings, bound to one application."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.context = admin.context

    def _settings(self, revision: Revision) -> Answer:
        return json_answer(_revision(revision), 200, ("etag", etag(revision)))

    async def read(self, asked: Asked) -> Answer:
        current = self.context.current()
        if etag(current) in asked.call.headers.get("if-none-match", ""):
            return Answer(304, b"", (("etag", etag(current)),))
        return self._settings(current)

    async def put(self, asked: Asked) -> Answer:
        body, number = asked.body, expected(asked, self.context.current())
        return self._settings(
            acts.apply(self.context, asked.who, body.policy, body.settings, body.note, number)
        )

    async def patch(self, asked: Asked) -> Answer:
        current = self.context.current()
        number, body = expected(asked, current), asked.body
        try:
            wanted = json.dumps({**current.settings, **body.settings})
            settings = PolicySettings.model_validate_json(wanted, strict=True)
        except ValidationError as error:
            raise invalid(error, PolicySettings, where="settings") from None
        policy = body.policy or current.policy
        return self._settings(
            acts.apply(self.context, asked.who, policy, settings, body.note, number)
        )

    async def explain(self, asked: Asked) -> Answer:
        defaults = PolicySettings().model_dump()
        rows = [
            schema.SettingOut(
                name=one.name,
                unit=one.unit,
                help=one.help,
                policies=list(one.policies),
                bounds=dict(one.bounds),
                default=defaults[one.name],
            )
            for one in forms.settings_of()
        ]
        names = list(self.context.policies())
        return json_answer(schema.SettingsHelpOut(policies=names, settings=rows))

    async def revisions(self, asked: Asked) -> Answer:
        found = await self.context.revisions(asked.query.before, asked.query.limit)
        return json_answer(schema.RevisionsOut(revisions=[_revision(one) for one in found]))

    async def restore(self, asked: Asked) -> Answer:
        number = expected(asked, self.context.current())
        return self._settings(
            await acts.restore(
                self.context, asked.who, asked.params.number, asked.body.note, number
            )
        )

    async def preview(self, asked: Asked) -> Answer:
        body = asked.body
        found = await begin_preview(
            self.admin,
            asked.who,
            body.policy,
            body.settings,
            body.workload,
            body.note,
            asked.call.now,
        )
        return json_answer(_preview(found), 202, ("location", f"/api/v1/previews/{found.key}"))

    async def preview_get(self, asked: Asked) -> Answer:
        found = self.admin.previews.by_key.get(asked.params.key)
        if found is None:
            raise Problem(404, "This preview is gone; make it again.")
        return json_answer(_preview(found))

    async def picture(self, asked: Asked) -> Answer:
        found = self.admin.previews.by_key.get(asked.params.key)
        side = getattr(found, asked.params.side, None)
        if side is None or not side.picture_svg:
            raise Problem(404, "There is no such picture (yet).")
        return picture_answer(side.picture_svg)


def _revision(revision: Revision) -> schema.RevisionOut:
    return schema.RevisionOut(**{**asdict(revision), "settings": dict(revision.settings)})


def _preview(found: Preview) -> schema.PreviewOut:
    measures = [
        schema.MeasureOut(
            name=row["name"],
            label=row["label"],
            unit=row["unit"],
            now=row["old"],
            proposed=row["new"],
            verdict=row["verdict"],
        )
        for row in compared(found)
    ]
    return schema.PreviewOut(
        key=found.key,
        state=found.state,
        fault=found.fault,
        workload=found.workload,
        jobs=found.jobs,
        took_s=found.took_s,
        measures=measures,
    )


def operations(admin: Admin) -> list[Operation]:
    """Operations on the policy; paths are relative to the API's root."""
    api, op, s = PolicyApi(admin), Role.OPERATOR, schema
    return [
        Operation(
            *("getSettings", "GET", "/settings", "The policy in force; its ETag.", api.read),
            tag="policy",
            answer=s.RevisionOut,
        ),
        Operation(
            *("putSettings", "PUT", "/settings", "Replace policy and settings.", api.put, op),
            tag="policy",
            body=s.SettingsIn,
            answer=s.RevisionOut,
            if_match=True,
        ),
        Operation(
            *("patchSettings", "PATCH", "/settings", "Change single settings.", api.patch, op),
            tag="policy",
            body=s.SettingsPatch,
            answer=s.RevisionOut,
            if_match=True,
        ),
        Operation(
            *("explainSettings", "GET", "/settings/help"),
            *("Every setting: unit, bounds, default, help.", api.explain),
            tag="policy",
            answer=s.SettingsHelpOut,
        ),
        Operation(
            *("listRevisions", "GET", "/revisions", "Changes, newest first.", api.revisions),
            tag="policy",
            query=s.BeforeQuery,
            answer=s.RevisionsOut,
        ),
        Operation(
            *("restoreRevision", "POST", "/revisions/{number}/restore"),
            *("Make an old revision current again.", api.restore, op),
            tag="policy",
            params=s.NumberPath,
            body=s.RestoreIn,
            answer=s.RevisionOut,
            if_match=True,
        ),
        Operation(
            *("beginPreview", "POST", "/previews"),
            *("Simulate a change beside the policy in force.", api.preview, op),
            tag="policy",
            body=s.PreviewIn,
            answer=s.PreviewOut,
            status=202,
        ),
        Operation(
            *("getPreview", "GET", "/previews/{key}", "A preview's result.", api.preview_get),
            tag="policy",
            params=s.KeyPath,
            answer=s.PreviewOut,
        ),
        Operation(
            *("getPreviewPicture", "GET", "/previews/{key}/{side}"),
            *("The chronology of one side of a preview.", api.picture),
            tag="policy",
            params=s.SidePath,
            media="image/svg+xml",
        ),
    ]
