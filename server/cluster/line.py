"""The lines of a fleet: each machine has one of its own, its processes share it.

What nodes tell four times a second stands in for what a single process sees of its sockets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from ...policies.contract import LineSeen
from ..admission.downloads import LeasedDownload
from ..admission.line import Line, LineKeeper, Outlet, ToldSight
from .leader import Node, Nodes, RemoteTransfer


@dataclass(slots=True)
class _Machine(Outlet):
    """What leaves one machine, by what its nodes tell. They do not hear of what stands still."""

    cap_bytes_s: float | None
    here: list[Node] = field(default_factory=list)
    sent_bytes_total: int = 0
    waiting_networks: int = 0
    #: When its nodes reported last, when that was by their own clock, and what each had sent.
    received_s: float = 0.0
    at_s: float = 0.0
    _counted: dict[Node, int] = field(default_factory=dict)

    @property
    def link_busy(self) -> bool:
        return any(node.told.link_busy for node in self.here)

    @property
    def flying_bytes(self) -> int:
        """What was sent and has not arrived."""
        return sum(node.told.flying_bytes for node in self.here)

    def goodput_bytes_s(self) -> float:
        return sum(node.told.goodput_bytes_s for node in self.here)

    def set_bandwidth(self, bandwidth_bytes_s: float | None) -> None:
        self.cap_bytes_s = bandwidth_bytes_s

    def update(self, nodes: list[Node]) -> bool:
        """Take over what these have told; whether all of them have said something new."""
        self.here = nodes
        if any(node.told_s <= self.received_s for node in nodes):
            return False
        self.received_s = max(node.told_s for node in nodes)
        # A message may lie here or there while a process has no turn: what counts is when it was
        # so. The nodes of a machine tell at different moments, so the middle of these is its time.
        self.at_s = fmean(node.told.at_s for node in nodes)
        for node in nodes:
            # What a node sent before it came here is not of this time.
            before = self._counted.get(node, node.told.sent_bytes_total)
            self.sent_bytes_total += node.told.sent_bytes_total - before
        self._counted = {node: node.told.sent_bytes_total for node in nodes}
        return True


class FleetLine(Line):
    """The line of the machines of `nodes`; each has at most `bandwidth_bytes_s`.

    Each process counts the networks that it serves, and watches the bodies that have ended.
    """

    def __init__(self, nodes: Nodes, bandwidth_bytes_s: float | None) -> None:
        self._nodes = nodes
        self._ceiling_bytes_s = bandwidth_bytes_s
        self._lines: dict[str, tuple[_Machine, LineKeeper]] = {}

    @property
    def line_bytes_s(self) -> float:
        """What all lines carry; infinite while none is known, or one has no bound at all."""
        found = [keeper.line_bytes_s for _, keeper in self._lines.values()]
        if all(line == math.inf for line in found):
            return math.inf
        return sum(min(line, self._most_bytes_s) for line in found)

    @property
    def lines(self) -> Mapping[str, LineSeen]:
        """See `Line`: one of each machine."""
        most = self._most_bytes_s
        return {
            name: LineSeen(min(keeper.line_bytes_s, most), one.goodput_bytes_s(), one.link_busy)
            for name, (one, keeper) in self._lines.items()
        }

    @property
    def _most_bytes_s(self) -> float:
        return math.inf if self._ceiling_bytes_s is None else self._ceiling_bytes_s

    @property
    def busy(self) -> bool:
        return any(node.told.link_busy for node in self._nodes)

    def goodput_bytes_s(self) -> float:
        return self._nodes.goodput_bytes_s()

    def cap_of(self, machine: str) -> float | None:
        """What this machine may send; None: as much as it can."""
        found = self._lines.get(machine)
        return found[0].cap_bytes_s if found is not None else self._ceiling_bytes_s

    @property
    def capacity_bytes_s(self) -> float | None:
        """What all machines together may send; None while one may send as much as it can."""
        caps = [machine.cap_bytes_s for machine, _ in self._lines.values()]
        known = [one for one in caps or [self._ceiling_bytes_s] if one is not None]
        return sum(known) if len(known) == max(1, len(caps)) else None

    def set_ceiling(self, bandwidth_bytes_s: float | None) -> None:
        """See `Line`; for each machine."""
        self._ceiling_bytes_s = bandwidth_bytes_s
        for _, keeper in self._lines.values():
            keeper.set_ceiling(bandwidth_bytes_s)

    def held_back(self, download: LeasedDownload) -> bool | None:
        """See `Line`: by the line that it is on."""
        found = self._lines.get(_machine_of(download))
        return found[1].held_back(download) if found is not None else False

    def looked(self, now: float, downloads: Collection[LeasedDownload]) -> None:
        """See `Line`: on their lines."""
        for name, on_it in _by_machine(downloads).items():
            if name in self._lines:
                self._lines[name][1].looked(now, on_it)

    def tick(self, now: float, downloads: Collection[LeasedDownload], asleep_bytes: int) -> None:
        """Look at each line whose nodes have all told how far they are since the last time."""
        by_machine: dict[str, list[Node]] = {}
        for node in self._nodes:
            by_machine.setdefault(node.machine, []).append(node)
        for name in self._lines.keys() - by_machine.keys():
            del self._lines[name]
        on = _by_machine(downloads)
        for name, nodes in by_machine.items():
            if name not in self._lines:
                machine = _Machine(self._ceiling_bytes_s)
                self._lines[name] = machine, LineKeeper(machine, self._ceiling_bytes_s)
            machine, keeper = self._lines[name]
            if machine.update(nodes):
                # Whose these are is not known: on one machine, its own.
                asleep = asleep_bytes // len(by_machine)
                seen = ToldSight(machine.at_s, machine.flying_bytes)
                keeper.tick(now, on.get(name, ()), asleep, seen)


def _by_machine(downloads: Collection[LeasedDownload]) -> dict[str, list[LeasedDownload]]:
    on: dict[str, list[LeasedDownload]] = {}
    for download in downloads:
        on.setdefault(_machine_of(download), []).append(download)
    return on


def _machine_of(download: LeasedDownload) -> str:
    """Where most of its bodies are."""
    bodies = [
        one.transfer.machine
        for one in download.deliveries
        if isinstance(one.transfer, RemoteTransfer)
    ]
    # Nearly all have one, and hundreds are asked at every tick.
    if len(bodies) == 1:
        return bodies[0]
    found = Counter(bodies)
    return max(found, key=lambda name: (found[name], name)) if found else ""
