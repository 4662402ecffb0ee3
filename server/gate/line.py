"""The line of a gate: what the operator says that it carries. No cap holds a download back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from ...policies.contract import FULL_PART, ONE_LINE, LineSeen
from ..admission.downloads import LeasedDownload
from ..files.pacer import Pacer
from ..files.transfer import Transfer


class MoverLine:
    """Implements `server.admission.line.Line`. The pacer counts what movers send as well."""

    lines: Mapping[str, LineSeen] = ONE_LINE

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        #: Whether all that was told lately fills the line, and any client may be faster than it is.
        self.busy = False
        self.goodput_bytes_s = pacer.goodput_bytes_s
        self.set_ceiling = pacer.set_bandwidth

    @property
    def line_bytes_s(self) -> float:
        """The configured bandwidth."""
        return self._pacer.bandwidth_bytes_s or math.inf

    def held_back(self, download: LeasedDownload) -> bool:
        """A client of a line that is not full takes what it can, or all that its mover was told."""
        bodies = [one.transfer for one in download.deliveries]
        return self.busy or any(one is not None and one.tcp_state().in_slow_start for one in bodies)

    def ended(self, transfer: Transfer, now: float) -> None:
        """A mover's report comes when its client has nearly all."""

    def wanted_by(self, networks: int) -> None:
        self._pacer.waiting_networks = networks

    def looked(self, now: float, downloads: Collection[LeasedDownload]) -> None:
        """No socket of a download is this process's."""

    def tick(self, now: float, downloads: Collection[LeasedDownload], asleep_bytes: int) -> None:
        """Look whether the line is full."""
        self.busy = self.goodput_bytes_s() >= FULL_PART * self.line_bytes_s
