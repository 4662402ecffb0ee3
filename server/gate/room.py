"""The gate as a room of the server: reports, sockets, and the admission in front."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from twisted.logger import Logger

from ..files.disk import disk_pool, let_go
from ..files.pacer import Pacer
from ..files.paths import split_path
from ..files.site import Site
from ..files.transfer import Admission, Representation
from ..http.answers import JSON_NOW, Header
from ..http.clock import Reactor, in_pool
from ..http.request import ListenerBounds, Request
from .authorize import asked_about
from .found_again import MovesJournal, request_of
from .handover import MoverAdmission, one_range_only
from .inet_diag import GONE, InetDiag
from .movers import FIELDS, read_mover
from .moves import Moves
from .origin import TUNING, OriginStore, ask
from .origin_files import OriginFiles, OriginTerms
from .posted_log import PostedLog
from .reports import ReportSocket, read_posted
from .settings import GateSettings, socket_path
from .signing import Signer

_log = Logger()


class GateRoom:
    """What a server has whose bodies are sent by a mover.

    `place` is where the mover reports, `address` the same as host and port where it is no unix
    socket. `shares` says into how many rates the bandwidth is divided. `journal` is the file of
    what is on its way. `sign` makes URLs of the origin, where one has files that are not
    in the directory; the origin's log comes with `log_secret` if that is not empty.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: GateSettings,
        place: str,
        address: tuple[str, int],
        pacer: Pacer,
        shares: Callable[[], int],
        journal: Path,
        sign: Signer | None,
        log_secret: bytes,
        wall: Callable[[], float],
    ) -> None:
        self._reactor = reactor
        self._pacer = pacer
        self._shares = shares
        self._settings = settings
        self._wall = wall
        self._origin: OriginStore | None = None
        if sign is not None:
            self._pool = disk_pool(TUNING.threads, "origin")
            self._origin = OriginStore(
                *(reactor, sign, wall),
                lambda url, path: in_pool(reactor, self._pool, ask, url, path),
                is_posted=bool(log_secret),
            )
        self._diag = InetDiag(reactor, lambda name, state: self.moves.destroyed(name, state))
        self.place = place
        self._journal = MovesJournal(journal)
        self.moves = Moves(
            reactor,
            self._diag.look,
            self._moved,
            random.SystemRandom(),
            settings.claim_s,
            self._journal.end,
            self._diag.find,
        )
        self.log = PostedLog(reactor, self.moves, log_secret) if log_secret else None
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
        origin = self._origin
        self._movers = MoverAdmission(
            self._reactor,
            inner,
            self.moves,
            lambda rep: is_current(rep) or (origin is not None and origin.is_current(rep)),
            again,
            self._rate_bytes_s,
            self._journal.begin,
            origin,
        )
        return self._movers

    def serve_origin(
        self,
        site: Site,
        inner: Admission,
        follows: Callable[[Request], bool],
    ) -> None:
        """Let `site` answer for the files of the origin, if there is one."""
        if self._origin is None:
            return

        def fields(rep: Representation, mtime_s: int) -> list[Header]:
            return [one for one in site.fields.fields(rep, mtime_s, None) if one[0] != b"Link"]

        own = self._settings
        terms = OriginTerms(
            *(site.visibility, fields, follows, self._wall, own.redirect, own.assumed_bytes_s)
        )
        site.add_maker(OriginFiles(self._origin, self._movers, inner, terms))

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
        alive = [body for body in kept if self._diag.look(body.socket) not in (None, GONE)]
        for body in alive:
            request = request_of(body, factory)
            parts = split_path(request.path)
            if self._origin is not None and parts:
                # Its answer must be known, or others could have the slot before it comes.
                self._origin.look_now(b"/".join(parts))
            answer(request)
        if kept:
            _log.info(
                "Of {kept} files that were on their way when the gate ended, {alive} still are.",
                kept=len(kept),
                alive=len(alive),
            )

    def answer(self, request: Request) -> None:
        """Tell how bodies have ended, and how this request came (`settings.ROUTE`).

        A mover without datagrams posts its reports here. What it passes on of a client has its
        field: a client of Caddy knows the lease of its own download.
        """
        mover = request.header(FIELDS.mover)
        if mover is None and request.by_proxy:
            for report in read_posted(request.body):
                self.moves.receive(report)
        where = read_mover(mover)
        name = where.socket if where is not None else None
        told = {
            **asdict(self.moves.counts),
            "moving": len(self.moves),
            # A path of this machine is no stranger's business.
            "report": self.place if request.client_address in ("", "127.0.0.1", "::1") else "",
            "client": request.client_address,
            "trusted": request.by_proxy,
            "mover": where.mover if where is not None else "",
            "origin": self._origin is not None,
            "seen": name is not None and self._diag.look(self._diag.find(name)) is not None,
        }
        request.respond(200, JSON_NOW, json.dumps(told).encode())

    def authorize(self, request: Request) -> None:
        """Tell Envoy whether it may send what it asks about; others pass words of clients on."""
        where = read_mover(request.header(FIELDS.mover)) if request.by_proxy else None
        if where is not None and where.mover == "envoy" and asked_about(request):
            one_range_only(request)
            self._movers.again(request)
        else:
            request.not_found()

    def stop(self) -> None:
        """Receive no more."""
        self.moves.stop()
        self._reports.close()
        self._journal.close()
        self._diag.close()
        if self._origin is not None:
            let_go(self._pool)

    def _moved(self, count: int) -> None:
        self._pacer.sent_bytes_total += count

    def _rate_bytes_s(self) -> float | None:
        """An even share of the configured line: a mover is told a rate once for all."""
        bandwidth_bytes_s = self._pacer.bandwidth_bytes_s
        return None if bandwidth_bytes_s is None else bandwidth_bytes_s / self._shares()
