"""Other ways of the files: multicast, a mover, followers of a mirror channel, torrents of peers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ...protocol.errors import ProtocolError
from ..files.pacer import Pacer
from ..files.site import Site
from ..files.transfer import HasTorrent
from ..http.clock import Reactor
from .config import CannotStart, start_fault
from .settings import ServerConfig, split_address

if TYPE_CHECKING:
    from ..gate.room import GateRoom
    from ..gate.signing import Signer
    from ..mirror.registry import MirrorDirectory, Registry
    from ..multicast.service import MulticastSender
    from ..torrent.room import TorrentRoom


def followers_of(
    config: ServerConfig, registry: Registry | None, now: Callable[[], float]
) -> MirrorDirectory | None:
    """Where else files can be had: at the followers of the channel that is served, if any."""
    if registry is None or config.mirror_publish is None or config.mirror_channel is None:
        return None
    from ..mirror.registry import MirrorDirectory

    return MirrorDirectory(
        registry,
        config.mirror_channel,
        now,
        config.mirror_prefix,
        _url_path_of(config.mirror_publish, config.directory),
    )


def _url_path_of(folder: Path, root: Path) -> str | None:
    """The URL path, slashes at both ends, under which a folder of the served tree is seen."""
    inside, outside = folder.resolve(), root.resolve()
    if not inside.is_relative_to(outside):
        return None
    path = inside.relative_to(outside).as_posix()
    return "/" if path == "." else f"/{quote(path)}/"


def multicast_sender(
    config: ServerConfig, reactor: Reactor, rng: random.Random, pacer: Pacer
) -> MulticastSender | None:
    """What sends hot files once for all; None where it is off. Raises CannotStart."""
    if not config.multicast.enabled:
        return None
    from ..multicast.service import MulticastSender

    try:
        return MulticastSender(reactor, config.multicast, rng, pacer.charge)
    except ProtocolError as fault:
        raise CannotStart(str(fault)) from fault


def torrent_room(
    config: ServerConfig, reactor: Reactor, site: Site, has_torrent: HasTorrent, rng: random.Random
) -> TorrentRoom | None:
    """What torrent programs are answered; None where there are no torrents."""
    if not config.torrent.enabled:
        return None
    from ..torrent.metainfo import MetainfoStore
    from ..torrent.room import TorrentRoom

    store = MetainfoStore(reactor, config.state / "torrents")
    return TorrentRoom(reactor, config.torrent, site, store, has_torrent, rng, reactor.seconds)


def gate_room(
    config: ServerConfig,
    reactor: Reactor,
    now: Callable[[], float],
    pacer: Pacer,
    shares: Callable[[], int],
) -> GateRoom:
    """What hands bodies to a mover. Raises CannotStart."""
    from ..gate.room import GateRoom
    from ..gate.settings import report_place, socket_path

    own, (sign, log_secret) = config.gate, gate_secrets(config)
    place = report_place(config.gate.report, config.listen[0])
    address = split_address(place) if socket_path(place) is None else ("", 0)
    journal = config.state / "moves"
    return GateRoom(reactor, own, place, address, pacer, shares, journal, sign, log_secret, now)


def gate_secrets(config: ServerConfig) -> tuple[Signer | None, bytes]:
    """The signer of URLs, and the secret of the posted log. Raises CannotStart."""
    own, sign, log_secret, setting = config.gate, None, b"", "gate.sign_file"
    try:
        if own.origin:
            from ..gate.signing import signer_of

            sign = signer_of(own.origin, own.sign, own.sign_file)
        setting = "gate.log_secret_file"
        if own.log_secret_file is not None:
            from ..gate.posted_log import read_secret

            log_secret = read_secret(own.log_secret_file)
    except (ValueError, OSError) as fault:
        raise CannotStart(f"{setting}: {start_fault(fault) or fault}") from fault
    return sign, log_secret
