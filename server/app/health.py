"""Liveness and readiness, for load balancers and followers of a channel."""

from __future__ import annotations

from collections.abc import Callable

from server.admission.gate import Gate
from server.files.site import Site
from server.http.request import Request
from server.store.store import Store

_NO_STORE = (b"Cache-Control", b"no-store")


def add_routes(site: Site, gate: Gate, store: Store, draining: Callable[[], bool]) -> None:
    """Answer `/-/live`, and `/-/ready` with whether a large download would start at once.

    The body of the latter says what does not work although downloads do.
    """

    def live(request: Request) -> None:
        request.respond(200, [(b"Content-Type", b"text/plain"), _NO_STORE], b"live\n")

    def ready(request: Request) -> None:
        if draining():
            request.refuse(503, "closed", "The server is about to stop.", [(b"Retry-After", b"5")])
            return
        seen = gate.snapshot()
        free = b"yes" if not seen.waiting and seen.large_active < seen.large_slots else b"no"
        headers = [(b"Content-Type", b"text/plain"), _NO_STORE, (b"Tidegate-Free", free)]
        # Downloads go on without a database, so a balancer should go on to send clients here.
        ill = store.state.reason
        text = f"ready, but the database takes no writes: {ill}\n" if ill else "ready\n"
        request.respond(200, headers, text.encode("ascii", "replace"))

    site.add_route("/-/live", live)
    site.add_route("/-/ready", ready)
