"""The datagram: golden bytes, a parser that never surprises, a tag that notices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.multicast_link import PacketHeader, open_packet, pack_header, seal
from tidegate.protocol.marks import MarkChecker, MarkSigner
from tidegate.protocol.packet import (
    HEADER,
    PAYLOAD_OFFSET,
    PacketSealer,
    PacketType,
    newer,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "packet.json").read_text())
KEY = bytes(range(32))

headers = st.builds(
    PacketHeader,
    type=st.sampled_from(PacketType),
    flags=st.integers(0, 7),
    session=st.integers(0, 2**64 - 1),
    object=st.integers(0, 255),
    pass_number=st.integers(0, 255),
    k=st.integers(0, 4096),
    block=st.integers(0, 2**32 - 1),
    symbol=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**32 - 1),
    send_time_us=st.integers(0, 2**32 - 1),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_golden_packets(vector):
    header = PacketHeader(**{**vector["header"], "type": PacketType(vector["header"]["type"])})
    payload = bytes.fromhex(vector["payload"])
    datagram = bytes.fromhex(vector["datagram"])
    assert seal(bytes.fromhex(vector["key"]), header, payload) == datagram
    assert open_packet(bytes.fromhex(vector["key"]), datagram) == (header, payload)


def test_the_golden_mark_is_signed():
    mark = VECTORS[-1]
    signer = MarkSigner(bytes.fromhex(mark["mark_seed"]))
    datagram = bytes.fromhex(mark["datagram"])
    header, signature = datagram[: HEADER.size], datagram[PAYLOAD_OFFSET:]
    assert signer.public.hex() == mark["mark_key"]
    assert signer.signature(header) == signature
    assert MarkChecker(signer.public).is_signed(header, signature)


@given(st.binary(min_size=32, max_size=32), headers, st.data())
def test_only_the_mark_that_was_signed_is_believed(seed, header, data):
    signer = MarkSigner(seed)
    packed = pack_header(header)
    both = bytearray(packed + signer.signature(packed))
    assert MarkChecker(signer.public).is_signed(bytes(both[:32]), bytes(both[32:]))
    bit = data.draw(st.integers(0, len(both) * 8 - 1))
    both[bit // 8] ^= 1 << bit % 8
    assert not MarkChecker(signer.public).is_signed(bytes(both[:32]), bytes(both[32:]))
    end = data.draw(st.integers(32, 95))
    assert not MarkChecker(signer.public).is_signed(packed, bytes(both[32:end]))


def test_header_has_32_bytes_and_payload_follows_the_tag():
    assert (HEADER.size, PAYLOAD_OFFSET) == (32, 48)


@given(headers, st.binary(max_size=200))
def test_a_datagram_is_header_tag_and_payload(header, payload):
    datagram = seal(KEY, header, payload)
    assert open_packet(KEY, datagram) == (header, payload)
    assert datagram[HEADER.size : PAYLOAD_OFFSET] == PacketSealer(KEY).tag(
        pack_header(header), payload
    )


def test_serial_numbers_wrap():
    assert newer(0, 255, 8)
    assert not newer(255, 0, 8)
    assert not newer(7, 7, 8)
