"""Paper E's reception: its fields, its ID number, its parity, and what is left for TCP."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

import pytest

from tests.multicast_link import make_offer
from tidegate.client.multicast.paper import PaperReceiver
from tidegate.protocol.fec import BlockLayout, FecParameters, scheme_for
from tidegate.protocol.paper_mode import PaperHeader, PaperOrder, pack_packet
from tidegate.server.multicast.carousel import Carousel
from tidegate.server.multicast.schedule_steps import CarouselSettings, Mark, Run
from tidegate.server.multicast.symbols import SymbolSource
from tidegate.server.multicast.transmitter import PaperFramer

DATA = random.Random(4).randbytes(60_000)
FEC = FecParameters("paper", 512, 8, 8, 1)


def packets() -> list[bytes]:
    """What the sender of this mode puts on the wire."""
    layout = BlockLayout(len(DATA), 512, 8)
    scheme = scheme_for(FecParameters("xor", 512, 8, 8))
    carousel = Carousel(layout, scheme, CarouselSettings(lead_s=0, parity=1, repair=False), now=0.0)
    source = SymbolSource(layout, scheme, lambda at, n: DATA[at : at + n])
    framer = PaperFramer(make_offer(DATA, FEC).session & 0xFFFFFFFF, layout)
    sent: list[bytes] = []
    while not isinstance(step := carousel.next_step(0.0, 16), Mark):
        assert isinstance(step, Run)
        pieces = framer.frame(step, source.payloads(step.block, step.symbols, step.until), 0.0)
        sent += [bytes(a) + bytes(b) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
    assert framer.mark(step, 0.0) == b""
    return sent


def receive(sent: list[bytes]) -> tuple[PaperReceiver, bytearray]:
    offer = make_offer(DATA, FEC)
    output = bytearray(len(DATA))

    def write(offset: int, data: memoryview) -> None:
        output[offset : offset + len(data)] = data

    receiver = PaperReceiver(offer, offer.hashes, write, random.Random(1), 0.0)
    for packet in sent:
        receiver.take(memoryview(packet), 0.1)
    return receiver, output


def test_packets_are_numbered_through_and_say_how_many_there_are():
    sent = packets()
    total = PaperOrder(BlockLayout(len(DATA), 512, 8)).total
    assert len(sent) == total == 118 + 15
    assert [int.from_bytes(packet[4:8], "big") for packet in sent] == list(range(total))
    assert {packet[8:12] for packet in sent} == {total.to_bytes(4, "big")}


def test_one_loss_in_each_block_is_restored():
    sent = packets()
    kept = [packet for number, packet in enumerate(sent) if number % 9 != number // 9 % 9]
    receiver, output = receive(kept)
    assert receiver.finished
    assert bytes(output) == DATA


def test_what_is_left_is_fetched_by_unicast():
    sent = packets()
    lost = {9, 11, 12, 70}
    receiver, output = receive([p for n, p in enumerate(sent) if n not in lost])
    assert receiver.given_up == "the pass is over"
    ranges = receiver.repair_ranges()
    assert sum(end - first for first, end in ranges) == 2 * 512
    for first, end in ranges:
        receiver.patch(first, DATA[first:end], 0.2)
    assert receiver.finished
    assert bytes(output) == DATA


@pytest.mark.parametrize("spoil", ["id", "total", "short"])
def test_packets_of_another_server_on_the_same_group_are_ignored(spoil):
    sent = packets()
    header = PaperHeader(*(int.from_bytes(sent[0][i : i + 4], "big") for i in (0, 4, 8)))
    changed = {
        "id": replace(header, id_number=1),
        "total": replace(header, total_number=5),
        "short": header,
    }[spoil]
    payload = sent[0][12:20] if spoil == "short" else sent[0][12:]
    receiver, _ = receive([pack_packet(changed, payload)])
    assert receiver.counters.foreign + receiver.counters.malformed == 1
    assert len(list(receiver.missing_blocks())) == receiver.layout.blocks


def test_the_final_digest_is_the_only_one_the_paper_lacks():
    """Without hashes a colliding sender could put its bytes into our file; the blocks say no."""
    sent = packets()
    wrong = sent[0][:12] + bytes(512)
    receiver, _ = receive([wrong, *sent[1:9]])
    assert receiver.counters.bad_blocks == 1
    assert hashlib.sha256(DATA[:4096]).digest() == make_offer(DATA, FEC).hashes[0]
