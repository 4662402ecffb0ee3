"""Zstandard, plain and with another content as the reference ("patch-from").

The reference is a *prefix*, which zstd's long-distance matcher indexes whole. It does not index a
dictionary: the benchmark's pair then takes 20 MB instead of 2.6 MB. The standard library's module
(before Python 3.14 its backport) has prefixes; python-zstandard has only dictionaries.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from .errors import BadManifest

#: zstd copies none of them.
Packable = bytes | bytearray | memoryview

_C = zstd.CompressionParameter


class Levels(NamedTuple):
    """Levels and bounds of zstd."""

    #: For deltas. Higher levels cost ten times as much for 3 % fewer bytes on real trees.
    delta: int = 6
    #: zstd takes no shorter prefix: both sides leave it out.
    shortest_reference: int = 8
    #: For whole contents: zstd's default.
    whole: int = 3


LEVELS = Levels()


def _window_log(total_bytes: int) -> int:
    return min(30, max(17, (max(1, total_bytes) - 1).bit_length()))


def pack(data: Packable, level: int = LEVELS.whole) -> bytes:
    """Compress `data` alone; the frame carries its size."""
    return zstd.compress(data, level=level)


def pack_against(reference: Packable, data: Packable, level: int) -> bytes:
    """Compress `data` for a reader that has `reference`."""
    if len(reference) < LEVELS.shortest_reference:
        return pack(data, level)
    log = _window_log(len(reference) + len(data))
    options: dict[int, int] = {
        _C.compression_level: level,
        _C.window_log: log,
        _C.enable_long_distance_matching: 1,
        # One hash slot for 32 bytes of the window. The level's own table is far too small; a larger
        # one costs more time than it saves bytes.
        _C.hash_log: min(24, max(17, log - 5)),
        _C.chain_log: min(24, max(17, log - 5)),
    }
    prefix = zstd.ZstdDict(reference, is_raw=True).as_prefix
    return zstd.compress(data, options=options, zstd_dict=prefix)


def unpack(data: bytes | memoryview, size_bytes: int, reference: bytes | bytearray = b"") -> bytes:
    """Restore exactly `size_bytes`. Raises BadManifest for more, fewer or damaged bytes.

    At most `size_bytes` + 1 bytes are decoded. A reference that is a `bytearray` is emptied: the
    decoder has a copy, and two might not fit in memory.
    """
    log = _window_log(len(reference) + size_bytes)
    helps = len(reference) >= LEVELS.shortest_reference
    try:
        prefix = zstd.ZstdDict(reference, is_raw=True).as_prefix if helps else None
        if isinstance(reference, bytearray):
            reference.clear()
        decoder = zstd.ZstdDecompressor(
            zstd_dict=prefix, options={zstd.DecompressionParameter.window_log_max: max(log, 27)}
        )
        out = decoder.decompress(data, size_bytes + 1)
    except (zstd.ZstdError, EOFError) as fault:
        raise BadManifest("The compressed content is damaged; fetch the file again.") from fault
    if len(out) != size_bytes or not decoder.eof or decoder.unused_data:
        raise BadManifest("The compressed content has the wrong length; fetch the file again.")
    return out
