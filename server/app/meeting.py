"""The file in the state folder that tells a machine's nodes where the leader is.

The machine's candidate writes it. So nodes need no database, and keep their leader while the
candidate is away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from twisted.internet.defer import fail
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectError

from ...protocol.disk.durable import write_whole
from ..cluster.identity import MutualTls, NodeIdentity
from ..http.clock import Reactor

_NAME = "cluster.json"


class Meeting(msgspec.Struct, frozen=True):
    """The leader of an epoch and its place; an empty `host` is this machine."""

    epoch: int
    host: str
    port: int
    identities: tuple[NodeIdentity, ...]


def write_meeting(state: Path, meeting: Meeting) -> None:
    """Write the file whole, readable only by this user."""
    write_whole(state / _NAME, msgspec.json.encode(meeting), mode=0o600)


def read_meeting(state: Path) -> Meeting | None:
    """What the file says; None before the first leader."""
    try:
        return msgspec.json.decode((state / _NAME).read_bytes(), type=Meeting)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return None


class MeetingEndpoint:
    """A client endpoint to the leader of the file; `socket` is its socket on this machine."""

    def __init__(
        self, reactor: Reactor, state: Path, socket: Path, wall: Callable[[], float]
    ) -> None:
        self._reactor = reactor
        self._state = state
        self._seen: tuple[int, int] | None = None
        self._meeting: Meeting | None = None
        self._socket = socket
        self._wall = wall
        #: The leader of this epoch runs another version of the program.
        self._foreign_epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch of the latest known leader."""
        found = self._read()
        return found.epoch if found is not None else 0

    def leave_leader(self) -> None:
        """Connect to the next leader only: messages of the present one cannot be read."""
        self._foreign_epoch = self.epoch

    def connect(self, factory: Any) -> Any:
        found = self._read()
        if found is None or found.epoch == self._foreign_epoch:
            return fail(ConnectError("nobody leads as yet"))  # type: ignore[no-untyped-call]
        if not found.host:
            near: Any = UNIXClientEndpoint
            return near(self._reactor, str(self._socket)).connect(factory)
        far: Any = HostnameEndpoint
        secured: Any = wrapClientTLS
        tls = MutualTls(found.identities, self._wall())
        # A leader that does not answer may be lost; the file then has the next one.
        endpoint = far(self._reactor, found.host, found.port, timeout=1.0)
        return secured(tls, endpoint).connect(factory)

    def _read(self) -> Meeting | None:
        """The latest content; None before the first."""
        try:
            status = os.stat(self._state / _NAME)
        except OSError:
            return self._meeting
        seen = status.st_ino, status.st_mtime_ns
        if seen != self._seen:
            self._meeting = read_meeting(self._state) or self._meeting
            self._seen = seen
        return self._meeting
