"""The payloads of an object: reads blocks, makes and caches repair symbols. No socket, no clock.

All symbols are padded to the full size, because UDP segmentation offload needs equal sizes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from ...protocol.bounded_table import BoundedTable
from ...protocol.fec import BlockLayout, Scheme

Read = Callable[[int, int], bytes]


class ObjectChanged(Exception):
    """The file changed during the session."""


class SymbolSource:
    """The payloads of one object. `read(offset, length)` returns exactly `length` bytes."""

    def __init__(self, layout: BlockLayout, scheme: Scheme, read: Read) -> None:
        self._layout = layout
        self._scheme = scheme
        self._read = read
        # Blocks of source in memory.
        self._blocks: BoundedTable[int, bytes] = BoundedTable(4)
        #: Repair symbols 0 to n-1 of recent blocks: one costs nearly as much as all of them.
        self._pools: OrderedDict[int, list[bytes]] = OrderedDict()
        self._pool_symbols = 0

    def payloads(
        self, block: int, symbols: Sequence[int], until: int = 0
    ) -> list[bytes | memoryview]:
        """The payloads of these symbols, each of `symbol_bytes`. Raises `ObjectChanged`.

        `until`: symbols below this number will be needed soon, too.
        """
        size = self._layout.symbol_bytes
        k = self._layout.k(block)
        source: memoryview | None = None
        pool: list[bytes] | None = None
        found: list[bytes | memoryview] = []
        for symbol in symbols:
            if symbol < k:
                source = source or memoryview(self._block(block))
                found.append(source[symbol * size : (symbol + 1) * size])
            else:
                pool = pool or self._pool(block, symbols[-1] + 1 - k, until - k)
                found.append(pool[symbol - k])
        return found

    def _pool(self, block: int, wanted: int, soon: int) -> list[bytes]:
        pool = self._pools.get(block)
        if pool is not None and len(pool) >= wanted:
            self._pools.move_to_end(block)
            return pool
        k, size = self._layout.k(block), self._layout.symbol_bytes
        wanted = max(wanted, soon)
        wanted = min(wanted + wanted // 4 + 16, self._scheme.max_repair(k))
        made = self._scheme.repair(self._block(block), k, size, wanted)
        self._keep(block, made)
        return made

    def _keep(self, block: int, made: list[bytes]) -> None:
        self._pool_symbols += len(made) - len(self._pools.get(block, ()))
        self._pools[block] = made
        self._pools.move_to_end(block)
        size = self._layout.symbol_bytes
        # Bounds the repair symbols in memory, about 256 KiB for each block that needs repair.
        while self._pool_symbols * size > 128 << 20 and len(self._pools) > 1:
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
