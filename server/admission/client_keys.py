"""Names clients, and so tells people behind the same address apart.

A client key is an address (IPv6: its /64) and a name. The name comes from the best proof that the
request carries (PROTOCOL.md, "Who is one person"). An attacker can invent names. So an address may
have `per_address` names in use; its further clients share a few names and thereby places. The
policy bounds whole prefixes.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from ...protocol.bounded_table import BoundedTable
from ...protocol.errors import BadToken
from ...protocol.ticket import TOKENS, KeyRing, ReturningVisitor, Ticket
from ..http.answers import Header
from ..http.cookies import read_cookie, set_cookie
from ..http.proxies import block_of, prefixes_of
from ..http.request import Request

TICKET_FIELD = b"tidegate-ticket"
PASS_FIELD = b"tidegate-pass"
CLIENT_FIELD = b"tidegate-client"
WAIT_FIELD = b"tidegate-wait"
VISITOR_COOKIE = b"tidegate-visitor"


@dataclass(frozen=True, slots=True)
class NameBounds:
    """How many names of clients are remembered, and for how long."""

    #: Each answer to a browser renews it. A month covers the visits around one release; a browser
    #: that stays away longer is a new visitor.
    cookie_age_s: int = 30 * 86_400
    #: A name that was not used for this time is forgotten, at the latest after twice this time.
    unused_s: float = 1800.0
    #: Names that are remembered in all, at 160 bytes. Those unused for longest are forgotten.
    most: int = 32_768
    #: Names that the clients beyond `per_address` share.
    shared: int = 8
    #: Cookies whose signature is known to be good.
    most_cookies: int = 4096


NAMES = NameBounds()


@dataclass(frozen=True, slots=True)
class Client:
    """A client. Its proof was signed at `since_s` (None without one). Its answer has the visitor
    token `cookie`."""

    key: str
    network: tuple[str, ...]
    since_s: float | None = None
    cookie: str | None = field(default=None, repr=False)


def client_key(address: str, name: str) -> str:
    """The key of a client of an address, or of a /64."""
    return f"{address}#{name}"


def address_of(key: str) -> str:
    """The address, or the /64, in a client's key."""
    return key.rpartition("#")[0]


class Clients:
    """Names clients. `now` is Unix time in seconds."""

    def __init__(self, per_address: int, now: Callable[[], float]) -> None:
        self._per_address = per_address
        self._now = now
        #: Hashes of names, and how many each address has of them: those used since a moment, and
        #: those used before it, which are forgotten next. Strings would take four times as much.
        self._lately, self._before = (set[int](), Counter[int]()), (set[int](), Counter[int]())
        self._since_s = now()
        self._visitors: BoundedTable[str, ReturningVisitor] = BoundedTable(NAMES.most_cookies)

    def reconfigure(self, per_address: int) -> None:
        self._per_address = per_address

    def identify(
        self, request: Request, keys: KeyRing, ticket: Ticket | None, *, browser: bool
    ) -> Client:
        """The client that sent this request and proved this `ticket`. A `browser` keeps cookies."""
        headers = request.headers
        address = request.client_address
        block, network = block_of(address), prefixes_of(address)
        visitor, cookie = None, None
        if browser or b"cookie" in headers:
            visitor, cookie = self._visitor(request, keys, browser)
        since_s = visitor.issued_s if visitor is not None else None
        if ticket is not None:
            since_s = ticket.issued_s if since_s is None else min(since_s, ticket.issued_s)
            return Client(client_key(block, ticket.name), network, since_s, cookie)
        given = headers.get(CLIENT_FIELD)
        if given:
            name = "c" + _digest(given)
        elif visitor is not None:
            name = "v" + visitor.ident.hex()
        else:
            name = _name_of_program(headers.get(b"user-agent", b"")[:256])
        return Client(client_key(block, self._within_bounds(block, name)), network, since_s, cookie)

    def greet(self, request: Request, keys: KeyRing) -> list[Header]:
        """The fields by which a browser is known from its first page on."""
        _, cookie = self._visitor(request, keys, True)
        return [visitor_cookie(request, cookie)] if cookie is not None else []

    def _visitor(
        self, request: Request, keys: KeyRing, browser: bool
    ) -> tuple[ReturningVisitor | None, str | None]:
        """The visitor, new for a new browser, and the cookie for its answer."""
        token = _text(read_cookie(request.headers, VISITOR_COOKIE) or b"")
        visitor = self._read_visitor(token, keys) if token else None
        if not browser:
            return visitor, None
        if visitor is not None and keys.is_current(token):
            return visitor, token
        visitor = visitor or ReturningVisitor(secrets.token_bytes(8), self._now())
        return visitor, keys.write_visitor(visitor)

    def _read_visitor(self, token: str, keys: KeyRing) -> ReturningVisitor | None:
        found = self._visitors.get(token)
        if found is None:
            try:
                found = keys.read_visitor(token)
            except BadToken:
                return None
            self._visitors[token] = found
        return found

    def _within_bounds(self, block: str, name: str) -> str:
        passed_s = (now := self._now()) - self._since_s
        if passed_s >= NAMES.unused_s or len(self._lately[0]) >= NAMES.most // 2:
            forgets_all = passed_s >= 2.0 * NAMES.unused_s
            self._before = (set(), Counter()) if forgets_all else self._lately
            self._lately, self._since_s = (set(), Counter()), now
        (lately, has), (before, had) = self._lately, self._before
        entry, address = hash((block, name)), hash(block)
        if entry in lately:
            return name
        if entry in before:
            before.remove(entry)
            had[address] -= 1
        elif had[address] + has[address] >= self._per_address:
            return _shared_name(name)
        lately.add(entry)
        has[address] += 1
        return name


def keys_of_program(address: str, agent: bytes) -> tuple[str, str]:
    """The keys of a client known by its program only: its own, and the one that it may share."""
    block, name = block_of(address), _name_of_program(agent[:256])
    return client_key(block, name), client_key(block, _shared_name(name))


def program_of(request: Request) -> bytes | None:
    """The User-Agent of a client that shows nothing else; None if it may have another name."""
    headers = request.headers
    if CLIENT_FIELD in headers or b"cookie" in headers:
        return None
    return headers.get(b"user-agent", b"")


def visitor_cookie(request: Request, token: str) -> Header:
    return set_cookie(
        VISITOR_COOKIE,
        token.encode("ascii"),
        path=b"/",
        age_s=NAMES.cookie_age_s,
        secure=request.is_tls,
    )


def find_ticket(headers: Mapping[bytes, bytes], query: bytes) -> str | None:
    """The ticket token of a request: header before query before cookie."""
    field = headers.get(TICKET_FIELD)
    if field is not None:
        return _text(field)
    if TICKET_FIELD in query:
        text = _from_query(query, "tidegate-ticket")
        if text is not None:
            return text
    cookie = read_cookie(headers, TICKET_FIELD)
    return _text(cookie) if cookie is not None else None


def find_pass(headers: Mapping[bytes, bytes], query: bytes) -> str | None:
    """The pass token of a request: header before query."""
    field = headers.get(PASS_FIELD)
    if field is not None:
        return _text(field)
    return _from_query(query, "tidegate-pass") if PASS_FIELD in query else None


def find_remaining(headers: Mapping[bytes, bytes], size_bytes: int) -> int | None:
    """The bytes of the file that the client says it still wants; None if it says nothing valid."""
    field = headers.get(b"tidegate-remaining")
    if field is None or not field.isdigit() or len(field) > 19:
        return None
    return min(int(field), size_bytes)


def _from_query(query: bytes, name: str) -> str | None:
    try:
        pairs = parse_qsl(query.decode("latin-1"), max_num_fields=64)
    except ValueError:
        return None
    return next((value for key, value in pairs if key == name), None)


def _shared_name(name: str) -> str:
    return f"s{zlib.crc32(name.encode('ascii')) % NAMES.shared}"


@functools.lru_cache(1024)
def _name_of_program(agent: bytes) -> str:
    return "t" + _digest(agent)


def _digest(name: bytes) -> str:
    return hashlib.sha256(name[:256]).hexdigest()[:16]


def _text(field: bytes) -> str:
    return field[: TOKENS.token_length + 1].decode("latin-1").strip()


def proves_something(request: Request) -> bool:
    """Whether a request carries a ticket or a pass, good or bad."""
    headers, query = request.headers, request.query
    return find_ticket(headers, query) is not None or find_pass(headers, query) is not None
