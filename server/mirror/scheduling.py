"""Let a publish be sent once to all: put its update on the multicast schedule of the server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...protocol.batch_generate import GeneratedUpdate
from ...protocol.channel import Edge
from ..multicast.schedule import ScheduledSend, write_entry

#: The server looks for entries once a second; by then it has opened their sessions.
LOOK_S = 1.5


def schedule_updates(
    state: Path,
    prefix: str,
    channel: str,
    updates: Iterable[tuple[Edge, GeneratedUpdate]],
    at: float,
) -> list[str]:
    """Schedule the updates (not the snapshots: those who need one come one by one).

    `state` is the state folder of the server that serves the publish directory under the URL path
    `prefix`; `at` is seconds since 1970. The URL paths scheduled. Raises OSError.
    """
    paths = []
    for edge, made in updates:
        if edge.from_version:
            folder, _, name = edge.target_path(channel).rpartition("/")
            path = f"/{prefix.strip('/')}/targets/{folder}/{made.sha256}.{name}".replace("//", "/")
            write_entry(state, ScheduledSend(path, at))
            paths.append(path)
    return paths
