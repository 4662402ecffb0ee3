"""The order in which a policy is called: the one sequence that server and simulator share.

Offer or end something, then `settle`: time passes in the policy, senders pause and resume,
parked clients are called, and that again until nothing follows from it. The policy decides, the
driver calls in the right order, the hands (server or simulator) act. No other module calls a
policy; any may look at it (`PolicyDriver.view`).

A parked request waits inside its request, with a ticket. Several requests of one client for one
file share the ticket, so the driver keeps two laws that a policy cannot know of: while one of them
is parked the client is present, whichever of them asks; and when one of them starts, the others
are called as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from .admission import AdmissionPolicy
from .contract import ONE_LINE, Admit, Decision, Job, LineSeen, PolicyView, TicketRow

#: What is called makes an offer, so settling ends; this bound guards against a policy that calls
#: a ticket whose offer it then turns down, for ever.
_ROUNDS = 64


class Hands(Protocol):
    """What the driver needs done. Nothing here may call `settle`."""

    def put_behind(self, lease: int, now: float, *, background: bool) -> None:
        """Let its senders have what others leave of the line, or a share like others again."""

    def pause(self, lease: int, now: float) -> None:
        """Stop the senders of this lease; its connections stay."""

    def resume(self, lease: int, now: float) -> None:
        """Let its senders go on."""

    def idled_out(self, lease: int, now: float) -> None:
        """The lease is over; no client used it."""

    def expired(self, ticket: int, now: float) -> None:
        """The ticket left the queue unclaimed: requests that are still parked with it ask anew."""

    def parked(self, client: str, file: str) -> bool:
        """Whether a request of this download is parked with a ticket."""

    def call(self, ticket: int, now: float) -> bool:
        """Offer all requests again that are parked with this ticket; False if there is none."""


class PolicyDriver:
    """One policy and the hands that carry out what it decides."""

    def __init__(self, policy: AdmissionPolicy, hands: Hands) -> None:
        self._policy = policy
        #: How far a lease is, see `AdmissionPolicy`; `settle` after a batch of these. The policy's
        #: own, as it is told of each download many times a second: not to be kept for longer.
        self.progress = policy.progress
        self._hands = hands
        #: Tickets that started since the last `settle`.
        self._started: list[int] = []
        #: Whether the policy was told anything that may have consequences.
        self._changed = True

    @property
    def view(self) -> PolicyView:
        """The policy, to look at."""
        return self._policy

    def switch(self, successor: Callable[[AdmissionPolicy], AdmissionPolicy]) -> None:
        """Another policy takes over; it is made from the present one. Then `settle`."""
        self._policy = successor(self._policy)
        self.progress = self._policy.progress
        self._changed = True

    def admit_small(self, body_bytes: int, now: float) -> bool:
        """Whether a job that ends within this instant may go; see `AdmissionPolicy`."""
        return self._policy.admit_small(body_bytes, now)

    def admit_single_write(self, now: float) -> bool:
        """The same for a large job that ends within this instant; see `AdmissionPolicy`."""
        return self._policy.admit_single_write(now)

    def can_admit_single_write(self, now: float) -> bool:
        """Whether `admit_single_write` would say yes."""
        return self._policy.can_admit_single_write(now)

    def ticket_of(self, lease: int) -> int | None:
        """The ticket of a running download; None while it has none."""
        return self._policy.ticket_of(lease)

    def close(self, closed: bool) -> None:
        """Let no download start, or let them start again. Then `settle`."""
        self._policy.close(closed)
        self._changed = True

    def offer(self, job: Job, now: float, ticket: int | None = None) -> Decision:
        """Ask to start; follow it with `settle`."""
        if not job.present and self._hands.parked(job.client, job.file):
            job = replace(job, present=True)
        decision = self._policy.offer(job, now, ticket)
        self._changed = True
        if isinstance(decision, Admit) and not decision.joined and decision.ticket is not None:
            self._started.append(decision.ticket)
        return decision

    def observe(
        self,
        goodput_bytes_s: float,
        link_busy: bool,
        now: float,
        line_bytes_s: float | None = None,
        lines: Mapping[str, LineSeen] = ONE_LINE,
    ) -> None:
        """What left the server lately, see `AdmissionPolicy`; `settle` after it."""
        self._policy.observe(goodput_bytes_s, link_busy, now, line_bytes_s, lines)

    def end(self, lease: int, now: float, remaining_bytes: int | None, *, done: bool) -> None:
        """One connection of the lease ended; `done` when every byte arrived. Then `settle`."""
        if done:
            self._policy.release(lease, now, True)
        else:
            self._policy.detach(lease, now, remaining_bytes)
        self._changed = True

    def cut(self, lease: int, now: float) -> None:
        """The lease is over before its end: an operator's doing. Then `settle`."""
        self._policy.release(lease, now, False)
        self._changed = True

    def present(self, ticket: int, now: float, line: str = "") -> None:
        """A request waits at this line for the turn of this ticket. Then `settle`."""
        self._policy.present(ticket, now, line)
        self._changed = True

    def absent(self, ticket: int, now: float) -> None:
        """The last request that was parked with this ticket has left. Then `settle`."""
        self._policy.absent(ticket, now)
        self._changed = True

    def withdraw(self, ticket: int, now: float) -> None:
        """The ticket's owner will not come back. Then `settle`."""
        self._policy.withdraw(ticket, now)
        self._changed = True

    def promote(self, ticket: int, now: float) -> bool:
        """An operator moves a ticket to the head; False if it does not wait. Then `settle`."""
        self._changed = True
        return self._policy.promote(ticket, now)

    def restore(
        self, rows: Iterable[TicketRow], now: float, next_number: int, *, proven: bool = False
    ) -> None:
        """Take up tickets of an earlier run, or one `proven` by its token. Then `settle`."""
        self._policy.restore(rows, now, next_number, proven=proven)
        self._changed = True

    def changes(self, *, everything: bool = False) -> list[TicketRow]:
        """Tickets that changed since the last call, for the journal; see `AdmissionPolicy`."""
        return self._policy.changes(everything=everything)

    def settle(self, now: float) -> float | None:
        """Let time pass and act on all of it; returns when to settle again at the latest."""
        hands = self._hands
        for _ in range(_ROUNDS):
            self._changed = False
            self._call_started(now)
            advance = self._policy.advance(now)
            for lease in advance.behind:
                hands.put_behind(lease, now, background=True)
            for lease in advance.ahead:
                hands.put_behind(lease, now, background=False)
            for lease in advance.pause:
                hands.pause(lease, now)
            for lease in advance.resume:
                hands.resume(lease, now)
            for lease in advance.idled_out:
                hands.idled_out(lease, now)
            for ticket in advance.expired:
                hands.expired(ticket, now)
            for ticket in advance.call:
                if not hands.call(ticket, now):
                    self.absent(ticket, now)
            if not self._changed:
                return advance.wake_at
        return now + 1.0 if advance.wake_at is None else min(now + 1.0, advance.wake_at)

    def _call_started(self, now: float) -> None:
        """Of the tickets that have started: the other requests of the download ride along."""
        while self._started:
            started, self._started = self._started, []
            for ticket in started:
                self._hands.call(ticket, now)
