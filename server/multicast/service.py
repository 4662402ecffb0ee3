"""Builds the multicast room and puts it in front of the gate."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..admission.gate import Gate
from ..admission.rules import NOTHING, Verdict
from ..files.site import Site
from ..files.transfer import Representation
from ..files.tree import Tree
from ..http.clock import Reactor
from ..http.request import Request
from .blocks import BlockHashes
from .demand import DemandDetector
from .routes import PREFIX, MulticastRoutes
from .schedule import ScheduleWatch
from .sessions import Sessions
from .settings import MulticastSettings
from .switch import MulticastSwitch, hurry


class MulticastSender:
    """The demand detector and the sessions. Raises `ProtocolError` for an unusable interface."""

    def __init__(
        self,
        reactor: Reactor,
        settings: MulticastSettings,
        rng: random.Random,
        charge: Callable[[int], None],
    ) -> None:
        self.hot = hot = DemandDetector(settings)
        self.sessions = Sessions(
            reactor,
            settings,
            rng,
            charge,
            lambda session, reason: hot.ended(
                session.object_key, session.id, never_began=session.waiting
            ),
        )

    def hurry(self, request: Request) -> float | None:
        """The poll interval of a waiting client that can receive; None: as the queue says."""
        return hurry(self.hot, self.sessions, request)


class MulticastRoom:
    """The sender in front of the gate; `switch` implements `Admission`."""

    def __init__(
        self,
        reactor: Reactor,
        sender: MulticastSender,
        tree: Tree,
        gate: Gate,
        state: Path,
        pool: Any,
    ) -> None:
        self._gate = gate
        self.sessions = sender.sessions
        hot, hashes = sender.hot, BlockHashes(reactor, pool)
        self.switch = MulticastSwitch(
            reactor, gate, tree, hot, hashes, self.sessions, self._eligible
        )
        self.schedule = ScheduleWatch(reactor, state, tree, hot, hashes, self.sessions)

    def add_routes(self, site: Site) -> None:
        site.add_route(PREFIX, MulticastRoutes(self.sessions), ("GET", "HEAD", "POST"))

    def start(self) -> None:
        self.schedule.start()

    def close(self) -> None:
        """End all sessions, and pass held requests on."""
        self.schedule.stop()
        self.switch.close()

    def _eligible(self, request: Request, rep: Representation) -> bool:
        """Whether the file is open to all clients: the gate decides on all other requests."""
        gate = self._gate
        verdict = gate.parts.rules.verdict(rep.url_path)
        if gate.draining or verdict not in (NOTHING, Verdict(multicast=True)):
            return False
        return request.client_address not in gate.reception.blocked
