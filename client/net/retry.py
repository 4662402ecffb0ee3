"""What a polite client does next: a pure state machine from answers to actions.

One `RetryState` is one client's wish for one file at one server, from the first attempt until the
body flows or the client gives up. The downloader, the simulator and the load test all use this
module, so the manners that were simulated are the manners that were shipped.

    visit = Visit(POLITE, random.Random(7), now)
    action = visit.begin()                    # Ask: send the request (with visit.headers())
    action = visit.answered(now, answer)      # Ask | WaitUntil | HoldOn | GiveUp

Laws: a client never comes back before it was told to (jitter goes upward only); a ticket that was
given is shown at every later attempt; a refused ticket is dropped once and asked for afresh once.
Times are seconds, `now` never runs backwards within one visit. Nothing here does I/O.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a kind of client behaves; `jitter` is a fraction of the wait, added and never taken off.

    `own_retry_s`: it comes back after this, whatever it is told. `tickets`: whether it keeps a
    ticket and shows it again. `max_wait_s`: it gives up rather than wait longer than this in all.
    `max_failures` in a row (no answer, 5xx without a time) end the visit, `max_failures_answered`
    once the server has answered: it exists, and may be starting again (None: the same). Backoff
    after failure n is `backoff_s` x 2**(n-1) up to `backoff_cap_s`.
    """

    tickets: bool = True
    own_retry_s: float | None = None
    jitter: float = 0.05
    jitter_cap_s: float = 5.0
    backoff_s: float = 1.0
    backoff_cap_s: float = 60.0
    max_wait_s: float = math.inf
    max_failures: int = 8
    max_failures_answered: int | None = None


#: `tidegate get`.
POLITE = RetryPolicy()


class Granted(NamedTuple):
    """The body is coming. `ticket` is the lease token for further requests of this download."""

    ticket: str | None = None
    connections: int | None = None


class RetryAfter(NamedTuple):
    """Not now; `retry_after_s` is None where the server named no time.

    `ticket`, `place` (1 = next), `expected_s`, `p90_s` and `ready` where it keeps a queue. The
    start is told by `expected_s` and `p90_s`, the last byte by `done_s` and `done_p90_s`.
    """

    retry_after_s: float | None = None
    ticket: str | None = None
    place: int | None = None
    expected_s: float | None = None
    p90_s: float | None = None
    ready: bool = False
    text: str = "the server is busy"
    done_s: float | None = None
    done_p90_s: float | None = None


class Failed(NamedTuple):
    """No usable answer: the connection broke, or the server failed without naming a time.

    `times` in a row, as the caller knows; answers began in between.
    """

    text: str = "the connection failed"
    times: int = 1


class Refused(NamedTuple):
    """An answer that asking again will not change; `ticket_fault` when only the ticket is bad."""

    reason: FailureReason
    text: str
    ticket_fault: bool = False


Answer = Granted | RetryAfter | Failed | Refused


class FailureReason(enum.StrEnum):
    """Why a visit ended without the file."""

    NOT_FOUND = "not-found"
    REFUSED = "refused"
    NETWORK = "network"
    WAITED_TOO_LONG = "waited-too-long"
    PROTOCOL = "protocol"


class SendNow(NamedTuple):
    """Send the request now."""


class WaitUntil(NamedTuple):
    """Ask again at `at`, not before. `told` is the server's answer, None after a failure."""

    at: float
    text: str
    told: RetryAfter | None = None


class HoldOn(NamedTuple):
    """Admitted: take the body; at most `connections` parallel requests (None: no limit told)."""

    connections: int | None = None


class GiveUp(NamedTuple):
    """Stop; `text` is one plain sentence for people."""

    reason: FailureReason
    text: str


Action = SendNow | WaitUntil | HoldOn | GiveUp


class RetryState:
    """The state machine. Counters are public for statistics and read-only by convention."""

    def __init__(self, manners: RetryPolicy, random: Random, now: float) -> None:
        self.manners = manners
        self.ticket: str | None = None
        self.place: int | None = None
        self.attempts = 0
        self.waited_s = 0.0
        self._random = random
        self._began_s = now
        self._first_wait_s: float | None = None
        self._failures = 0
        self._has_answered = False
        #: Answers in a row that gave no time to speak of.
        self._hasty = 0
        self._asked_afresh = False

    @property
    def waits(self) -> bool:
        """Whether it was told to come back, or failed, and was not admitted since."""
        return self._first_wait_s is not None

    def begin(self) -> SendNow:
        """The first attempt, or the next: the time of a `WaitUntil` has come."""
        self.attempts += 1
        return SendNow()

    def headers(self) -> list[tuple[str, str]]:
        """Request fields for the next attempt (the ticket too, where one is held)."""
        if not self.manners.tickets:
            return []
        # This client comes back by itself. Once it has its place, it waits for a turn that is near.
        if self.ticket is None:
            return [("Tidegate-Wait", "ticket")]
        return [("Tidegate-Wait", "turn"), ("Tidegate-Ticket", self.ticket)]

    def remaining(self, count: int) -> list[tuple[str, str]]:
        """Request fields that say how many bytes are wanted in all.

        A server that was restarted meanwhile would take the last range for all that is wanted.
        """
        return [("Tidegate-Remaining", str(count))] if self.manners.tickets else []

    def answered(self, now: float, answer: Answer) -> Action:
        """The answer to the last attempt; returns what to do next."""
        match answer:
            case Granted(ticket, connections):
                self._failures = self._hasty = 0
                self._has_answered = True
                self._asked_afresh = False
                self._keep(ticket)
                if self._first_wait_s is not None:
                    self.waited_s += now - self._first_wait_s
                    self._first_wait_s = None
                return HoldOn(connections)
            case RetryAfter():
                self._failures = 0
                self._has_answered = True
                if answer.ticket is not None:
                    # A new place: it may be lost as well, to a server whose disk fails again.
                    self._asked_afresh = False
                self._keep(answer.ticket)
                self.place = answer.place
                return self._wait(now, self._told_s(answer), answer.text, answer)
            case Failed(text, times):
                self._failures = max(self._failures + 1, times)
                manners = self.manners
                most = manners.max_failures_answered if self._has_answered else None
                if self._failures >= (manners.max_failures if most is None else most):
                    return GiveUp(FailureReason.NETWORK, text)
                return self._wait(now, self._grown_s(self._failures), text, None)
            case Refused(reason, text, ticket_fault):
                if ticket_fault and self.ticket is not None and not self._asked_afresh:
                    self._asked_afresh = True
                    self.ticket = None
                    return self.begin()
                return GiveUp(reason, text)

    def _keep(self, ticket: str | None) -> None:
        if ticket is not None and self.manners.tickets:
            self.ticket = ticket

    def _told_s(self, answer: RetryAfter) -> float:
        if self.manners.own_retry_s is not None:
            return self.manners.own_retry_s
        if answer.retry_after_s is not None:
            return max(answer.retry_after_s, self._least_s(answer.retry_after_s))
        # Busy without a time: back off as after a failure, but never give up over it.
        self._hasty += 1
        return self._grown_s(self._hasty)

    def _least_s(self, told_s: float) -> float:
        """A server that says "at once" again and again is not asked in a loop."""
        # A shorter time to wait than this is no time.
        if told_s >= 0.5:
            self._hasty = 0
            return 0.0
        self._hasty += 1
        return 0.0 if self._hasty == 1 else self._grown_s(self._hasty - 1) / 2

    def _grown_s(self, times: int) -> float:
        manners = self.manners
        exponent = min(max(times - 1, 0), 30)
        return min(float(manners.backoff_s * 2**exponent), manners.backoff_cap_s)

    def _wait(self, now: float, wait_s: float, text: str, told: RetryAfter | None) -> Action:
        manners = self.manners
        if self._first_wait_s is None:
            self._first_wait_s = now
        extra_s = min(wait_s * manners.jitter, manners.jitter_cap_s) * self._random.random()
        at = now + wait_s + extra_s
        if at - self._first_wait_s + self.waited_s > manners.max_wait_s:
            if told is not None and told.place is not None:
                # A server's sentence says what a client without patience should do.
                text = f"place {told.place} in the queue"
            return GiveUp(
                FailureReason.WAITED_TOO_LONG,
                f"{text}; the next chance is {wait_s:.0f} s away, past the limit of "
                f"{manners.max_wait_s:.0f} s in all",
            )
        return WaitUntil(at, text, told)
