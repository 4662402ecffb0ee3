"""Liveness and readiness, for load balancers and followers of a channel."""

from __future__ import annotations

from collections.abc import Callable

from server.gate import Gate
from server.http.request import Request
from server.site import Site

_NO_STORE = (b"Cache-Control", b"no-store")


def add_routes(
    site: Site, gate: Gate, now: Callable[[], float], draining: Callable[[], bool]
) -> None:
    """Answer `/-/live`, and `/-/ready` with whether a large download would start at once."""

    def live(request: Request) -> None:
        request.respond(200, [(b"Content-Type", b"text/plain"), _NO_STORE], b"live\n")

    def ready(request: Request) -> None:
        if draining():
            request.refuse(503, "closed", "The server is about to stop.", [(b"Retry-After", b"5")])
            return
        seen = gate.policy.snapshot(now())
        free = b"yes" if not seen.waiting and seen.large_active < seen.large_slots else b"no"
        headers = [(b"Content-Type", b"text/plain"), _NO_STORE, (b"Tidegate-Free", free)]
        request.respond(200, headers, b"ready\n")

    site.add_route("/-/live", live)
    site.add_route("/-/ready", ready)
