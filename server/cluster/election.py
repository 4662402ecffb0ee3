"""Who leads: a machine's view of the lease in the database, as a state that answers change.

The database alone says who leads (`store.cluster`). This module holds what a machine makes of its
answers, and of its silence. A leader that cannot renew its lease does not know whether the database
is away for all machines, so that none can be elected, or only for itself. It counts its company:
the nodes of the others would have gone to another leader. It goes on while it has more than half of
the machines that belonged to it when it last renewed the lease. Otherwise it retires. The machines
of the leader before it, which are on their way, belong to a new leader, too.
Retiring is for good: the process ends, and its successor begins as a follower.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from ..store.cluster import Seat

#: A candidate that lost the leader's connection takes a lease that was not renewed for this part
#: of its length; at least twice it should have been.
MISSED = 0.6


class Standing(enum.StrEnum):
    """What a machine is in the cluster."""

    FOLLOWS = "follows"
    LEADS = "leads"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Candidacy:
    """One machine's standing.

    `leader` is who leads as far as it knows (epoch 0: no machine has led), `sure_until_s` until
    when, on its own clock, no machine can have taken a leader's lease. `belong`: how many machines
    belonged to it when it was renewed last, itself included; None before they were counted.
    """

    standing: Standing = Standing.FOLLOWS
    leader: Seat = field(default_factory=Seat)
    sure_until_s: float = 0.0
    belong: int | None = None


def answered(
    state: Candidacy,
    me: str,
    seen: Seat,
    asked_s: float,
    lease_s: float,
    belong: int | None = None,
    *,
    campaigns: bool = True,
) -> Candidacy:
    """The database said who leads; it was asked at `asked_s`, so no lease began earlier.

    A process that does not campaign never leads: a lease that names its machine is of an earlier
    process, and a second one would lead in the same epoch.
    """
    if state.standing is Standing.RETIRED:
        return state
    if state.standing is Standing.LEADS:
        if seen.epoch != state.leader.epoch:
            return replace(state, standing=Standing.RETIRED, leader=seen)
        return replace(state, sure_until_s=asked_s + lease_s * MISSED, belong=belong)
    if seen.epoch < state.leader.epoch:
        return state
    if campaigns and seen.holder == me and seen.epoch > state.leader.epoch:
        return Candidacy(Standing.LEADS, seen, asked_s + lease_s * MISSED)
    return replace(state, leader=seen)


def passed(state: Candidacy, now: float, here: int) -> Candidacy:
    """Time has passed; `here` is how many machines are connected, itself included."""
    if state.standing is not Standing.LEADS or now < state.sure_until_s:
        return state
    if state.belong is not None and 2 * here > state.belong:
        return state
    return replace(state, standing=Standing.RETIRED)


def is_sure(state: Candidacy, now: float) -> bool:
    """Whether a leader knows that it is the only one."""
    return state.standing is Standing.LEADS and now < state.sure_until_s
