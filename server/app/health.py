"""Liveness and readiness, for load balancers and followers of a channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..control.vitals import Vitals
from ..files.site import Site
from ..http.answers import Header
from ..http.request import Request

if TYPE_CHECKING:
    from ..cluster.node import RemoteAdmission

LIVE, READY = "/-/live", "/-/ready"
_NO_STORE = (b"Cache-Control", b"no-store")
#: As `server.cluster.alone` says to those who ask for a download; it is not loaded for this.
_NO_LEADER_RETRY = b"2"
UNMET = "This process has met no leader since its start, and starts no large downloads as yet."
_STOPPING = "The server is being stopped or restarted."


def add_routes(site: Site, vitals: Vitals) -> None:
    """Answer `/-/live`, and `/-/ready` with whether a large download would start at once."""

    def ready(request: Request) -> None:
        found = vitals.readiness()
        if found is None:
            request.refuse(503, "closed", _STOPPING, [(b"Retry-After", b"5")])
        else:
            _say(request, found.text, (b"Tidegate-Free", b"yes" if found.free else b"no"))

    site.add_route(LIVE, lambda request: _say(request, "live\n"))
    site.add_route(READY, ready)


def add_node_routes(site: Site, admission: RemoteAdmission, draining: Callable[[], bool]) -> None:
    """The same at a node, which asks its leader while there is one.

    One that has met no leader since its start is not ready. Without a leader later it is ready all
    the same, and says what is wrong: what runs goes on, small files are served, and large ones
    wait a moment for the next leader, or start on this node's own slots.
    """

    def ready(request: Request) -> None:
        if draining():
            request.refuse(503, "closed", _STOPPING, [(b"Retry-After", b"5")])
        elif not admission.met_leader:
            request.refuse(503, "no-leader", UNMET, [(b"Retry-After", _NO_LEADER_RETRY)])
        elif admission.fault:
            _say(request, f"ready\n{admission.fault}\n")
        else:
            admission.ask(request)

    site.add_route(LIVE, lambda request: _say(request, "live\n"))
    site.add_route(READY, ready)


def _say(request: Request, text: str, *more: Header) -> None:
    fields = [(b"Content-Type", b"text/plain"), _NO_STORE, *more]
    request.respond(200, fields, text.encode("ascii", "replace"))
