"""Signed tokens: tickets, visitor cookies and priority passes.

A *ticket* proves a place in the queue for one address and one file. It has its owner's client name
and what the server needs to restore the place after a loss. A *visitor* token is the cookie of a
returning browser. A *pass* is made by the operator for people; it has a priority class, and where
and how often it is valid.

Form: `t2.KEY.PAYLOAD.SIGNATURE` (`v1.` for a visitor, `p1.` for a pass) in the URL-safe base64
alphabet: it fits a header, a cookie and a query string unchanged. The signature is HMAC-SHA-256
(itsdangerous `Signer`) over all before it. KEY names the signing key, so that keys can overlap when
they are rotated. Address and file are bound by the first 12 bytes of their SHA-256: a token has a
bounded length, and a third party cannot read who waits for what.

Reading raises only `BadToken`.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import functools
import hashlib
import hmac
import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from itsdangerous import Signer

from .errors import BadToken


class TokenBounds(NamedTuple):
    """Bounds of tokens."""

    #: Bounds the tokens that are written and read.
    token_length: int = 1024
    #: Bounds a pass's pattern, so that the token is shorter than TOKENS.token_length.
    path_length: int = 400
    largest: int = (1 << 63) - 1
    #: Bounds the cache of verified tickets, of some 500 bytes each.
    proven: int = 4096


TOKENS = TokenBounds()


_SHAPE = re.compile(r"(t2|v1|p1)\.([A-Za-z0-9_-]{1,32})\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_TICKET = struct.Struct(">QQQdd12s12sB")
_VISITOR = struct.Struct(">d8s")


@dataclass(frozen=True, slots=True)
class Key:
    """One signing key. `name` is in the tokens; `secret` has at least 16 bytes."""

    name: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"key name {self.name!r}: use 1 to 32 of A-Z a-z 0-9 _ -")
        if len(self.secret) < 16:
            raise ValueError("a key needs at least 16 secret bytes")


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the queue. Sizes in bytes, `issued_s` in Unix time.

    `address` is what counts as the owner's address. `name` distinguishes the clients of one address
    (1 to 32 of A-Z a-z 0-9 _ -).
    """

    number: int
    address: str
    name: str
    file: str
    size_bytes: int
    remaining_bytes: int
    weight: float
    issued_s: float
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class ReturningVisitor:
    """A returning browser: `ident` has 8 random bytes; it was first seen at `issued_s`."""

    ident: bytes
    issued_s: float


@dataclass(frozen=True, slots=True)
class Pass:
    """A priority pass: its class and weight, and where, when and how often it is valid.

    `path` is a shell pattern over the whole path of a file (`*` matches slashes). Times are Unix
    seconds. `max_uses` counts started downloads; the server counts them by `serial`.
    """

    serial: str
    priority_class: str
    weight: float
    path: str
    not_before_s: float
    expires_s: float
    max_uses: int

    def check(self, path: str, now: float, uses: int) -> None:
        """Raise BadToken unless the pass is valid for `path` now, after `uses` earlier uses."""
        if now < self.not_before_s:
            raise BadToken("This pass is not valid yet.", code="pass-early")
        if now >= self.expires_s:
            raise BadToken(
                "This pass has expired; ask who gave it for another.", code="pass-expired"
            )
        if not fnmatch.fnmatchcase(path, self.path):
            raise BadToken(f"This pass is for {self.path}, not for this file.", code="pass-path")
        if uses >= self.max_uses:
            raise BadToken("This pass has been used as often as it allows.", code="pass-used")


class KeyRing:
    """The keys of one server. The first signs; all are accepted.

    Until `complete_until_s` (Unix time) the ring has each key that may have signed a token. Later
    a token with an unknown key is not called forged.
    """

    def __init__(self, keys: Sequence[Key], complete_until_s: float = math.inf) -> None:
        if not keys:
            raise ValueError("a key ring needs at least one key")
        if len({key.name for key in keys}) != len(keys):
            raise ValueError("two keys of one ring have the same name")
        self._complete_until_s = complete_until_s
        self._first = keys[0].name
        #: The second part of each new token, see `is_current`.
        self._signed_with = f".{self._first}."
        self._secrets = {key.name: _signing_secret(key.secret) for key in keys}
        self._signers = {name: _Signatures(secret) for name, secret in self._secrets.items()}
        #: Verified tickets by token, address and file: a waiting client sends its token repeatedly.
        self._proven: dict[tuple[str, str, str], Ticket] = {}

    def derived(self) -> tuple[tuple[str, bytes], ...]:
        """The derived secrets in order, for `from_derived` in another process."""
        return tuple(self._secrets.items())

    @classmethod
    def from_derived(cls, secrets: Sequence[tuple[str, bytes]]) -> KeyRing:
        """The ring with these `derived` secrets, never complete. Raises ValueError for bad ones."""
        ring = cls([Key(name, secret) for name, secret in secrets], -math.inf)
        ring._secrets = dict(secrets)
        ring._signers = {name: _Signatures(secret) for name, secret in secrets}
        return ring

    def write_ticket(self, ticket: Ticket) -> str:
        """The token for a ticket. Raises ValueError for fields out of bounds."""
        _check_ticket(ticket)
        numbers = (ticket.number, ticket.size_bytes, ticket.remaining_bytes)
        tags = (_tag(ticket.address), _tag(ticket.file), len(ticket.name))
        body = _TICKET.pack(*numbers, ticket.weight, ticket.issued_s, *tags)
        return self._sign("t2", body + (ticket.name + ticket.priority_class).encode("ascii"))

    def read_ticket(
        self, token: str, address: str, file: str, now: float, max_age_s: float = 30 * 86_400.0
    ) -> Ticket:
        """The ticket in `token`, verified for this address and file.

        Raises BadToken: ticket-forged (not made by us, or damaged), ticket-foreign (of another
        address or file), ticket-expired (issued more than `max_age_s` ago), no-leader.
        """
        known = self._proven.get((token, address, file))
        if known is None:
            known = self._prove(token, address, file, now)
            if len(self._proven) >= TOKENS.proven:
                self._proven.clear()
            self._proven[token, address, file] = known
        if not now - known.issued_s <= max_age_s:
            raise BadToken(
                "This ticket is too old; ask without it for a new one.", code="ticket-expired"
            )
        return known

    def _prove(self, token: str, address: str, file: str, now: float) -> Ticket:
        body = self._unsign("t2", token, "ticket-forged", now)
        # Bounds a client name and a priority class.
        if not _TICKET.size <= len(body) <= _TICKET.size + 2 * 32:
            raise _forged(code="ticket-forged")
        fields = _TICKET.unpack_from(body)
        number, size_bytes, remaining_bytes, weight, issued_s, address_tag, file_tag, cut = fields
        numbers = (size_bytes, remaining_bytes, weight, issued_s)
        try:
            names = body[_TICKET.size :].decode("ascii")
            ticket = Ticket(number, address, names[:cut], file, *numbers, names[cut:])
            _check_ticket(ticket)
        except ValueError as error:
            raise _forged(code="ticket-forged") from error
        foreign = "" if hmac.compare_digest(file_tag, _tag(file)) else "is for another file"
        if not hmac.compare_digest(address_tag, _tag(address)):
            foreign = foreign or "was issued to another address"
        if foreign:
            text = f"This ticket {foreign}; ask without it for one of your own."
            raise BadToken(text, code="ticket-foreign")
        return ticket

    def write_visitor(self, visitor: ReturningVisitor) -> str:
        """The token for a visitor. Raises ValueError for fields out of bounds."""
        if len(visitor.ident) != 8 or not math.isfinite(visitor.issued_s):
            raise ValueError("a visitor has 8 bytes of ident and a finite time")
        return self._sign("v1", _VISITOR.pack(visitor.issued_s, visitor.ident))

    def read_visitor(self, token: str) -> ReturningVisitor:
        """The visitor in `token`. Raises BadToken with visitor-forged."""
        body = self._unsign("v1", token, "visitor-forged")
        if len(body) != _VISITOR.size:
            raise _forged(code="visitor-forged")
        issued_s, ident = _VISITOR.unpack(body)
        if not math.isfinite(issued_s):
            raise _forged(code="visitor-forged")
        return ReturningVisitor(ident, issued_s)

    def is_current(self, token: str) -> bool:
        """Whether a token was signed with the first key. Others end when their key is removed."""
        return token.startswith(self._signed_with, 2)

    def write_pass(self, permit: Pass) -> str:
        """The token for a pass. Raises ValueError for fields out of bounds."""
        _check_pass(permit)
        fields = [
            permit.serial,
            permit.priority_class,
            permit.weight,
            permit.path,
            permit.not_before_s,
            permit.expires_s,
            permit.max_uses,
        ]
        return self._sign("p1", json.dumps(fields, separators=(",", ":")).encode())

    def read_pass(self, token: str, now: float) -> Pass:
        """The pass in `token`. `Pass.check` says whether it is valid for a file now.

        Raises BadToken with pass-forged or no-leader.
        """
        body = self._unsign("p1", token, "pass-forged", now)
        try:
            permit = Pass(*json.loads(body))
            _check_pass(permit)
        except (ValueError, TypeError, RecursionError) as error:
            raise _forged(code="pass-forged") from error
        return permit

    def _sign(self, kind: str, body: bytes) -> str:
        payload = base64.urlsafe_b64encode(body).rstrip(b"=").decode("ascii")
        text = f"{kind}.{self._first}.{payload}"
        token = f"{text}.{self._signers[self._first].of(text)}"
        assert len(token) <= TOKENS.token_length
        return token

    def _unsign(self, kind: str, token: str, code: str, now: float = -math.inf) -> bytes:
        match = _SHAPE.fullmatch(token) if len(token) <= TOKENS.token_length else None
        if match is None or match[1] != kind:
            raise _forged(code)
        signer = self._signers.get(match[2])
        if signer is None:
            if now < self._complete_until_s:
                raise BadToken(str(_forged(code)), code=code, key=match[2])
            text = "The queue is being restarted and keeps every place; ask again in a moment."
            raise BadToken(text, status=503, code="no-leader", key=match[2])
        # The signatures are compared as text: a token has exactly one spelling.
        if not hmac.compare_digest(signer.of(token.rpartition(".")[0]), match[4]):
            raise _forged(code)
        payload = match[3]
        try:
            return base64.b64decode(payload + "=" * (-len(payload) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise _forged(code) from error


def _signing_secret(secret: bytes) -> bytes:
    """The derived secret that signs, as `Signer` derives it for each signature."""
    signer = Signer(
        secret, salt=b"tidegate.token.1", key_derivation="hmac", digest_method=hashlib.sha256
    )
    return signer.derive_key()


class _Signatures:
    """HMAC (RFC 2104) with a prepared key: the signatures of `Signer` at a tenth of the cost.

    The standard library's `hmac` prepares the key for each text.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        block = hashlib.sha256().block_size
        short = secret if len(secret) <= block else hashlib.sha256(secret).digest()
        key = short.ljust(block, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def of(self, text: str) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text.encode("ascii"))
        outer.update(inner.digest())
        return base64.urlsafe_b64encode(outer.digest()).rstrip(b"=").decode("ascii")


@functools.lru_cache(8192)
def _tag(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:12]


def _forged(code: str) -> BadToken:
    what = {"pass-forged": "pass", "visitor-forged": "visitor cookie"}.get(code, "ticket")
    return BadToken(f"This {what} was not issued by this server, or it is damaged.", code=code)


def _check_ticket(ticket: Ticket) -> None:
    for number in (ticket.number, ticket.size_bytes, ticket.remaining_bytes):
        if not 0 <= number <= TOKENS.largest:
            raise ValueError("numbers of a ticket must be from 0 to 2**63 - 1")
    _check_class(ticket.priority_class, ticket.weight)
    if not _NAME.fullmatch(ticket.name):
        raise ValueError(f"client name {ticket.name!r}: use 1 to 32 of A-Z a-z 0-9 _ -")
    if not math.isfinite(ticket.issued_s):
        raise ValueError("issued_s must be finite")


def _check_class(priority_class: str, weight: float) -> None:
    if priority_class and not _NAME.fullmatch(priority_class):
        raise ValueError(f"priority class {priority_class!r}: use 1 to 32 of A-Z a-z 0-9 _ -")
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError("the weight must be a positive number")


def _check_pass(permit: Pass) -> None:
    if not (isinstance(permit.serial, str) and _NAME.fullmatch(permit.serial)):
        raise ValueError("the serial of a pass must be 1 to 32 of A-Z a-z 0-9 _ -")
    if not isinstance(permit.priority_class, str):
        raise ValueError("the priority class must be text")
    _check_class(permit.priority_class, permit.weight)
    if not (isinstance(permit.path, str) and 0 < len(permit.path.encode()) <= TOKENS.path_length):
        raise ValueError(f"the path pattern must be text of 1 to {TOKENS.path_length} bytes")
    if not (math.isfinite(permit.not_before_s) and math.isfinite(permit.expires_s)):
        raise ValueError("the times of a pass must be finite")
    uses = permit.max_uses
    if not isinstance(uses, int) or isinstance(uses, bool) or not 0 < uses <= TOKENS.largest:
        raise ValueError("a pass must allow at least one use")
