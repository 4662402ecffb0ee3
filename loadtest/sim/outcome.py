"""Clients in a run, and what came of them: one row a download, one a session."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...client.net.retry import RetryState
from ...policies.contract import Estimate
from ...policies.max_min import Flow
from ..workloads import Visitor
from .conditions import CongestionWindow


def mean(values: Sequence[float]) -> float:
    """nan of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def quantile(ordered: Sequence[float], q: float) -> float:
    """Interpolated linearly between ascending values; nan of nothing."""
    if not ordered:
        return math.nan
    below, part = divmod((len(ordered) - 1) * q, 1.0)
    low = ordered[int(below)]
    return low + part * (ordered[int(below) + 1] - low) if part else low


#: One row a download, in the order of their ends; `nan` where there is no such time.
DOWNLOAD_FIELDS = (
    "client",
    "size_bytes",
    "asked_s",
    "admitted_s",
    "first_byte_s",
    "ended_s",
    "attempts",
    "promised_at_s",
    "promised_s",
    "promised_p90_s",
    "promised_end_s",
    "promised_end_p90_s",
    "gave_up",
)
#: One row a client.
SESSION_FIELDS = ("client", "arrived_s", "ended_s", "attempts", "gave_up")


#: When a client was told first, seconds; then its start, its end, and the bounds of both.
Promise = tuple[float, float, float, float, float]


def promised(now: float, told: Estimate) -> Promise:
    """What a client was told now; `nan` for an unknown end."""
    done = told.done or Estimate(math.nan, math.nan)
    return (now, told.expected_s, told.p90_s, done.expected_s, done.p90_s)


@dataclass(slots=True, eq=False)
class SimClient:
    """One visitor at work on one of its files."""

    number: int
    visitor: Visitor
    file_number: int = -1
    visit: RetryState | None = None
    attempts: int = 0
    asked_s: float = 0.0
    admitted_s: float = math.nan
    first_byte_s: float = math.nan
    promise: Promise | None = None
    lease: int | None = None
    flow: Flow | None = None
    #: What its flow had left when it began to run last.
    run_left: float = 0.0
    #: The ticket with which it waits inside its request.
    held: int | None = None
    #: Of the connection that its file comes by, where there is a network.
    window: CongestionWindow | None = None
    gone: bool = False
    #: What lies in its kernel and its program has not read, as of the last look.
    unread: float = 0.0
    read_s: float = 0.0
    read_left: float = math.inf


@dataclass(slots=True)
class RunRecord:
    """What happened, as columns; and the totals of the run."""

    downloads: array[float] = field(default_factory=lambda: array("d"))
    sessions: array[float] = field(default_factory=lambda: array("d"))
    ended_s: float = 0.0
    delivered_bytes: float = 0.0
    events: int = 0

    def add_download(
        self, client: SimClient, size_bytes: int, ended_s: float, *, gave_up: bool
    ) -> None:
        """The client is done with one of its files, or done with waiting for it."""
        assert client.visit is not None
        promise = client.promise or (math.nan,) * 5
        self.downloads.extend(
            (
                float(client.number),
                float(size_bytes),
                client.asked_s,
                client.admitted_s,
                client.first_byte_s,
                ended_s,
                float(client.visit.attempts),
                *promise,
                float(gave_up),
            )
        )

    def add_session(self, client: SimClient, ended_s: float, *, gave_up: bool) -> None:
        self.sessions.extend(
            (
                float(client.number),
                client.visitor.arrival_s,
                ended_s,
                float(client.attempts),
                float(gave_up),
            )
        )
