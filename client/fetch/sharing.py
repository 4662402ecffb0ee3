"""Picks the block strategy for what is missing, from the caller's wishes and the rate database."""

from __future__ import annotations

from collections.abc import Mapping

from ..schedule.segments import SegmentMap
from ..schedule.strategies import AdaptiveBlocks, DynamicBlocks, HistoryBlocks, SingleBlocks
from ..storage.piece_writer import PieceWriter
from .options import Options

#: What a mirror about which nothing is known is handed first.
_FIRST_BYTES = 64 << 10
#: Blocks are rounded to pieces, and first blocks are whole pieces, up to these sizes.
_LONGEST_ALIGN = 1 << 20
_LONGEST_FIRST = 512 << 10


def make_board(
    sink: PieceWriter, options: Options, rates: Mapping[int, float | None]
) -> SegmentMap:
    """A board for what `sink` misses; `rates` by mirror, None for strangers."""
    missing = sink.missing()
    left = sum(end - start for start, end in missing)
    match options.strategy:
        case "history":
            seen = [rate for rate in rates.values() if rate]
            usual = sum(seen) / len(seen) if seen else 1.0
            return HistoryBlocks(missing, {n: rate or usual for n, rate in rates.items()})
        case "dynamic":
            count = options.blocks
            if options.block_bytes:
                count = max(1, -(-left // options.block_bytes))
            return DynamicBlocks(missing, count)
        case "single":
            return SingleBlocks(missing)
    piece = sink.pieces.length if sink.pieces is not None else 1
    return AdaptiveBlocks(
        missing,
        align=piece if piece <= _LONGEST_ALIGN else 1,
        first_bytes=max(_FIRST_BYTES, piece if piece <= _LONGEST_FIRST else 0),
        fixed_bytes=options.block_bytes,
    )
