"""The sending socket: multicast from one interface, many datagrams in one system call.

Linux splits one large send into equal datagrams (UDP segmentation offload, `UDP_SEGMENT`), which
takes a fifth of the CPU time of single sends. Some devices and kernels refuse it (EIO, EINVAL,
ENOPROTOOPT); after the first refusal this socket sends single datagrams. The sockets are not
Twisted's, which has neither segmentation nor source-specific joins.
"""

from __future__ import annotations

import contextlib
import enum
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
from typing import NamedTuple

from ...protocol.errors import ProtocolError


class Kernel(enum.IntEnum):
    """Numbers of Linux that the standard library does not name."""

    #: linux/socket.h and linux/udp.h.
    SOL_UDP = 17
    UDP_SEGMENT = 103
    #: ioctl(2) of linux/sockios.h: an interface's address, and the bytes in a send queue.
    SIOCGIFADDR = 0x8915
    SIOCOUTQ = 0x5411
    #: linux/in.h and linux/in6.h.
    IP_MTU_DISCOVER = 10
    IP_MTU = 14
    IPV6_MTU_DISCOVER = 23
    IPV6_MTU = 24


_NETWORK = Path("/sys/class/net")
_LATER = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})


class BufferTuning(NamedTuple):
    """How many bytes of a session may wait in this host."""

    #: In time at the session's rate: enough for a process that gets its core late, and little
    #: enough for a short qdisc to hold.
    waiting_s: float = 0.04
    least_send_buffer: int = 64 << 10
    most_send_buffer: int = 1 << 20
    #: The kernel counts a datagram of Ethernet size as about 2304 bytes. With segmentation it
    #: counts 1.04 to 1.57 bytes for each byte, by the interface's queue.
    kernel_bytes: float = 2304 / 1472
    #: The last sends whose median is the kernel's count for a byte.
    sends: int = 9


TUNING = BufferTuning()


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface that sends: its address, and for IPv6 its index."""

    address: str
    index: int = 0

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.address


def find_interface(text: str) -> Interface:
    """The interface with this address; IPv6 also as `ADDRESS%INTERFACE`. Raises `ProtocolError`."""
    address, _, name = text.partition("%")
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise ProtocolError(
            f"{text!r} is no address of an interface; give an IPv4 or IPv6 address of this host"
        ) from error
    if parsed.version == 4:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind((str(parsed), 0))
        except OSError as error:
            raise ProtocolError(f"no interface here has the address {address}") from error
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
    """Whether it is Wi-Fi, which sends multicast at its lowest rate, unrepeated (RFC 9119)."""
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
                if fcntl.ioctl(probe, Kernel.SIOCGIFADDR, asked)[20:24] == wanted:
                    return index
    return 0


class GroupSender:
    """A UDP socket connected to one group. `rate_bytes_s` is its highest rate."""

    def __init__(
        self, interface: Interface, group: str, port: int, ttl: int, rate_bytes_s: float
    ) -> None:
        family = socket.AF_INET6 if interface.is_ipv6 else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            # SO_SNDBUF grants twice the given number.
            waiting = int(rate_bytes_s * TUNING.waiting_s * TUNING.kernel_bytes / 2)
            waiting = min(TUNING.most_send_buffer, max(TUNING.least_send_buffer, waiting))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, waiting)
            # IP_PMTUDISC_DO: a datagram beyond the MTU is an error. In fragments, the loss of one
            # would lose all.
            whole = struct.pack("@i", 2)
            if interface.is_ipv6:
                index = struct.pack("@I", interface.index)
                self._set(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
                self._set(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, struct.pack("@i", ttl))
                self._set(socket.IPPROTO_IPV6, Kernel.IPV6_MTU_DISCOVER, whole)
                self._socket.bind((interface.address, 0, 0, interface.index))
                self._socket.connect((group, port, 0, interface.index))
            else:
                address = socket.inet_aton(interface.address)
                self._set(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
                self._set(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, struct.pack("@B", ttl))
                self._set(socket.IPPROTO_IP, Kernel.IP_MTU_DISCOVER, whole)
                self._socket.bind((interface.address, 0))
                self._socket.connect((group, port))
        except OSError as error:
            self._socket.close()
            raise ProtocolError(
                f"multicast to {group} from {interface.address} is not possible: {error.strerror}"
            ) from error
        is_ipv6 = interface.is_ipv6
        level = socket.IPPROTO_IPV6 if is_ipv6 else socket.IPPROTO_IP
        self._mtu_option = (level, Kernel.IPV6_MTU if is_ipv6 else Kernel.IP_MTU)
        self.offload = True
        #: The kernel's count for a byte of the last sends.
        self._counts: deque[float] = deque([TUNING.kernel_bytes], maxlen=TUNING.sends)

    def mtu(self) -> int:
        """The MTU of the interface and of the route to the group. Raises OSError."""
        return self._socket.getsockopt(*self._mtu_option)

    def _set(self, level: int, option: int, value: bytes) -> None:
        self._socket.setsockopt(level, option, value)

    def close(self) -> None:
        """Close the socket. It may be called repeatedly."""
        self._socket.close()

    def waiting_bytes(self) -> float:
        """About the bytes of datagrams that have not left this host yet."""
        return self._counted() / statistics.median(self._counts)

    def _counted(self) -> int:
        try:
            counted = fcntl.ioctl(self._socket, Kernel.SIOCOUTQ, b"\0" * 4)
        except OSError:
            return 0
        return int.from_bytes(counted, sys.byteorder)

    def send_one(self, datagram: bytes) -> bool:
        """Send one datagram; False when the socket's buffer is full. Raises OSError."""
        try:
            self._socket.send(datagram)
        except OSError as error:
            if error.errno in _LATER:
                return False
            raise
        return True

    def send_equal(self, pieces: Sequence[bytes | memoryview], parts: int, size: int) -> int:
        """Send datagrams of `size` bytes, each of `parts` pieces. Returns how many were sent.

        Raises OSError when the network is down or the interface is gone, and with EMSGSIZE when
        they exceed its MTU.
        """
        count = len(pieces) // parts
        done = 0
        # The kernel's bounds for one call: 64 segments and 65 507 bytes.
        most = min(64, 65_000 // size)
        while done < count:
            some = min(most, count - done) if self.offload else 1
            batch = pieces[done * parts : (done + some) * parts]
            ancillary = (
                [(Kernel.SOL_UDP, Kernel.UDP_SEGMENT, struct.pack("@H", size))] if some > 1 else []
            )
            before = self._counted()
            try:
                self._socket.sendmsg(batch, ancillary)
            except OSError as error:
                if error.errno in _LATER:
                    break
                refusals = (errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP)
                if some > 1 and error.errno in refusals:
                    self.offload = False
                    continue
                raise
            grown = self._counted() - before
            if grown >= some * size:
                # All of it is still in the queue.
                self._counts.append(grown / (some * size))
            done += some
        return done


def interface_mtu(interface: Interface, group: str) -> int | None:
    """The present MTU to the group; None if the kernel does not say."""
    try:
        with contextlib.closing(GroupSender(interface, group, 9, 1, 0)) as probe:
            return probe.mtu()
    except (OSError, ProtocolError):
        return None
