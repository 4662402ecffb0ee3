"""Policies by name, and the switch from one to another while the server runs.

A policy is found by an entry point of the group `tidegate.policies` whose name is the policy's;
ours are found without one, so that a source tree works uninstalled.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from .adaptive import AdaptivePolicy
from .admission import AdmissionPolicy
from .fair import FairPolicy
from .fcfs import FcfsPolicy
from .hooks import Policy
from .leases import LeasePool
from .reserve import ReservePolicy
from .settings import COMMON, PolicySettings
from .state import AdmissionState
from .ticket import TicketPolicy

GROUP = "tidegate.policies"


@dataclass(frozen=True, slots=True)
class FoundPolicies:
    """Policies by name, and what is wrong with those that cannot be used."""

    policies: Mapping[str, type[Policy]]
    faults: Mapping[str, str]


def find_policies(points: Iterable[EntryPoint] | None = None) -> FoundPolicies:
    """All policies, ours first, then those of other distributions by name.

    A foreign policy that does not load, or breaks the rules of a name, is a fault of its own and
    keeps no other from its work.
    """
    ours = (FcfsPolicy, ReservePolicy, TicketPolicy, FairPolicy, AdaptivePolicy)
    found: dict[str, type[Policy]] = {policy.name: policy for policy in ours}
    faults: dict[str, str] = {}
    our_modules = {policy.__module__ for policy in ours}
    known = entry_points(group=GROUP) if points is None else points
    for point in sorted(known, key=lambda point: (point.name, point.value)):
        if point.value.partition(":")[0] in our_modules:
            continue
        try:
            kind = point.load()
        except Exception as fault:  # noqa: BLE001 - anything may go wrong in foreign code
            faults[point.name] = f"does not load ({fault}): mend or remove its distribution"
            continue
        wrong = _wrong_with(kind, point, found)
        if wrong is None:
            found[point.name] = kind
        else:
            faults[point.name] = wrong
    return FoundPolicies(MappingProxyType(found), MappingProxyType(faults))


def _wrong_with(kind: Any, point: EntryPoint, found: Mapping[str, type[Policy]]) -> str | None:
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        return f"{point.value} must be a subclass of policies.hooks.Policy"
    if kind.name != point.name:
        return f"{point.value} calls itself {kind.name!r}: give both the same name"
    if not kind.summary:
        return f"{point.value} needs a `summary` in one line"
    unknown = sorted(set(kind.reads) - set(PolicySettings.model_fields))
    if unknown:
        return f"{point.value} reads settings that do not exist: {', '.join(unknown)}"
    if found.get(kind.name, kind) is not kind:
        return f"{point.value} takes a name that is in use: rename or remove it"
    return None


_FOUND = find_policies()
POLICIES = _FOUND.policies


def unknown_policy(name: str) -> str:
    """What is wrong with a name that is none of `POLICIES`, and what to do."""
    if name in _FOUND.faults:
        return f"the installed policy {name!r} cannot be used: {_FOUND.faults[name]}"
    return f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}"


def readers_of(setting: str) -> tuple[str, ...]:
    """The policies that read this setting."""
    return tuple(
        name for name, kind in POLICIES.items() if setting in COMMON or setting in kind.reads
    )


def make_policy(
    name: str,
    settings: PolicySettings,
    rng: random.Random,
    previous: AdmissionPolicy | None = None,
    *,
    can_pause: bool = True,
) -> AdmissionPolicy:
    """Build the policy called `name`; it takes over all leases and tickets of `previous`.

    Without one, `can_pause` says whether a download that runs can be paused here.

    `previous` must not be used afterwards. No download is dropped and no ticket is lost: a policy
    that gives no tickets serves those it took over before all others. Call `advance` at once.
    Raises KeyError with the known names for an unknown one.
    """
    if name not in POLICIES:
        raise KeyError(unknown_policy(name))
    pool = LeasePool(can_pause=can_pause)
    state = AdmissionState(pool) if previous is None else previous.state
    return AdmissionPolicy(POLICIES[name], settings, rng, state)
