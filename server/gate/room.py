"""The gate as a room of the server: reports, sockets, and the admission in front."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from twisted.logger import Logger

from ..files.pacer import Pacer
from ..files.transfer import Admission, Representation
from ..http.clock import Reactor
from ..http.request import ListenerBounds, Request
from .found_again import MovesJournal, request_of
from .handover import MoverAdmission
from .inet_diag import InetDiag
from .moves import Moves
from .reports import ReportSocket
from .settings import GateSettings, socket_path

_log = Logger()


class GateRoom:
    """What a server has whose bodies are sent by a mover.

    `place` is where the mover reports, `address` the same as host and port where it is no unix
    socket. `slots` says how many downloads share the configured bandwidth. `journal` is the file
    of what is on its way.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: GateSettings,
        place: str,
        address: tuple[str, int],
        pacer: Pacer,
        slots: Callable[[], int],
        journal: Path,
    ) -> None:
        self._reactor = reactor
        self._pacer = pacer
        self._slots = slots
        self._bandwidth_bytes_s: float | None = pacer.bandwidth_bytes_s
        self._diag = InetDiag(reactor, lambda name, state: self.moves.destroyed(name, state))
        self.place = place
        self.moves = Moves(
            reactor,
            self._diag.look,
            self._moved,
            random.SystemRandom(),
            settings.claim_s,
            self._ended,
            self._diag.find,
        )
        self._journal = MovesJournal(journal)
        self._reports = ReportSocket(
            reactor, self.moves.receive, path=socket_path(place), address=address
        )

    def admission(
        self,
        inner: Admission,
        is_current: Callable[[Representation], bool],
        again: Callable[[Request], None],
    ) -> MoverAdmission:
        """The admission that stands before `inner`."""
        return MoverAdmission(
            self._reactor,
            inner,
            self.moves,
            is_current,
            again,
            self._rate_bytes_s,
            self._journal.begin,
        )

    def start(self, answer: Callable[[Request], None], factory: ListenerBounds) -> None:
        """Receive reports, and admit what movers still send of an earlier run by `answer`.

        Raises OSError.
        """
        try:
            self._reports.open()
        except OSError as fault:
            text = f"no reports can be received here ({fault.strerror}); choose another --report"
            raise OSError(fault.errno, text, self.place) from fault
        self._diag.start()
        self.moves.start()
        kept = self._journal.open()
        alive = [body for body in kept if self._diag.look(body.socket) is not None]
        for body in alive:
            answer(request_of(body, factory))
        if kept:
            _log.info(
                "Of {kept} files that were on their way when the gate ended, {alive} still are.",
                kept=len(kept),
                alive=len(alive),
            )

    def answer(self, request: Request) -> None:
        """Tell how bodies have ended (`settings.ROUTE`)."""
        told = {**asdict(self.moves.counts), "moving": len(self.moves), "report": self.place}
        fields = [(b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store")]
        request.respond(200, fields, json.dumps(told).encode())

    def stop(self) -> None:
        """Receive no more."""
        self.moves.stop()
        self._reports.close()
        self._journal.close()
        self._diag.close()

    def _ended(self, lease: str) -> None:
        self._journal.end(lease)

    def _moved(self, count: int) -> None:
        self._pacer.sent_bytes_total += count

    def _rate_bytes_s(self) -> float | None:
        """An even share of the configured line: a mover is told a rate once for all."""
        if self._bandwidth_bytes_s is None:
            return None
        return self._bandwidth_bytes_s / max(1, self._slots())
