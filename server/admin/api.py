"""The JSON API: the state, the queue, what is released; and the document that describes it all.

Every operation is one small coroutine here or in `api_policy`; `router` checks what comes in.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from server.admin import acts, api_policy, schema
from server.admin.accounts import ApiToken, Role
from server.admin.app import Admin
from server.admin.context import Rule
from server.admin.router import Asked, Operation, openapi
from server.admin.web import Answer, Problem, json_answer
from server.admin.words import state_of

_V1 = "/api/v1"


class Api:
    """The operations, bound to one application."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.context = admin.context

    async def state(self, asked: Asked) -> Answer:
        snapshot, health = self.context.snapshot(), self.context.health()
        state = state_of(snapshot, health)
        last = snapshot.last_wait
        totals = {
            name: getattr(snapshot, name)
            for name in (
                "offers_total",
                "admitted_small_total",
                "admitted_large_total",
                "completed_total",
                "tickets_issued_total",
                "tickets_expired_total",
                "early_polls_total",
                "refused_total",
            )
        }
        totals |= {
            "connections_total": health.connections_total,
            "errors_total": health.errors_total,
            "sent_bytes_total": health.sent_bytes_total,
        }
        same = (
            *("policy", "mode", "slots", "large_slots", "small_active", "large_active", "paused"),
            *("waiting", "ready", "ready_target", "no_show_fraction"),
            *("eta_within_p90", "eta_median_error"),
        )
        of_health = (
            *("goodput_bytes_s", "capacity_bytes_s", "connections", "held", "multicast_cohorts"),
            *("multicast_receivers", "draining", "store_degraded", "store_fault", "started_s"),
            "version",
        )
        return json_answer(
            schema.StateOut(
                now_s=asked.call.now,
                tone=state.tone,
                headline=state.headline,
                more=state.more,
                last_wait=schema.EstimateOut(expected_s=last.expected_s, p90_s=last.p90_s)
                if last
                else None,
                totals=totals,
                listeners=list(health.listeners),
                **{name: getattr(snapshot, name) for name in same},
                **{name: getattr(health, name) for name in of_health},
            )
        )

    async def history(self, asked: Asked) -> Answer:
        now = asked.call.now
        found = await self.context.history(now - asked.query.span_s, now, asked.query.points)
        series = {name: list(values) for name, values in found.series.items()}
        return json_answer(schema.HistoryOut(t=list(found.t), series=series))

    # -- the queue
    async def leases(self, asked: Asked) -> Answer:
        query = asked.query
        found = [
            lease
            for lease in self.context.leases()
            if not query.q or query.q in lease.file or query.q in lease.client
        ]
        page = found[query.offset : query.offset + query.limit]
        rows = [schema.LeaseOut(**asdict(lease)) for lease in page]
        return json_answer(schema.LeasesOut(total=len(found), leases=rows))

    async def lease_cancel(self, asked: Asked) -> Answer:
        acts.cancel_lease(self.context, asked.who, asked.params.number)
        return Answer(204)

    async def tickets(self, asked: Asked) -> Answer:
        query = asked.query
        page = await self.context.tickets(query.q, query.state, query.offset, query.limit)
        rows = [
            schema.TicketOut(
                number=view.row.number,
                place=view.place,
                client=view.row.client,
                file=view.row.file,
                size_bytes=view.row.size_bytes,
                kind=view.kind,
                weight=view.row.weight,
                state=view.row.state,
                issued_s=view.row.issued_s,
                polls=view.row.polls,
                early_polls=view.row.early_polls,
                expected_s=view.expected_s,
            )
            for view in page.rows
        ]
        return json_answer(schema.TicketsOut(total=page.total, tickets=rows))

    async def ticket_expire(self, asked: Asked) -> Answer:
        acts.on_ticket(self.context, asked.who, "expire", asked.params.number)
        return Answer(204)

    async def ticket_promote(self, asked: Asked) -> Answer:
        acts.on_ticket(self.context, asked.who, "promote", asked.params.number)
        return Answer(204)

    async def blocks(self, asked: Asked) -> Answer:
        rows = [schema.BlockOut(**asdict(block)) for block in self.context.blocks()]
        return json_answer(schema.BlocksOut(blocks=rows))

    async def block(self, asked: Asked) -> Answer:
        body = asked.body
        found = acts.block(
            self.context, asked.who, body.network, body.for_s, body.note, asked.call.now
        )
        return json_answer(schema.BlockOut(**asdict(found)), 201)

    async def unblock(self, asked: Asked) -> Answer:
        acts.unblock(self.context, asked.who, asked.query.network)
        return Answer(204)

    # -- what is released
    async def files(self, asked: Asked) -> Answer:
        query = asked.query
        page = await self.context.files(query.q, query.sort, query.offset, query.limit)
        rows = [schema.FileOut(**asdict(row)) for row in page.rows]
        return json_answer(schema.FilesOut(total=page.total, files=rows))

    async def rules(self, asked: Asked) -> Answer:
        rows = [schema.RuleIn(**asdict(rule)) for rule in self.context.rules()]
        return json_answer(schema.RulesOut(rules=rows))

    async def rule_put(self, asked: Asked) -> Answer:
        rule = acts.put_rule(self.context, asked.who, Rule(**asked.body.model_dump()))
        return json_answer(schema.RuleIn(**asdict(rule)))

    async def rule_drop(self, asked: Asked) -> Answer:
        acts.drop_rule(self.context, asked.who, asked.query.path)
        return Answer(204)

    async def prequeues(self, asked: Asked) -> Answer:
        rows = [schema.PrequeueOut(**asdict(one)) for one in self.context.prequeues()]
        return json_answer(schema.PrequeuesOut(prequeues=rows))

    async def passes(self, asked: Asked) -> Answer:
        query = asked.query
        rows, total = await self.context.passes(query.q, query.offset, query.limit)
        found = [schema.PassOut(**asdict(one)) for one in rows]
        return json_answer(schema.PassesOut(total=total, passes=found))

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
        rows = [schema.PassOut(**asdict(one)) for one in found]
        return json_answer(schema.PassesOut(total=len(rows), passes=rows), 201)

    async def pass_revoke(self, asked: Asked) -> Answer:
        acts.revoke_pass(self.context, asked.who, asked.params.serial)
        return Answer(204)

    async def look(self, asked: Asked) -> Answer:
        look = self.context.waiting_look()
        return json_answer(schema.LookIn(title=look.title, text=look.text))

    async def look_put(self, asked: Asked) -> Answer:
        old, body = self.context.waiting_look(), asked.body
        kept = type(old)(body.title, body.text, old.logo, old.logo_type)
        self.context.set_waiting_look(kept)
        self.context.log("waiting-page", asked.who, "changed the waiting page's words")
        return json_answer(body)

    # -- neighbours, log, tokens
    async def mirrors(self, asked: Asked) -> Answer:
        return self._rows(self.context.mirrors())

    async def multicast(self, asked: Asked) -> Answer:
        return self._rows(self.context.multicast())

    def _rows(self, rows: object) -> Answer:
        assert isinstance(rows, list | tuple)
        found = [
            schema.RowOut(name=row.name, state=row.state, facts=dict(row.facts)) for row in rows
        ]
        return json_answer(schema.RowsOut(rows=found))

    async def events(self, asked: Asked) -> Answer:
        query = asked.query
        found = await self.context.events(query.before, query.limit, query.kind, query.q)
        rows = [schema.EventOut(**asdict(event)) for event in found]
        return json_answer(schema.EventsOut(events=rows))

    async def tokens(self, asked: Asked) -> Answer:
        mine = _owner(asked)
        every = asked.call.who is not None and asked.call.who.role is Role.OPERATOR
        held = self.admin.accounts.tokens.values()
        rows = [_token(t) for t in held if every or t.owner == mine]
        return json_answer(schema.TokensOut(tokens=rows))

    async def token_issue(self, asked: Asked) -> Answer:
        body, who = asked.body, asked.call.who
        role = Role(body.role)
        if who is None or not who.role.may(role):
            raise Problem(403, "A token cannot do more than you.")
        now = asked.call.now
        expires = None if body.days is None else now + body.days * 86_400.0
        secret, token = self.admin.accounts.issue_token(
            body.label, role, _owner(asked), now, expires
        )
        self.context.log("account", asked.who, f"issued API token {token.serial} ({body.label})")
        return json_answer(_token(token, secret), 201)

    async def token_drop(self, asked: Asked) -> Answer:
        serial, who = asked.params.serial, asked.call.who
        found = next((t for t in self.admin.accounts.tokens.values() if t.serial == serial), None)
        every = who is not None and who.role is Role.OPERATOR
        if found is None or not (every or found.owner == _owner(asked)):
            raise Problem(404, f"There is no API token {serial}.")
        self.admin.accounts.drop_token(serial)
        self.context.log("account", asked.who, f"revoked API token {serial}")
        return Answer(204)

    async def document(self, asked: Asked) -> Answer:
        found = openapi(self.admin.api.routes, self.context.health().version)
        return Answer(200, json.dumps(found).encode(), (("content-type", "application/json"),))


def _owner(asked: Asked) -> str:
    """The user behind the call; for a token `owner/label` its owner."""
    who = asked.call.who
    if who is None:
        return ""
    return who.user.name if who.user else who.name.partition("/")[0]


def _token(token: ApiToken, secret: str | None = None) -> schema.TokenOut:
    return schema.TokenOut(
        serial=token.serial,
        label=token.label,
        role=token.role,
        owner=token.owner,
        created_s=token.created_s,
        expires_s=token.expires_s,
        used_s=token.used_s,
        secret=secret,
    )


def operations(admin: Admin) -> list[Operation]:
    """Every operation of the API."""
    api, op, s = Api(admin), Role.OPERATOR, schema
    gone: Any = {"status": 204, "role": op}
    found = [
        Operation(
            "getState", "GET", "/state", "The server at a glance.", api.state, answer=s.StateOut
        ),
        Operation(
            *("getHistory", "GET", "/history", "Recorded series on one time axis.", api.history),
            query=s.HistoryQuery,
            answer=s.HistoryOut,
        ),
        Operation(
            *("listDownloads", "GET", "/downloads", "Running downloads.", api.leases),
            tag="queue",
            query=s.ListQuery,
            answer=s.LeasesOut,
        ),
        Operation(
            *("cancelDownload", "DELETE", "/downloads/{number}"),
            *("End a download and free its slot.", api.lease_cancel),
            tag="queue",
            params=s.NumberPath,
            **gone,
        ),
        Operation(
            *("listTickets", "GET", "/tickets", "Tickets in the order of their turn.", api.tickets),
            tag="queue",
            query=s.TicketQuery,
            answer=s.TicketsOut,
        ),
        Operation(
            *("expireTicket", "DELETE", "/tickets/{number}"),
            *("Take a ticket out of the queue.", api.ticket_expire),
            tag="queue",
            params=s.NumberPath,
            **gone,
        ),
        Operation(
            *("promoteTicket", "POST", "/tickets/{number}/promote"),
            *("Move a ticket to the head of the queue.", api.ticket_promote),
            tag="queue",
            params=s.NumberPath,
            **gone,
        ),
        Operation(
            *("listBlocks", "GET", "/blocks", "Blocked addresses.", api.blocks),
            tag="queue",
            answer=s.BlocksOut,
        ),
        Operation(
            *("addBlock", "POST", "/blocks", "Block an address or network.", api.block, op),
            tag="queue",
            body=s.BlockIn,
            answer=s.BlockOut,
            status=201,
        ),
        Operation(
            *("removeBlock", "DELETE", "/blocks", "Unblock an address or network.", api.unblock),
            tag="queue",
            query=s.NetworkQuery,
            **gone,
        ),
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
            query=s.ListQuery,
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
            params=s.SerialPath,
            **gone,
        ),
        Operation(
            *("getWaitingPage", "GET", "/waiting-page", "The operator's words.", api.look),
            tag="release",
            answer=s.LookIn,
        ),
        Operation(
            *("putWaitingPage", "PUT", "/waiting-page", "Change the words.", api.look_put, op),
            tag="release",
            body=s.LookIn,
            answer=s.LookIn,
        ),
        Operation(
            *("listMirrors", "GET", "/mirrors", "Mirrors as they stand.", api.mirrors),
            answer=s.RowsOut,
        ),
        Operation(
            *("listMulticast", "GET", "/multicast", "What is multicast now.", api.multicast),
            answer=s.RowsOut,
        ),
        Operation(
            *("listEvents", "GET", "/events", "The log, newest first.", api.events),
            query=s.EventQuery,
            answer=s.EventsOut,
        ),
        Operation(
            *("listTokens", "GET", "/tokens", "API tokens.", api.tokens),
            tag="account",
            answer=s.TokensOut,
        ),
        Operation(
            *("issueToken", "POST", "/tokens", "Issue an API token.", api.token_issue),
            tag="account",
            body=s.TokenIn,
            answer=s.TokenOut,
            status=201,
        ),
        Operation(
            *("revokeToken", "DELETE", "/tokens/{serial}", "Revoke an API token.", api.token_drop),
            tag="account",
            params=s.SerialPath,
            status=204,
        ),
        Operation(
            *("getOpenApi", "GET", "/openapi.json", "This document.", api.document),
            tag="account",
            public=True,
        ),
        *api_policy.operations(admin),
    ]
    return [_placed(operation) for operation in found]


def _placed(operation: Operation) -> Operation:
    return replace(operation, path=_V1 + operation.path)
