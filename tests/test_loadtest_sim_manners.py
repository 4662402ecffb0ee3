"""Rudeness does not pay: rude clients and attackers cost polite ones little, in the simulator."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tidegate.loadtest.sim.conditions import RUDE
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import columns
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS, SimClient
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import make_workload, scaled, with_rude
from tidegate.policies.contract import Admit, Job, Wait
from tidegate.policies.settings import PolicySettings

#: The fraction of the clients that can be rude.
RUDE_FRACTION = 0.1
#: How often each attacker strikes, seconds. A hoarder asks under eight names of one address, a
#: ghost each time from another address.
PAUSES = {"hoarder": 0.2, "ghost": 1.0}
REQUEST_S = 0.003
HOARDER_NAMES = 8


class MannersEngine(Engine):
    """The simulator's engine with attackers beside the visitors."""

    def __init__(self, attackers: Sequence[str], seed: int, *world: Any) -> None:
        workload, policy, conditions = world
        super().__init__(workload, policy, conditions, seed)
        self._draw = random.Random(f"attack/{seed}")
        files = (file for visitor in self.workload.visitors for file in visitor.files)
        self._prey = max(files, key=lambda file: file.size_bytes)
        self._nobody = SimClient(-1, self.workload.visitors[0])
        #: How often each attacker struck.
        self.strikes = Counter(dict.fromkeys(attackers, 0))
        for attacker in attackers:
            self._at(0.0, self._striking(attacker), self._nobody)

    def _striking(self, attacker: str) -> Callable[[SimClient], None]:
        return lambda client: self._strike(attacker)

    def _strike(self, attacker: str) -> None:
        self.strikes[attacker] += 1
        names = HOARDER_NAMES if attacker == "hoarder" else 1 << 62
        size = self._prey.size_bytes
        job = Job(f"{attacker}#{self._draw.randrange(names)}", self._prey.name, size, size)
        decision = self._driver.offer(job, self.now)
        took_s = REQUEST_S
        if isinstance(decision, Wait):
            took_s += decision.answer_after_s
        elif isinstance(decision, Admit):
            lease = decision.lease
            self._at(self.now + 1e-3, lambda client: self._hang_up(lease), self._nobody)
        self._settle()
        again_s = self.now + took_s + PAUSES[attacker]
        self._at(again_s, lambda client: self._strike(attacker), self._nobody)

    def _hang_up(self, lease: int) -> None:
        if any(held.lease == lease for held in self.policy.leases()):
            self._driver.end(lease, self.now, self._prey.size_bytes - 1, done=False)
            self._settle()


@dataclass(frozen=True, slots=True)
class Waits:
    """Mean waits of one run for large files, in the paper's seconds."""

    polite_s: float
    rude_s: float


def _scaled_settings(time_scale: float) -> dict[str, Any]:
    """All durations divided by `time_scale`."""
    return {
        name: field.default / time_scale
        for name, field in PolicySettings.model_fields.items()
        if isinstance(extra := field.json_schema_extra, dict)
        and extra.get("unit") == "s"
        and isinstance(field.default, float)
    }


def waits(seed: int, time_scale: float, *, rude: bool, attackers: Sequence[str]) -> Waits:
    """Experiment 2 at half its bandwidth under Ticket, with these attackers.

    The attackers do not follow the time scale: at 1 they are ten times as strong as at 10.
    """
    marked = with_rude(make_workload("exp2", seed), RUDE_FRACTION)
    workload = scaled(marked if rude else make_workload("exp2", seed), time_scale=time_scale)
    scenario = Scenario(
        "ticket",
        bandwidth=0.5,
        reserve_small=6,
        tick_s=0.25,
        hold=False,
        settings=_scaled_settings(time_scale),
    )
    conditions = replace(
        scenario.conditions(workload),
        attempt_s=REQUEST_S,
        accept_s=0.0,
        rude_manners=replace(RUDE, own_retry_s=1.0 / time_scale),
    )
    policy = scenario.make_policy(workload, seed)
    engine = MannersEngine(attackers, seed, workload, policy, conditions)
    found = columns(engine.run().downloads, DOWNLOAD_FIELDS)
    downloads = {name: np.asarray(column) for name, column in found.items()}
    assert all(engine.strikes.values()), "an attacker never struck"
    large = downloads["size_bytes"] >= workload.small_below_bytes
    wait_s = (downloads["first_byte_s"] - downloads["asked_s"]) * time_scale
    is_rude = np.array([visitor.rude for visitor in marked.visitors])
    of_rude = is_rude[downloads["client"].astype(int)]
    mean = Waits(float(wait_s[large & ~of_rude].mean()), float(wait_s[large & of_rude].mean()))
    assert mean.polite_s > 0.0
    assert mean.rude_s > 0.0
    return mean


@pytest.mark.parametrize(("time_scale", "seeds"), [(1.0, (31,)), (10.0, (31, 32))])
def test_polite_clients_hardly_notice_attackers(time_scale: float, seeds: tuple[int, ...]) -> None:
    lost = []
    for seed in seeds:
        calm = waits(seed, time_scale, rude=False, attackers=())
        attacked = waits(seed, time_scale, rude=True, attackers=tuple(PAUSES))
        lost.append(attacked.polite_s / calm.polite_s - 1.0)
    assert statistics.fmean(lost) < 0.05
