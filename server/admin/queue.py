"""Downloads that run, tickets that wait, addresses that are refused, and acts on each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ...policies.contract import LeaseView, TicketRow, TicketState
from ..accounts.accounts import Scope
from ..admission.client_keys import address_of
from ..admission.gate import Gate
from ..control.events import ask as ask_store
from ..control.problems import Problem
from ..control.set_up import BlockedNetwork, DoorState, network_of, refuse_by_mistake
from ..store.journal import search_tickets
from .app import HandlerCall
from .router import Routes
from .shapes import AsSpan, Hour, Lines, ListQuery, NumberPath, Shape, Text
from .web import Answer

#: Tickets that are counted, from the head of the queue: a look takes some milliseconds.
COUNTED_MOST = 5_000


@dataclass(slots=True)
class QueueGroup:
    """What clients of one program do with one file; `left_bytes` is what all of them still want."""

    file: str
    program: str
    running: int = 0
    paused: int = 0
    ready: int = 0
    waiting: int = 0
    left_bytes: int = 0

    @property
    def clients(self) -> int:
        """Downloads and tickets."""
        return self.running + self.paused + self.ready + self.waiting


def count_groups(gate: Gate, program_of: Callable[[str, str], str]) -> Iterator[QueueGroup]:
    """Counts all running downloads and the first `COUNTED_MOST` tickets; gives the group of each.

    The queue may move between two of them. `program_of` names the program of a client and a file;
    empty where it is unknown.
    """
    found: dict[tuple[str, str], QueueGroup] = {}

    def group(client: str, file: str) -> QueueGroup:
        key = file, program_of(client, file)
        one = found.get(key)
        if one is None:
            one = found[key] = QueueGroup(*key)
        return one

    for lease in filter(None, map(gate.policy.lease, tuple(gate.downloads))):
        one = group(lease.client, lease.file)
        one.paused += lease.paused
        one.running += not lease.paused
        one.left_bytes += lease.remaining_bytes
        yield one
    at_once = 100  # Tickets are read in a quarter of a millisecond.
    for start in range(0, COUNTED_MOST, at_once):
        rows = list(itertools.islice(gate.policy.tickets(start), at_once))
        for row in rows:
            one = group(row.client, row.file)
            one.ready += row.state is TicketState.READY
            one.waiting += row.state is TicketState.WAITING
            one.left_bytes += row.remaining_bytes
            yield one
        if not rows:
            return


def largest_first(groups: Iterable[QueueGroup]) -> list[QueueGroup]:
    """Each of them once, the one with most clients first."""
    once = {id(one): one for one in groups}.values()
    return sorted(once, key=lambda one: (-one.clients, one.file, one.program))


api = Routes(Scope.QUEUE, "queue")
pages = Routes(Scope.QUEUE)


InState = Annotated[
    Literal["", "waiting", "ready"], Field(description="Only tickets in this state.")
]


class TicketQuery(ListQuery):
    state: InState = ""


class QueueQuery(ListQuery):
    state: InState = ""
    tab: Literal["groups", "downloads", "tickets", "blocks"] = "groups"


class NetworkQuery(Shape):
    network: str = Field(min_length=2, max_length=64, description="An address or network.")


class LeaseOut(Shape):
    """A running or paused download; `done_s` and `done_p90_s`: until its last byte, from now."""

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
    done_s: float | None
    done_p90_s: float | None


class GroupsOut(Shape):
    total: int
    groups: list[QueueGroup]


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
    done_s: float | None
    done_p90_s: float | None


class TicketsOut(Shape):
    total: int
    tickets: list[TicketOut]


class BlockIn(Shape):
    network: str = Field(min_length=2, max_length=64, description="Such as 192.0.2.0/24.")
    for_s: Annotated[float | None, AsSpan] = Field(
        None, gt=0, le=366 * 86_400.0, description="Null: for good."
    )
    note: Text = Field("", max_length=200)
    sure: bool = Field(False, description="Even the caller's own address, or a large network.")


class BlocksOut(Shape):
    blocks: list[BlockedNetwork]


class DoorsIn(Shape):
    """Close the doors, or open them; text and time are told to those who wait."""

    closed: bool
    text: Lines = Field("", max_length=500)
    opens_s: Annotated[Hour, Field(description="When they are expected to open; no timer.")] = None


# -- what is there ---------------------------------------------------------------------------


def leases_like(ask: HandlerCall, search: str) -> list[int]:
    """The leases of downloads whose file or client contains the words, oldest first."""
    running = ask.server.gate.downloads.items()
    return [lease for lease, one in running if search in one.file or search in one.client]


async def groups_like(ask: HandlerCall, search: str) -> list[QueueGroup]:
    """Groups whose file or program contains the words, the largest first."""
    counting = count_groups(ask.server.gate, ask.server.history.program_of)
    every = largest_first(await ask.admin.turns.all_of(counting))
    return [one for one in every if search in one.file or search in one.program]


def lease_of(ask: HandlerCall, number: int) -> LeaseView:
    """One running download. Raises Problem 404."""
    lease = ask.server.gate.lease(number)
    if lease is None:
        raise Problem(404, f"Download {number} has ended.")
    return lease


def _gone(number: int) -> Problem:
    return Problem(404, f"Ticket {number} is not waiting (any more).")


def ticket_out(ask: HandlerCall, row: TicketRow, place: int | None = None) -> TicketOut:
    """A ticket as it is shown; its place is looked up where it is not given."""
    gate = ask.server.gate
    policy = gate.policy
    estimate, row = gate.estimate(row.number), gate.on_wall_clock(row)
    done = estimate.done if estimate else None
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
        done_s=done.expected_s if done else None,
        done_p90_s=done.p90_s if done else None,
    )


def leases_out(ask: HandlerCall, numbers: Iterable[int]) -> list[LeaseOut]:
    """Downloads as they are shown, with their ends from the schedule of the policy."""
    gate, found = ask.server.gate, []
    for lease in filter(None, map(gate.lease, numbers)):
        done = gate.done(lease.lease)
        done_s, p90_s = (done.expected_s, done.p90_s) if done else (None, None)
        found.append(LeaseOut(**lease._asdict(), done_s=done_s, done_p90_s=p90_s))
    return found


# -- the pages -------------------------------------------------------------------------------


@pages.get("/queue")
async def queue(ask: HandlerCall, query: QueueQuery) -> Answer:
    return await _list(ask, query, "queue.html")


@pages.get("/queue/part")
async def queue_part(ask: HandlerCall, query: QueueQuery) -> Answer:
    """The list alone, for htmx."""
    return await _list(ask, query, "queue_part.html")


async def _list(ask: HandlerCall, query: QueueQuery, template: str) -> Answer:
    rows: Sequence[Any]
    if query.tab == "tickets":
        found = await list_tickets(ask, TicketQuery.model_validate(query))
        rows, total = found.tickets, found.total
    elif query.tab == "downloads":
        numbers = leases_like(ask, query.q)
        rows, total = leases_out(ask, query.page(numbers)), len(numbers)
    elif query.tab == "groups":
        groups = await groups_like(ask, query.q)
        rows, total = query.page(groups), len(groups)
    else:
        blocks = [one for one in ask.server.blocks.all() if query.q in one.network]
        rows, total = query.page(blocks), len(blocks)
    return ask.listing(
        template,
        query,
        snapshot=ask.server.gate.snapshot(),
        rows=rows,
        total=total,
        doors=ask.server.doors.state,
        counted_most=COUNTED_MOST,
    )


@pages.get("/queue/download/{number}/cancel", scope=Scope.QUEUE)
async def lease_ask(ask: HandlerCall, path: NumberPath) -> Answer:
    found = lease_of(ask, path.number)
    return ask.page(
        "confirm.html",
        title=f"Cancel download {found.lease}?",
        text="Its connections are closed and its slot is free for the next in the queue.",
        facts=[("File", found.file), ("Client", found.client)],
        button="Cancel the download",
        back="/queue?tab=downloads",
    )


@pages.get("/queue/ticket/{number}/expire", scope=Scope.QUEUE)
@pages.get("/queue/ticket/{number}/promote", scope=Scope.QUEUE)
async def ticket_ask(ask: HandlerCall, path: NumberPath) -> Answer:
    number, policy = path.number, ask.server.gate.policy
    row, verb = policy.ticket(number), ask.call.path.rpartition("/")[2].capitalize()
    if row is None or not row.state.is_queued:
        raise _gone(number)
    texts = {
        "Expire": "It loses its place; its owner is told so when asking.",
        "Promote": "It goes to the head of the queue and starts next.",
    }
    return ask.page(
        "confirm.html",
        title=f"{verb} ticket {number}?",
        text=texts[verb],
        facts=[("File", row.file), ("Client", row.client), ("Place", policy.place(number) or "–")],
        verb=verb,
        button=f"{verb} the ticket",
        back="/queue?tab=tickets",
    )


@pages.get("/queue/block", scope=Scope.QUEUE)
async def block_ask(ask: HandlerCall) -> Answer:
    """Which address, how long, why; of a client key only the address can be blocked."""
    text = ask.call.arg("network")
    return ask.page("block.html", network=address_of(text) if "#" in text else text)


# -- what can be read and done: by the API and by the forms of the pages ---------------------


@api.get("/downloads")
async def list_downloads(ask: HandlerCall, query: ListQuery) -> LeasesOut:
    """Running downloads."""
    found = leases_like(ask, query.q)
    return LeasesOut(total=len(found), leases=leases_out(ask, query.page(found)))


@api.get("/queue/groups")
async def list_groups(ask: HandlerCall, query: ListQuery) -> GroupsOut:
    """Running downloads and the first tickets by file and program, the largest group first."""
    found = await groups_like(ask, query.q)
    return GroupsOut(total=len(found), groups=list(query.page(found)))


@api.delete("/downloads/{number}")
@pages.post("/queue/download/{number}/cancel", then="/queue?tab=downloads")
async def cancel_download(ask: HandlerCall, path: NumberPath) -> None:
    """End a download and free its slot."""
    number, found = path.number, lease_of(ask, path.number)
    if not ask.server.desk.cancel(number, "the operator has cancelled this download"):
        raise Problem(404, f"Download {number} has ended.")
    ask.server.store.owe()
    ask.log("cancel", f"cancelled download {number} of {found.file} by {found.client}")


@api.get("/tickets")
async def list_tickets(ask: HandlerCall, query: TicketQuery) -> TicketsOut:
    """Tickets in the order of their turn."""
    policy, skip = ask.server.gate.policy, query.offset
    snapshot = ask.server.gate.snapshot()
    state = "" if snapshot.link_bound else query.state
    if not query.q:
        counts = {"waiting": snapshot.waiting, "ready": snapshot.ready}
        total = counts.get(state, snapshot.waiting + snapshot.ready)
        skip += snapshot.ready if state == "waiting" else 0
        line = enumerate(itertools.islice(policy.tickets(skip), query.limit), skip + 1)
        rows = [ticket_out(ask, row, at) for at, row in line if state in ("", row.state)]
        return TicketsOut(total=total, tickets=rows)
    states = (state,) if state else ("ready", "waiting")
    numbers, total = await ask_store(
        ask.server.store,
        lambda connection: search_tickets(connection, query.q, states, skip, query.limit),
    )
    found = (policy.ticket(number) for number in numbers)
    rows = [ticket_out(ask, row) for row in found if row and row.state.is_queued]
    return TicketsOut(total=total, tickets=rows)


@api.delete("/tickets/{number}")
@pages.post("/queue/ticket/{number}/expire", then="/queue?tab=tickets")
async def expire_ticket(ask: HandlerCall, path: NumberPath) -> None:
    """Take a ticket out of the queue."""
    if not ask.server.desk.withdraw(path.number):
        raise _gone(path.number)
    ask.server.store.owe()
    ask.log("expire", f"expired ticket {path.number}")


@api.post("/tickets/{number}/promote")
@pages.post("/queue/ticket/{number}/promote", then="/queue?tab=tickets")
async def promote_ticket(ask: HandlerCall, path: NumberPath) -> None:
    """Move a ticket to the head of the queue."""
    if not ask.server.desk.promote(path.number):
        raise _gone(path.number)
    ask.server.store.owe()
    ask.log("promote", f"promoted ticket {path.number}")


@api.get("/blocks")
async def list_blocks(ask: HandlerCall) -> BlocksOut:
    """Blocked addresses."""
    return BlocksOut(blocks=ask.server.blocks.all())


@api.post("/blocks", status=201)
@pages.post("/queue/block", then="/queue?tab=blocks", again=block_ask)
async def add_block(ask: HandlerCall, body: BlockIn) -> BlockedNetwork:
    """Block an address or network."""
    network = network_of(body.network)
    if not body.sure:
        refuse_by_mistake(network, ask.call.peer)
    until = None if body.for_s is None else ask.now + body.for_s
    found = BlockedNetwork(network, ask.now, until, ask.who, body.note)
    ask.server.blocks.add(found)
    ask.log("block", f"blocked {network}" + (f": {body.note}" if body.note else ""))
    return found


@api.delete("/blocks")
@pages.post("/queue/unblock", then="/queue?tab=blocks")
async def remove_block(ask: HandlerCall, query: NetworkQuery) -> None:
    """Unblock an address or network."""
    network = network_of(query.network)
    if not ask.server.blocks.remove(network):
        raise Problem(404, f"{network} is not blocked.")
    ask.log("unblock", f"unblocked {network}")


@api.get("/doors")
async def get_doors(ask: HandlerCall) -> DoorState:
    """Whether downloads may start."""
    return ask.server.doors.state


@api.put("/doors")
@pages.post("/queue/doors", then="/queue", again=queue)
async def put_doors(ask: HandlerCall, body: DoorsIn) -> DoorState:
    """Close the doors for maintenance, or open them."""
    old, doors = ask.server.doors.state, ask.server.doors
    since_s = old.since_s if old.closed and body.closed else ask.now
    text, opens_s = (body.text, body.opens_s) if body.closed else ("", None)
    doors.change(DoorState(body.closed, text, opens_s, since_s, ask.who))
    # The log has one line for it.
    line = " ".join(text.split())
    told = f"closed the doors: {line}".rstrip(": ") if body.closed else "opened the doors"
    ask.log("doors", told)
    return doors.state
