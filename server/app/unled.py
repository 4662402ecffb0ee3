"""What a machine that follows says at its admin listener while no leader answers: what it knows."""

from __future__ import annotations

from dataclasses import dataclass

from ..http.answers import Header
from ..http.request import Request
from .health import UNMET

_RETRY_S = b"2"
_NO_STORE = (b"Cache-Control", b"no-store")
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Unled:
    """What `machine` knows of `leader`, who leads or led last in `epoch`; empty: nobody.

    `unheard_s`: for how long it has said nothing; None where there is no connection with it.
    `silence`: why the database does not answer; empty while it does. `met`: whether a leader was
    heard since the start.
    """

    machine: str
    leader: str
    epoch: int
    unheard_s: float | None
    silence: str
    met: bool

    @property
    def sentence(self) -> str:
        """What is wrong, and what goes on."""
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
    """Answer a request for an admin page, or for the metrics, of a machine that has no leader."""
    path = request.path
    if path == b"/metrics":
        _say(request, _metrics(seen), _METRICS)
    elif path == b"/-/live":
        _say(request, "live\n")
    elif path == b"/-/ready" and not seen.met:
        # As its nodes say: a balancer that asks here is to send nobody yet.
        request.refuse(503, "no-leader", UNMET, [(b"Retry-After", _RETRY_S)])
    elif path == b"/-/ready":
        _say(request, f"ready\n{seen.sentence}\n")
    else:
        text = seen.sentence
        if request.method not in (b"GET", b"HEAD"):
            text += " Whether your change was made is not known: look before you send it again."
        request.refuse(503, "no-leader", text, [(b"Retry-After", _RETRY_S)])


def _metrics(seen: Unled) -> str:
    """No figure of the queue: those who may not read it may know that nobody leads."""
    found = (
        ("fleet_up", "Whether all nodes are here and the leader's lease is renewed.", 0),
        ("leader_epoch", "Leaders up to now.", seen.epoch),
        ("store_up", "Whether the database takes writes.", int(not seen.silence)),
    )
    return "".join(
        f"# HELP tidegate_{name} {text}\n# TYPE tidegate_{name} gauge\ntidegate_{name} {value}.0\n"
        for name, text, value in found
    )


def _say(request: Request, text: str, kind: bytes = b"text/plain") -> None:
    fields: list[Header] = [(b"Content-Type", kind), _NO_STORE]
    request.respond(200, fields, text.encode("ascii", "replace"))
