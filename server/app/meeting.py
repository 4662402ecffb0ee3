"""Where a machine's nodes find the leader: a file in its state folder that its candidate writes.

So nodes need no database, and go on with the leader they have while the candidate is away.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.defer import fail
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint
from twisted.internet.error import ConnectError

from ...protocol.disk.durable import write_whole
from ..cluster.identity import MutualTls, NodeIdentity
from ..http.clock import Reactor

_NAME = "cluster.json"
#: A leader that cannot be reached within so long, in seconds, may be the one that was lost: where
#: the next one is stands in the file by then.
_CONNECT_S = 1.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """Who leads in which epoch and where; an empty `host`: on this machine."""

    epoch: int
    host: str
    port: int
    identities: tuple[NodeIdentity, ...]


def write_meeting(state: Path, meeting: Meeting) -> None:
    """Tell the nodes; the file is never half there, and only this user can read it."""
    body = {
        "epoch": meeting.epoch,
        "host": meeting.host,
        "port": meeting.port,
        "identities": [[one.pem, one.made_s] for one in meeting.identities],
    }
    write_whole(state / _NAME, json.dumps(body).encode("ascii"), mode=0o600)


class MeetingFile:
    """Reads the file when it has changed."""

    def __init__(self, state: Path) -> None:
        self._path = state / _NAME
        self._seen: tuple[int, int] | None = None
        self._meeting: Meeting | None = None

    def read(self) -> Meeting | None:
        """The latest; None while there is none."""
        try:
            status = os.stat(self._path)
            seen = status.st_ino, status.st_mtime_ns
            if seen != self._seen:
                found: dict[str, Any] = json.loads(self._path.read_text("ascii"))
                identities = tuple(NodeIdentity(pem, made_s) for pem, made_s in found["identities"])
                self._meeting = Meeting(found["epoch"], found["host"], found["port"], identities)
                self._seen = seen
        except (OSError, ValueError, KeyError, TypeError):
            return self._meeting
        return self._meeting


class MeetingEndpoint:
    """A client endpoint that leads to the leader; `socket` is where it is on this machine."""

    def __init__(
        self, reactor: Reactor, state: Path, socket: Path, wall: Callable[[], float]
    ) -> None:
        self._reactor = reactor
        self._file = MeetingFile(state)
        self._socket = socket
        self._wall = wall

    @property
    def epoch(self) -> int:
        """The epoch of the latest leader that is known."""
        found = self._file.read()
        return found.epoch if found is not None else 0

    def connect(self, factory: Any) -> Any:
        """See `IStreamClientEndpoint`."""
        found = self._file.read()
        if found is None:
            return fail(ConnectError("nobody leads as yet"))  # type: ignore[no-untyped-call]
        if not found.host:
            near: Any = UNIXClientEndpoint
            return near(self._reactor, str(self._socket)).connect(factory)
        far: Any = HostnameEndpoint
        tls = MutualTls(found.identities, self._wall())
        endpoint = far(self._reactor, found.host, found.port, timeout=_CONNECT_S)
        return endpoint.connect(tls.around(factory, client=True))
