"""What a gate and the nginx in front of it need for a crowd, at its worst moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...protocol.units import format_size
from ..workloads import Workload
from .arithmetic import mean
from .metrics import columns
from .outcome import DOWNLOAD_FIELDS
from .plan import CrowdSample, play


@dataclass(frozen=True, slots=True)
class GateCosts:
    """What one thing costs, by `python -m bench.gate` and `python -m bench.gate --waiting 2000`."""

    #: CPU of the gate for a decision with its end report.
    decision_s: float = 185e-6
    #: CPU of the gate for a client that comes and waits inside its request.
    waiting_s: float = 300e-6
    waiting_gate_bytes: int = 10_000
    waiting_mover_bytes: int = 10_000
    #: A client that follows redirects asks again this often while it waits (docs/clients.md).
    asks_again_s: float = 8.0


COSTS = GateCosts()


@dataclass(frozen=True, slots=True)
class GatePlan:
    """What there must be for a crowd at its worst moment; `cpu` is the gate's part of one core."""

    slots: int
    waiting: int
    decisions_a_s: float
    cpu: float

    @property
    def connections(self) -> int:
        """Connections that nginx has open: of clients, and one to the gate for each that waits."""
        return 2 * self.waiting + self.slots

    @property
    def gate_bytes(self) -> int:
        return self.waiting * COSTS.waiting_gate_bytes

    @property
    def mover_bytes(self) -> int:
        return self.waiting * COSTS.waiting_mover_bytes


def filling_slots(workload: Workload, bandwidth_bytes_s: float) -> int:
    """How many downloads at once fill this line, each as fast as its client's own line."""
    wanted = sum(one.total_bytes for one in workload.visitors)
    alone_s = sum(one.total_bytes / one.rate_bytes_s for one in workload.visitors)
    return max(1, math.ceil(bandwidth_bytes_s * alone_s / wanted))


def plan_gate(crowd: CrowdSample, bandwidth_bytes_s: float, policy: str = "ticket") -> GatePlan:
    workload, each = crowd.workload, crowd.each
    slots = filling_slots(workload, bandwidth_bytes_s)
    at_once = max(1, round(slots / each))
    tally = play(workload, each, policy, bandwidth_bytes_s, slots=at_once).tally
    downloads = columns(tally.downloads, DOWNLOAD_FIELDS)
    changes = []
    for asked_s, admitted_s, ended_s in zip(
        *(downloads[name] for name in ("asked_s", "admitted_s", "ended_s")), strict=True
    ):
        until_s = ended_s if math.isnan(admitted_s) else admitted_s
        changes += [(asked_s, 1), (until_s, -1)]
    waiting = most = 0
    for _, change in sorted(changes):
        waiting += change
        most = max(most, waiting)
    wait = math.ceil(most * each)
    files = mean([float(len(one.files)) for one in workload.visitors])
    arrivals_a_s = crowd.people * files / crowd.within_s
    asks_a_s = wait / COSTS.asks_again_s
    cpu = arrivals_a_s * COSTS.decision_s + asks_a_s * COSTS.waiting_s
    return GatePlan(slots, wait, arrivals_a_s + asks_a_s, cpu)


def gate_rows(found: GatePlan) -> list[tuple[str, str, str]]:
    """What is needed: its name, how much, and why; a title first."""
    return [
        ("A gate for this crowd, with nginx in front", "", ""),
        ("slots", f"{found.slots}", "--slots, not under fair: as many clients fill the line"),
        ("wait at once", f"{found.waiting:,}", "inside their requests, at the worst moment"),
        ("connections of nginx", f"{found.connections:,}", "worker_connections of all workers"),
        ("memory of nginx", format_size(found.mover_bytes), "for those who wait"),
        ("memory of the gate", format_size(found.gate_bytes), "for those who wait"),
        (
            "decisions a second",
            f"{found.decisions_a_s:,.0f}",
            f"{100 * found.cpu:.0f} % of one core of the gate, if all ask again every "
            f"{COSTS.asks_again_s:.0f} s",
        ),
    ]
