"""Who asks, and what they can prove: client keys, ticket tokens and passes out of a request.

A client is its address (IPv4 whole, IPv6 by its /64) and one of a few buckets. The bucket is a
hash of the id that Tidegate's client sends, else of the User-Agent: so people behind one NAT are
told apart well enough to get places of their own, nobody gets more than a fixed number of them,
and the server keeps no state for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from protocol.ticket import MAX_TOKEN_LENGTH
from server.http.proxies import block_of

TICKET_FIELD = b"tidegate-ticket"
PASS_FIELD = b"tidegate-pass"
CLIENT_FIELD = b"tidegate-client"
WAIT_FIELD = b"tidegate-wait"
REMAINING_FIELD = b"tidegate-remaining"
COOKIE_NAME = "tidegate-ticket"


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the client sent it, and by which way."""

    text: str
    by_cookie: bool = False
    by_query: bool = False


class Callers:
    """Makes client keys; remembers the last few thousand."""

    def __init__(self, clients_per_address: int) -> None:
        self._buckets = clients_per_address
        self._keys: dict[tuple[str, bytes], str] = {}

    def key(self, address: str, headers: Mapping[bytes, bytes]) -> str:
        """The client key, such as `192.0.2.7#3`."""
        name = headers.get(CLIENT_FIELD) or headers.get(b"user-agent") or b""
        name = name[:256]
        found = self._keys.get((address, name))
        if found is None:
            if len(self._keys) >= 8192:
                self._keys.clear()
            bucket = zlib.crc32(name) % self._buckets
            found = self._keys[address, name] = f"{block_of(address)}#{bucket}"
        return found


def find_ticket(headers: Mapping[bytes, bytes], query: bytes) -> Token | None:
    """The ticket token of a request: header before query before cookie."""
    field = headers.get(TICKET_FIELD)
    if field is not None:
        return Token(_text(field))
    if TICKET_FIELD in query:
        text = _from_query(query, "tidegate-ticket")
        if text is not None:
            return Token(text, by_query=True)
    cookies = headers.get(b"cookie")
    if cookies is not None and TICKET_FIELD in cookies:
        for cookie in cookies.replace(b",", b";").split(b";"):
            name, _, value = cookie.strip().partition(b"=")
            if name == TICKET_FIELD:
                return Token(_text(value), by_cookie=True)
    return None


def find_pass(headers: Mapping[bytes, bytes], query: bytes) -> str | None:
    """The pass token of a request: header before query."""
    field = headers.get(PASS_FIELD)
    if field is not None:
        return _text(field)
    return _from_query(query, "tidegate-pass") if PASS_FIELD in query else None


def find_remaining(headers: Mapping[bytes, bytes], size_bytes: int) -> int | None:
    """How much of the file the client says it still wants; None when it says nothing sensible."""
    field = headers.get(REMAINING_FIELD)
    if field is None or not field.isdigit() or len(field) > 19:
        return None
    return min(int(field), size_bytes)


def _from_query(query: bytes, name: str) -> str | None:
    try:
        pairs = parse_qsl(query.decode("latin-1"), max_num_fields=64)
    except ValueError:
        return None
    return next((value for key, value in pairs if key == name), None)


def _text(field: bytes) -> str:
    return field[: MAX_TOKEN_LENGTH + 1].decode("latin-1").strip()
