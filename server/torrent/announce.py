"""The tracker's wire format: BEP 3 requests, compact answers (BEP 23, BEP 7), BEP 48. Pure.

A peer's address is the one that its request comes from: an attacker cannot enlist other addresses.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from ...protocol.errors import ProtocolError
from .swarm import Announce, Census, PeerEvent, Place


class BadAnnounce(ProtocolError):
    """A malformed request. The answer names the fault as BEP 3 says."""


@dataclass(frozen=True, slots=True)
class AnnounceRequest:
    """One peer's announce for one torrent."""

    info_hash: bytes
    announce: Announce


def fields_of(query: bytes) -> dict[bytes, list[bytes]]:
    """The fields of a query, with raw bytes as values. Raises BadAnnounce.

    `parse_qs` decodes to text, which an info-hash is not. Linear in time.
    """
    if re.search(rb"%(?![0-9A-Fa-f]{2})", query):
        raise BadAnnounce("The query has a broken percent escape.")
    fields: dict[bytes, list[bytes]] = {}
    for pair in query.replace(b"+", b" ").split(b"&"):
        name, _, value = map(unquote_to_bytes, pair.partition(b"="))
        fields.setdefault(name, []).append(value)
    return fields


def read_announce(query: bytes, address: str) -> AnnounceRequest:
    """The announce of a peer at `address`. Raises BadAnnounce, which names the fault."""
    fields = fields_of(query)
    event = _one(fields, b"event", b"").decode("latin-1")
    try:
        happened = PeerEvent(event)
    except ValueError:
        # BEP 21 and others add words of their own.
        happened = PeerEvent.STILL_THERE
    port = _number(fields, b"port", None, 65535)
    if port == 0:
        raise BadAnnounce("A peer listens on a port from 1 to 65535.")
    left = _number(fields, b"left", 1, 1 << 62)
    # Peers for a program that names no number. BEP 3 leaves the choice to the tracker.
    want = _number(fields, b"numwant", 30, 1 << 31)
    return AnnounceRequest(_hash(fields), Announce(address, port, left, happened, want))


def read_scrape(query: bytes) -> list[bytes]:
    """The info-hashes that a scrape asks about: 1 to 16. Raises BadAnnounce."""
    hashes = fields_of(query).get(b"info_hash", [])
    if not 1 <= len(hashes) <= 16:
        raise BadAnnounce("A scrape names 1 to 16 torrents by their info_hash.")
    if any(len(one) != 20 for one in hashes):
        raise BadAnnounce("An info_hash has 20 bytes.")
    return hashes


def _hash(fields: Mapping[bytes, Sequence[bytes]]) -> bytes:
    found = _one(fields, b"info_hash", None)
    if len(found) != 20:
        raise BadAnnounce("An info_hash has 20 bytes.")
    return found


def _number(
    fields: Mapping[bytes, Sequence[bytes]], name: bytes, default: int | None, most: int
) -> int:
    text = _one(fields, name, None if default is None else str(default).encode("ascii"))
    # Some programs write -1 for what they do not know.
    if text == b"-1" and default is not None:
        return default
    if not text.isdigit() or len(text) > 20 or int(text) > most:
        raise BadAnnounce(f"{name.decode('ascii')} must be a number up to {most}.")
    return int(text)


def _one(fields: Mapping[bytes, Sequence[bytes]], name: bytes, default: bytes | None) -> bytes:
    values = fields.get(name, ())
    if len(values) > 1 or (not values and default is None):
        raise BadAnnounce(f"An announce has one {name.decode('ascii')}.")
    return values[0] if values else default or b""


def peers_answer(
    places: Sequence[Place], census: Census, interval_s: float
) -> dict[bytes, int | bytes]:
    """The answer to an announce, to be bencoded."""
    four, six = bytearray(), bytearray()
    for address, port in places:
        is_six = ":" in address
        family = socket.AF_INET6 if is_six else socket.AF_INET
        # `ipaddress` takes eight times as long, and an answer has up to 64 addresses.
        packed = socket.inet_pton(family, address.partition("%")[0])
        (six if is_six else four).extend(packed + port.to_bytes(2, "big"))
    answer: dict[bytes, int | bytes] = {
        b"interval": int(interval_s),
        b"min interval": max(1, int(interval_s / 4)),
        b"complete": census.complete,
        b"incomplete": census.incomplete,
        b"peers": bytes(four),
    }
    if six:
        answer[b"peers6"] = bytes(six)
    return answer


def scrape_answer(found: Mapping[bytes, Census]) -> dict[bytes, dict[bytes, dict[bytes, int]]]:
    """The answer to a scrape, to be bencoded. `found` has the torrents that are known here."""
    return {
        b"files": {
            info_hash: {
                b"complete": census.complete,
                b"incomplete": census.incomplete,
                b"downloaded": census.downloaded,
            }
            for info_hash, census in found.items()
        }
    }
