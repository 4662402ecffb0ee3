"""Builds the multicast room and puts it in front of the gate."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...protocol.errors import ProtocolError
from ...protocol.session import decode_report, encode_answer
from ..admission.gate import Gate
from ..admission.rules import NOTHING, Verdict
from ..files.site import Site
from ..files.transfer import Representation
from ..files.tree import Tree
from ..http.answers import JSON_NOW, NO_STORE
from ..http.clock import Reactor
from ..http.proxies import block_of
from ..http.request import Request
from .blocks import BlockHashes
from .demand import DemandDetector
from .live import LiveSession
from .schedule import ScheduleWatch
from .sessions import Sessions
from .settings import MulticastSettings
from .switch import MulticastSwitch, hurry

PREFIX = "/-/multicast"


class MulticastRoutes:
    """The requests of receivers under `PREFIX`: report, hashes, repair, status."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def __call__(self, request: Request) -> None:
        if request.path == PREFIX.encode():
            self._status(request)
            return
        match = re.fullmatch(rb"/-/multicast/([0-9a-f]{16})/(report|hashes|repair)", request.path)
        session = self._sessions.get(int(match[1], 16)) if match else None
        if match is None or session is None:
            request.refuse(404, "no-such-session", "There is no such multicast session (any more).")
            return
        what = match[2]
        if what == b"hashes":
            _send(request, b"".join(session.hashes))
        elif request.method != b"POST":
            request.refuse(405, "method-not-allowed", "Only POST.", [(b"Allow", b"POST")])
        elif what == b"report":
            self._report(request, session)
        else:
            self._repair(request, session)

    def _report(self, request: Request, session: LiveSession) -> None:
        try:
            report = decode_report(request.body, session.layout.blocks, session.is_member)
        except ProtocolError as error:
            request.refuse(error.status, error.code, str(error))
            return
        window_s = session.report_window_s(report.member)
        answer = session.report(report)
        if answer.action == "continue" and answer.report_window_s == window_s:
            request.respond(204)
        else:
            request.respond(200, JSON_NOW, encode_answer(answer))

    def _repair(self, request: Request, session: LiveSession) -> None:
        one = rb"[0-9]{1,18}-[0-9]{1,18}"
        match = re.fullmatch(rb"([\w-]{1,64}) bytes=(%b(?:,%b)*)" % (one, one), request.body)
        ranges: list[tuple[int, int]] = []
        for text in match[2].split(b",") if match else ():
            first, _, last = text.partition(b"-")
            ranges.append((int(first), int(last) + 1))
        size = session.layout.size_bytes
        total = sum(end - first for first, end in ranges)
        if not ranges or any(not 0 <= first < end <= size for first, end in ranges):
            request.refuse(400, "bad-repair", "Write MEMBER bytes=FIRST-LAST,... inside the file.")
            return
        data = None
        # Bounds the memory for one repair answer.
        if match is not None and total <= 1 << 20:
            data = session.repair(match[1].decode(), block_of(request.client_address), ranges)
        if data is None:
            request.refuse(409, "too-much-repair", "Fetch the rest as ranges of the file itself.")
        else:
            _send(request, data)

    def _status(self, request: Request) -> None:
        """What is sent, without names: a file may be hidden until its hour."""
        rows = [
            {
                "session": f"{session.id:016x}",
                "phase": session.carousel.phase.value,
                "members": len(session.carousel.receivers),
                "rate_bytes_s": int(session.transmitter.rate_bytes_s),
                "sent_bytes": session.transmitter.sent_bytes,
            }
            for session in self._sessions.running
        ]
        request.respond(200, JSON_NOW, json.dumps({"sessions": rows}).encode())


def _send(request: Request, data: bytes) -> None:
    request.respond(200, [(b"Content-Type", b"application/octet-stream"), NO_STORE], data)


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
