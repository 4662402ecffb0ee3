"""Who leads: a machine's view of the lease in the database, as a state that answers change.

The database alone says who leads (`store.cluster`). A leader that does not renew its lease in time
leads no more, whatever the reason. Its process ends, and the next one begins as a follower.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from ..store.cluster import Seat


class Standing(enum.StrEnum):
    """What a machine is in the cluster."""

    FOLLOWS = "follows"
    LEADS = "leads"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Candidacy:
    """One machine's standing.

    `leader` is the last known leader (epoch 0: there was none). `until_s` is when a leader's lease
    ends, on its own clock.
    """

    standing: Standing = Standing.FOLLOWS
    leader: Seat = field(default_factory=Seat)
    until_s: float = 0.0


def answered(
    state: Candidacy, me: str, seen: Seat, asked_s: float, lease_s: float, *, campaigns: bool = True
) -> Candidacy:
    """The database said who leads. It was asked at `asked_s`, so no lease began earlier.

    A process that does not campaign never leads: a lease that names its machine is of an earlier
    process, and a second one would lead in the same epoch.
    """
    if state.standing is Standing.RETIRED:
        return state
    if state.standing is Standing.LEADS:
        if seen.epoch != state.leader.epoch:
            return replace(state, standing=Standing.RETIRED, leader=seen)
        return replace(state, until_s=asked_s + lease_s)
    if seen.epoch < state.leader.epoch:
        return state
    if campaigns and seen.holder == me and seen.epoch > state.leader.epoch:
        return Candidacy(Standing.LEADS, seen, asked_s + lease_s)
    return replace(state, leader=seen)


def passed(state: Candidacy, now: float) -> Candidacy:
    """Time has passed: a lease that was not renewed is over."""
    if state.standing is Standing.LEADS and now >= state.until_s:
        return replace(state, standing=Standing.RETIRED)
    return state
