"""Zstandard with another content as the reference ("patch-from"), and plain.

The reference travels as a *prefix*, not as a dictionary: zstd then lets its long-distance matcher
index all of it, which a dictionary does not (measured on the benchmark's pair: 2.6 MB at
0.26 CPU s against 20 MB). That is why the standard library's module (its backport before 3.14) is
used and not python-zstandard, which offers dictionaries only.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from .errors import BadManifest

#: Bytes however they are held; zstd copies none.
Packable = bytes | bytearray | memoryview

_C = zstd.CompressionParameter
_D = zstd.DecompressionParameter
#: Level for deltas: on real trees the higher ones cost tenfold for 3 % less.
DELTA_LEVEL = 6
#: A shorter reference is no help (and zstd takes none): both sides leave it out.
_SHORTEST_REFERENCE = 8
#: Level for whole contents, where the matching is the cost.
WHOLE_LEVEL = 3


def _window_log(total_bytes: int) -> int:
    return min(30, max(17, (max(1, total_bytes) - 1).bit_length()))


def pack(data: Packable, level: int = WHOLE_LEVEL) -> bytes:
    """Compress `data` alone; the frame carries its size."""
    return zstd.compress(data, level=level)


def pack_against(reference: Packable, data: Packable, level: int = DELTA_LEVEL) -> bytes:
    """Compress `data` given that the reader holds `reference` (both whole in memory, in bytes)."""
    if len(reference) < _SHORTEST_REFERENCE:
        return pack(data, level)
    log = _window_log(len(reference) + len(data))
    options: dict[int, int] = {
        _C.compression_level: level,
        _C.window_log: log,
        _C.enable_long_distance_matching: 1,
        # A hash slot for every 32 bytes of the window: the level's own table is far too small,
        # and a larger one costs more time than it saves bytes.
        _C.hash_log: min(24, max(17, log - 5)),
        _C.chain_log: min(24, max(17, log - 5)),
    }
    prefix = zstd.ZstdDict(reference, is_raw=True).as_prefix
    return zstd.compress(data, options=options, zstd_dict=prefix)


def unpack(data: bytes | memoryview, size_bytes: int, reference: bytes | bytearray = b"") -> bytes:
    """Restore exactly `size_bytes`; more, fewer or damaged bytes raise `BadManifest`.

    Never produces more than `size_bytes` + 1 bytes, whatever the frame says. A `bytearray` given
    as the reference is empty afterwards: the decoder has a copy, and two would not fit.
    """
    log = _window_log(len(reference) + size_bytes)
    helps = len(reference) >= _SHORTEST_REFERENCE
    try:
        prefix = zstd.ZstdDict(reference, is_raw=True).as_prefix if helps else None
        if isinstance(reference, bytearray):
            reference.clear()
        decoder = zstd.ZstdDecompressor(zstd_dict=prefix, options={_D.window_log_max: max(log, 27)})
        out = decoder.decompress(data, size_bytes + 1)
    except (zstd.ZstdError, EOFError) as fault:
        raise BadManifest("The compressed content is damaged; fetch the file again.") from fault
    if len(out) != size_bytes or not decoder.eof or decoder.unused_data:
        raise BadManifest("The compressed content has the wrong length; fetch the file again.")
    return out
