"""Paper E's mapping, packet and code, checked against its own words."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.protocol.errors import BadPacket
from tidegate.protocol.fec import BlockLayout, FecParameters, scheme_for
from tidegate.protocol.paper_mode import (
    PaperHeader,
    PaperOrder,
    map_url,
    pack_packet,
    parse_packet,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "paper_mode.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["urls"], ids=lambda v: v["path"])
def test_golden_addresses(vector):
    address = map_url(vector["host"], vector["path"], vector["location"])
    assert (address.group, address.port) == (vector["group"], vector["port"])


def test_the_address_has_the_bits_of_figure_5():
    address = map_url("www.example.org", "/news/today/film.avi", 0xABC)
    bits = f"{int(ipaddress.ip_address(address.group)):032b}"
    assert bits[:4] == "1110"
    assert int(bits[4:16], 2) == 0xABC
    assert int(bits[16:24], 2) == sum(map(ord, "www.example.org")) % 256
    assert int(bits[24:], 2) == sum(map(ord, "www.example.org/news/today")) % 256
    assert address.port == sum(map(ord, "www.example.org/news/today/film.avi")) % 65536


def test_the_default_location_stays_in_the_administrative_scope():
    assert map_url("h", "/a").group.startswith("239.")


def test_different_urls_may_collide_which_is_why_packets_carry_an_id():
    assert map_url("h", "/ab") == map_url("h", "/ba")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 2), st.binary(max_size=50))
def test_packets_round_trip(id_number, sequence, payload):
    header = PaperHeader(id_number, sequence, sequence + 1)
    assert parse_packet(pack_packet(header, payload)) == (header, payload)


@pytest.mark.parametrize("datagram", [b"", b"x" * 11, bytes(12), b"\0" * 4 + b"\0\0\0\5" * 2])
def test_bad_packets_are_refused(datagram):
    with pytest.raises(BadPacket):
        parse_packet(datagram)


def test_golden_packet():
    vector = VECTORS["packet"]
    header = PaperHeader(*vector["header"])
    assert pack_packet(header, bytes.fromhex(vector["payload"])).hex() == vector["datagram"]


@given(size=st.integers(1, 5000), k=st.integers(1, 20))
def test_sequence_numbers_count_every_packet_once(size, k):
    layout = BlockLayout(size, 64, k)
    order = PaperOrder(layout)
    numbers = [
        order.sequence(block, symbol)
        for block in range(layout.blocks)
        for symbol in range(layout.k(block) + 1)
    ]
    assert numbers == list(range(order.total))
    assert all(order.sequence(*order.place(number)) == number for number in numbers)


@given(st.binary(min_size=1, max_size=8 * 64), st.data())
def test_any_k_of_k_plus_one_packets_give_the_block(data, draw):
    """Figure 8: the parity is the XOR of the k data packets of its block."""
    k = -(-len(data) // 64)
    source = data.ljust(k * 64, b"\0")
    scheme = scheme_for(FecParameters("xor", 64, k, k))
    (parity,) = scheme.encoder(source, k, 64).repair(0, 5)
    folded = bytes(64)
    for i in range(k):
        packet = source[i * 64 : i * 64 + 64]
        folded = bytes(a ^ b for a, b in zip(folded, packet, strict=True))
    assert parity == folded
    lost = draw.draw(st.integers(0, k))
    decoder = scheme.decoder(k, 64)
    for i in range(k):
        if i != lost:
            decoder.add(i, source[i * 64 : i * 64 + 64])
    if lost != k:
        decoder.add(k, parity)
    assert bytes(decoder.block()) == source
