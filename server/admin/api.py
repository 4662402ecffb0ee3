"""The JSON API: the state, the queue, the log; and the document that describes it all.

Every operation is one small coroutine here or in `api_policy`, `api_release` or `api_account`;
`router` checks what comes in.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from server.admin import acts, api_account, api_policy, api_release, schema
from server.admin.accounts import Role
from server.admin.app import Admin
from server.admin.router import Asked, Operation, openapi
from server.admin.web import Answer, json_answer
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
            "forged_total": health.forged_total,
            "sent_bytes_total": health.sent_bytes_total,
        }
        same = (
            *("policy", "mode", "slots", "large_slots", "small_active", "large_active", "paused"),
            *("waiting", "ready", "ready_target", "link_bound", "no_show_fraction"),
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

    # -- neighbours and log
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

    async def document(self, asked: Asked) -> Answer:
        found = openapi(self.admin.api.routes, self.context.health().version)
        return Answer(200, json.dumps(found).encode(), (("content-type", "application/json"),))


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
            *("getOpenApi", "GET", "/openapi.json", "This document.", api.document),
            tag="account",
            public=True,
        ),
        *api_policy.operations(admin),
        *api_release.operations(admin),
        *api_account.operations(admin),
    ]
    return [_placed(operation) for operation in found]


def _placed(operation: Operation) -> Operation:
    return replace(operation, path=_V1 + operation.path)
