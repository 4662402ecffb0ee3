"""Liveness and readiness for load balancers and mirrors; what a machine without leader answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..control.vitals import Readiness, Vitals, unready
from ..files.site import Site
from ..http.answers import Header
from ..http.request import Request

if TYPE_CHECKING:
    from ..cluster.node import RemoteAdmission


def _add_routes(site: Site, ready: Callable[[Request], None]) -> None:
    site.add_route("/-/live", lambda request: _say(request, "live\n"))
    site.add_route("/-/ready", ready)


def add_routes(site: Site, vitals: Vitals) -> None:
    """Answer `/-/live`, and `/-/ready`, which says whether a large download would start at once."""

    def ready(request: Request) -> None:
        found = vitals.readiness()
        if found.refusal:
            _refuse(request, found)
        else:
            _say(request, found.text, (b"Tidegate-Free", b"yes" if found.free else b"no"))

    _add_routes(site, ready)


def add_node_routes(site: Site, admission: RemoteAdmission, draining: Callable[[], bool]) -> None:
    """The same at a node, which asks its leader.

    A node is not ready before it has met a leader. If the leader is lost later, the node stays
    ready and names the fault: running downloads and small files continue, and new large downloads
    wait for the next leader.
    """

    def ready(request: Request) -> None:
        found = unready(draining=draining(), deleted=site.tree.is_deleted)
        if found is not None:
            _refuse(request, found)
        elif not admission.met_leader:
            _refuse_unled(request)
        elif admission.fault:
            _say(request, f"ready\n{admission.fault}\n")
        else:
            admission.ask(request)

    _add_routes(site, ready)


@dataclass(frozen=True, slots=True)
class Unled:
    """What `machine` knows about `leader`, the last one of `epoch`; empty: there was none.

    `unheard_s`: time since its last message; None without a connection. `silence`: why the database
    does not answer; empty while it does. `met`: whether the machine has met a leader.
    """

    machine: str
    leader: str
    epoch: int
    unheard_s: float | None
    silence: str
    met: bool

    @property
    def sentence(self) -> str:
        """The fault, and what continues."""
        if not self.leader:
            away = "Nobody leads the queue at present"
        elif self.unheard_s is None:
            away = f"The leader ({self.leader}, epoch {self.epoch}) is away"
        else:
            away = (
                f"The leader ({self.leader}, epoch {self.epoch}) has said nothing for "
                f"{self.unheard_s:.0f} s"
            )
        database = "does not answer" if self.silence else "answers"
        return (
            f"{away}: this page needs it, and goes to the next one as soon as that leads. "
            f"{self.machine} goes on with its downloads; the database {database}."
        )


def answer_unled(request: Request, seen: Unled) -> None:
    """Answer a request to the admin page of a machine without a leader."""
    path = request.path
    if path == b"/metrics":
        _say(request, _metrics(seen), kind=b"text/plain; version=0.0.4; charset=utf-8")
    elif path == b"/-/live":
        _say(request, "live\n")
    elif path == b"/-/ready" and not seen.met:
        # The same answer as from its nodes: a balancer must not send clients yet.
        _refuse_unled(request)
    elif path == b"/-/ready":
        _say(request, f"ready\n{seen.sentence}\n")
    else:
        text = seen.sentence
        if request.method not in (b"GET", b"HEAD"):
            text += " Whether your change was made is not known: look before you send it again."
        _refuse_unled(request, text)


def _metrics(seen: Unled) -> str:
    """Metrics that need no token: none of the queue, but that there is no leader."""
    found = (
        ("fleet_up", "Whether all nodes are here.", 0),
        ("leader_epoch", "Leaders up to now.", seen.epoch),
        ("store_up", "Whether the database takes writes.", int(not seen.silence)),
    )
    return "".join(
        f"# HELP tidegate_{name} {text}\n# TYPE tidegate_{name} gauge\ntidegate_{name} {value}.0\n"
        for name, text, value in found
    )


def _say(request: Request, text: str, *more: Header, kind: bytes = b"text/plain") -> None:
    fields = [(b"Content-Type", kind), (b"Cache-Control", b"no-store"), *more]
    request.respond(200, fields, text.encode("ascii", "replace"))


def _refuse(request: Request, found: Readiness) -> None:
    request.refuse(503, found.refusal, found.text, [(b"Retry-After", b"5")])


def _refuse_unled(
    request: Request,
    text: str = "This process has met no leader since its start, and starts no large download yet.",
) -> None:
    """As `cluster.degraded` does, which is not loaded here."""
    request.refuse(503, "no-leader", text, [(b"Retry-After", b"2")])
