"""The settings, phases and steps of a carousel."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Phase(enum.Enum):
    GATHER = "gather"
    SEND = "send"
    LISTEN = "listen"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CarouselSettings:
    """The settings of one session. Times are seconds."""

    #: If not 0, the session first gathers this many members on time, for `gather_s` at most.
    needed: int = 0
    gather_s: float = 15.0
    #: The longest wait for joins before pass 0.
    lead_s: float = 0.15
    #: The wait for further members after the last join; inf: always wait for `lead_s`.
    settle_s: float = 0.03
    #: Its upper bound while offers follow each other closely.
    most_settle_s: float = 0.1
    #: The least wait for the join of a receiver that got an offer.
    least_patience_s: float = 0.25
    #: Repair symbols of each block in pass 0.
    parity: int = 0
    #: Whether lost symbols are repaired by multicast.
    repair: bool = True
    max_passes: int = 60
    #: Passes of the source, for sessions without reports.
    fixed_passes: int = 1
    #: The interval of marks, at first and at most.
    mark_every_s: float = 0.005
    slowest_mark_s: float = 0.25
    #: A receiver without a report for this time is gone.
    member_timeout_s: float = 3.0
    #: A receiver with more loss is sent to unicast; the loss is judged over at least
    #: `judge_after_datagrams` and `judge_after_s`.
    worst_loss: float = 0.6
    judge_after_datagrams: int = 1000
    judge_after_s: float = 1.5
    #: Marks that announce the end: two of them may be lost.
    close_marks: int = 3
    #: Bounds the symbols of a session, in passes of the source; each address that ever joined adds
    #: one pass. So a member that always requests more cannot occupy the line for ever.
    most_passes_sent: float = 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """Symbols of one block to send back to back. `symbols` is in rising order and not empty.

    `until`: symbols below this number will follow soon.
    """

    pass_number: int
    block: int
    k: int
    symbols: Sequence[int]
    until: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A signed datagram with the state of the session; `flags` may be 0."""

    pass_number: int
    flags: int
