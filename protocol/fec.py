"""Erasure codes behind one interface: the ladder none, xor, raptorq.

Laws all rungs keep:

- A *block* is K source symbols of T bytes (the last one padded with zeros). Symbols 0..K-1 are
  the source itself, so a receiver that loses nothing never decodes.
- Symbols from K on are repair. A receiver asks by *count* ("n more of this block, any") where any
  fresh repair symbol helps (`counts`), else by *name* ("exactly these source symbols").
- A decoder never raises on a well-formed symbol and never returns wrong data silently unless it
  was fed wrong symbols; the block hash is checked by the caller.

`BlockLayout` is the only place that knows how a file is cut.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import ProtocolError

#: Best first where the receivers' reports say nothing.
SCHEMES = ("raptorq", "xor", "none")
MAX_BLOCK_BYTES = 1 << 20


class BlockEncoder(Protocol):
    """Makes repair symbols of one block."""

    def repair(self, first: int, count: int) -> Sequence[bytes]:
        """Up to `count` repair symbols, numbers K+first onwards (fewer where the code ends)."""


class BlockDecoder(Protocol):
    """Collects the symbols of one block until the block is whole."""

    @property
    def missing(self) -> int:
        """How many more symbols are wanted at least; 0 once the block is whole."""

    @property
    def wanted(self) -> int:
        """A smallest set of source symbols that would make the block whole (bit i: symbol i)."""

    def add(self, symbol: int, payload: bytes | memoryview) -> bool:
        """Take a symbol; True if the block became whole with it. Duplicates are ignored."""

    def block(self) -> memoryview:
        """The K*T bytes. The caller's obligation: only when `missing` is 0."""


class Scheme(Protocol):
    """One rung of the ladder."""

    name: str
    #: Any fresh repair symbol helps any receiver: missing symbols are asked for by count.
    counts: bool

    def max_repair(self, k: int) -> int:
        """How many distinct repair symbols a block of K has."""

    def encoder(self, source: bytes, k: int, symbol_bytes: int) -> BlockEncoder:
        """For a block of exactly k * symbol_bytes bytes."""

    def decoder(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> BlockDecoder:
        """An empty one that collects in `space` (k * symbol_bytes zeroed bytes) if given."""


@dataclass(frozen=True, slots=True)
class FecParameters:
    """What both ends must agree on; travels in the offer.

    `group` is the k of an XOR group (0 in other codes);
    `parity` is the number of repair symbols a first pass carries for each block (0: on demand).
    """

    scheme: str
    symbol_bytes: int
    block_symbols: int
    group: int = 0
    parity: int = 0


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How `size_bytes` are cut into blocks of `block_symbols` symbols of `symbol_bytes`."""

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
        """Where the block starts in the file."""
        return block * self.block_bytes

    def length(self, block: int) -> int:
        """How many bytes of the file are in the block (without padding)."""
        return min(self.block_bytes, self.size_bytes - block * self.block_bytes)

    def k(self, block: int) -> int:
        """How many source symbols the block has."""
        return -(-self.length(block) // self.symbol_bytes)


def block_symbols_for(symbol_bytes: int) -> int:
    """The most symbols in a block; whole symbols, so nothing is padded."""
    return max(1, MAX_BLOCK_BYTES // symbol_bytes)


#: Scheme -> its library. `available_schemes` looks for libraries but imports none.
_LIBRARIES: Mapping[str, str] = {"raptorq": "raptorq"}
_MODULES: Mapping[str, tuple[str, str]] = {
    "none": ("tidegate.protocol.fec_none", "NoScheme"),
    "xor": ("tidegate.protocol.fec_xor", "XorScheme"),
    "raptorq": ("tidegate.protocol.fec_raptorq", "RaptorQScheme"),
}


def available_schemes() -> tuple[str, ...]:
    """The rungs whose libraries are installed here, best first."""
    return tuple(
        name
        for name in SCHEMES
        if name not in _LIBRARIES or importlib.util.find_spec(_LIBRARIES[name]) is not None
    )


def scheme_for(parameters: FecParameters) -> Scheme:
    """The rung an offer names. Raises `ProtocolError` if unknown or not installed."""
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
