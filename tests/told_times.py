"""What downloads were told in a simulated run, and what came of it.

A told end has *moved* if a later answer puts it beyond its first bound.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import columns
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS, Promise, SimClient
from tidegate.policies.contract import Estimate
from tidegate.policies.network_order import Handicap

#: Each told end is asked for again so often, seconds.
LOOK_S = 2.0
#: A told end has moved if it is beyond its bound by more than this, seconds.
MOVED_S = 1.0
#: Sums of times are rounded by less than this, seconds.
ROUNDED_S = 1e-6
#: An error counts as a part of a time longer than this, seconds.
LONG_S = 10.0


class Cause(enum.StrEnum):
    """What kept a download longest from what it was told."""

    OVERTAKEN = "overtaken"
    OWN_SPEED = "own speed"
    LINE = "line"
    NETWORK = "behind its network"


@dataclass(slots=True)
class Told:
    """A download that was told its end. It started and ended so long after that, seconds."""

    polls: bool
    promise: Promise
    #: What all had by then, bytes.
    delivered_bytes: float
    #: How long its bytes take at the speed that its client was taken to have.
    own_s: float
    handicap: Handicap
    started_s: float = math.nan
    ended_s: float = math.nan
    moved: Cause | None = None
    broken: Cause | None = None


class TellingEngine(Engine):
    """Asks for told ends again and again, which changes nothing (`tests/test_random_days.py`)."""

    def told(self) -> list[Told]:
        """Run. Returns the downloads that were told their ends and have come to them."""
        self._present_clients: dict[SimClient, Told | None] = {}
        self._next_look_s = 0.0
        self._over: list[Told] = []
        self.run()
        return self._over

    def _next_file(self, client: SimClient) -> None:
        self._present_clients[client] = None
        super()._next_file(client)

    def _offer(
        self, client: SimClient, ticket: int | None, *, present: bool, may_hold: bool = True
    ) -> None:
        super()._offer(client, ticket, present=present, may_hold=may_hold)
        promise, capacity = client.promise, self.policy.capacity
        if self._present_clients[client] or promise is None or math.isnan(promise[3]):
            return
        seen_bytes_s = capacity.recall(client.visitor.key)
        if seen_bytes_s == math.inf:
            seen_bytes_s = capacity.typical_client_bytes_s
        own_s = self._file_of(client).size_bytes / min(seen_bytes_s, capacity.rate_bytes_s)
        delivered_bytes, handicap = self._link.delivered_bytes, self._handicap_of(client)
        self._present_clients[client] = Told(
            client.visitor.polls, promise, delivered_bytes, own_s, handicap
        )

    def _tick(self) -> None:
        super()._tick()
        if self.now < self._next_look_s:
            return
        self._next_look_s = self.now + LOOK_S
        for client, told in self._present_clients.items():
            end = None if told is None or told.moved else self._end_of(client)
            if told is None or end is None:
                continue
            at_s, bound_s = told.promise[0], told.promise[4]
            if self.now + end.expected_s > at_s + bound_s + MOVED_S:
                told.moved = self._cause(client, told)

    def _record(self, client: SimClient, *, gave_up: bool) -> None:
        told = self._present_clients.pop(client)
        if told is not None and not gave_up:
            at_s, bound_s = told.promise[0], told.promise[4]
            told.started_s, told.ended_s = client.admitted_s - at_s, self.now - at_s
            if told.ended_s > bound_s + ROUNDED_S:
                told.broken = self._cause(client, told)
            self._over.append(told)
        super()._record(client, gave_up=gave_up)

    def _end_of(self, client: SimClient) -> Estimate | None:
        if client.lease is not None:
            return self.policy.done(client.lease, self.now)
        ticket = client.held
        if ticket is None and client.visit is not None and client.visit.ticket is not None:
            ticket = int(client.visit.ticket)
        start = None if ticket is None else self.policy.estimate(ticket, self.now)
        return None if start is None else start.done

    def _handicap_of(self, client: SimClient) -> Handicap:
        return self.policy.handicap(client.visitor.network[-1] if client.visitor.network else "")

    def _cause(self, client: SimClient, told: Told) -> Cause:
        if self._handicap_of(client) != told.handicap:
            return Cause.NETWORK
        at_s, line_bytes_s = told.promise[0], self.conditions.line_bytes_s(self.now)
        rows = columns(self.tally.downloads, DOWNLOAD_FIELDS)
        later_bytes = math.fsum(
            size
            for size, asked_s in zip(rows["size_bytes"], rows["asked_s"], strict=True)
            if asked_s > at_s
        )
        for other in self._present_clients:
            if other.asked_s > at_s and other.flow is not None:
                size_bytes = self._file_of(other).size_bytes
                later_bytes += size_bytes - self._link.remaining(other.flow)
        own_s = self._file_of(client).size_bytes / min(client.visitor.rate_bytes_s, line_bytes_s)
        carried_s = (self._link.delivered_bytes - told.delivered_bytes) / line_bytes_s
        lost_s = {
            Cause.OVERTAKEN: later_bytes / line_bytes_s,
            Cause.OWN_SPEED: own_s - told.own_s,
            Cause.LINE: self.now - at_s - carried_s,
        }
        return max(lost_s, key=lambda cause: lost_s[cause])


def _part(answers: Sequence[bool]) -> float:
    return sum(answers) / len(answers)


def _median_error(pairs: Iterable[tuple[float, float]]) -> float:
    errors = [abs(told_s - took_s) / took_s for told_s, took_s in pairs if took_s > LONG_S]
    return median(errors) if errors else math.nan


def _causes(words: str, causes: Iterable[Cause | None]) -> str:
    counts = Counter(cause for cause in causes if cause is not None)
    parts = [f"{cause} {count / counts.total():.0%}" for cause, count in counts.most_common()]
    return f"{words}: {', '.join(parts)}"


def table(told: Sequence[Told]) -> str:
    """How told starts and ends were kept, by kind of client, and what moved and broke ends."""
    kinds: dict[str, Callable[[Told], bool]] = {
        "all": lambda one: True,
        "come back": lambda one: one.polls,
        "wait in their request": lambda one: not one.polls,
    }
    lines = [f"{'told':<22}{'number':>7}  starts: kept  error  ends: kept  error  moved"]
    for kind, is_kind in kinds.items():
        some = [one for one in told if is_kind(one)]
        if not some:
            continue
        starts = _part([one.started_s <= one.promise[2] + ROUNDED_S for one in some])
        ends = _part([one.broken is None for one in some])
        moved = _part([one.moved is not None for one in some])
        start_error = _median_error((one.promise[1], one.started_s) for one in some)
        end_error = _median_error((one.promise[3], one.ended_s) for one in some)
        lines.append(
            f"{kind:<22}{len(some):>7}{starts:>14.1%}{start_error:>7.0%}{ends:>12.1%}"
            f"{end_error:>7.0%}{moved:>7.1%}"
        )
    lines.append(_causes("moved by", (one.moved for one in told)))
    lines.append(_causes("broken by", (one.broken for one in told)))
    return "\n".join(lines)
