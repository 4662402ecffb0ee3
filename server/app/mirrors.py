"""Mirrors as the origin offers them: the configured ones, and the followers of a channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ...protocol.manifest import Source
from .settings import ServerConfig

if TYPE_CHECKING:
    from ..mirror.registry import MirrorDirectory, Registry


def configured_mirrors(config: ServerConfig) -> tuple[Source, ...]:
    """The mirrors named by the configuration, best first."""
    return tuple(
        Source(url if url.endswith("/") else url + "/", priority)
        for priority, url in enumerate(config.mirrors, start=1)
    )


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
