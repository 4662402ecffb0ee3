"""RaptorQ (RFC 6330) by the `raptorq` package: any K symbols, source or repair, give the block.

The package's encoder has no start index: n repair symbols are always numbers 0 to n-1, and each
call copies the whole block. So a sender keeps a pool of them (`server.multicast.symbols`). Symbol
sizes must be multiples of 8: `with_defaults` rounds down to that.
"""

from __future__ import annotations

import raptorq

from .errors import ProtocolError
from .fec import BlockDecoder, FecParameters, Scheme, SourceBuffer, bit_set

#: Bounds a pool. The code itself has symbol numbers of 24 bits.
MAX_REPAIR = 1 << 16


def _check(symbol_bytes: int) -> None:
    if symbol_bytes % 8:
        raise ProtocolError(f"RaptorQ symbols must be a multiple of 8 bytes, not {symbol_bytes}")


class RaptorQDecoder:
    """Keeps source symbols in place and repair symbols aside. Decodes when it has K symbols."""

    def __init__(self, k: int, symbol_bytes: int, space: memoryview | None) -> None:
        _check(symbol_bytes)
        self._buffer = SourceBuffer(k, symbol_bytes, space)
        self._repair: dict[int, bytes] = {}
        self._extra = 0

    @property
    def missing(self) -> int:
        left = self._buffer.left
        return max(1, left + self._extra - len(self._repair)) if left else 0

    @property
    def wanted(self) -> int:
        return bit_set(self._buffer.unknown()[: self.missing])

    def add(self, symbol: int, payload: bytes | memoryview) -> bool:
        buffer = self._buffer
        if symbol < buffer.k:
            # `put`, inlined: this runs for every datagram of a pass.
            if buffer.known[symbol]:
                return False
            size = buffer.symbol_bytes
            start = symbol * size
            buffer.data[start : start + size] = payload
            buffer.known[symbol] = 1
            buffer.left -= 1
        elif not buffer.left or symbol in self._repair or symbol >= buffer.k + MAX_REPAIR:
            return False
        else:
            self._repair[symbol] = bytes(payload)
        if not buffer.left:
            self._repair.clear()
            return True
        return len(self._repair) >= buffer.left + self._extra and self._decode()

    def _decode(self) -> bool:
        buffer = self._buffer
        decoder = raptorq.Decoder.with_defaults(len(buffer.data), buffer.symbol_bytes)
        block = None
        for symbol in range(buffer.k):
            if buffer.known[symbol]:
                block = decoder.decode(symbol.to_bytes(4, "big") + buffer.get(symbol))
        for symbol, payload in self._repair.items():
            if block is not None:
                break
            block = decoder.decode(symbol.to_bytes(4, "big") + payload)
        if block is None:
            # K symbols fail about once in 100 times, K+2 once in a million (RFC 6330, 1).
            self._extra = len(self._repair) - buffer.left + 1
            return False
        buffer.data[:] = block
        buffer.known[:] = b"\1" * buffer.k
        buffer.left = 0
        self._repair.clear()
        return True

    def block(self) -> memoryview:
        return self._buffer.data


class RaptorQScheme:
    """The default: repair on demand costs the losses of the worst receiver, not the sum of all."""

    name = "raptorq"
    counts = True

    def max_repair(self, k: int) -> int:
        return MAX_REPAIR

    def repair(self, source: bytes, k: int, symbol_bytes: int, count: int) -> list[bytes]:
        _check(symbol_bytes)
        encoder = raptorq.Encoder.with_defaults(source, symbol_bytes)
        packets = encoder.get_encoded_packets(min(count, MAX_REPAIR))
        # The package puts block and symbol number before each symbol.
        return [packet[4:] for packet in packets[k:]]

    def decoder(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> BlockDecoder:
        return RaptorQDecoder(k, symbol_bytes, space)


def scheme_of(parameters: FecParameters) -> Scheme:
    """The code with these parameters."""
    return RaptorQScheme()
