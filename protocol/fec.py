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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import ProtocolError

#: Best first while there are no reports of losses.
SCHEMES = ("raptorq", "xor", "none")
MAX_BLOCK_BYTES = 1 << 20


class BlockEncoder(Protocol):
    """Makes repair symbols of one block."""

    def repair(self, first: int, count: int) -> Sequence[bytes]:
        """At most `count` repair symbols, from number K+first on."""


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

    def encoder(self, source: bytes, k: int, symbol_bytes: int) -> BlockEncoder:
        """An encoder of a block of exactly k * symbol_bytes bytes."""

    def decoder(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> BlockDecoder:
        """An empty decoder. It writes into `space` (k * symbol_bytes zeroed bytes) if given."""


@dataclass(frozen=True, slots=True)
class FecParameters:
    """The code and its parameters, as in the offer.

    `group` is the k of an XOR group (0 in other codes). `parity` is the number of repair symbols of
    each block in the first pass (0: repair on demand only).
    """

    scheme: str
    symbol_bytes: int
    block_symbols: int
    group: int = 0
    parity: int = 0


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
        """The block's offset in the file."""
        return block * self.block_bytes

    def length(self, block: int) -> int:
        """The block's size without padding."""
        return min(self.block_bytes, self.size_bytes - block * self.block_bytes)

    def k(self, block: int) -> int:
        """The number of the block's source symbols."""
        return -(-self.length(block) // self.symbol_bytes)


def block_symbols_for(symbol_bytes: int) -> int:
    """The largest number of whole symbols in a block of `MAX_BLOCK_BYTES`."""
    return max(1, MAX_BLOCK_BYTES // symbol_bytes)


#: Scheme -> its library. `available_schemes` looks for libraries but imports none.
_LIBRARIES: Mapping[str, str] = {"raptorq": "raptorq"}
_MODULES: Mapping[str, tuple[str, str]] = {
    "none": ("tidegate.protocol.fec_none", "NoScheme"),
    "xor": ("tidegate.protocol.fec_xor", "XorScheme"),
    "raptorq": ("tidegate.protocol.fec_raptorq", "RaptorQScheme"),
}


def available_schemes() -> tuple[str, ...]:
    """The codes whose libraries are installed, best first."""
    return tuple(
        name
        for name in SCHEMES
        if name not in _LIBRARIES or importlib.util.find_spec(_LIBRARIES[name]) is not None
    )


def scheme_for(parameters: FecParameters) -> Scheme:
    """The code that an offer names. Raises `ProtocolError` if it is unknown or not installed."""
    if parameters.scheme not in _MODULES:
        raise ProtocolError(f"the erasure code {parameters.scheme!r} is unknown")
    module, name = _MODULES[parameters.scheme]
    try:
        factory = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ProtocolError(
            f"the erasure code {parameters.scheme!r} needs a library that is missing: {error}"
        ) from error
    scheme: Scheme = factory(parameters.group)
    return scheme
