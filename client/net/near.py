"""Who can reach an address: all machines, a private network, or this machine and its link. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

#: NAT64 of one network, with the IPv4 address at a place that the network chooses (RFC 8215).
_LOCAL_NAT64 = "64:ff9b:1::/48"


class Reach(IntEnum):
    """Who can reach an address, the widest first."""

    GLOBAL = 0
    PRIVATE = 1
    NEAR = 2


def reach(address: str) -> Reach:
    """Who can reach this address; a name, which is no address, counts as global.

    Addresses are read as a look-up reads them: 127.1 and 0x7f000001 are loopback addresses.
    """
    from ipaddress import IPv6Network, ip_address

    given = _read(address)
    if given is None:
        return Reach.GLOBAL
    found = _target(given)
    this_host = found.version == 4 and int(found) < 1 << 24
    # Services of a cloud for its own machines: Azure, Alibaba, Oracle, AWS by IPv6. The others use
    # link-local addresses.
    is_cloud = found in map(
        ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
    )
    if found.is_loopback or found.is_link_local or found.is_unspecified or this_host or is_cloud:
        return Reach.NEAR
    is_global = found.is_global and not found.is_multicast
    if given.version == 6 and given in IPv6Network(_LOCAL_NAT64):
        is_global = False
    # All IPv6 addresses that IANA gives out as global.
    if found.version == 6 and found not in IPv6Network("2000::/3"):
        is_global = False
    return Reach.GLOBAL if is_global else Reach.PRIVATE


def is_near(address: str) -> bool:
    """Whether only this machine or its own link reaches that address, or a cloud's machines do.

    Services there trust every client that reaches them.
    """
    return reach(address) is Reach.NEAR


def may_lead(leader: Iterable[str], aim: str) -> bool:
    """Whether a server at one of these addresses may lead a client to the address `aim`.

    A private network may lead to itself, or a company's mirrors could not be used.
    """
    found = reach(aim)
    if found is Reach.PRIVATE:
        return all(reach(one) is not Reach.GLOBAL for one in leader)
    return found is Reach.GLOBAL


def _read(text: str) -> IPv4Address | IPv6Address | None:
    # Few need it, and the first connection does not wait for it.
    from ipaddress import IPv4Address, IPv6Address

    try:
        return IPv6Address(text) if ":" in text else IPv4Address(_number(text))
    except ValueError:
        return None


def _target(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address leads to, if it has one."""
    from ipaddress import IPv4Address, IPv6Network

    if address.version == 4:
        return address
    # IPv6 networks whose addresses lead to the IPv4 address in their last 32 bits: NAT64 (RFC
    # 6052), IPv4-translated (RFC 2765, 2.1) and IPv4-compatible (RFC 4291, 2.5.5.1).
    if any(
        address in IPv6Network(network)
        for network in ("64:ff9b::/96", _LOCAL_NAT64, "::ffff:0:0:0/96", "::/96")
    ):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _number(text: str) -> int:
    """The IPv4 address that inet_aton makes of `text`: up to four numbers, decimal, octal or
    hexadecimal, the last fills what is left. Raises ValueError."""
    parts = text.lower().split(".")
    if len(parts) > 4 or not all(part.isascii() and part.isalnum() for part in parts):
        raise ValueError
    numbers = [int(part, 16 if part[:2] == "0x" else 8 if part[0] == "0" else 10) for part in parts]
    *first, last = numbers
    if max(first, default=0) > 255 or last >= 256 ** (4 - len(first)):
        raise ValueError
    return sum(number << 8 * (3 - place) for place, number in enumerate(first)) + last
