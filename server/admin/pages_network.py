"""Mirrors and multicast as they stand, and what has happened."""

from __future__ import annotations

from urllib.parse import urlencode

from server.admin.app import Admin, Page
from server.admin.web import Answer, Call

LIMIT = 100


async def network(admin: Admin, call: Call) -> Answer:
    return admin.page(
        call,
        "network.html",
        mirrors=admin.context.mirrors(),
        multicast=admin.context.multicast(),
        listeners=admin.context.health().listeners,
    )


async def log(admin: Admin, call: Call) -> Answer:
    kind, search = call.arg("kind").strip()[:64], call.arg("q").strip()[:128]
    before = call.number("before", 0, 0, 1 << 60) or None
    events = list(await admin.context.events(before, LIMIT + 1, kind, search))
    older = events[LIMIT - 1].number if len(events) > LIMIT else None
    return admin.page(
        call,
        "log.html",
        events=events[:LIMIT],
        older=older,
        kind=kind,
        search=search,
        base="/log?" + urlencode({"kind": kind, "q": search}) + "&",
    )


def pages() -> list[Page]:
    return [Page("GET", "/network", network), Page("GET", "/log", log)]
