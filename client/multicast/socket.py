"""The receiving socket: joined to one group on one interface, with a deep buffer.

Source-specific where the offer says so (the kernel then drops what others send to the group), any
source where the kernel refuses that. With `UDP_GRO` one read may give many datagrams of equal size.
Sockets are ours, not Twisted's, which reads one datagram a call and has no source-specific join.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import ipaddress
import socket
import struct

from ...protocol.session import Offer
from ..net.errors import LocalProblem

_TIMESPEC = struct.Struct("@ll")


class Linux(enum.IntEnum):
    """Numbers of Linux that Python's `socket` lacks (linux/udp.h, sockios.h, in.h, sock_diag.h)."""

    SOL_UDP = 17
    UDP_GRO = 104
    SO_RCVBUFFORCE = 33
    SO_MEMINFO = 55
    #: The place of the drops in what SO_MEMINFO gives.
    MEMINFO_DROPS = 8
    SIOCGSTAMPNS = 0x8907
    IP_ADD_SOURCE_MEMBERSHIP = 39
    MCAST_JOIN_SOURCE_GROUP = 46


class GroupSocket:
    """Open from construction to `close`. Raises `LocalProblem` when the group cannot be joined.

    `interface` is an address of this host ("": the one this host reaches the sender from), for
    IPv6 optionally with `%name`.
    """

    def __init__(self, offer: Offer, interface: str) -> None:
        group = ipaddress.ip_address(offer.group)
        family = socket.AF_INET6 if group.version == 6 else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self.source_specific = False
        interface = interface or _towards(offer.source, family)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.buffer_bytes = self._deepen()
            # Bound to the group itself, so datagrams for other groups on this port stay away.
            self._socket.bind((offer.group, offer.port))
            if group.version == 6:
                self._join_6(offer, interface)
            else:
                self._join_4(offer, interface)
        except OSError as error:
            self._socket.close()
            raise LocalProblem(
                f"cannot join the multicast group {offer.group} on "
                f"{interface or 'the default interface'}: {error.strerror or error}"
            ) from error
        with contextlib.suppress(OSError):
            self._socket.setsockopt(Linux.SOL_UDP, Linux.UDP_GRO, 1)
        # A read with GRO gives 64 KiB at most.
        self._slots = [memoryview(bytearray(1 << 16)) for _ in range(32)]

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> list[memoryview]:
        """The datagrams that are there, valid until the next call. Raises OSError."""
        found = []
        with contextlib.suppress(BlockingIOError):
            for slot in self._slots:
                found.append(slot[: self._socket.recv_into(slot)])
        return found

    def close(self) -> None:
        """Leaves the group; harmless when closed."""
        self._socket.close()

    @property
    def room_datagrams(self) -> int:
        """How many datagrams the kernel keeps for us before it drops some."""
        # What the kernel accounts for a datagram of Ethernet size, about.
        return max(1, self.buffer_bytes // 2304)

    def overruns(self) -> int:
        """How many datagrams the kernel dropped because we were late."""
        with contextlib.suppress(OSError):
            info = self._socket.getsockopt(socket.SOL_SOCKET, Linux.SO_MEMINFO, 64)
            if len(info) >= 4 * (Linux.MEMINFO_DROPS + 1):
                return int(struct.unpack_from("@I", info, 4 * Linux.MEMINFO_DROPS)[0])
        return 0

    def arrived_us(self) -> int | None:
        """When the datagram last read reached this host, in microseconds of the wall clock."""
        with contextlib.suppress(OSError):
            seconds, nanoseconds = _TIMESPEC.unpack(
                fcntl.ioctl(self._socket, Linux.SIOCGSTAMPNS, bytes(_TIMESPEC.size))
            )
            return int(seconds) * 1_000_000 + int(nanoseconds) // 1000
        return None

    def _deepen(self) -> int:
        for option in (Linux.SO_RCVBUFFORCE, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, option, 16 << 20)
                break
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    def _join_4(self, offer: Offer, interface: str) -> None:
        group = socket.inet_aton(offer.group)
        local = socket.inet_aton(interface or "0.0.0.0")
        if offer.ssm:
            with contextlib.suppress(OSError):
                request = group + local + socket.inet_aton(offer.source)
                self._socket.setsockopt(socket.IPPROTO_IP, Linux.IP_ADD_SOURCE_MEMBERSHIP, request)
                self.source_specific = True
                return
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + local)

    def _join_6(self, offer: Offer, interface: str) -> None:
        index = _index_of(interface)
        if offer.ssm:
            with contextlib.suppress(OSError):
                request = struct.pack(
                    "@I4x128s128s", index, _sockaddr_6(offer.group), _sockaddr_6(offer.source)
                )
                self._socket.setsockopt(socket.IPPROTO_IPV6, Linux.MCAST_JOIN_SOURCE_GROUP, request)
                self.source_specific = True
                return
        request = socket.inet_pton(socket.AF_INET6, offer.group) + struct.pack("@I", index)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)


def _towards(source: str, family: socket.AddressFamily) -> str:
    """Our address on the way to the sender; "" when there is no way. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((source, 9))
        return str(probe.getsockname()[0])
    return ""


def _sockaddr_6(address: str) -> bytes:
    packed = socket.inet_pton(socket.AF_INET6, address)
    return struct.pack("@HHI16sI", socket.AF_INET6, 0, 0, packed, 0)


def _index_of(interface: str) -> int:
    """The index of `ADDRESS`, `ADDRESS%NAME` or `NAME`; 0 (the kernel chooses) if unknown."""
    address, _, name = interface.partition("%")
    with contextlib.suppress(OSError):
        if name:
            return int(name) if name.isdigit() else socket.if_nametoindex(name)
        if interface and ":" not in interface:
            return socket.if_nametoindex(interface)
    with contextlib.suppress(OSError, ValueError):
        wanted = f"{int(ipaddress.IPv6Address(address)):032x}"
        with open("/proc/net/if_inet6", encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if fields[0] == wanted:
                    return int(fields[1], 16)
    return 0
