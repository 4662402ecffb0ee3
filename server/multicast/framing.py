"""From a run of symbols to the bytes on the wire: block reading, repair pools, headers, tags.

No socket and no clock: `read` gives file bytes, `now` is handed in. Equal sizes within a run are
what UDP segmentation offload wants, so every symbol is padded to the full symbol size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from protocol.fec import BlockLayout, Scheme
from protocol.packet import (
    HEADER,
    MAGIC,
    PAYLOAD_OFFSET,
    VERSION,
    PacketSealer,
    PacketType,
)
from protocol.paper_mode import PaperHeader, PaperOrder, pack_packet
from server.multicast.steps import Mark, Run

Read = Callable[[int, int], bytes]
_KIND = VERSION << 4
#: Blocks whose source stays in memory.
_KEEP_BLOCKS = 4
#: Repair symbols kept of blocks that needed some; about a quarter of a MiB for each.
_MOST_POOL_BYTES = 128 << 20


class ObjectChanged(Exception):
    """The file gave fewer bytes than it had when the session began."""


class SymbolSource:
    """The payloads of one object. `read(offset, length)` must return exactly `length` bytes."""

    def __init__(self, layout: BlockLayout, scheme: Scheme, read: Read) -> None:
        self._layout = layout
        self._scheme = scheme
        self._read = read
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        #: Repair symbols 0..n-1 of recent blocks: making one costs nearly as much as making all.
        self._pools: OrderedDict[int, list[bytes]] = OrderedDict()
        self._pool_symbols = 0

    def payloads(
        self, block: int, symbols: Sequence[int], until: int = 0
    ) -> list[bytes | memoryview]:
        """One payload a symbol, each `symbol_bytes` long. Raises `ObjectChanged`.

        `until` announces that symbols below it will be asked for soon, too.
        """
        size = self._layout.symbol_bytes
        k = self._layout.k(block)
        source: memoryview | None = None
        pool: list[bytes] | None = None
        found: list[bytes | memoryview] = []
        for symbol in symbols:
            if symbol < k:
                if source is None:
                    source = memoryview(self._block(block))
                found.append(source[symbol * size : (symbol + 1) * size])
            else:
                if pool is None:
                    pool = self._pool(block, max(symbols[-1] + 1, until) - k)
                found.append(pool[symbol - k])
        return found

    def _pool(self, block: int, wanted: int) -> list[bytes]:
        pool = self._pools.get(block)
        if pool is not None and len(pool) >= wanted:
            self._pools.move_to_end(block)
            return pool
        k, size = self._layout.k(block), self._layout.symbol_bytes
        wanted = min(wanted + wanted // 4 + 16, self._scheme.max_repair(k))
        made = list(self._scheme.encoder(self._block(block), k, size).repair(0, wanted))
        self._pool_symbols += len(made) - (len(pool) if pool is not None else 0)
        self._pools[block] = made
        self._pools.move_to_end(block)
        while self._pool_symbols * size > _MOST_POOL_BYTES and len(self._pools) > 1:
            self._pool_symbols -= len(self._pools.popitem(last=False)[1])
        return made

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
