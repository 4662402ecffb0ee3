"""The API's side of the release: files and rules, preference tickets, the waiting page."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

from server.admin import acts, schema, schema_release
from server.admin.accounts import Role
from server.admin.app import Admin
from server.admin.context import Rule, WaitingLook
from server.admin.router import Asked, Operation
from server.admin.web import Answer, html, json_answer


class ReleaseApi:
    """The operations on what is released, bound to one application."""

    def __init__(self, admin: Admin) -> None:
        self.context = admin.context

    async def files(self, asked: Asked) -> Answer:
        query = asked.query
        page = await self.context.files(query.q, query.sort, query.offset, query.limit)
        rows = [schema_release.FileOut(**asdict(row)) for row in page.rows]
        return json_answer(schema_release.FilesOut(total=page.total, files=rows))

    async def rules(self, asked: Asked) -> Answer:
        rows = [schema_release.RuleIn(**asdict(rule)) for rule in self.context.rules()]
        return json_answer(schema_release.RulesOut(rules=rows))

    async def rule_put(self, asked: Asked) -> Answer:
        rule = acts.put_rule(self.context, asked.who, Rule(**asked.body.model_dump()))
        return json_answer(schema_release.RuleIn(**asdict(rule)))

    async def rule_drop(self, asked: Asked) -> Answer:
        acts.drop_rule(self.context, asked.who, asked.query.path)
        return Answer(204)

    async def prequeues(self, asked: Asked) -> Answer:
        rows = [schema_release.PrequeueOut(**asdict(one)) for one in self.context.prequeues()]
        return json_answer(schema_release.PrequeuesOut(prequeues=rows))

    async def passes(self, asked: Asked) -> Answer:
        query = asked.query
        rows, total = await self.context.passes(query.q, query.offset, query.limit)
        found = [schema_release.PassOut(**asdict(one)) for one in rows]
        return json_answer(schema_release.PassesOut(total=total, passes=found))

    async def passes_issue(self, asked: Asked) -> Answer:
        body = asked.body
        start = asked.call.now if body.not_before_s is None else body.not_before_s
        found = acts.issue_passes(
            self.context,
            asked.who,
            count=body.count,
            kind=body.kind,
            path=body.path,
            not_before_s=start,
            expires_s=body.expires_s,
            max_uses=body.max_uses,
            note=body.note,
        )
        rows = [schema_release.PassOut(**asdict(one)) for one in found]
        return json_answer(schema_release.PassesOut(total=len(rows), passes=rows), 201)

    async def pass_revoke(self, asked: Asked) -> Answer:
        acts.revoke_pass(self.context, asked.who, asked.params.serial)
        return Answer(204)

    async def look(self, asked: Asked) -> Answer:
        return json_answer(_look(self.context.waiting_look()))

    async def look_put(self, asked: Asked) -> Answer:
        body, logo = asked.body, None
        if body.logo_base64 is not None:
            try:
                logo = base64.b64decode(body.logo_base64, validate=True)
            except ValueError:
                raise acts.wrong("logo_base64", "This is not base 64.") from None
        found = acts.set_look(self.context, asked.who, body.title, body.text, logo)
        return json_answer(_look(found))

    async def look_preview(self, asked: Asked) -> Answer:
        query = asked.query
        page = self.context.waiting_preview(query.state, query.lang, self.context.waiting_look())
        return html(page.decode())


def _look(look: WaitingLook) -> schema_release.LookOut:
    return schema_release.LookOut(
        title=look.title, text=look.text, logo_type=look.logo_type, logo_bytes=len(look.logo)
    )


def operations(admin: Admin) -> list[Operation]:
    """Operations on the release; paths are relative to the API's root."""
    api, op, s = ReleaseApi(admin), Role.OPERATOR, schema_release
    gone: Any = {"status": 204, "role": op}
    return [
        Operation(
            *("listFiles", "GET", "/files", "What is served.", api.files),
            tag="release",
            query=s.FileQuery,
            answer=s.FilesOut,
        ),
        Operation(
            *("listRules", "GET", "/rules", "Rules for files.", api.rules),
            tag="release",
            answer=s.RulesOut,
        ),
        Operation(
            *(
                "putRule",
                "PUT",
                "/rules",
                "Add or replace the rule of a pattern.",
                api.rule_put,
                op,
            ),
            tag="release",
            body=s.RuleIn,
            answer=s.RuleIn,
        ),
        Operation(
            *("removeRule", "DELETE", "/rules", "Remove the rule of a pattern.", api.rule_drop),
            tag="release",
            query=s.PathQuery,
            **gone,
        ),
        Operation(
            *("listPrequeues", "GET", "/prequeues", "Pre-queues and their draws.", api.prequeues),
            tag="release",
            answer=s.PrequeuesOut,
        ),
        Operation(
            *("listPasses", "GET", "/passes", "Issued preference tickets.", api.passes),
            tag="release",
            query=schema.ListQuery,
            answer=s.PassesOut,
        ),
        Operation(
            *("issuePasses", "POST", "/passes", "Issue preference tickets.", api.passes_issue, op),
            tag="release",
            body=s.PassesIn,
            answer=s.PassesOut,
            status=201,
        ),
        Operation(
            *("revokePass", "DELETE", "/passes/{serial}"),
            *("Make a preference ticket worthless.", api.pass_revoke),
            tag="release",
            params=schema.SerialPath,
            **gone,
        ),
        Operation(
            *("getWaitingPage", "GET", "/waiting-page", "The operator's words.", api.look),
            tag="release",
            answer=s.LookOut,
        ),
        Operation(
            *("putWaitingPage", "PUT", "/waiting-page", "Change the words.", api.look_put, op),
            tag="release",
            body=s.LookIn,
            answer=s.LookOut,
        ),
        Operation(
            *("previewWaitingPage", "GET", "/waiting-page/preview", "The page as visitors see it."),
            api.look_preview,
            tag="release",
            query=s.LookQuery,
            media="text/html",
        ),
    ]
