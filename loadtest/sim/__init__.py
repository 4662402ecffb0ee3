"""Discrete-event simulation of a server that runs the real policies.

`run` is the whole interface for other rooms (the admin preview calls it in a worker process):

    outcome = run(workload, Scenario("ticket", slots=30, reserve_small=6), seed=1, picture=True)
    outcome.figures["mean_session_s"], outcome.svg
"""

from __future__ import annotations

from dataclasses import dataclass

from ..workloads import Workload
from .chronicle import Chronicle
from .chronology import draw
from .metrics import measure
from .scenario import Scenario

__all__ = ["Outcome", "Scenario", "run"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: its figures (named and explained in `metrics.MEANING`) and, if asked, its picture.

    `svg` is one self-contained `<svg>` element.
    """

    figures: dict[str, float]
    svg: str | None = None


def run(workload: Workload, scenario: Scenario, *, seed: int = 0, picture: bool = False) -> Outcome:
    """Play the workload against the policy; a pure function of its arguments.

    Raises pydantic's ValidationError for settings out of bounds and `engine.Starved` when the
    policy leaves somebody waiting for ever. Bounds and the HTTP control cost further work and are
    in `study.run_one`.
    """
    chronicle = Chronicle() if picture else None
    tally = scenario.simulate(workload, seed, chronicle)
    conditions = scenario.conditions(workload)
    figures = measure(workload, conditions, tally)
    svg = None
    if chronicle is not None:
        title = f"{workload.name}, {scenario.policy}"
        svg = draw(chronicle, conditions.bandwidth_bytes_s, title)
    return Outcome(figures, svg)
