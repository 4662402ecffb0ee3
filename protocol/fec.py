"""Erasure codes (FEC) behind one interface: none, XOR, RaptorQ.

Laws of all codes:

- A *block* has K source symbols of T bytes; the last one is padded with zeros. The codes are
  systematic: symbols 0..K-1 are the source, and a receiver that loses none never decodes.
- Symbols from K on are repair symbols. A receiver asks for a *count* of further symbols if any
  repair symbol helps (`counts`), else for source symbols by *number*.
- A decoder never raises on a well-formed symbol. Only wrong symbols make it return wrong data;
  the caller checks the block's hash.

`BlockLayout` defines how a file is cut into blocks.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Protocol

from msgspec import Meta

from .errors import ProtocolError
from .packet import MAX_K

#: Best first while there are no reports of losses.
SCHEMES = ("raptorq", "xor", "none")
#: Bounds the blocks of an offer.
MAX_BLOCK_BYTES = 1 << 20


class BlockDecoder(Protocol):
    """Collects the symbols of one block until the block is whole."""

    @property
    def missing(self) -> int:
        """The least number of further symbols that can complete the block; 0: it is complete."""

    @property
    def wanted(self) -> int:
        """A smallest set of source symbols that completes the block (bit i: symbol i)."""

    def add(self, symbol: int, payload: bytes | memoryview) -> bool:
        """Add a symbol. True if it completed the block. Duplicates are ignored."""

    def block(self) -> memoryview:
        """The K*T bytes. Call it only when `missing` is 0."""


class Scheme(Protocol):
    """One erasure code."""

    name: str
    #: Any repair symbol helps any receiver: missing symbols are requested by count.
    counts: bool

    def max_repair(self, k: int) -> int:
        """How many distinct repair symbols a block of K has."""

    def repair(self, source: bytes, k: int, symbol_bytes: int, count: int) -> list[bytes]:
        """At most `count` repair symbols of a block, from number K on.

        `source` has exactly k * symbol_bytes bytes.
        """

    def decoder(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> BlockDecoder:
        """An empty decoder. It writes into `space` (k * symbol_bytes zeroed bytes) if given."""


@dataclass(frozen=True, slots=True)
class FecParameters:
    """The code and its parameters, as in the offer.

    `group` is the k of an XOR group (0 in other codes). `parity` is the number of repair symbols of
    each block in the first pass (0: repair on demand only).
    """

    scheme: Annotated[str, Meta(max_length=20)]
    symbol_bytes: Annotated[int, Meta(ge=8, le=65_000)]
    block_symbols: Annotated[int, Meta(ge=1, le=MAX_K)]
    group: Annotated[int, Meta(ge=0, le=MAX_K)] = 0
    parity: Annotated[int, Meta(ge=0, le=1 << 16)] = 0


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A file of `size_bytes` in blocks of `block_symbols` symbols of `symbol_bytes`."""

    size_bytes: int
    symbol_bytes: int
    block_symbols: int

    @property
    def block_bytes(self) -> int:
        return self.symbol_bytes * self.block_symbols

    @property
    def blocks(self) -> int:
        return -(-self.size_bytes // self.block_bytes)

    def offset(self, block: int) -> int:
        return block * self.block_bytes

    def length(self, block: int) -> int:
        """The block's size without padding."""
        return min(self.block_bytes, self.size_bytes - block * self.block_bytes)

    def k(self, block: int) -> int:
        """The number of the block's source symbols."""
        return -(-self.length(block) // self.symbol_bytes)


def block_symbols_for(symbol_bytes: int) -> int:
    """The symbols of a sender's blocks, of half a MiB.

    Repair symbols for such a block are made in 1.4 ms, for one of a MiB in 7 to 11 ms.
    """
    return max(1, MAX_BLOCK_BYTES // 2 // symbol_bytes)


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


def bit_set(symbols: Iterable[int]) -> int:
    """A set of symbols as `BlockDecoder.wanted` gives it."""
    bits = 0
    for symbol in symbols:
        bits |= 1 << symbol
    return bits


class NoDecoder:
    """A decoder that needs all source symbols."""

    def __init__(self, k: int, symbol_bytes: int, space: memoryview | None) -> None:
        self._buffer = SourceBuffer(k, symbol_bytes, space)

    @property
    def missing(self) -> int:
        return self._buffer.left

    @property
    def wanted(self) -> int:
        return bit_set(self._buffer.unknown())

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

    def max_repair(self, k: int) -> int:
        return 0

    def repair(self, source: bytes, k: int, symbol_bytes: int, count: int) -> list[bytes]:
        return []

    def decoder(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> BlockDecoder:
        return NoDecoder(k, symbol_bytes, space)


def available_schemes() -> tuple[str, ...]:
    """The codes that can be used here, best first: RaptorQ needs its library."""
    has_raptorq = importlib.util.find_spec("raptorq") is not None
    return SCHEMES if has_raptorq else tuple(name for name in SCHEMES if name != "raptorq")


def scheme_for(parameters: FecParameters) -> Scheme:
    """The code that an offer names. Raises `ProtocolError` if it is unknown or not installed."""
    match parameters.scheme:
        case "none":
            return NoScheme()
        case "xor" | "raptorq":
            # By name: these modules import this one.
            try:
                module = importlib.import_module(f"{__package__}.fec_{parameters.scheme}")
            except ImportError as error:
                raise ProtocolError(
                    f"the erasure code {parameters.scheme!r} needs a library that is missing: "
                    f"{error}"
                ) from error
            scheme: Scheme = module.scheme_of(parameters)
            return scheme
    raise ProtocolError(f"the erasure code {parameters.scheme!r} is unknown")
