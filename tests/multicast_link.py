"""Sender and receivers joined in memory by a lossy link, in virtual time. No socket, no clock."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import astuple, dataclass, field

from tidegate.client.multicast.receiver import MulticastReceiver
from tidegate.protocol.fec import FecParameters, scheme_for
from tidegate.protocol.marks import MarkSigner
from tidegate.protocol.packet import (
    HEADER,
    MAGIC,
    PAYLOAD_OFFSET,
    VERSION,
    WIRE_OVERHEAD_BYTES,
    PacketSealer,
    PacketType,
)
from tidegate.protocol.session import (
    Offer,
    ReportAnswer,
    decode_offer,
    decode_report,
    encode_offer,
    encode_report,
)
from tidegate.server.multicast.carousel import Carousel
from tidegate.server.multicast.schedule_steps import CarouselSettings, Mark
from tidegate.server.multicast.symbols import SymbolSource
from tidegate.server.multicast.transmitter import Framer

KEY = b"k" * 32
MARKS = MarkSigner(b"s" * 32)


@dataclass(frozen=True, slots=True)
class PacketHeader:
    """A datagram's header as values."""

    type: PacketType
    flags: int
    session: int
    object: int
    pass_number: int
    k: int
    block: int
    symbol: int
    sequence: int
    send_time_us: int


def pack_header(header: PacketHeader) -> bytes:
    """The 32 header bytes."""
    kind, *fields = astuple(header)
    return HEADER.pack(MAGIC, VERSION << 4 | kind, *fields)


def seal(key: bytes, header: PacketHeader, payload: bytes) -> bytes:
    """The whole datagram."""
    packed = pack_header(header)
    return b"".join((packed, PacketSealer(key).tag(packed, payload), payload))


def open_packet(key: bytes, datagram: bytes | memoryview) -> tuple[PacketHeader, bytes]:
    """Header and payload of a datagram whose tag is right."""
    whole = bytes(datagram)
    packed, tag, payload = (
        whole[: HEADER.size],
        whole[HEADER.size : PAYLOAD_OFFSET],
        whole[PAYLOAD_OFFSET:],
    )
    assert PacketSealer(key).tag(packed, payload) == tag
    magic, kind, *fields = HEADER.unpack(packed)
    assert (magic, kind >> 4) == (MAGIC, VERSION)
    return PacketHeader(PacketType(kind & 15), *fields), payload


class HeapSpace:
    """Plain memory, never reused."""

    def take(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def give_back(self, memory: memoryview) -> None:
        del memory


def make_offer(data: bytes, fec: FecParameters, member: str = "m0", **more) -> Offer:
    size = fec.symbol_bytes * fec.block_symbols
    hashes = tuple(hashlib.sha256(data[i : i + size]).digest() for i in range(0, len(data), size))
    offer = Offer(
        session=0xFEEDFACECAFEBEEF,
        member=member,
        key=KEY,
        mark_key=MARKS.public,
        group="239.1.2.3",
        port=5000,
        source="10.0.0.1",
        size_bytes=len(data),
        etag='"e"',
        fec=fec,
        rate_bytes_s=12_500_000,
        start_in_s=0.15,
        report_url="/-/multicast/x/report",
        report_every_s=0.2,
        hashes=hashes,
        report_joined=True,
        **more,
    )
    assert decode_offer(encode_offer(offer)) == offer
    return offer


@dataclass
class Link:
    """How one receiver is reached."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    forge: float = 0.0
    rate_share: float = 1.0
    joins_at_s: float = 0.0
    leaves_at_s: float = float("inf")


@dataclass
class Peer:
    link: Link
    receiver: MulticastReceiver | None = None
    output: bytearray = field(default_factory=bytearray)
    held: list[bytes] = field(default_factory=list)
    done_at_s: float | None = None
    gone: bool = False


@dataclass
class Outcome:
    peers: list[Peer]
    carousel: Carousel
    seconds: float
    wire_bytes: int
    symbols: int
    reports: int

    def ratio(self, size: int) -> float:
        return self.wire_bytes / size


def simulate(
    data: bytes,
    fec: FecParameters,
    links: list[Link],
    seed: int = 0,
    settings: CarouselSettings | None = None,
    rate_bytes_s: float = 12_400_000,
    report_delay_s: float = 0.003,
    killed_at_s: float = float("inf"),
    most_seconds: float = 600.0,
    batch: int = 16,
    window_s: float = 0.005,
    tamper: Callable[[bytes, random.Random], bytes] | None = None,
) -> Outcome:
    """Run a session to its end: the sender closes, is killed, or `most_seconds` pass."""
    rng = random.Random(seed)
    now = 0.0
    offer = make_offer(data, fec, report_window_s=window_s)
    layout = offer.layout()
    carousel = Carousel(layout, scheme_for(fec), settings or CarouselSettings(), now)
    source = SymbolSource(layout, scheme_for(fec), lambda at, n: data[at : at + n])
    framer = Framer(offer.session, KEY, MARKS)
    peers = [Peer(link, output=bytearray(len(data))) for link in links]
    outcome = Outcome(peers, carousel, 0.0, 0, 0, 0)
    events: list[tuple[float, int, str, object]] = []
    counter = iter(range(1 << 60))

    def at(when: float, what: str, who: object = None) -> None:
        heapq.heappush(events, (when, next(counter), what, who))

    for number, peer in enumerate(peers):
        at(peer.link.joins_at_s, "join", number)
        if peer.link.leaves_at_s < float("inf"):
            at(peer.link.leaves_at_s, "leave", number)
    sending_at = float("inf")

    def wake_sender(when: float) -> None:
        nonlocal sending_at
        if when < sending_at:
            sending_at = when
            at(when, "send", when)

    wake_sender(0.0)
    line_free_at, stand_at = 0.0, 0.0

    def poll(number: int) -> None:
        peer = peers[number]
        receiver = peer.receiver
        if receiver is None or peer.gone:
            return
        report = receiver.due(now)
        if report is not None:
            at(now + report_delay_s, "report", (number, encode_report(report)))
        if receiver.finished and peer.done_at_s is None:
            peer.done_at_s = now
        if receiver.given_up:
            peer.gone = True
        elif receiver.wake_at < float("inf") and not (receiver.finished and report is None):
            at(max(receiver.wake_at, now + 1e-6), "poll", number)

    def deliver(number: int, datagram: bytes) -> None:
        peer, link = peers[number], peers[number].link
        if peer.receiver is None or peer.gone:
            return
        if link.rate_share < 1 and rng.random() >= link.rate_share:
            return
        if rng.random() < link.loss:
            return
        if link.corrupt and rng.random() < link.corrupt:
            broken = bytearray(datagram)
            broken[rng.randrange(len(broken))] ^= 1 + rng.randrange(255)
            datagram = bytes(broken)
        if tamper is not None:
            datagram = tamper(datagram, rng)
        batch_in = [datagram]
        if rng.random() < link.duplicate:
            batch_in.append(datagram)
        if link.forge and rng.random() < link.forge:
            batch_in.append(datagram[:32] + rng.randbytes(len(datagram) - 32))
        if peer.held and rng.random() < 0.5:
            batch_in.append(peer.held.pop())
        if rng.random() < link.reorder:
            peer.held.append(batch_in.pop(0))
        wake = peer.receiver.wake_at
        for one in batch_in:
            peer.receiver.take_all((memoryview(one),), now)
        if peer.receiver.wake_at < wake or peer.receiver.finished:
            poll(number)

    def send() -> None:
        nonlocal line_free_at, stand_at
        if now >= killed_at_s:
            return
        step = carousel.stand() if now >= stand_at else None
        if step is None:
            step = carousel.next_step(now, batch)
        else:
            stand_at = now + 0.2
        if step is None:
            if not carousel.finished:
                wake_sender(max(carousel.wake_at, now + 1e-6))
            return
        if isinstance(step, Mark):
            datagrams = [framer.mark(step, now)]
        else:
            pieces = framer.frame(step, source.payloads(step.block, step.symbols, step.until), now)
            datagrams = [b"".join(pieces[i : i + 3]) for i in range(0, len(pieces), 3)]
            outcome.symbols += len(datagrams)
        size = sum(len(one) + WIRE_OVERHEAD_BYTES for one in datagrams)
        outcome.wire_bytes += size
        for datagram in datagrams:
            for number in range(len(peers)):
                deliver(number, datagram)
        line_free_at = now + size / rate_bytes_s
        wake_sender(line_free_at)

    while events:
        now, _, what, who = heapq.heappop(events)
        if now > most_seconds:
            break
        outcome.seconds = now
        if what == "send":
            if who == sending_at:
                sending_at = float("inf")
                send()
        elif what == "join" and not carousel.finished and now < killed_at_s:
            peer, name = peers[who], f"m{who}"
            carousel.join(name, now) if carousel.phase.value != "closed" else None
            mine = make_offer(data, fec, name, report_window_s=window_s)
            output = peer.output

            def write(offset, piece, output=output):
                output[offset : offset + len(piece)] = piece

            peer.receiver = MulticastReceiver(
                mine, mine.hashes, write, random.Random(seed * 1000 + who), now, HeapSpace()
            )
            poll(who)
        elif what == "poll":
            poll(who)
        elif what == "leave":
            peers[who].gone = True
        elif what == "report":
            number, body = who
            outcome.reports += 1
            if now < killed_at_s:
                wake = carousel.wake_at
                answer = carousel.report(decode_report(body), now)
                peers[number].receiver.answered(ReportAnswer(answer, window_s))
                if carousel.wake_at < wake and not carousel.finished:
                    wake_sender(max(now, line_free_at))
    return outcome
