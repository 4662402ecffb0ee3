"""Which addresses only this machine, or its own link, can reach. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address


def is_near(address: str) -> bool:
    """Whether that is an IP address, and this machine's own or one of its link only.

    Services there, such as those of other programs or of a cloud for its machines, trust everybody
    who reaches them. Addresses are read as a look-up reads them: 127.1 and 0x7f000001 are some too.
    """
    found = _read(address)
    if found is None:
        return False
    this_host = found.version == 4 and int(found) < 1 << 24
    return found.is_loopback or found.is_link_local or found.is_unspecified or this_host


def _read(text: str) -> IPv4Address | IPv6Address | None:
    # Few need it, and the first connection does not wait for it.
    from ipaddress import IPv4Address, IPv6Address

    try:
        if ":" in text:
            found = IPv6Address(text)
            return found.ipv4_mapped or found
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
