"""Who can reach an address: all machines, a private network, or this machine and its link. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

#: Services of a cloud for its own machines: Azure, Alibaba, Oracle, AWS by IPv6. The others use
#: link-local addresses.
_CLOUD = ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
#: IPv6 addresses that lead to the IPv4 address in their last 32 bits (RFC 6052).
_NAT64 = "64:ff9b::/96"


class Reach(IntEnum):
    """Who can reach an address, the widest first."""

    GLOBAL = 0
    PRIVATE = 1
    NEAR = 2


def reach(address: str) -> Reach:
    """Who can reach this address; a name, which is no address, counts as global.

    Addresses are read as a look-up reads them: 127.1 and 0x7f000001 are loopback addresses.
    """
    from ipaddress import ip_address

    found = _read(address)
    if found is None:
        return Reach.GLOBAL
    this_host = found.version == 4 and int(found) < 1 << 24
    is_cloud = found in map(ip_address, _CLOUD)
    if found.is_loopback or found.is_link_local or found.is_unspecified or this_host or is_cloud:
        return Reach.NEAR
    return Reach.GLOBAL if found.is_global and not found.is_multicast else Reach.PRIVATE


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
    from ipaddress import IPv4Address, IPv6Address, IPv6Network

    try:
        if ":" in text:
            found = IPv6Address(text)
            if found in IPv6Network(_NAT64):
                return IPv4Address(int(found) & 0xFFFFFFFF)
            return found.ipv4_mapped or found.sixtofour or found
        return IPv4Address(_number(text))
    except ValueError:
        return None


def _number(text: str) -> int:
    """The IPv4 address that inet_aton makes of `text`: up to four numbers, decimal, octal or
    hexadecimal, of which the last fills what is left. Raises ValueError."""
    parts = text.lower().split(".")
    if len(parts) > 4 or not all(part.isascii() and part.isalnum() for part in parts):
        raise ValueError
    numbers = [int(part, 16 if part[:2] == "0x" else 8 if part[0] == "0" else 10) for part in parts]
    *first, last = numbers
    if max(first, default=0) > 255 or last >= 256 ** (4 - len(first)):
        raise ValueError
    return sum(number << 8 * (3 - place) for place, number in enumerate(first)) + last
