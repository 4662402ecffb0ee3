"""The order in which a policy is called: the one sequence that server and simulator share.

Offer or end something, then `settle`: time passes in the policy, senders pause and resume,
clients that wait inside their request are called, and that again until nobody is called.
The policy decides, the desk calls in the right order, the hands (server or simulator) act.
"""

from __future__ import annotations

from typing import Protocol

from policies.job import AdmissionPolicy, Decision, Job

#: A call makes an offer or a withdrawal, so settling ends; this bound guards against a policy
#: that calls a ticket whose offer it then turns down, for ever.
_ROUNDS = 64


class Hands(Protocol):
    """What the desk needs done. Nothing here may call `settle`."""

    def pause(self, lease: int, now: float) -> None:
        """Stop the senders of this lease; its connections stay."""
        ...

    def resume(self, lease: int, now: float) -> None:
        """Let its senders go on."""
        ...

    def idled_out(self, lease: int, now: float) -> None:
        """The lease is no more; nobody used it."""
        ...

    def expired(self, ticket: int, now: float) -> None:
        """The ticket left the queue unclaimed."""
        ...

    def call(self, ticket: int, now: float) -> None:
        """Offer this present client's job again, or withdraw the ticket if it has left."""
        ...


class Desk:
    """One policy and the hands that carry out what it decides."""

    __slots__ = ("_hands", "policy")

    def __init__(self, policy: AdmissionPolicy, hands: Hands) -> None:
        self.policy = policy
        self._hands = hands

    def offer(self, job: Job, now: float, ticket: int | None = None) -> Decision:
        """Ask to start; follow it with `settle`."""
        return self.policy.offer(job, now, ticket)

    def end(self, lease: int, now: float, remaining_bytes: int, *, done: bool) -> None:
        """One connection of the lease ended; `done` when every byte arrived. Then `settle`."""
        self.policy.detach(lease, now, remaining_bytes)
        if done:
            self.policy.release(lease, now, True)

    def settle(self, now: float) -> float | None:
        """Let time pass and act on all of it; returns when to settle again at the latest."""
        hands = self._hands
        for _ in range(_ROUNDS):
            advance = self.policy.advance(now)
            for lease in advance.pause:
                hands.pause(lease, now)
            for lease in advance.resume:
                hands.resume(lease, now)
            for lease in advance.idled_out:
                hands.idled_out(lease, now)
            for ticket in advance.expired:
                hands.expired(ticket, now)
            if not advance.call:
                return advance.wake_at
            for ticket in advance.call:
                hands.call(ticket, now)
        return now + 1.0 if advance.wake_at is None else min(now + 1.0, advance.wake_at)
