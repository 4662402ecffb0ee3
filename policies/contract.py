"""The words of admission: a job, the three answers to it, and what is told of both.

Users of a policy read this module, authors of one `policies.hooks` too. The state machine
that every policy shares is `policies.admission`.

Laws that hold for all policies:

- Time enters as `now` (seconds, Unix time, never running backwards); randomness as a
  `random.Random` given when the policy is built. A policy never sleeps: `advance` says when it
  wants to be called again.
- A slot is held by a *lease*, never by a connection. All range requests of one client for one
  file, and its resume after a broken connection, ride on one lease.
- A *ticket* is a place in the queue, known by its number. Numbers grow and are never used twice.
- A refusal is a value. A policy raises only for a caller's mistake (an unknown lease).

Rates are bytes per second, sizes are bytes, times are seconds.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


# Not frozen, which would make each four times as dear; no code changes one.
@dataclass(slots=True, unsafe_hash=True)
class Job:
    """One client's wish for one representation.

    `client` and `file` are opaque keys; the pair names the download, so a second offer of the
    same pair is the same job. `size_bytes` is the whole representation and decides small or
    large; `remaining_bytes` is what this client still wants of it (less after a resume).
    `rate_bytes_s` is what the client can take, `inf` where that is unknown. `present` says that the
    client waits inside its request and can start the instant it is called.

    `network` holds the address prefixes that enclose the client, narrow to wide (IPv4 /32 and /24;
    IPv6 /64, /56 and /48), as text keys. `known` says that evidence has earned this client a share
    of its own: an old signed cookie or ticket, places claimed in time, finished downloads.
    `counts_body` says that only bytes of the body keep its program from giving up. `line` is the
    line that would carry it, where a fleet has several: its machine. `elsewhere` says that another
    process sends it, which shows its ticket to who leads next. `running` says that its body is on
    its way, whatever the slots are now.
    """

    client: str
    file: str
    size_bytes: int
    remaining_bytes: int
    weight: float = 1.0
    rate_bytes_s: float = math.inf
    present: bool = False
    network: tuple[str, ...] = ()
    known: bool = False
    counts_body: bool = False
    #: The name of the priority class that the weight is of, for who reads a ticket; empty: none.
    priority_class: str = ""
    line: str = ""
    elsewhere: bool = False
    running: bool = False

    @property
    def subnet(self) -> str:
        """The widest prefix around the client (IPv4 /24, IPv6 /48); empty where none is known."""
        return self.network[-1] if self.network else ""

    @property
    def stranger_network(self) -> str:
        """The subnet that the client counts with while it has no evidence; empty: with none."""
        return "" if self.known or not self.network else self.network[-1]


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a waiting job is expected to start, as seconds from now, and its 90 % bound.

    `done` is the same for its last byte; None where that is unknown.
    """

    expected_s: float
    p90_s: float
    done: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Admit:
    """Start now. `joined` is true when the job rides on a lease that already ran."""

    lease: int
    ticket: int | None = None
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Come back in `retry_after_s` seconds; `ticket` and `place` where the policy keeps places.

    `place` counts from 1 (next to start). `ready` means the ticket may start as soon as a slot
    is free. `estimate` is None where the policy makes no promise (FCFS, Reserve). A client that
    asks again and again is answered only after `answer_after_s` seconds. One that would come back
    may wait in its request for up to `hold_s` instead: its turn is near.
    """

    retry_after_s: float
    ticket: int | None = None
    place: int | None = None
    ready: bool = False
    estimate: Estimate | None = None
    answer_after_s: float = 0.0
    hold_s: float = 0.0


class Reason(enum.StrEnum):
    """Why a job is refused; also the last part of the problem type that tells the client."""

    TICKET_EXPIRED = "ticket-expired"
    TICKET_USED = "ticket-used"
    TICKET_FOREIGN = "ticket-foreign"
    TOO_MANY_CONNECTIONS = "too-many-connections"
    TOO_MANY_TICKETS = "too-many-tickets"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Refuse:
    """No, and why. `retry_after_s` where asking again later can help."""

    reason: Reason
    retry_after_s: float | None = None


Decision = Admit | Wait | Refuse


class TicketState(enum.StrEnum):
    """The life of a ticket: waiting -> ready -> started -> done, or out on the way.

    A started one whose client had not one byte when its lease idled out waits again, once.
    """

    WAITING = "waiting"
    READY = "ready"
    STARTED = "started"
    DONE = "done"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"

    @property
    def is_queued(self) -> bool:
        """Whether such a ticket has a place in the queue."""
        return self in (TicketState.WAITING, TicketState.READY)

    @property
    def is_over(self) -> bool:
        """Whether such a ticket is used or lost."""
        return self in (TicketState.DONE, TicketState.EXPIRED, TicketState.WITHDRAWN)


class TicketRow(NamedTuple):
    """What must survive a crash of one ticket; also what the journal and the admin page show."""

    number: int
    client: str
    file: str
    size_bytes: int
    remaining_bytes: int
    weight: float
    issued_s: float
    state: TicketState
    changed_s: float
    polls: int = 0
    early_polls: int = 0
    priority_class: str = ""
    #: The crowd that it counts with, and whether it stands back there (`policies.laws.crowds`); of
    #: a started one: whether its server ended, when it changed last, and no client has asked since.
    network: str = ""
    stands_back: bool = False


class LeaseView(NamedTuple):
    """One running (or paused, or idle) download as others may see it."""

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


@dataclass(frozen=True, slots=True)
class Advance:
    """What the passing of time has decided; the caller must act on all of it, in this order.

    `behind`/`ahead`: leases that get only what others leave of the line from now on, or their share
    again. `pause`/`resume`: leases whose senders must stop or go on. `idled_out`: leases that ended
    unused. `expired`: tickets that left the queue unclaimed. `call`: tickets of clients that are
    present and may start now, best first: offer each again at once (or
    `withdraw` it if its client has left). `wake_at`: the latest time for the next call.
    """

    behind: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    pause: tuple[int, ...] = ()
    resume: tuple[int, ...] = ()
    idled_out: tuple[int, ...] = ()
    expired: tuple[int, ...] = ()
    call: tuple[int, ...] = ()
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of admission at a glance. Totals count since the policy was built.

    Where a policy is `link_bound` the link decides how many downloads run: no ticket is `ready`,
    and `slots` is a far limit for safety. `slotless` downloads take too little of a slot's share
    while others wait; as many as are `doubted` probably will. `mode` is the policy that decides.
    """

    policy: str
    mode: str
    slots: int
    large_slots: int
    small_active: int
    large_active: int
    paused: int
    waiting: int
    ready: int
    ready_target: int
    offers_total: int
    admitted_small_total: int
    admitted_large_total: int
    completed_total: int
    tickets_issued_total: int
    tickets_expired_total: int
    no_show_fraction: float
    early_polls_total: int
    refused_total: int
    last_wait: Estimate | None
    eta_within_p90: float | None
    eta_median_error: float | None
    #: The same of told ends, and how many ends were judged and kept.
    end_within_p90: float | None = None
    end_median_error: float | None = None
    ends_judged_total: int = 0
    ends_kept_total: int = 0
    link_bound: bool = False
    closed: bool = False
    slotless: int = 0
    doubted: int = 0

    @property
    def large_used(self) -> int:
        """Slots that large downloads hold."""
        return self.large_active - self.slotless - self.doubted

    @property
    def people_waiting(self) -> int:
        """Those who have not started, and those whose download is paused."""
        return self.waiting + self.ready + self.paused


#: A body up to this leaves with its header in one write, as much as a socket takes at once: it is
#: over before a policy could pause it.
BRIEF_BYTES = 128 * 1024
#: A line that no cap of ours keeps free is full where this part of it is HTTP: TCP/IP has 3 to 6 %.
FULL_PART = 0.9
#: Numbers from here on were given by a node that had no leader. They tell nothing of an order among
#: those of leaders; a ticket with one has its place by the time of its issue.
ELSEWHERE = 1 << 49


class Ranked(NamedTuple):
    """What the order of turn is made from: one waiting ticket.

    `number` is where it stands among the numbers, which for one from `ELSEWHERE` lies between two.
    """

    number: float
    size_bytes: int
    remaining_bytes: int
    weight: float
    issued_s: float


class Forecast(NamedTuple):
    """When a ticket starts, seconds from now, before calibration; and what is sure of it.

    `soonest_s`: its turn if a rush that others make ends now; who polls should ask by then.
    `unsure`: its standard deviation as a part of it, while nothing was learnt.
    """

    wait_s: float
    at_least_s: float = 0.0
    soonest_s: float = math.inf
    unsure: float = 0.0


class LineSeen(NamedTuple):
    """One line of several: what it was found to carry, what left on it lately, whether it is full.

    In bytes a second; what it carries is infinite while that is not known.
    """

    line_bytes_s: float
    goodput_bytes_s: float
    busy: bool


#: There is one line, and nothing more to tell of it.
ONE_LINE: Mapping[str, LineSeen] = MappingProxyType({})
