"""What a configuration needs of its machine: `serve` looks at its start, `config check` before."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from ...protocol.errors import ProtocolError
from ..gate.settings import NO_FILES
from .config import CannotStart, LoadedConfig
from .files_room import open_tree
from .listeners import find_addresses, tls_server
from .log_outlets import log_file
from .queue_room import open_waiting_pages
from .settings import ServerConfig
from .sources import gate_secrets
from .state_lock import look_at_state


def start_faults(loaded: LoadedConfig) -> list[str]:
    """What keeps a server of this user from starting, a sentence each."""
    faults, config = [], loaded.config
    # `serve` may be given another directory than the default, and the gate makes its own.
    given = "directory" in loaded.origins and config.directory != config.state / NO_FILES
    tree = (lambda _: open_tree(loaded).close()) if given else lambda _: 0
    places = tree, find_addresses, look_at_state, _access_log
    checks: tuple[Callable[[ServerConfig], object], ...] = *places, tls_server, open_waiting_pages
    for check in (*checks, gate_secrets, _multicast, _packages):
        try:
            check(config)
        except (CannotStart, ProtocolError) as fault:
            faults.append(str(fault))
    return faults


def _multicast(config: ServerConfig) -> None:
    if config.multicast.enabled:
        from ..multicast.sessions import usable_interface

        usable_interface(config.multicast)


def _access_log(config: ServerConfig) -> None:
    log = log_file(config.access_log)
    if log is None or (log.is_relative_to("/var/log") and not os.path.lexists(log.parent)):
        # The folder may be one that systemd makes at the start (LogsDirectory=).
        return
    # `Path.exists` fails where this user may not look.
    if not os.access(log if os.path.lexists(log) else log.parent, os.W_OK):
        raise CannotStart(
            f"The access log {log} cannot be opened: this user cannot write there, or its folder "
            "is missing."
        )


def _packages(config: ServerConfig) -> None:
    if config.torrent.enabled:
        from ..torrent.metainfo import library

        try:
            library()
        except ImportError as fault:
            raise CannotStart(
                "torrents need the package libtorrent 2.1.1 or later: install tidegate with its "
                "extra, tidegate[peers], or leave torrent.enabled out."
            ) from fault
    if config.oidc.issuer and importlib.util.find_spec("joserfc") is None:
        raise CannotStart(
            "oidc.issuer needs the package joserfc: install tidegate with its extra, "
            "tidegate[oidc], or leave oidc.issuer out."
        )
