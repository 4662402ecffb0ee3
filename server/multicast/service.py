"""Puts the multicast room together and in front of the gate."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from protocol.units import format_rate
from server.admission.gate import Gate
from server.admission.rules import NOTHING, Verdict
from server.files.site import Site
from server.files.transfer import Representation
from server.http.request import Request
from server.multicast.blocks import BlockHashes
from server.multicast.demand import Hot, HotSettings
from server.multicast.repair_maker import RepairMaker
from server.multicast.routes import METHODS, PREFIX, MulticastRoutes
from server.multicast.schedule import ScheduleWatch
from server.multicast.sessions import Sessions
from server.multicast.settings import MulticastSettings
from server.multicast.switch import MulticastSwitch

#: A rule that says no more than that a file may be multicast.
_ALLOWED = Verdict(multicast=True)


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
                settings.threshold,
                settings.window_s,
                settings.check_every_s,
                settings.least_bytes,
                settings.window_per_mib_s,
            )
        )
        self.sessions = Sessions(reactor, settings, rng, site.pacer.charge)
        self._maker = RepairMaker(reactor)
        if settings.fec in ("auto", "raptorq") and "raptorq" in self.sessions.schemes:
            self.sessions.maker = self._maker
        hashes = BlockHashes(reactor, pool)
        self.switch = MulticastSwitch(
            reactor, gate, site.tree, hot, hashes, self.sessions, self._eligible
        )
        self.schedule = ScheduleWatch(reactor, state, site.tree, hot, hashes, self.sessions)
        site.admission = self.switch
        gate.parts.waiting.hurry = self.switch.hurry
        site.add_route(PREFIX, MulticastRoutes(self.sessions), METHODS)

    def start(self) -> None:
        """Begin to look at the schedule."""
        if self.sessions.maker is not None:
            self._maker.start()
        self.schedule.start()

    def close(self) -> None:
        """Hold nobody, send nothing any more."""
        self.schedule.stop()
        self.switch.close()
        self._maker.close()

    def figures(self) -> tuple[int, int]:
        """How many sessions run, and how many receivers they have."""
        running = self.sessions.running
        return len(running), sum(session.counters.members for session in running)

    def lines(self) -> list[tuple[str, str, dict[str, str]]]:
        """Every running session for the admin page: name, state, facts."""
        return [
            (
                session.object_key,
                "sending",
                {
                    "group": f"{session.place.group} port {session.place.port}",
                    "code": session.fec.scheme,
                    "rate": format_rate(session.transmitter.rate_bytes_s),
                    "receivers": str(session.counters.members),
                    "done": str(session.counters.done),
                    "reports": str(session.counters.reports),
                },
            )
            for session in self.sessions.running
        ]

    def _eligible(self, request: Request, rep: Representation) -> bool:
        """What everybody may have can be sent to everybody; all else is the gate's to judge."""
        gate = self._gate
        verdict = gate.parts.rules.verdict(rep.url_path)
        if gate.draining or verdict not in (NOTHING, _ALLOWED):
            return False
        return request.client_address not in gate.reception.blocked
