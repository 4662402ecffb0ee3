"""Mirrors as the origin offers them: the configured ones, and the followers of a channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from protocol.manifest import Source
from server.admission.responses import WaitingRoom
from server.app.settings import ServerConfig
from server.files.site import Site
from server.mirror.registry import MirrorDirectory
from server.mirror.routes import PREFIX, MirrorOrigin


def configured_mirrors(config: ServerConfig) -> tuple[Source, ...]:
    """The mirrors named by the configuration, best first."""
    return tuple(
        Source(url if url.endswith("/") else url + "/", priority)
        for priority, url in enumerate(config.mirrors, start=1)
    )


def offer_followers(
    config: ServerConfig, reactor: Any, now: Callable[[], float], site: Site, waiting: WaitingRoom
) -> MirrorOrigin | None:
    """Offer the followers of a channel beside this server; None where none is published."""
    if config.mirror_publish is None:
        return None
    origin = MirrorOrigin(config.mirror_publish, reactor, now, site.forget_all)
    site.add_route(PREFIX, origin.handle, ("GET", "HEAD", "POST"))
    if config.mirror_channel is not None:
        directory = MirrorDirectory(
            origin.registry,
            config.mirror_channel,
            now,
            config.mirror_prefix,
            _url_path_of(config.mirror_publish, config.directory),
        )
        site.said.elsewhere = directory.urls_for
        waiting.elsewhere = lambda path: directory.urls_for(path, only_free=True)
    return origin


def _url_path_of(folder: Path, root: Path) -> str | None:
    """The URL path, slashes at both ends, under which a folder of the served tree is seen."""
    inside, outside = folder.resolve(), root.resolve()
    if not inside.is_relative_to(outside):
        return None
    path = inside.relative_to(outside).as_posix()
    return "/" if path == "." else f"/{quote(path)}/"
