"""Groups are from ranges that source-specific networks route."""

from __future__ import annotations

import ipaddress

import pytest
from pydantic import ValidationError

from tidegate.server.multicast.settings import MulticastSettings


@pytest.mark.parametrize(
    ("interface", "allocatable"),
    # What hosts may take of the source-specific ranges by themselves (RFC 4607, sections 8 and 9).
    [("192.0.2.1", "232.0.0.0/8"), ("2001:db8::1", "ff35::8000:0/97")],
)
def test_groups_are_source_specific_by_default(interface: str, allocatable: str) -> None:
    network = MulticastSettings(interface=interface).group_network()
    ours, theirs = (
        [int(n.network_address), int(n.broadcast_address)]
        for n in (network, ipaddress.ip_network(allocatable))
    )
    assert theirs[0] <= ours[0] < ours[1] <= theirs[1]
    # None shares its Ethernet address with 224.0.0.0/24, which switches send everywhere.
    if network.version == 4:
        assert all((low & 0x7FFFFF) >> 8 for low in range(ours[0], ours[1], 1 << 8))


def test_groups_of_ones_own_plan_are_taken() -> None:
    assert str(MulticastSettings(groups="239.255.0.0/16").group_network()) == "239.255.0.0/16"
    with pytest.raises(ValidationError, match="not a multicast network"):
        MulticastSettings(groups="192.0.2.0/24")
