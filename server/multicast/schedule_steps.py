"""What a carousel is told and what it says: its settings, its phases, runs and marks."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Phase(enum.Enum):
    """Where a session stands."""

    GATHER = "gather"
    SEND = "send"
    LISTEN = "listen"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CarouselSettings:
    """How patient a session is. Times are seconds.

    With `needed` the session first gathers: for so many members on time, for `gather_s` at most.
    `lead_s` is the longest wait for joins before pass 0, `least_patience_s` how long one that was
    offered is waited for, however fast the others were. `repair` says whether wants are answered
    by multicast, `worst_loss` is the loss above which a receiver is told to go to unicast, judged
    over `judge_after_datagrams` and `judge_after_s` at least.
    """

    needed: int = 0
    gather_s: float = 15.0
    lead_s: float = 0.15
    #: With everybody joined, still wait so long for more of the same cohort; inf: never early.
    settle_s: float = 0.03
    #: The most of that, where requests follow each other so closely that more will come.
    most_settle_s: float = 0.1
    least_patience_s: float = 0.25
    parity: int = 0
    repair: bool = True
    max_passes: int = 60
    fixed_passes: int = 1
    mark_every_s: float = 0.005
    slowest_mark_s: float = 0.25
    member_timeout_s: float = 3.0
    worst_loss: float = 0.6
    judge_after_datagrams: int = 1000
    judge_after_s: float = 1.5
    close_marks: int = 3
    #: What a session may send, in source passes: this much, and as much again for every address
    #: that ever joined. One member that never has enough cannot keep the line busy for ever.
    most_passes_sent: float = 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """Symbols of one block to send back to back; `symbols` is ascending, never empty.

    `until`: symbols below it will follow soon.
    """

    pass_number: int
    block: int
    k: int
    symbols: Sequence[int]
    until: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A signed datagram that says where the sender stands; `flags` may be none."""

    pass_number: int
    flags: int
