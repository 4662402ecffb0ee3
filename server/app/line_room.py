"""The line: how fast this process, or all nodes together, may send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..admission.line import Line, LineKeeper
from ..files.pacer import Pacer
from ..http.clock import Reactor
from ..http.unarrived import UnarrivedAnswers
from .parts import Part
from .settings import ServerConfig

if TYPE_CHECKING:
    from ..cluster.common_memory import CommonLine
    from ..cluster.leader import Nodes
    from ..cluster.line import FleetLine


class LineRoom:
    """A `ServerRoom`. Several processes serve where there is a `common` line: the `nodes`."""

    def __init__(self, config: ServerConfig, reactor: Reactor, common: CommonLine | None) -> None:
        self._bandwidth = config.bandwidth
        self.pacer = Pacer(reactor, config.bandwidth, common)
        self.answers = UnarrivedAnswers()
        self.nodes: Nodes | None = None
        self.fleet_line: FleetLine | None = None
        self.line: Line
        if config.gate.enabled:
            from ..gate.line import MoverLine

            self.line = MoverLine(self.pacer)
        elif common is None:
            self.line = LineKeeper(self.pacer, config.bandwidth, self.answers)
        else:
            from ..cluster.leader import Nodes
            from ..cluster.line import FleetLine

            self.nodes = Nodes(self.pacer.goodput_bytes_s)
            self.line = self.fleet_line = FleetLine(self.nodes, config.bandwidth)

    def parts(self) -> Iterator[Part]:
        """See `ServerRoom`: nothing starts or stops."""
        return iter(())

    def reconfigure(self, config: ServerConfig) -> None:
        if config.bandwidth == self._bandwidth:
            return
        self._bandwidth = config.bandwidth
        self.line.set_ceiling(config.bandwidth)
        if self.nodes is not None:
            # What this process sends itself, by multicast, is under the cap of its machine.
            self.pacer.set_bandwidth(config.bandwidth)
