"""The sending socket: multicast out of one interface, many datagrams a system call where possible.

Linux splits one large send into equal datagrams (`UDP_SEGMENT`): five times cheaper here than one
call a datagram. Some devices and kernels refuse it (EIO, EINVAL, ENOPROTOOPT); the first refusal
switches this socket to single sends for good. Sockets are ours, not Twisted's: Twisted reads one
datagram a call, and knows neither segmentation nor source-specific joins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
import statistics
import struct
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...protocol.errors import ProtocolError

_SOL_UDP = 17
_SIOCGIFADDR, _SIOCOUTQ = 0x8915, 0x5411
_NETWORK = Path("/sys/class/net")
_UDP_SEGMENT = 103
#: The kernel takes at most 64 segments and 65 507 bytes a call.
_MOST_SEGMENTS = 64
_MOST_BYTES = 65_000
#: Of linux/in.h and linux/in6.h. `DO`: what does not fit is an error, never sent in fragments, of
#: which one lost loses all.
_IP_MTU_DISCOVER, _IP_MTU = 10, 14
_IPV6_MTU_DISCOVER, _IPV6_MTU = 23, 24
_PMTUDISC_DO = struct.pack("@i", 2)
_NO_OFFLOAD = frozenset({errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP})
_LATER = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})
#: What may wait in this host, as time at the session's rate: enough for a process that gets its
#: core late, and no more than a short qdisc holds, which so drops nothing of ours.
_WAITING_S = 0.04
_LEAST_SEND_BUFFER, _MOST_SEND_BUFFER = 64 << 10, 1 << 20
#: The kernel counts a datagram of Ethernet size as about 2304 bytes, and grants twice the number.
#: Of what it splits itself it counts 1.04 to 1.57 bytes each, as the queue on the interface has it.
_KERNEL_BYTES = 2304 / 1472
_KERNEL_SHARE = _KERNEL_BYTES / 2
#: So many sends say what the kernel counts here.
_SENDS = 9


@dataclass(frozen=True, slots=True)
class Interface:
    """Where multicast goes out: an address of this host, and for IPv6 the interface's index."""

    address: str
    index: int = 0

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.address


def find_interface(text: str) -> Interface:
    """An IPv4 address, an IPv6 address, or `ADDRESS%INTERFACE`. Raises `ProtocolError`."""
    address, _, name = text.partition("%")
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise ProtocolError(
            f"{text!r} is no address of an interface; give an IPv4 or IPv6 address of this host"
        ) from error
    if parsed.version == 4:
        return Interface(str(parsed))
    if name:
        try:
            return Interface(
                str(parsed), int(name) if name.isdigit() else socket.if_nametoindex(name)
            )
        except OSError as error:
            raise ProtocolError(f"there is no interface called {name!r}") from error
    return Interface(str(parsed), _index_of(parsed))


def _index_of(address: ipaddress.IPv6Address) -> int:
    wanted = f"{int(address):032x}"
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as table:
            for line in table:
                digits, index, *_ = line.split()
                if digits == wanted:
                    return int(index, 16)
    except OSError:
        pass
    raise ProtocolError(f"no interface here has the address {address}; write ADDRESS%INTERFACE")


def is_wireless(interface: Interface) -> bool:
    """Whether it is Wi-Fi, which sends groups at its lowest rate and never again (RFC 9119)."""
    index = interface.index or _index_of_4(interface.address)
    with contextlib.suppress(OSError):
        return (_NETWORK / socket.if_indextoname(index) / "wireless").exists()
    return False


def _index_of_4(address: str) -> int:
    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for index, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("@256s", name.encode())
                if fcntl.ioctl(probe, _SIOCGIFADDR, asked)[20:24] == wanted:
                    return index
    return 0


class GroupSender:
    """A UDP socket connected to one group. `rate_bytes_s`: what it will be used for at most."""

    def __init__(
        self, interface: Interface, group: str, port: int, ttl: int, rate_bytes_s: float
    ) -> None:
        family = socket.AF_INET6 if interface.is_ipv6 else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            waiting = int(rate_bytes_s * _WAITING_S * _KERNEL_SHARE)
            waiting = min(_MOST_SEND_BUFFER, max(_LEAST_SEND_BUFFER, waiting))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, waiting)
            if interface.is_ipv6:
                index = struct.pack("@I", interface.index)
                self._set(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
                self._set(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, struct.pack("@i", ttl))
                self._set(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_DO)
                self._socket.bind((interface.address, 0, 0, interface.index))
                self._socket.connect((group, port, 0, interface.index))
            else:
                address = socket.inet_aton(interface.address)
                self._set(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
                self._set(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, struct.pack("@B", ttl))
                self._set(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)
                self._socket.bind((interface.address, 0))
                self._socket.connect((group, port))
        except OSError as error:
            self._socket.close()
            raise ProtocolError(
                f"multicast to {group} from {interface.address} is not possible: {error.strerror}"
            ) from error
        self._mtu_option = (
            (socket.IPPROTO_IPV6, _IPV6_MTU) if interface.is_ipv6 else (socket.IPPROTO_IP, _IP_MTU)
        )
        self.offload = True
        self.datagrams = 0
        #: What the kernel counted for each byte of the last sends.
        self._counts: deque[float] = deque([_KERNEL_BYTES], maxlen=_SENDS)

    def mtu(self) -> int:
        """What the interface, and the route to the group, take at most. Raises OSError."""
        return self._socket.getsockopt(*self._mtu_option)

    def _set(self, level: int, option: int, value: bytes) -> None:
        self._socket.setsockopt(level, option, value)

    def close(self) -> None:
        """Harmless when closed."""
        self._socket.close()

    def waiting_bytes(self) -> float:
        """How much of the datagrams has not left this host yet, about."""
        return self._counted() / statistics.median(self._counts)

    def _counted(self) -> int:
        try:
            counted = fcntl.ioctl(self._socket, _SIOCOUTQ, b"\0" * 4)
        except OSError:
            return 0
        return int.from_bytes(counted, sys.byteorder)

    def send_one(self, datagram: bytes) -> bool:
        """One datagram; False when the socket takes nothing now. Raises OSError."""
        try:
            self._socket.send(datagram)
        except OSError as error:
            if error.errno in _LATER:
                return False
            raise
        self.datagrams += 1
        return True

    def send_equal(self, pieces: Sequence[bytes | memoryview], parts: int, size: int) -> int:
        """Datagrams of `size` bytes, each given as `parts` pieces; how many the socket took.

        Raises OSError when the network is down or the interface is gone, and with EMSGSIZE when
        they are larger than its MTU.
        """
        count = len(pieces) // parts
        done = 0
        most = min(_MOST_SEGMENTS, _MOST_BYTES // size)
        while done < count:
            some = min(most, count - done) if self.offload else 1
            batch = pieces[done * parts : (done + some) * parts]
            ancillary = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("@H", size))] if some > 1 else []
            before = self._counted()
            try:
                self._socket.sendmsg(batch, ancillary)
            except OSError as error:
                if error.errno in _LATER:
                    break
                if some > 1 and error.errno in _NO_OFFLOAD:
                    self.offload = False
                    continue
                raise
            grown = self._counted() - before
            if grown >= some * size:
                # Nothing of it has left yet.
                self._counts.append(grown / (some * size))
            done += some
        self.datagrams += done
        return done


def interface_mtu(interface: Interface, group: str) -> int | None:
    """What goes out to the group in one piece now; None where the kernel does not say."""
    try:
        with contextlib.closing(GroupSender(interface, group, 9, 1, 0)) as probe:
            return probe.mtu()
    except (OSError, ProtocolError):
        return None
