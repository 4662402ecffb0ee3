"""Every setting of multicast; a section of the server's schema."""

from __future__ import annotations

import ipaddress
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: All hosts accept a datagram of this size (RFC 791). Smaller symbols would be mostly headers.
LEAST_MTU = 576


class MulticastSettings(BaseModel):
    """When and how a file that many clients want is sent once to all of them."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    enabled: bool = False
    """Offer multicast to clients that can receive it."""
    interface: str = "127.0.0.1"
    """Address of the interface that sends multicast; IPv6 also as ADDRESS%NAME."""
    rate: float = Field(95e6 / 8, ge=10_000, le=1e11, json_schema_extra={"unit": "bytes/s"})
    """The rate of all sessions together, with Ethernet, IP and UDP headers."""
    threshold: int = Field(3, ge=2, le=100_000)
    """Requests for one file that start a session."""
    window_s: float = Field(15.0, gt=0, le=300, json_schema_extra={"unit": "s"})
    """The window for these requests, and the longest hold of a client."""
    hold_share: float = Field(0.02, ge=0, le=10)
    """Requests are held for this share of the file's transfer time. Then clients fetch by unicast
    until enough want the file. 0: for the whole window."""
    fec: Literal["auto", "raptorq", "xor", "none"] = "auto"
    """Erasure code; auto: the best that all receivers have."""
    least_bytes: int = Field(64 * 1024, ge=0, le=1 << 40, json_schema_extra={"unit": "bytes"})
    """Smaller files are never multicast."""
    groups: str = ""
    """Network of the groups; empty: 232.64.0.0/10 or ff35::8000:0/98."""
    wifi: bool = False
    """Send on a Wi-Fi interface, too, which sends groups at its lowest rate."""
    ttl: int = Field(1, ge=0, le=255)
    """TTL of datagrams: routers on the path, plus 1."""
    mtu: int = Field(1500, ge=LEAST_MTU, le=65_535)
    """Path MTU for datagrams; the interface's counts if it is smaller."""

    @field_validator("groups")
    @classmethod
    def _groups(cls, groups: str) -> str:
        if groups and not ipaddress.ip_network(groups).is_multicast:
            raise ValueError(f"{groups} is not a multicast network")
        return groups

    @field_validator("interface")
    @classmethod
    def _interface(cls, interface: str) -> str:
        ipaddress.ip_address(interface.partition("%")[0])
        return interface

    def group_network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The network of groups: part of the source-specific ranges (RFC 4607).

        The part of 232/8 does not share the Ethernet addresses of 224.0.0.0/24, which switches
        flood. The part of ff35 (scope: site) is in the half that hosts may allocate themselves.
        """
        if self.groups:
            return ipaddress.ip_network(self.groups)
        return ipaddress.ip_network("ff35::8000:0/98" if self.is_ipv6 else "232.64.0.0/10")

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.interface

    def symbol_bytes(self, header_bytes: int, interface_mtu: int | None) -> int:
        """The symbol size that fills a datagram, a multiple of 8 for RaptorQ.

        `interface_mtu` is the interface's present MTU; None if it is not known.
        """
        mtu = min(self.mtu, max(LEAST_MTU, interface_mtu or self.mtu))
        return (mtu - (40 if self.is_ipv6 else 20) - 8 - header_bytes) // 8 * 8
