"""One file's exchange of pieces with other downloaders, by libtorrent.

The library keeps its pieces in a file of its own: it writes what peers send before it has checked
it, and must not do that over bytes that came from the server. It checks each piece against the
torrent's hashes; what the download itself checks beside that is the download's business.
"""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ...protocol.errors import ProtocolError
from ...protocol.intervals import IntervalSet, Span
from ..net.errors import LocalProblem
from ..net.near import may_lead
from ..net.urls import BadUrl, parse


class BadTorrent(ProtocolError):
    """What the server sent as the file's torrent is none, or is one of another file."""

    code = "bad-torrent"


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """How many peers are connected, and what they were given so far."""

    peers: int
    sent_bytes: int


def _library() -> Any:
    try:
        import libtorrent
    except ImportError as error:
        raise LocalProblem(
            "--peers needs the package libtorrent: install tidegate with its extra, tidegate[peers]"
        ) from error
    return libtorrent


def _may_ask(server: str, tracker: str) -> bool:
    try:
        aim = parse(tracker.replace("udp:", "http:", 1))
    except BadUrl:
        return False
    return aim.host == server or (not aim.is_near and may_lead((server,), aim.host))


class Exchange:
    """Pieces of one file, kept in `folder` until `stop`, which removes it.

    `listen` are the addresses at which peers may reach us, all with one port; `upload_bytes_s`
    bounds what they are sent. `size_bytes` is what the file must have, None while unknown. The
    torrent may name trackers at the host `server` that sent it, or that this host may lead to.
    Nothing waits here: call `poll` now and then. Raises BadTorrent.
    """

    def __init__(
        self,
        document: bytes,
        folder: Path,
        size_bytes: int | None,
        *,
        server: str,
        upload_bytes_s: float,
        listen: Sequence[str],
        random: Random,
    ) -> None:
        lt = self._lt = _library()
        try:
            wanted = self._wanted = lt.load_torrent_buffer(document)
        except (RuntimeError, ValueError, TypeError) as error:
            raise BadTorrent(f"the server's torrent cannot be read: {error}") from error
        info = wanted.ti
        if size_bytes not in (None, info.total_size()) or info.num_files() != 1:
            raise BadTorrent("the server's torrent is of another file")
        if info.piece_length() > 64 << 20:
            raise BadTorrent("the server's torrent has too large pieces")
        # All of them are asked at once.
        wanted.trackers = [url for url in wanted.trackers if _may_ask(server, url)][:8]
        self.size_bytes: int = info.total_size()
        self.piece_bytes: int = info.piece_length()
        self._count: int = info.num_pieces()
        self._folder = folder
        self._random = random
        self._listen = tuple(listen)
        self._settings = {
            "upload_rate_limit": max(1, int(upload_bytes_s)),
            "user_agent": "tidegate",
            "enable_dht": False,
            "enable_upnp": False,
            "enable_natpmp": False,
            "enable_lsd": True,
            "stop_tracker_timeout": 1,
            # TCP first: it carried a crowd in two thirds of the time, and is what lines expect.
            "enable_outgoing_utp": False,
            # A peer that could not be reached is tried again after this, each time longer.
            "min_reconnect_time": 15,
            "announce_to_all_trackers": True,
            "allow_multiple_connections_per_ip": True,
            "alert_mask": lt.alert.category_t.error_notification
            | lt.alert_category.piece_progress
            | lt.alert.category_t.status_notification,
        }
        self._session: Any = None
        self._handle: Any = None
        #: Pieces that the library has, or was given.
        self._known: set[int] = set()
        self._order = list(range(self._count))
        random.shuffle(self._order)
        self._availability: list[int] = []
        #: Pieces that peers are sending.
        self._coming: frozenset[int] = frozenset()
        self._asked_s: float | None = None

    def span(self, piece: int) -> Span:
        start = piece * self.piece_bytes
        return start, min(self.size_bytes, start + self.piece_bytes)

    def start(self) -> None:
        """Raises LocalProblem when there is no place for the pieces."""
        lt = self._lt
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise LocalProblem(f"no folder for what peers send: {error}") from error
        wanted = self._wanted
        wanted.save_path = str(self._folder)
        wanted.storage_mode = lt.storage_mode_t.storage_mode_sparse
        flags = lt.torrent_flags
        wanted.flags &= ~flags.auto_managed & ~flags.paused
        # The server is asked by the download, under its ticket.
        wanted.url_seeds = wanted.http_seeds = []
        wanted.flags |= flags.override_web_seeds | flags.override_trackers
        # The library would take a port of its own for each address, and tell the local network
        # that of the first, the loopback's, for all of them.
        with socket.create_server(("", 0)) as probe:
            port = int(probe.getsockname()[1])
        places = ",".join(f"{address}:{port}" for address in self._listen)
        self._session = lt.session({**self._settings, "listen_interfaces": places})
        self._handle = self._session.add_torrent(wanted)

    @property
    def port(self) -> int:
        return int(self._session.listen_port())

    def meet(self, host: str, port: int) -> None:
        """Connect to a peer that is known by other means than the tracker."""
        self._handle.connect_peer((host, port))

    def reach_further(self) -> None:
        """From now on try uTP first: it may get through to peers behind address translation."""
        self._session.apply_settings({"enable_outgoing_utp": True})

    def poll(self) -> Iterator[tuple[int, bytes]]:
        """Offset and bytes of each piece that peers have brought since the last call."""
        lt = self._lt
        for alert in self._session.pop_alerts():
            if isinstance(alert, lt.piece_finished_alert):
                if alert.piece_index not in self._known:
                    self._handle.read_piece(alert.piece_index)
            elif (
                isinstance(alert, lt.read_piece_alert)
                and alert.piece not in self._known
                and alert.buffer is not None
            ):
                self._known.add(alert.piece)
                yield self.span(alert.piece)[0], bytes(alert.buffer)

    def share(self, have: IntervalSet, read: Callable[[int, int], bytes]) -> None:
        """Give the peers what came from elsewhere: every piece that is whole by now.

        `read(start, end)` gives the bytes of the file.
        """
        for piece in range(self._count):
            if piece in self._known or not have.covers(*self.span(piece)):
                continue
            self._known.add(piece)
            self._handle.add_piece(piece, read(*self.span(piece)), 0)

    def from_origin(self, free: IntervalSet, now: float) -> Span | None:
        """Which of the free bytes the server should be asked for: what fewest peers have.

        A piece that was begun comes first: it is of no use before it is whole.
        """
        # What peers have and send is taken as known for half a second.
        if self._asked_s is None or now - self._asked_s >= 0.5:
            self._asked_s = now
            self._availability = list(self._handle.piece_availability())
            queue = self._handle.get_download_queue()
            self._coming = frozenset(part["piece_index"] for part in queue)
        rarity = self._availability or [0] * self._count
        best: tuple[bool, bool, int] | None = None
        chosen: Span | None = None
        for piece in self._order:
            span = free.first(piece * self.piece_bytes)
            start, end = self.span(piece)
            if span is None or span[0] >= end:
                continue
            rank = (span[0] <= start and span[1] >= end, piece in self._coming, rarity[piece])
            if best is None or rank < best:
                best, chosen = rank, (span[0], min(span[1], end))
                if rank == (False, False, 0):
                    break
        if chosen is None or best is None:
            return chosen
        return chosen[0], self._run_end(chosen, best[2], rarity, free)

    def _run_end(self, span: Span, rarity: int, rarities: list[int], free: IntervalSet) -> int:
        """The pieces that follow belong to it as long as they are as rare and wholly free."""
        end = span[1]
        # No request to the origin is longer: meanwhile a peer may have the rest.
        while end < self.size_bytes and end - span[0] < 4 << 20:
            piece = end // self.piece_bytes
            following = self.span(piece)
            if end != following[0] or rarities[piece] != rarity or piece in self._coming:
                break
            if not free.covers(*following):
                break
            end = following[1]
        return end

    def figures(self) -> PeerFigures:
        status = self._handle.status()
        return PeerFigures(int(status.num_peers), int(status.total_payload_upload))

    def stop(self) -> None:
        """Leave, and remove what was kept."""
        session, self._session = self._session, None
        if session is not None:
            session.remove_torrent(self._handle)
            self._handle = None
            # The last reference waits for the library's threads, and for the tracker's farewell.
            held = [session]
            del session
            threading.Thread(target=held.clear, name="peers-end").start()
        shutil.rmtree(self._folder, ignore_errors=True)
