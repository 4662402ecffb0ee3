"""The multicast datagram: a fixed header, a keyed tag, and a symbol or a mark.

Laws:

- The header has 32 bytes, big-endian. A 16-byte tag and the payload follow. The header does not
  describe the file: size, hashes, code parameters, group and key are in the HTTP offer
  (`protocol.session`), which cannot be lost.
- The tag is BLAKE2b under the session key over header and payload. All members know the key, so
  the tag stops outsiders only. Block hashes protect the content, signed marks (`protocol.marks`)
  the state of the session.
- A receiver reads no payload before it has checked the tag.

Layout (offset: field): 0 magic `TG` · 2 version (high 4 bits) and type (low 4 bits) · 3 flags ·
4 session (64 bits, random; paper E's ID number) · 12 object · 13 pass · 14 K of the block ·
16 block · 20 symbol (source below K, repair from K) · 24 sequence · 28 send time in
microseconds, modulo 2^32 · 32 tag · 48 payload.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Callable
from typing import Any

MAGIC = 0x5447
VERSION = 1
HEADER = struct.Struct(">HBBQBBHIIII")
TAG_BYTES = 16
#: The header and its tag.
SEALED_HEADER = struct.Struct(f"{HEADER.format}{TAG_BYTES}s")
#: The offset of the payload.
PAYLOAD_OFFSET = SEALED_HEADER.size
#: Ethernet, IPv4 (IPv6 has 20 bytes more) and UDP headers around every datagram.
WIRE_OVERHEAD_BYTES = 14 + 20 + 8
#: Bounds a receiver's memory for one block's symbol numbers.
MAX_K = 4096


class PacketType(enum.IntEnum):
    """A symbol, or a mark (`protocol.marks`)."""

    SYMBOL = 0
    MARK = 1


class PacketFlag(enum.IntFlag):
    """What ends with this mark. Symbols have no flags, because they are not signed."""

    LAST_IN_PASS = 1
    CLOSE_OBJECT = 2
    CLOSE_SESSION = 4


class PacketSealer:
    """Adds the tag between header and payload. `key` has 16 to 64 bytes."""

    def __init__(self, key: bytes) -> None:
        #: Makes a fresh keyed hash state, for the header and then the payload.
        self.fresh: Callable[[], Any] = hashlib.blake2b(key=key, digest_size=TAG_BYTES).copy

    def tag(self, header: bytes, payload: bytes | memoryview) -> bytes:
        """The tag, 16 bytes."""
        state = self.fresh()
        state.update(header)
        state.update(payload)
        return bytes(state.digest())


def newer(left: int, right: int, bits: int) -> bool:
    """Whether `left` comes after `right` in arithmetic modulo 2**bits (RFC 1982)."""
    half = 1 << (bits - 1)
    return left != right and (left - right) % (1 << bits) < half
