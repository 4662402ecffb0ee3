"""The code without repair symbols, and the buffer of all decoders."""

from __future__ import annotations

from collections.abc import Sequence

from .fec import BlockDecoder, BlockEncoder


class SourceBuffer:
    """The K*T bytes of a block, and the set of its known source symbols."""

    __slots__ = ("data", "k", "known", "left", "symbol_bytes")

    def __init__(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> None:
        self.k = k
        self.symbol_bytes = symbol_bytes
        self.data = space if space is not None else memoryview(bytearray(k * symbol_bytes))
        self.known = bytearray(k)
        self.left = k

    def put(self, symbol: int, payload: bytes | memoryview) -> bool:
        """Store a source symbol. False if it was known."""
        if self.known[symbol]:
            return False
        size = self.symbol_bytes
        start = symbol * size
        self.data[start : start + size] = payload
        self.known[symbol] = 1
        self.left -= 1
        return True

    def get(self, symbol: int) -> memoryview:
        start = symbol * self.symbol_bytes
        return self.data[start : start + self.symbol_bytes]

    def unknown(self) -> list[int]:
        """The unknown source symbols in rising order."""
        found = []
        at = self.known.find(0)
        while at >= 0:
            found.append(at)
            at = self.known.find(0, at + 1)
        return found


class NoEncoder:
    """An encoder without repair symbols."""

    def repair(self, first: int, count: int) -> Sequence[bytes]:
        return ()


class NoDecoder:
    """A decoder that needs all source symbols."""

    def __init__(self, k: int, symbol_bytes: int, space: memoryview | None) -> None:
        self._buffer = SourceBuffer(k, symbol_bytes, space)

    @property
    def missing(self) -> int:
        return self._buffer.left

    @property
    def wanted(self) -> int:
        bits = 0
        for symbol in self._buffer.unknown():
            bits |= 1 << symbol
        return bits

    def add(self, symbol: int, payload: bytes | memoryview) -> bool:
        if symbol >= self._buffer.k or not self._buffer.put(symbol, payload):
            return False
        return self._buffer.left == 0

    def block(self) -> memoryview:
        return self._buffer.data


class NoScheme:
    """No code: lost symbols are sent again, or fetched by HTTP ranges."""

    name = "none"
    counts = False

    def __init__(self, group: int = 0) -> None:
        del group

    def max_repair(self, k: int) -> int:
        return 0

    def encoder(self, source: bytes, k: int, symbol_bytes: int) -> BlockEncoder:
        return NoEncoder()

    def decoder(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> BlockDecoder:
        return NoDecoder(k, symbol_bytes, space)
