"""Puts the multicast room together and in front of the gate."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from server.gate import Gate
from server.http.request import Request
from server.multicast.blocks import BlockHashes
from server.multicast.hot import Hot, HotSettings
from server.multicast.routes import METHODS, PREFIX, MulticastRoutes
from server.multicast.schedule import ScheduleWatch
from server.multicast.sessions import Sessions
from server.multicast.settings import MulticastSettings
from server.multicast.switch import MulticastSwitch
from server.rules import NOTHING
from server.site import Site
from server.transfer import Representation


class MulticastRoom:
    """Everything multicast of one server. Raises `ProtocolError` for an unusable interface."""

    def __init__(
        self,
        reactor: Any,
        settings: MulticastSettings,
        site: Site,
        gate: Gate,
        state: Path,
        rng: random.Random,
        pool: Any,
    ) -> None:
        self._gate = gate
        hot = Hot(
            HotSettings(
                settings.threshold, settings.window_s, settings.check_every_s, settings.least_bytes
            )
        )
        self.sessions = Sessions(reactor, settings, rng, site.pacer.charge)
        hashes = BlockHashes(reactor, pool)
        self.switch = MulticastSwitch(
            reactor, gate, site.tree, hot, hashes, self.sessions, self._eligible
        )
        self.schedule = ScheduleWatch(reactor, state, site.tree, hot, hashes, self.sessions)
        site.admission = self.switch
        site.add_route(PREFIX, MulticastRoutes(self.sessions), METHODS)

    def start(self) -> None:
        """Begin to look at the schedule."""
        self.schedule.start()

    def close(self) -> None:
        """Hold nobody, send nothing any more."""
        self.schedule.stop()
        self.switch.close()

    def _eligible(self, request: Request, rep: Representation) -> bool:
        """What everybody may have can be sent to everybody; all else is the gate's to judge."""
        gate = self._gate
        if gate.draining or gate.parts.rules.verdict(rep.url_path) is not NOTHING:
            return False
        return request.client_address not in gate.blocked
