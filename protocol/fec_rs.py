"""Reed–Solomon by `zfec`, striped: for sending at a fixed rate without a return channel.

A Reed–Solomon code over bytes has at most 256 symbols, so a block of K is dealt out to
S = ceil(K / stripe) stripes (symbol i belongs to stripe i mod S), each with its own code.
Repair symbol r (number K + r) is parity r // S of stripe r mod S: consecutive repair symbols serve
different stripes, and a burst hits all stripes alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import zfec

from .fec import BlockDecoder, BlockEncoder
from .fec_none import SourceBuffer

DEFAULT_STRIPE = 64
_FIELD = 256


class ReedSolomonEncoder:
    """Parities, made stripe by stripe in rounds of `round_size` and kept."""

    def __init__(self, source: bytes, k: int, symbol_bytes: int, stripes: int) -> None:
        self._stripes: list[list[bytes]] = []
        view = memoryview(source)
        for s in range(stripes):
            self._stripes.append(
                [
                    bytes(view[i * symbol_bytes : (i + 1) * symbol_bytes])
                    for i in range(s, k, stripes)
                ]
            )
        self._made: dict[int, bytes] = {}

    def repair(self, first: int, count: int) -> Sequence[bytes]:
        stripes = len(self._stripes)
        end = min(first + count, stripes * min(_FIELD - len(part) for part in self._stripes))
        wanted: dict[int, list[int]] = {}
        for number in range(first, end):
            if number not in self._made:
                wanted.setdefault(number % stripes, []).append(number)
        for s, numbers in wanted.items():
            part = self._stripes[s]
            shares = [len(part) + number // stripes for number in numbers]
            made = zfec.Encoder(len(part), _FIELD).encode(part, shares)
            self._made.update(zip(numbers, made, strict=True))
        return [self._made[number] for number in range(first, end)]


class ReedSolomonDecoder:
    """Each stripe is whole as soon as it has as many symbols as source symbols."""

    def __init__(self, k: int, symbol_bytes: int, stripes: int, space: memoryview | None) -> None:
        self._buffer = SourceBuffer(k, symbol_bytes, space)
        self._stripes = stripes
        self._lost = [len(range(s, k, stripes)) for s in range(stripes)]
        self._room = min(_FIELD - len(range(s, k, stripes)) for s in range(stripes))
        self._repair: list[dict[int, bytes]] = [{} for _ in range(stripes)]

    @property
    def missing(self) -> int:
        # Repair goes round the stripes, so the neediest stripe decides.
        need = max(
            lost - len(repair) for lost, repair in zip(self._lost, self._repair, strict=True)
        )
        return max(0, need) * self._stripes

    @property
    def wanted(self) -> int:
        need = [lost - len(repair) for lost, repair in zip(self._lost, self._repair, strict=True)]
        bits = 0
        for symbol in self._buffer.unknown():
            stripe = symbol % self._stripes
            if need[stripe] > 0:
                need[stripe] -= 1
                bits |= 1 << symbol
        return bits

    def add(self, symbol: int, payload: bytes | memoryview) -> bool:
        buffer = self._buffer
        if symbol < buffer.k:
            stripe = symbol % self._stripes
            if not buffer.put(symbol, payload):
                return False
            self._lost[stripe] -= 1
        else:
            parity, stripe = divmod(symbol - buffer.k, self._stripes)
            held = self._repair[stripe]
            if parity >= self._room or parity in held or not self._lost[stripe]:
                return False
            held[parity] = bytes(payload)
        if self._lost[stripe] and len(self._repair[stripe]) >= self._lost[stripe]:
            self._decode(stripe)
        return buffer.left == 0

    def _decode(self, stripe: int) -> None:
        buffer = self._buffer
        members = range(stripe, buffer.k, self._stripes)
        shares: list[bytes] = []
        numbers: list[int] = []
        lost: list[int] = []
        spare = iter(sorted(self._repair[stripe].items()))
        for place, symbol in enumerate(members):
            if buffer.known[symbol]:
                shares.append(bytes(buffer.get(symbol)))
                numbers.append(place)
            else:
                parity, payload = next(spare)
                shares.append(payload)
                numbers.append(len(members) + parity)
                lost.append(symbol)
        decoded = zfec.Decoder(len(members), _FIELD).decode(shares, numbers)
        for symbol in lost:
            buffer.put(symbol, decoded[(symbol - stripe) // self._stripes])
        self._lost[stripe] = 0
        self._repair[stripe].clear()

    def block(self) -> memoryview:
        return self._buffer.data


class ReedSolomonScheme:
    """Any k of a stripe's symbols restore it; repair is counted per block, over all stripes."""

    name = "rs"
    counts = True

    def __init__(self, group: int = 0) -> None:
        self._stripe = min(group or DEFAULT_STRIPE, 200)

    def _count(self, k: int) -> int:
        return -(-k // self._stripe)

    def max_repair(self, k: int) -> int:
        stripes = self._count(k)
        return stripes * (_FIELD - -(-k // stripes))

    def encoder(self, source: bytes, k: int, symbol_bytes: int) -> BlockEncoder:
        return ReedSolomonEncoder(source, k, symbol_bytes, self._count(k))

    def decoder(self, k: int, symbol_bytes: int, space: memoryview | None = None) -> BlockDecoder:
        return ReedSolomonDecoder(k, symbol_bytes, self._count(k), space)
