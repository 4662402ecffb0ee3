"""Downloads that run and tickets that wait, with what can be done to each."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from server.admin import acts
from server.admin.accounts import Role
from server.admin.app import Admin, Page
from server.admin.web import Answer, Call, Problem, redirect

LIMIT = 50


async def queue(admin: Admin, call: Call) -> Answer:
    return await _list(admin, call, "queue.html")


async def queue_part(admin: Admin, call: Call) -> Answer:
    return await _list(admin, call, "queue_part.html")


async def _list(admin: Admin, call: Call, template: str) -> Answer:
    context = admin.context
    search = call.arg("q").strip()[:128]
    tab = call.arg("tab", "downloads")
    offset = call.number("offset", 0, 0, 10_000_000)
    values: dict[str, Any] = {"leases": [], "tickets": [], "blocks": [], "total": 0}
    if tab == "tickets":
        page = await context.tickets(search, call.arg("state"), offset, LIMIT)
        values |= {"tickets": page.rows, "total": page.total}
    elif tab == "blocks":
        blocks = [b for b in context.blocks() if search in b.network]
        values |= {"blocks": blocks, "total": len(blocks)}
    else:
        tab = "downloads"
        leases = [
            lease
            for lease in context.leases()
            if not search or search in lease.file or search in lease.client
        ]
        leases.sort(key=lambda lease: lease.started_s)
        values |= {"leases": leases[offset : offset + LIMIT], "total": len(leases)}
    base = "/queue?" + urlencode({"tab": tab, "q": search, "state": call.arg("state")}) + "&"
    return admin.page(
        call,
        template,
        tab=tab,
        search=search,
        offset=offset,
        limit=LIMIT,
        base=base,
        snapshot=context.snapshot(),
        **values,
    )


def _number(call: Call) -> int:
    text = call.params["number"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Problem(404, f"There is no number {text}.")
    return int(text)


def _who(call: Call) -> str:
    return call.who.name if call.who else "-"


async def lease_ask(admin: Admin, call: Call) -> Answer:
    number = _number(call)
    found = next((lease for lease in admin.context.leases() if lease.lease == number), None)
    if found is None:
        raise Problem(404, f"Download {number} has ended.")
    return admin.page(
        call,
        "confirm.html",
        title=f"Cancel download {number}?",
        text="Its connections are closed and its slot is free for the next in line.",
        facts=[("File", found.file), ("Client", found.client)],
        button="Cancel the download",
        back="/queue",
    )


async def lease_cancel(admin: Admin, call: Call) -> Answer:
    acts.cancel_lease(admin.context, _who(call), _number(call))
    return redirect("/queue")


async def ticket_ask(admin: Admin, call: Call) -> Answer:
    number, verb = _number(call), call.params["verb"]
    found = admin.context.ticket(number)
    if found is None or verb not in ("expire", "promote"):
        raise Problem(404, f"Ticket {number} is not waiting (any more).")
    words = {
        "expire": ("Expire", "It loses its place; its owner is told so at the next visit."),
        "promote": ("Promote", "It goes to the head of the line and starts with the next slot."),
    }
    word, text = words[verb]
    return admin.page(
        call,
        "confirm.html",
        title=f"{word} ticket {number}?",
        text=text,
        facts=[
            ("File", found.row.file),
            ("Client", found.row.client),
            ("Place", found.place or "–"),
        ],
        verb=verb,
        button=f"{word} the ticket",
        back="/queue?tab=tickets",
    )


async def ticket_do(admin: Admin, call: Call) -> Answer:
    verb = call.params["verb"]
    if verb not in ("expire", "promote"):
        raise Problem(404, "A ticket can be expired or promoted.")
    acts.on_ticket(admin.context, _who(call), verb, _number(call))
    return redirect("/queue?tab=tickets")


async def block_ask(admin: Admin, call: Call) -> Answer:
    # A client key is an address with a bucket behind it; the address is what can be blocked.
    network = call.arg("network").partition("#")[0]
    return admin.page(call, "block.html", network=network)


async def block_do(admin: Admin, call: Call) -> Answer:
    hours = call.field("hours")
    for_s: float | None = None
    if hours:
        try:
            for_s = float(hours) * 3600.0
        except ValueError:
            for_s = -1.0
        if not 0 < for_s <= 366 * 86_400:
            raise Problem(422, "The time is above 0 and up to 8784 hours, or empty for good.")
    acts.block(
        admin.context, _who(call), call.field("network"), for_s, call.field("note")[:200], call.now
    )
    return redirect("/queue?tab=blocks")


async def unblock_do(admin: Admin, call: Call) -> Answer:
    acts.unblock(admin.context, _who(call), call.field("network"))
    return redirect("/queue?tab=blocks")


def pages() -> list[Page]:
    operator = Role.OPERATOR
    return [
        Page("GET", "/queue", queue),
        Page("GET", "/queue/part", queue_part),
        Page("GET", "/queue/download/{number}/cancel", lease_ask, operator),
        Page("POST", "/queue/download/{number}/cancel", lease_cancel, operator),
        Page("GET", "/queue/ticket/{number}/{verb}", ticket_ask, operator),
        Page("POST", "/queue/ticket/{number}/{verb}", ticket_do, operator),
        Page("GET", "/queue/block", block_ask, operator),
        Page("POST", "/queue/block", block_do, operator),
        Page("POST", "/queue/unblock", unblock_do, operator),
    ]
