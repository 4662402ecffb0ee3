"""Interleaved XOR parity.

Paper E sends k data packets and their XOR. A burst of two losses defeats such a group. So the K
symbols of a block are interleaved: with G = ceil(K / k) groups, group j has the symbols j, j+G,
j+2G, ... A burst of up to G losses costs each group at most one symbol, which its parity (symbol
K + j) restores.
"""

from __future__ import annotations

from .fec import BlockDecoder, FecParameters, Scheme, SourceBuffer, bit_set


class XorDecoder:
    """Restores one lost symbol of a group once all others are here."""

    def __init__(self, k: int, symbol_bytes: int, groups: int, space: memoryview | None) -> None:
        self._buffer = SourceBuffer(k, symbol_bytes, space)
        self._groups = groups
        self._lost = [len(range(j, k, groups)) for j in range(groups)]
        self._parity: dict[int, bytes] = {}

    @property
    def missing(self) -> int:
        return self._buffer.left

    @property
    def wanted(self) -> int:
        # A group with its parity needs one source symbol less.
        spare = set(self._parity)
        wanted = []
        for symbol in self._buffer.unknown():
            group = symbol % self._groups
            if group in spare:
                spare.discard(group)
            else:
                wanted.append(symbol)
        return bit_set(wanted)

    def add(self, symbol: int, payload: bytes | memoryview) -> bool:
        buffer = self._buffer
        if symbol < buffer.k:
            if not buffer.put(symbol, payload):
                return False
            group = symbol % self._groups
            self._lost[group] -= 1
        else:
            group = symbol - buffer.k
            if group >= self._groups or group in self._parity or not self._lost[group]:
                return False
            self._parity[group] = bytes(payload)
        if self._lost[group] == 1 and group in self._parity:
            self._restore(group)
        return buffer.left == 0

    def _restore(self, group: int) -> None:
        buffer = self._buffer
        lost = buffer.known.index(0, group)
        while lost % self._groups != group:
            lost = buffer.known.index(0, lost + 1)
        # The lost symbol is still zero, so the XOR may span the whole group.
        restored = int.from_bytes(self._parity.pop(group), "little")
        for symbol in range(group, buffer.k, self._groups):
            restored ^= int.from_bytes(buffer.get(symbol), "little")
        buffer.put(lost, restored.to_bytes(buffer.symbol_bytes, "little"))
        self._lost[group] = 0

    def block(self) -> memoryview:
        return self._buffer.data


class XorScheme:
    """k data + 1 parity symbols: a code that every receiver can run at line rate."""

    name = "xor"
    counts = False

    def __init__(self, group: int) -> None:
        # The k of an offer with group 0.
        self._group = group or 16

    def max_repair(self, k: int) -> int:
        return -(-k // self._group)

    def repair(self, source: bytes, k: int, symbol_bytes: int, count: int) -> list[bytes]:
        # One layer has the next symbol of every group. A short last layer is correct, too: as
        # little-endian numbers all layers begin at the same byte.
        layer_bytes = self.max_repair(k) * symbol_bytes
        parity = 0
        for at in range(0, k * symbol_bytes, layer_bytes):
            parity ^= int.from_bytes(source[at : at + layer_bytes], "little")
        rows = parity.to_bytes(layer_bytes, "little")
        return [rows[at : at + symbol_bytes] for at in range(0, layer_bytes, symbol_bytes)][:count]

    def decoder(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> BlockDecoder:
        return XorDecoder(k, symbol_bytes, self.max_repair(k), space)


def scheme_of(parameters: FecParameters) -> Scheme:
    """The code with these parameters."""
    return XorScheme(parameters.group)
