"""Puts the updates of a publish on the server's multicast schedule."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...protocol.batch_generate import GeneratedUpdate
from ...protocol.channel import Edge
from ..multicast.schedule import ScheduledSend, write_entry

#: The server reads its schedule once a second: after this time it has opened the sessions.
LOOK_S = 1.5


def schedule_updates(
    state: Path,
    prefix: str,
    channel: str,
    updates: Iterable[tuple[Edge, GeneratedUpdate]],
    at: float,
) -> list[str]:
    """Schedule the updates. Returns their URL paths. Raises OSError.

    Snapshots are not scheduled: new mirrors come one by one. `state` is the state folder of the
    server that serves the publish directory under the URL path `prefix`; `at` is Unix time.
    """
    paths = []
    for edge, made in updates:
        if edge.from_version:
            folder, _, name = edge.target_path(channel).rpartition("/")
            path = f"/{prefix.strip('/')}/targets/{folder}/{made.sha256}.{name}".replace("//", "/")
            write_entry(state, ScheduledSend(path, at))
            paths.append(path)
    return paths
