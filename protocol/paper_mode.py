"""Paper E's protocol: its mapping of a URL to a group and port, its packet fields, its XOR code.

Wu, Hu, Yuan, Chiang, "The implementation and performance evaluation of a dynamic adaptive
multicast WWW system". The paper defines:

- (3.1, figure 5) address = 1110 | location, 12 bits | server, 8 bits | page, 8 bits; server is the
  sum of the character codes of `host` modulo 256, page that of `host/path` modulo 256, and the port
  that of `host/path/file` modulo 65536. Collisions are expected; the ID number tells them apart.
- (3.4) the packet header has an ID number, a sequence number and the total number.
- (3.6) k data packets are followed by one packet with their XOR; any k of the k+1 give the block.

The paper leaves open what is defined here. The three fields have 32 bits each, big-endian, without
gaps. Sequence numbers count all packets from 0, parity included. The last block may be shorter. The
last data packet is padded with zeros for the XOR and on the wire. `host` excludes the server's
port; `path` has no slash at either end (an object at the root maps `host/` + file).
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from .errors import BadPacket
from .fec import BlockLayout

HEADER = struct.Struct(">III")
HEADER_BYTES = HEADER.size
#: The group size k; the paper names none.
DEFAULT_K = 8


@dataclass(frozen=True, slots=True)
class PaperAddress:
    """The group and port of an object."""

    group: str
    port: int


def character_sum(text: str, modulus: int) -> int:
    """The paper's hash: the sum of the character codes."""
    return sum(text.encode()) % modulus


def map_url(host: str, path: str, location: int = 0xF00) -> PaperAddress:
    """Group and port of `http://host/path`; `path` as in the URL, with or without first slash.

    The default location is 239.x.y.z, the administratively scoped block (RFC 2365).
    Raises ValueError when `location` has more than 12 bits.
    """
    if not 0 <= location < 1 << 12:
        raise ValueError("the location has 12 bits")
    whole = path.lstrip("/")
    folder, _, name = whole.rpartition("/")
    page = f"{host}/{folder}" if folder else host
    server_part = character_sum(host, 256)
    page_part = character_sum(page, 256)
    address = 0b1110 << 28 | location << 16 | server_part << 8 | page_part
    port = character_sum(f"{page}/{name}", 65536)
    return PaperAddress(str(ipaddress.IPv4Address(address)), port)


@dataclass(frozen=True, slots=True)
class PaperHeader:
    """The packet's three fields."""

    id_number: int
    sequence_number: int
    total_number: int


def pack_packet(header: PaperHeader, payload: bytes | memoryview) -> bytes:
    """A packet. Raises `BadPacket` when a field has more than 32 bits."""
    try:
        fields = HEADER.pack(header.id_number, header.sequence_number, header.total_number)
    except struct.error as error:
        raise BadPacket(f"a field of the paper's header is out of range: {error}") from error
    return fields + payload


def parse_packet(datagram: bytes | memoryview) -> tuple[PaperHeader, memoryview]:
    """Header and payload. Raises `BadPacket`."""
    if len(datagram) < HEADER_BYTES:
        raise BadPacket("the datagram is shorter than the paper's header")
    header = PaperHeader(*HEADER.unpack_from(datagram))
    if header.sequence_number >= header.total_number:
        raise BadPacket("the sequence number is not below the total number")
    return header, memoryview(datagram)[HEADER_BYTES:]


@dataclass(frozen=True, slots=True)
class PaperOrder:
    """The sequence numbers of an object: blocks of k data packets, each followed by its parity.

    The layout's `block_symbols` is k; symbol k of a block is its parity.
    """

    layout: BlockLayout

    @property
    def total(self) -> int:
        """The number of packets: data, and one parity packet a block."""
        layout = self.layout
        if not layout.blocks:
            return 0
        last = layout.blocks - 1
        return last * (layout.block_symbols + 1) + layout.k(last) + 1

    def sequence(self, block: int, symbol: int) -> int:
        """The sequence number of a symbol."""
        return block * (self.layout.block_symbols + 1) + symbol

    def place(self, sequence: int) -> tuple[int, int]:
        """Block and symbol of a sequence number below `total`."""
        return divmod(sequence, self.layout.block_symbols + 1)
