"""From a run of symbols to the bytes on the wire: block reading, repair pools, headers, tags.

No socket and no clock: `read` gives file bytes, `now` is handed in. Equal sizes within a run are
what UDP segmentation offload wants, so every symbol is padded to the full symbol size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from protocol.fec import BlockEncoder, BlockLayout, Scheme
from protocol.packet import (
    HEADER,
    MAGIC,
    PAYLOAD_OFFSET,
    VERSION,
    PacketSealer,
    PacketType,
)
from protocol.paper_mode import PaperHeader, PaperOrder, pack_packet
from server.multicast.carousel import Mark, Run

Read = Callable[[int, int], bytes]
_KIND = VERSION << 4
#: Blocks whose source stays in memory, and encoders (each about three times its block).
_KEEP_BLOCKS = 4
_KEEP_ENCODERS = 16


class ObjectChanged(Exception):
    """The file gave fewer bytes than it had when the session began."""


class SymbolSource:
    """The payloads of one object. `read(offset, length)` must return exactly `length` bytes."""

    def __init__(self, layout: BlockLayout, scheme: Scheme, read: Read) -> None:
        self._layout = layout
        self._scheme = scheme
        self._read = read
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._encoders: OrderedDict[int, BlockEncoder] = OrderedDict()

    def payloads(self, block: int, symbols: Sequence[int]) -> list[bytes | memoryview]:
        """One payload a symbol, each `symbol_bytes` long. Raises `ObjectChanged`."""
        size = self._layout.symbol_bytes
        k = self._layout.k(block)
        source: memoryview | None = None
        found: list[bytes | memoryview] = []
        at = 0
        while at < len(symbols):
            symbol = symbols[at]
            if symbol < k:
                if source is None:
                    source = memoryview(self._block(block))
                found.append(source[symbol * size : (symbol + 1) * size])
                at += 1
                continue
            stretch = 1
            while at + stretch < len(symbols) and symbols[at + stretch] == symbol + stretch:
                stretch += 1
            found.extend(self._encoder(block).repair(symbol - k, stretch))
            at += stretch
        return found

    def _block(self, block: int) -> bytes:
        kept = self._blocks.get(block)
        if kept is None:
            length = self._layout.length(block)
            data = self._read(self._layout.offset(block), length)
            if len(data) != length:
                raise ObjectChanged("the file became shorter while it was being sent")
            kept = data.ljust(self._layout.k(block) * self._layout.symbol_bytes, b"\0")
            self._blocks[block] = kept
            while len(self._blocks) > _KEEP_BLOCKS:
                self._blocks.popitem(last=False)
        return kept

    def _encoder(self, block: int) -> BlockEncoder:
        encoder = self._encoders.get(block)
        if encoder is None:
            k, size = self._layout.k(block), self._layout.symbol_bytes
            encoder = self._scheme.encoder(self._block(block), k, size)
            self._encoders[block] = encoder
            while len(self._encoders) > _KEEP_ENCODERS:
                self._encoders.popitem(last=False)
        else:
            self._encoders.move_to_end(block)
        return encoder


class Framer:
    """Wraps payloads into datagrams of one session and numbers them."""

    #: Header, tag, payload.
    parts = 3

    def __init__(self, session: int, key: bytes, object_id: int = 0) -> None:
        self._session = session
        self._object = object_id
        self._sealer = PacketSealer(key)
        self.sequence = 0

    def frame(
        self, run: Run, payloads: Sequence[bytes | memoryview], now: float
    ) -> list[bytes | memoryview]:
        """Header, tag and payload of each datagram in turn, ready for one gathering send."""
        sent_us = int(now * 1e6) & 0xFFFFFFFF
        pack, tag = HEADER.pack, self._sealer.tag
        session, obj, k, block = self._session, self._object, run.k, run.block
        pass_number, sequence = run.pass_number % 256, self.sequence
        pieces: list[bytes | memoryview] = []
        for symbol, payload in zip(run.symbols, payloads, strict=True):
            header = pack(
                MAGIC,
                _KIND | PacketType.SYMBOL,
                run.flags,
                session,
                obj,
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
            self._object,
            mark.pass_number,
            0,
            0,
            0,
            self.sequence,
            int(now * 1e6) & 0xFFFFFFFF,
        )
        self.sequence = (self.sequence + 1) & 0xFFFFFFFF
        return header + self._sealer.tag(header, b"")


class PaperFramer:
    """The same for mode `paper`: three fields, no tag, no marks."""

    parts = 2

    def __init__(self, id_number: int, layout: BlockLayout) -> None:
        self._id = id_number
        self._order = PaperOrder(layout)

    def frame(
        self, run: Run, payloads: Sequence[bytes | memoryview], now: float
    ) -> list[bytes | memoryview]:
        """Fields and payload of each packet in turn."""
        del now
        total = self._order.total
        pieces: list[bytes | memoryview] = []
        for symbol, payload in zip(run.symbols, payloads, strict=True):
            sequence = self._order.sequence(run.block, symbol)
            pieces += (pack_packet(PaperHeader(self._id, sequence, total), b""), payload)
        return pieces

    def mark(self, mark: Mark, now: float) -> bytes:
        """The paper has no marks: a receiver counts, or waits."""
        return b""


def datagram_bytes(symbol_bytes: int) -> int:
    """The UDP payload of one symbol."""
    return PAYLOAD_OFFSET + symbol_bytes
