"""Answers torrent programs: `FILE.torrent`, magnet links, announces, scrapes.

Files that are hidden until their hour or that need a priority pass have no torrent: peers would
hand them on. The tracker knows only the torrents of this server.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from ...protocol.bounded_table import BoundedTable
from ...protocol.errors import ProtocolError
from ..files.manifests import when_ready
from ..files.openfile import OpenFile
from ..files.paths import TORRENT, split_path, url_of
from ..files.site import Site
from ..files.transfer import HasTorrent, kept_from_all
from ..files.tree import IsDirectory, NotHere
from ..http.answers import NO_STORE, Header
from ..http.clock import Clock
from ..http.request import Request
from .announce import peers_answer, read_announce, read_scrape, scrape_answer
from .metainfo import CannotMake, Metainfo, MetainfoStore, library
from .settings import TorrentSettings
from .swarm import Brake, Census, Swarm

ANNOUNCE = "/-/announce"
MAGNET = "/-/magnet"


class TorrentRoom:
    """Torrents and their tracker for one site. `now` is a clock that never runs backwards."""

    def __init__(
        self,
        reactor: Clock,
        settings: TorrentSettings,
        site: Site,
        store: MetainfoStore,
        has_torrent: HasTorrent,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._site = site
        self._store = store
        self._has_torrent = has_torrent
        self._rng = rng
        self._now = now
        self._brake = Brake()
        # Bounds the memory; the setting `peers` bounds each swarm.
        self._swarms: BoundedTable[bytes, Swarm] = BoundedTable(4096)
        self.announces_total = 0
        site.add_maker(self.answer)
        site.add_route(ANNOUNCE, self._announce)
        site.add_route("/-/scrape", self._scrape)
        site.add_route(MAGNET, self._magnet)

    def census(self) -> Census:
        """The numbers of peers of all torrents together."""
        now = self._now()
        counts = [swarm.census(now) for swarm in self._swarms.values()]
        return Census(
            sum(count.complete for count in counts),
            sum(count.incomplete for count in counts),
            sum(count.downloaded for count in counts),
        )

    def start(self) -> None:
        """Find the torrents that earlier processes made."""
        self._store.load()

    def stop(self) -> None:
        """Make no more torrents."""
        self._store.stop()

    # -- the torrent of a file ---------------------------------------------------------------

    def answer(self, request: Request, parts: list[bytes]) -> bool:
        """Answer a request for the torrent of a file here. False when the path names none."""
        if not parts or not parts[-1].endswith(TORRENT) or parts[-1] == TORRENT:
            return False
        file = self._find([*parts[:-1], parts[-1].removesuffix(TORRENT)])
        if file is None:
            return False

        def answer(made: Metainfo) -> None:
            body = made.document(self._tracker(request), self._seeds(request, made.url_path))
            tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            fields = [
                (b"Content-Type", b"application/x-bittorrent"),
                (b"ETag", tag.encode("ascii")),
                (b"Cache-Control", b"no-cache"),
            ]
            request.respond(200, fields, body)

        self._when_made(request, file, answer)
        return True

    def _magnet(self, request: Request) -> None:
        parts = split_path(request.path.removeprefix(MAGNET.encode("ascii")))
        file = self._find(parts) if parts else None
        if file is None:
            request.not_found()
            return

        def answer(made: Metainfo) -> None:
            name = file.rep.path.rpartition(b"/")[2].decode("utf-8")
            link = made.magnet(name, self._tracker(request), self._seeds(request, made.url_path))
            place = (b"Location", link.encode("ascii"))
            _respond(request, 302, link.encode("ascii") + b"\n", place)

        self._when_made(request, file, answer)

    def _find(self, parts: list[bytes]) -> OpenFile | None:
        url_path = url_of(b"/".join(parts))
        try:
            # A torrent names its file in UTF-8.
            parts[-1].decode("utf-8")
            if self._site.visibility.hidden(url_path):
                return None
            file = self._site.tree.open(parts)
        except (NotHere, IsDirectory, UnicodeDecodeError):
            return None
        if kept_from_all(self._site.visibility, self._site.tree.place_of(file)):
            return None
        return file if self._has_torrent(file.rep.url_path, file.rep.size_bytes) else None

    def _when_made(
        self, request: Request, file: OpenFile, answer: Callable[[Metainfo], None]
    ) -> None:
        when_ready(self._reactor, request, self._store.want(file), answer, (CannotMake,))

    @staticmethod
    def _tracker(request: Request) -> str:
        return request.origin.decode("latin-1") + ANNOUNCE

    def _seeds(self, request: Request, url_path: str) -> list[str]:
        mirrors = [source.url for source in self._site.fields.sources_of(url_path)]
        return [request.origin.decode("latin-1") + url_path, *mirrors]

    # -- the tracker -------------------------------------------------------------------------

    def _announce(self, request: Request) -> None:
        self.announces_total += 1
        address = request.client_address
        if not address:
            self._refuse(request, "Peers are known by their addresses, and you have none here.")
            return
        if not self._brake.allows(address, self._now()):
            self._refuse(request, "Your network announces too often; slow down.")
            return
        try:
            asked = read_announce(request.query, address)
        except ProtocolError as error:
            self._refuse(request, str(error))
            return
        swarm = self._swarm(asked.info_hash)
        if swarm is None:
            self._refuse(request, "This tracker knows only the torrents of this server.")
            return
        now = self._now()
        places = swarm.announce(asked.announce, now, self._rng)
        answer = peers_answer(places, swarm.census(now), self._settings.interval_s)
        _respond(request, 200, library().bencode(answer))

    def _scrape(self, request: Request) -> None:
        try:
            hashes = read_scrape(request.query)
        except ProtocolError as error:
            self._refuse(request, str(error))
            return
        found = {}
        for info_hash in hashes:
            swarm = self._swarm(info_hash)
            if swarm is not None:
                found[info_hash] = swarm.census(self._now())
        _respond(request, 200, library().bencode(scrape_answer(found)))

    def _swarm(self, info_hash: bytes) -> Swarm | None:
        """The swarm of a torrent whose file is still here and still open to all clients."""
        made = self._store.by_hash(info_hash)
        parts = split_path(made.url_path.encode("ascii")) if made is not None else None
        if made is None or not parts:
            return None
        file = self._find(parts)
        if file is None or file.rep.key != made.key:
            return None
        # Programs announce the two versions one by one: both have one swarm.
        swarm = self._swarms.use(made.v1)
        if swarm is None:
            swarm = Swarm(self._settings.interval_s, self._settings.peers)
            self._swarms[made.v1] = swarm
        return swarm

    @staticmethod
    def _refuse(request: Request, why: str) -> None:
        """Refuse as trackers do: status 200, and the reason inside (BEP 3)."""
        _respond(request, 200, library().bencode({b"failure reason": why.encode("utf-8")}))


def _respond(request: Request, status: int, body: bytes, *more: Header) -> None:
    fields = [(b"Content-Type", b"text/plain; charset=utf-8"), NO_STORE, *more]
    request.respond(status, fields, body)
