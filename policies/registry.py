"""Policies by name, and the switch from one to another while the server runs."""

from __future__ import annotations

import random
from collections.abc import Mapping

from policies.adaptive import AdaptivePolicy
from policies.base import BasePolicy
from policies.fair import FairPolicy
from policies.fcfs import FcfsPolicy
from policies.job import AdmissionPolicy
from policies.queued import QueuedPolicy
from policies.reserve import ReservePolicy
from policies.settings import PolicySettings
from policies.ticket import TicketPolicy

POLICIES: Mapping[str, type[QueuedPolicy]] = {
    policy.name: policy
    for policy in (FcfsPolicy, ReservePolicy, TicketPolicy, FairPolicy, AdaptivePolicy)
}


def make_policy(
    name: str,
    settings: PolicySettings,
    rng: random.Random,
    previous: AdmissionPolicy | None = None,
) -> AdmissionPolicy:
    """Build the policy called `name`; it takes over all leases and tickets of `previous`.

    `previous` must not be used afterwards. No download is dropped and no ticket is lost: a policy
    that gives no tickets serves those it took over before anybody else. Call `advance` at once.
    Raises KeyError with the known names for an unknown one.
    """
    if name not in POLICIES:
        raise KeyError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    hall = previous.hall if isinstance(previous, BasePolicy) else None
    return POLICIES[name](settings, rng, hall)
