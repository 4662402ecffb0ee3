"""Liveness and readiness, for load balancers and followers of a channel."""

from __future__ import annotations

from collections.abc import Callable

from server.admission.gate import Gate
from server.cluster.node import RemoteAdmission
from server.files.site import Site
from server.http.request import Request
from server.store.store import Store

LIVE, READY = "/-/live", "/-/ready"
_NO_STORE = (b"Cache-Control", b"no-store")


def add_routes(
    site: Site,
    gate: Gate,
    store: Store,
    draining: Callable[[], bool],
    fleet_fault: Callable[[], str],
) -> None:
    """Answer `/-/live`, and `/-/ready` with whether a large download would start at once.

    The body of the latter says what does not work although downloads do.
    """

    def live(request: Request) -> None:
        _say(request, "live\n")

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
        if fault := fleet_fault():
            text += f"{fault}\n"
        request.respond(200, headers, text.encode("ascii", "replace"))

    site.add_route(LIVE, live)
    site.add_route(READY, ready)


def add_node_routes(site: Site, admission: RemoteAdmission, draining: Callable[[], bool]) -> None:
    """The same at a node, which asks its leader while there is one.

    Without one it is ready all the same: what runs goes on, small files are served, and large ones
    wait a moment for the next leader.
    """

    def ready(request: Request) -> None:
        if draining():
            request.refuse(503, "closed", "This server is about to stop.", [(b"Retry-After", b"5")])
        elif admission.led:
            admission.ask(request)
        else:
            _say(request, "ready, but nobody leads the queue at present\n")

    site.add_route(LIVE, lambda request: _say(request, "live\n"))
    site.add_route(READY, ready)


def _say(request: Request, text: str) -> None:
    request.respond(200, [(b"Content-Type", b"text/plain"), _NO_STORE], text.encode())
