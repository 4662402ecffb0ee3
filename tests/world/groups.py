"""Multicast in memory: a sender's socket and those of the receivers that have joined its group.

A network loses datagrams: each receiver has its own loss, and one in eight is not reached at all.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.protocol.session import Offer

    from .wire import MemoryNetwork

#: The parts of the datagrams that are lost on the way to a receiver.
_LOSSES = (0.0, 0.0, 0.0, 0.005, 0.02, 0.1, 0.4, 1.0)
#: A receiver's kernel keeps so many datagrams, and a sender's what the line carries in this time.
_KEPT, _WAITING_S = 400, 0.04


class MemoryGroups:
    """All groups of a network."""

    def __init__(self, network: MemoryNetwork, rng: random.Random) -> None:
        self.network, self.rng = network, rng
        self.members: dict[tuple[str, int], dict[MemoryGroupSocket, None]] = {}

    def join(self, offer: Offer, interface: str) -> MemoryGroupSocket:
        """Stands for `client.multicast.socket.GroupSocket`."""
        return MemoryGroupSocket(self, (offer.group, offer.port))

    def sender(self, interface: object, group: str, port: int, *_: object) -> MemoryGroupSender:
        """Stands for `server.multicast.udp.GroupSender`."""
        return MemoryGroupSender(self, (group, port))


class MemoryGroupSender:
    """Implements `server.multicast.transmitter.Sender`."""

    def __init__(self, groups: MemoryGroups, place: tuple[str, int]) -> None:
        self._groups, self._place = groups, place
        self._sent_s = 0.0

    def waiting_bytes(self) -> float:
        """See `Sender`."""
        wire = self._groups.network.wire
        return max(0.0, self._sent_s - self._groups.network.schedule.now) * wire.rate_bytes_s

    def send_one(self, datagram: bytes) -> bool:
        """See `Sender`."""
        return self.send_equal([datagram], 1, len(datagram)) == 1

    def send_equal(self, pieces: Sequence[bytes | memoryview], parts: int, size: int) -> int:
        """See `Sender`."""
        network = self._groups.network
        now, rate = network.schedule.now, network.wire.rate_bytes_s
        room = max(1, int((_WAITING_S - max(0.0, self._sent_s - now)) * rate / size))
        if self._sent_s > now + _WAITING_S:
            return 0
        count = min(room, len(pieces) // parts)
        data = [b"".join(pieces[at : at + parts]) for at in range(0, count * parts, parts)]
        self._sent_s = max(now, self._sent_s) + count * size / rate
        delay_s = self._sent_s - now + network.latency_s
        for one in tuple(self._groups.members.get(self._place, ())):
            network.schedule.after(delay_s, one.arrived, data)
        return count

    def close(self) -> None:
        """See `Sender`."""


class MemoryGroupSocket:
    """Stands for `client.multicast.socket.GroupSocket`."""

    room_datagrams = _KEPT

    def __init__(self, groups: MemoryGroups, place: tuple[str, int]) -> None:
        self._groups, self._place = groups, place
        self._loss = groups.rng.choice(_LOSSES)
        self._kept: deque[bytes] = deque()
        self._drops = 0
        #: What is called while there is something to read.
        self.watch: Callable[[], None] | None = None
        groups.members.setdefault(place, {})[self] = None

    def fileno(self) -> int:
        """See `GroupSocket`."""
        return 0 if self in self._groups.members.get(self._place, ()) else -1

    def arrived(self, datagrams: list[bytes]) -> None:
        """What the network brings."""
        rng = self._groups.rng
        came = [one for one in datagrams if rng.random() >= self._loss]
        self._drops += max(0, len(self._kept) + len(came) - _KEPT)
        self._kept.extend(came[: max(0, _KEPT - len(self._kept))])
        self.look()

    def look(self) -> None:
        """Call the one that watches."""
        if self.watch is not None and self._kept:
            self.watch()

    def read(self) -> list[memoryview]:
        """See `GroupSocket`."""
        found = [memoryview(one) for one in self._kept]
        self._kept.clear()
        return found

    def overruns(self) -> int:
        """See `GroupSocket`."""
        return self._drops

    def arrived_us(self) -> int | None:
        """See `GroupSocket`."""
        return int(self._groups.network.schedule.wall() * 1e6)

    def close(self) -> None:
        """See `GroupSocket`."""
        self.watch = None
        self._groups.members.get(self._place, {}).pop(self, None)


def put_groups(put: Callable[[Any, str, Any], None], groups: Callable[[], MemoryGroups]) -> None:
    """Have both sides use them while a world runs."""
    from types import SimpleNamespace

    from tidegate.client.multicast import reception
    from tidegate.server.multicast import sessions

    put(sessions, "GroupSender", lambda *words: groups().sender(*words))
    put(sessions, "interface_mtu", lambda interface, group: 1500)
    put(sessions, "is_wireless", lambda interface: False)
    put(reception, "GroupSocket", lambda *words: groups().join(*words))
    seeded = SimpleNamespace(Random=lambda: random.Random(groups().rng.getrandbits(64)))
    put(reception, "random", seeded)
    clock = SimpleNamespace(time_ns=lambda: int(groups().network.schedule.wall() * 1e9))
    put(reception, "time", clock)
