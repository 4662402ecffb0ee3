"""Downloads that run, tickets that wait, addresses that are refused, and acts on each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import Field

from policies.contract import LeaseView, TicketRow, TicketState
from server.admin.accounts import Scope
from server.admin.app import HandlerCall
from server.admin.blocks import BlockedNetwork, network_of
from server.admin.doors import TEXT_MAX, DoorState
from server.admin.router import Operations, PageRoutes
from server.admin.shapes import Limit, ListQuery, NumberPath, Offset, Search, Shape, Text
from server.admin.web import Answer, Problem, checked, redirect, wrong
from server.admission.client_keys import address_of
from server.store.journal import search_tickets

api = Operations("queue", Scope.QUEUE)
pages = PageRoutes(Scope.QUEUE)

LIMIT = 50
_BLOCK_MOST_S = 366 * 86_400.0
_LIVE = (TicketState.WAITING, TicketState.READY)


class TicketQuery(Shape):
    q: Search = ""
    offset: Offset = 0
    limit: Limit = 50
    state: Literal["", "waiting", "ready"] = Field("", description="Only tickets in this state.")


class NetworkQuery(Shape):
    network: str = Field(min_length=2, max_length=64, description="An address or network.")


class LeaseOut(Shape):
    lease: int
    ticket: int | None
    client: str
    file: str
    size_bytes: int
    remaining_bytes: int
    large: bool
    started_s: float
    connections: int
    paused: bool
    rate_bytes_s: float


class LeasesOut(Shape):
    total: int
    leases: list[LeaseOut]


class TicketOut(Shape):
    number: int
    place: int | None
    client: str
    file: str
    size_bytes: int
    kind: str
    weight: float
    state: str
    issued_s: float
    polls: int
    early_polls: int
    expected_s: float | None


class TicketsOut(Shape):
    total: int
    tickets: list[TicketOut]


class BlockIn(Shape):
    network: str = Field(min_length=2, max_length=64, description="Such as 192.0.2.0/24.")
    for_s: float | None = Field(None, gt=0, le=_BLOCK_MOST_S, description="Null: for good.")
    note: Text = Field("", max_length=200)


class BlockOut(Shape):
    network: str
    since_s: float
    until_s: float | None
    who: str
    note: str


class BlocksOut(Shape):
    blocks: list[BlockOut]


DoorsText = Annotated[Text, Field(max_length=TEXT_MAX)]
OpensAt = Annotated[
    float | None,
    Field(ge=0, le=4e9, description="When they are expected to open; no timer."),
]


class DoorsIn(Shape):
    """Close the doors, or open them; text and time are told to those who wait."""

    closed: bool
    text: DoorsText = ""
    opens_s: OpensAt = None


class DoorsOut(Shape):
    closed: bool
    text: DoorsText = ""
    opens_s: OpensAt = None
    since_s: float | None
    who: str


# -- what is there ---------------------------------------------------------------------------


def leases_like(ask: HandlerCall, search: str) -> list[LeaseView]:
    """Running downloads whose file or client contains the words, oldest first."""
    found = [
        lease
        for lease in ask.server.gate.running()
        if search in lease.file or search in lease.client
    ]
    return sorted(found, key=lambda lease: lease.started_s)


def lease_of(ask: HandlerCall, number: int) -> LeaseView:
    """One running download. Raises Problem 404."""
    for lease in ask.server.gate.running():
        if lease.lease == number:
            return lease
    raise Problem(404, f"Download {number} has ended.")


async def tickets_like(
    ask: HandlerCall, search: str, state: str, offset: int, limit: int
) -> tuple[list[TicketOut], int]:
    """Tickets in the order of their turn, and how many match."""
    policy = ask.server.gate.policy
    if not search:
        snapshot = ask.server.gate.snapshot()
        counts = {"waiting": snapshot.waiting, "ready": snapshot.ready}
        total = counts.get(state, snapshot.waiting + snapshot.ready)
        skip = offset + (snapshot.ready if state == "waiting" else 0)
        line = enumerate(itertools.islice(policy.tickets(skip), limit), skip + 1)
        return [ticket_out(ask, row, at) for at, row in line if state in ("", row.state)], total
    states = (state,) if state else ("ready", "waiting")
    try:
        numbers, total = await ask.server.store.read(
            lambda session: search_tickets(session, search, states, offset, limit)
        )
    except Exception:  # noqa: BLE001 - with a dead database the queue's head is all there is
        return [], 0
    found = (policy.ticket(number) for number in numbers)
    return [ticket_out(ask, row) for row in found if row and row.state in _LIVE], total


def waiting_ticket(ask: HandlerCall, number: int) -> TicketRow:
    """One ticket that waits. Raises Problem 404."""
    row = ask.server.gate.policy.ticket(number)
    if row is None or row.state not in _LIVE:
        raise Problem(404, f"Ticket {number} is not waiting (any more).")
    return row


def ticket_out(ask: HandlerCall, row: TicketRow, place: int | None = None) -> TicketOut:
    """A ticket as it is shown; its place is looked up where it is not given."""
    gate = ask.server.gate
    policy = gate.policy
    estimate, row = gate.estimate(row.number), gate.on_wall_clock(row)
    return TicketOut(
        number=row.number,
        place=policy.place(row.number) if place is None else place,
        client=row.client,
        file=row.file,
        size_bytes=row.size_bytes,
        kind=row.priority_class,
        weight=row.weight,
        state=row.state,
        issued_s=row.issued_s,
        polls=row.polls,
        early_polls=row.early_polls,
        expected_s=estimate.expected_s if estimate else None,
    )


# -- what can be done ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that can be done to a ticket, and how it is asked for."""

    word: str
    done: str
    text: str


VERBS = {
    "expire": Verb("Expire", "expired", "It loses its place; its owner is told so when asking."),
    "promote": Verb("Promote", "promoted", "It goes to the head of the queue and starts next."),
}


def cancel(ask: HandlerCall, number: int) -> None:
    """End a download. Raises Problem 404."""
    found = lease_of(ask, number)
    if not ask.server.desk.cancel(number, "the operator has cancelled this download"):
        raise Problem(404, f"Download {number} has ended.")
    ask.log("cancel", f"cancelled download {number} of {found.file} by {found.client}")


def act_on_ticket(ask: HandlerCall, verb: str, number: int) -> None:
    """Expire or promote a ticket. Raises Problem 404."""
    desk = ask.server.desk
    done = desk.withdraw(number) if verb == "expire" else desk.promote(number)
    if not done:
        raise Problem(404, f"Ticket {number} is not waiting (any more).")
    ask.log(verb, f"{VERBS[verb].done} ticket {number}")


def block(ask: HandlerCall, network: str, for_s: float | None, note: str) -> BlockedNetwork:
    """Refuse an address. Raises Problem 422."""
    canonical = network_of(network)
    until = None if for_s is None else ask.now + for_s
    found = BlockedNetwork(canonical, ask.now, until, ask.who, note)
    ask.server.blocks.add(found)
    ask.log("block", f"blocked {canonical}" + (f": {note}" if note else ""))
    return found


def set_doors(ask: HandlerCall, wanted: DoorsIn) -> DoorsOut:
    """Close or open the doors."""
    old, doors = ask.server.doors.state, ask.server.doors
    since_s = old.since_s if old.closed and wanted.closed else ask.now
    text, opens_s = (wanted.text, wanted.opens_s) if wanted.closed else ("", None)
    doors.change(DoorState(wanted.closed, text, opens_s, since_s, ask.who))
    ask.log(
        "doors", f"closed the doors: {text}".rstrip(": ") if wanted.closed else "opened the doors"
    )
    return DoorsOut.model_validate(doors.state)


def unblock(ask: HandlerCall, network: str) -> None:
    """Serve an address again. Raises Problem 404 and 422."""
    canonical = network_of(network)
    if not ask.server.blocks.remove(canonical):
        raise Problem(404, f"{canonical} is not blocked.")
    ask.log("unblock", f"unblocked {canonical}")


# -- the API ---------------------------------------------------------------------------------


@api.get("/downloads")
async def list_downloads(ask: HandlerCall, query: ListQuery) -> LeasesOut:
    """Running downloads."""
    found = leases_like(ask, query.q)
    page = found[query.offset : query.offset + query.limit]
    return LeasesOut(total=len(found), leases=[LeaseOut.model_validate(row) for row in page])


@api.delete("/downloads/{number}")
async def cancel_download(ask: HandlerCall, path: NumberPath) -> None:
    """End a download and free its slot."""
    cancel(ask, path.number)


@api.get("/tickets")
async def list_tickets(ask: HandlerCall, query: TicketQuery) -> TicketsOut:
    """Tickets in the order of their turn."""
    rows, total = await tickets_like(ask, query.q, query.state, query.offset, query.limit)
    return TicketsOut(total=total, tickets=rows)


@api.delete("/tickets/{number}")
async def expire_ticket(ask: HandlerCall, path: NumberPath) -> None:
    """Take a ticket out of the queue."""
    act_on_ticket(ask, "expire", path.number)


@api.post("/tickets/{number}/promote")
async def promote_ticket(ask: HandlerCall, path: NumberPath) -> None:
    """Move a ticket to the head of the queue."""
    act_on_ticket(ask, "promote", path.number)


@api.get("/blocks")
async def list_blocks(ask: HandlerCall) -> BlocksOut:
    """Blocked addresses."""
    return BlocksOut(blocks=[BlockOut.model_validate(b) for b in ask.server.blocks.all()])


@api.post("/blocks", status=201)
async def add_block(ask: HandlerCall, body: BlockIn) -> BlockOut:
    """Block an address or network."""
    return BlockOut.model_validate(block(ask, body.network, body.for_s, body.note))


@api.delete("/blocks")
async def remove_block(ask: HandlerCall, query: NetworkQuery) -> None:
    """Unblock an address or network."""
    unblock(ask, query.network)


@api.get("/doors")
async def get_doors(ask: HandlerCall) -> DoorsOut:
    """Whether downloads may start."""
    return DoorsOut.model_validate(ask.server.doors.state)


@api.put("/doors")
async def put_doors(ask: HandlerCall, body: DoorsIn) -> DoorsOut:
    """Close the doors for maintenance, or open them."""
    return set_doors(ask, body)


# -- the pages -------------------------------------------------------------------------------


@pages.get("/queue")
async def queue(ask: HandlerCall) -> Answer:
    """One of three lists."""
    return await _list(ask, "queue.html")


@pages.get("/queue/part")
async def queue_part(ask: HandlerCall) -> Answer:
    """The list alone, for htmx."""
    return await _list(ask, "queue_part.html")


async def _list(ask: HandlerCall, template: str) -> Answer:
    call = ask.call
    search = call.arg("q").strip()[:128]
    tab, state = call.arg("tab", "downloads"), call.arg("state")
    offset = call.number("offset", 0, 0, 10_000_000)
    rows: Sequence[Any]
    if tab == "tickets":
        rows, total = await tickets_like(ask, search, state, offset, LIMIT)
    else:
        every: Sequence[Any]
        if tab == "blocks":
            every = [b for b in ask.server.blocks.all() if search in b.network]
        else:
            tab, every = "downloads", leases_like(ask, search)
        rows, total = every[offset : offset + LIMIT], len(every)
    return ask.page(
        template,
        tab=tab,
        search=search,
        offset=offset,
        limit=LIMIT,
        base="/queue?" + urlencode({"tab": tab, "q": search, "state": state}) + "&",
        snapshot=ask.server.vitals.snapshot(),
        rows=rows,
        total=total,
        doors=ask.server.doors.state,
    )


@pages.post("/queue/doors")
async def doors_set(ask: HandlerCall) -> Answer:
    """Close or open the doors."""
    call = ask.call
    values = {
        "closed": call.field("closed") == "yes",
        "text": " ".join(call.field("text").split())[:TEXT_MAX],
        "opens_s": ask.form_time("opens"),
    }
    set_doors(ask, checked(DoorsIn, values))
    return redirect("/queue")


@pages.get("/queue/download/{number}/cancel", scope=Scope.QUEUE)
async def lease_ask(ask: HandlerCall) -> Answer:
    """Really?"""
    found = lease_of(ask, ask.call.whole("number"))
    return ask.page(
        "confirm.html",
        title=f"Cancel download {found.lease}?",
        text="Its connections are closed and its slot is free for the next in the queue.",
        facts=[("File", found.file), ("Client", found.client)],
        button="Cancel the download",
        back="/queue",
    )


@pages.post("/queue/download/{number}/cancel")
async def lease_cancel(ask: HandlerCall) -> Answer:
    """Do it."""
    cancel(ask, ask.call.whole("number"))
    return redirect("/queue")


def _verb(ask: HandlerCall) -> str:
    verb = ask.call.params["verb"]
    if verb not in VERBS:
        raise Problem(404, "A ticket can be expired or promoted.")
    return verb


@pages.get("/queue/ticket/{number}/{verb}", scope=Scope.QUEUE)
async def ticket_ask(ask: HandlerCall) -> Answer:
    """Really?"""
    verb, row = _verb(ask), waiting_ticket(ask, ask.call.whole("number"))
    place = ask.server.gate.policy.place(row.number) or "–"
    return ask.page(
        "confirm.html",
        title=f"{VERBS[verb].word} ticket {row.number}?",
        text=VERBS[verb].text,
        facts=[("File", row.file), ("Client", row.client), ("Place", place)],
        verb=verb,
        button=f"{VERBS[verb].word} the ticket",
        back="/queue?tab=tickets",
    )


@pages.post("/queue/ticket/{number}/{verb}")
async def ticket_do(ask: HandlerCall) -> Answer:
    """Do it."""
    act_on_ticket(ask, _verb(ask), ask.call.whole("number"))
    return redirect("/queue?tab=tickets")


@pages.get("/queue/block", scope=Scope.QUEUE)
async def block_ask(ask: HandlerCall) -> Answer:
    """Which address, how long, why."""
    return ask.page("block.html", network=_address(ask.call.arg("network")))


def _address(text: str) -> str:
    """The address in a client key, which is what can be blocked; an address stays one."""
    return address_of(text) if "#" in text else text


@pages.post("/queue/block")
async def block_do(ask: HandlerCall) -> Answer:
    """Do it."""
    hours, for_s = ask.call.field("hours"), None
    if hours:
        try:
            for_s = float(hours) * 3600.0
        except ValueError:
            for_s = -1.0
        if not 0 < for_s <= _BLOCK_MOST_S:
            raise wrong("hours", "This is above 0 and up to 8784, or empty for good.")
    block(ask, ask.call.field("network"), for_s, ask.call.field("note")[:200])
    return redirect("/queue?tab=blocks")


@pages.post("/queue/unblock")
async def unblock_do(ask: HandlerCall) -> Answer:
    """Lift a block."""
    unblock(ask, ask.call.field("network"))
    return redirect("/queue?tab=blocks")
