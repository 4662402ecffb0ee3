"""The payloads of an object: blocks are read, repair symbols made and kept. No socket, no clock.

Making repair of a 1 MiB block costs ten milliseconds in which nothing else happens here, so where
there is a `Maker` (another process) it does that, and the sender goes on with something else. Equal
sizes within a run are what UDP segmentation offload wants, so every symbol is padded to the full
symbol size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from ...protocol.fec import BlockLayout, Scheme
from ..http.bounded_table import BoundedTable

Read = Callable[[int, int], bytes]
#: Blocks whose source stays in memory.
_KEEP_BLOCKS = 4
#: Repair symbols kept of blocks that needed some; about a quarter of a MiB for each.
_MOST_POOL_BYTES = 128 << 20
#: Smaller blocks are encoded sooner than sent elsewhere.
_INLINE_BYTES = 64 << 10


class ObjectChanged(Exception):
    """The file gave fewer bytes than it had when the session began."""


class Maker(Protocol):
    """Makes repair symbols elsewhere."""

    def make(
        self,
        scheme: str,
        source: bytes,
        k: int,
        symbol_bytes: int,
        count: int,
        done: Callable[[list[bytes] | None], None],
    ) -> bool:
        """Start making symbols 0..count-1; `done` is called later, with None when that failed.

        False: not possible (now), `done` will not be called.
        """
        ...


class SymbolSource:
    """The payloads of one object. `read(offset, length)` must return exactly `length` bytes.

    `made` is called when symbols that `ready` did not have are here.
    """

    def __init__(
        self, layout: BlockLayout, scheme: Scheme, read: Read, maker: Maker | None = None
    ) -> None:
        self._layout = layout
        self._scheme = scheme
        self._read = read
        self._maker = maker
        self.made: Callable[[], None] = lambda: None
        self._blocks: BoundedTable[int, bytes] = BoundedTable(_KEEP_BLOCKS)
        #: Repair symbols 0..n-1 of recent blocks: making one costs nearly as much as making all.
        self._pools: OrderedDict[int, list[bytes]] = OrderedDict()
        self._pool_symbols = 0
        self._making: set[int] = set()

    def ready(self, block: int, first: int, count: int) -> int:
        """How many of the repair symbols [first, first + count) can be had without waiting; the
        others are being made. Raises `ObjectChanged`."""
        k, size = self._layout.k(block), self._layout.symbol_bytes
        have = len(self._pools.get(block, ()))
        wanted = first + count - k
        if have >= wanted or self._maker is None or first < k or k * size <= _INLINE_BYTES:
            return count
        if block not in self._making:
            self._making.add(block)
            source = self._block(block)

            def done(symbols: list[bytes] | None) -> None:
                self._making.discard(block)
                if symbols is None:
                    self._maker = None
                else:
                    self._keep(block, symbols)
                self.made()

            wanted = self._ahead(wanted, k)
            if not self._maker.make(self._scheme.name, source, k, size, wanted, done):
                self._making.discard(block)
                return count
        return max(0, have - (first - k))

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
                    pool = self._pool(block, symbols[-1] + 1 - k, until - k)
                found.append(pool[symbol - k])
        return found

    def _pool(self, block: int, wanted: int, soon: int) -> list[bytes]:
        pool = self._pools.get(block)
        if pool is not None and len(pool) >= wanted:
            self._pools.move_to_end(block)
            return pool
        k, size = self._layout.k(block), self._layout.symbol_bytes
        wanted = self._ahead(max(wanted, soon), k)
        made = list(self._scheme.encoder(self._block(block), k, size).repair(0, wanted))
        self._keep(block, made)
        return made

    def _ahead(self, wanted: int, k: int) -> int:
        return min(wanted + wanted // 4 + 16, self._scheme.max_repair(k))

    def _keep(self, block: int, made: list[bytes]) -> None:
        self._pool_symbols += len(made) - len(self._pools.get(block, ()))
        self._pools[block] = made
        self._pools.move_to_end(block)
        size = self._layout.symbol_bytes
        while self._pool_symbols * size > _MOST_POOL_BYTES and len(self._pools) > 1:
            self._pool_symbols -= len(self._pools.popitem(last=False)[1])

    def _block(self, block: int) -> bytes:
        kept = self._blocks.get(block)
        if kept is None:
            length = self._layout.length(block)
            data = self._read(self._layout.offset(block), length)
            if len(data) != length:
                raise ObjectChanged("the file became shorter while it was being sent")
            kept = data.ljust(self._layout.k(block) * self._layout.symbol_bytes, b"\0")
            self._blocks[block] = kept
        return kept
