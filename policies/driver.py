"""The order in which a policy is called: the one sequence that server and simulator share.

Offer or end something, then `settle`: time passes in the policy, senders pause and resume,
parked clients are called, and that again until nothing follows from it. The policy decides, the
driver calls in the right order, the hands (server or simulator) act. What only tells the policy
something goes to `PolicyDriver.policy`, with `settle` after it. Any module may look at the policy.

A parked request waits inside its request, with a ticket. Several requests of one client for one
file share the ticket, so the driver keeps two laws that a policy cannot know of: while one of them
is parked the client is present, whichever of them asks; and when one of them starts, the others
are called as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from .admission import AdmissionPolicy
from .contract import Admit, Decision, Job

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
        #: The present one: `switch` replaces it.
        self.policy = policy
        self._hands = hands
        #: Tickets that started since the last `settle`.
        self._started: list[int] = []

    def switch(self, successor: Callable[[AdmissionPolicy], AdmissionPolicy]) -> None:
        """Another policy takes over; it is made from the present one. Then `settle`."""
        self.policy = successor(self.policy)

    def offer(self, job: Job, now: float, ticket: int | None = None) -> Decision:
        """Ask to start; follow it with `settle`."""
        if not job.present and self._hands.parked(job.client, job.file):
            job = replace(job, present=True)
        decision = self.policy.offer(job, now, ticket)
        if isinstance(decision, Admit) and not decision.joined and decision.ticket is not None:
            self._started.append(decision.ticket)
        return decision

    def end(self, lease: int, now: float, remaining_bytes: int | None, *, done: bool) -> None:
        """One connection of the lease ended; `done` when every byte arrived. Then `settle`."""
        if done:
            self.policy.release(lease, now, True)
        else:
            self.policy.detach(lease, now, remaining_bytes)

    def settle(self, now: float) -> float | None:
        """Let time pass and act on all of it; returns when to settle again at the latest."""
        hands = self._hands
        for _ in range(_ROUNDS):
            self._call_started(now)
            advance = self.policy.advance(now)
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
                    self.policy.absent(ticket, now)
            if not self.policy.changed:
                return advance.wake_at
        return now + 1.0 if advance.wake_at is None else min(now + 1.0, advance.wake_at)

    def _call_started(self, now: float) -> None:
        """Of the tickets that have started: the other requests of the download ride along."""
        while self._started:
            started, self._started = self._started, []
            for ticket in started:
                self._hands.call(ticket, now)
