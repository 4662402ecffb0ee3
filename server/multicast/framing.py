"""Makes datagrams of payloads: headers, tags, sequence numbers. No socket and no clock."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.fec import BlockLayout
from ...protocol.marks import MarkSigner
from ...protocol.packet import (
    HEADER,
    MAGIC,
    PAYLOAD_OFFSET,
    VERSION,
    PacketSealer,
    PacketType,
)
from ...protocol.paper_mode import PaperHeader, PaperOrder, pack_packet
from .schedule_steps import Mark, Run

_KIND = VERSION << 4
#: A session sends one object.
_OBJECT = 0


class Framer:
    """Makes and numbers the datagrams of one session."""

    #: The pieces of a datagram: header, tag, payload.
    parts = 3

    def __init__(self, session: int, key: bytes, marks: MarkSigner) -> None:
        self._session = session
        self._marks = marks
        self._sealer = PacketSealer(key)
        self.sequence = 0

    def frame(
        self, run: Run, payloads: Sequence[bytes | memoryview], now: float
    ) -> list[bytes | memoryview]:
        """Header, tag and payload of all datagrams in turn, for one sendmsg."""
        sent_us = int(now * 1e6) & 0xFFFFFFFF
        pack, tag = HEADER.pack, self._sealer.tag
        session, k, block = self._session, run.k, run.block
        pass_number, sequence = run.pass_number % 256, self.sequence
        pieces: list[bytes | memoryview] = []
        for symbol, payload in zip(run.symbols, payloads, strict=True):
            header = pack(
                MAGIC,
                _KIND | PacketType.SYMBOL,
                0,
                session,
                _OBJECT,
                pass_number,
                k,
                block,
                symbol,
                sequence,
                sent_us,
            )
            pieces += (header, tag(header, payload), payload)
            sequence = (sequence + 1) & 0xFFFFFFFF
        self.sequence = sequence
        return pieces

    def mark(self, mark: Mark, now: float) -> bytes:
        """The datagram of a mark."""
        header = HEADER.pack(
            MAGIC,
            _KIND | PacketType.MARK,
            mark.flags,
            self._session,
            _OBJECT,
            mark.pass_number,
            0,
            0,
            0,
            self.sequence,
            int(now * 1e6) & 0xFFFFFFFF,
        )
        self.sequence = (self.sequence + 1) & 0xFFFFFFFF
        signature = self._marks.signature(header)
        return b"".join((header, self._sealer.tag(header, signature), signature))


class PaperFramer:
    """The framer of mode `paper`: three fields, no tag, no marks."""

    parts = 2

    def __init__(self, id_number: int, layout: BlockLayout) -> None:
        self._id = id_number
        self._order = PaperOrder(layout)

    def frame(
        self, run: Run, payloads: Sequence[bytes | memoryview], now: float
    ) -> list[bytes | memoryview]:
        """Fields and payload of all packets in turn."""
        del now
        total = self._order.total
        pieces: list[bytes | memoryview] = []
        for symbol, payload in zip(run.symbols, payloads, strict=True):
            sequence = self._order.sequence(run.block, symbol)
            pieces += (pack_packet(PaperHeader(self._id, sequence, total), b""), payload)
        return pieces

    def mark(self, mark: Mark, now: float) -> bytes:
        """Empty: the paper has no marks."""
        return b""


def datagram_bytes(symbol_bytes: int) -> int:
    """The UDP payload of one symbol."""
    return PAYLOAD_OFFSET + symbol_bytes
