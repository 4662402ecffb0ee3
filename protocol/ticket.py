"""Tickets and passes as signed text: what a client shows to prove its place or its preference.

A *ticket* token proves a place in the queue and is bound to one client and one file; it carries
what is needed to take the place up again should the server have lost it. A *pass* is made by the
operator and given to people; it carries a preference class and where and how often it counts.

Form: `t1.KEY.PAYLOAD.SIGNATURE` (`p1.` for a pass), each part from the URL-safe base64 alphabet,
so the text fits a header, a cookie and a query string unchanged. The signature is HMAC-SHA-256
(itsdangerous `Signer`) over everything before it. KEY names the signing key, so that keys rotate
with overlap. Client and file are bound by the first 12 bytes of their SHA-256: a token has a
bounded length, whatever the names, and tells no third party who waits for what.

Every failure to read is `BadToken` with one of the codes below; no input raises anything else.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from itsdangerous import Signer

from protocol.errors import BadToken

#: No token that this module writes is longer, and none longer is read.
MAX_TOKEN_LENGTH = 1024
MAX_PREFERENCE_LENGTH = 32
MAX_PATH_LENGTH = 400

FORGED = "ticket-forged"
EXPIRED = "ticket-expired"
FOREIGN = "ticket-foreign"
USED = "ticket-used"
PASS_FORGED = "pass-forged"
PASS_EARLY = "pass-early"
PASS_EXPIRED = "pass-expired"
PASS_PATH = "pass-path"
PASS_USED = "pass-used"

_SHAPE = re.compile(r"([tp]1)\.([A-Za-z0-9_-]{1,32})\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_TICKET = struct.Struct(">QQQdd12s12s")
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Key:
    """One signing key: `name` appears in tokens, `secret` (at least 16 bytes) never does."""

    name: str
    secret: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"key name {self.name!r}: use 1 to 32 of A-Z a-z 0-9 _ -")
        if len(self.secret) < 16:
            raise ValueError("a key needs at least 16 secret bytes")


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the queue as its owner carries it. Sizes in bytes, `issued_s` in Unix time."""

    number: int
    client: str
    file: str
    size_bytes: int
    remaining_bytes: int
    weight: float
    issued_s: float
    preference: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """An operator's permit: preference class, weight, and where, when and how often it counts.

    `path` is a shell pattern over the whole path of a file (`*` crosses slashes). Times are Unix
    seconds; `max_uses` counts downloads begun, and whoever reads the pass keeps that count by
    `serial`.
    """

    serial: str
    preference: str
    weight: float
    path: str
    not_before_s: float
    expires_s: float
    max_uses: int

    def check(self, path: str, now: float, uses: int) -> None:
        """Raise BadToken unless the pass counts for `path` now, after `uses` earlier uses."""
        if now < self.not_before_s:
            raise BadToken("This pass is not valid yet.", code=PASS_EARLY)
        if now >= self.expires_s:
            raise BadToken("This pass has expired; ask who gave it for another.", code=PASS_EXPIRED)
        if not fnmatch.fnmatchcase(path, self.path):
            raise BadToken(f"This pass is for {self.path}, not for this file.", code=PASS_PATH)
        if uses >= self.max_uses:
            raise BadToken("This pass has been used as often as it allows.", code=PASS_USED)


class KeyRing:
    """The keys of one server, newest first: the first signs, all of them are accepted."""

    def __init__(self, keys: Sequence[Key]) -> None:
        if not keys:
            raise ValueError("a key ring needs at least one key")
        if len({key.name for key in keys}) != len(keys):
            raise ValueError("two keys of one ring have the same name")
        self._newest = keys[0].name
        self._signers = {key.name: _signer(key.secret) for key in keys}

    def write_ticket(self, ticket: Ticket) -> str:
        """The token for a ticket. Raises ValueError for fields out of bounds."""
        _check_numbers(ticket.number, ticket.size_bytes, ticket.remaining_bytes)
        _check_class(ticket.preference, ticket.weight)
        if not math.isfinite(ticket.issued_s):
            raise ValueError("issued_s must be finite")
        body = _TICKET.pack(
            ticket.number,
            ticket.size_bytes,
            ticket.remaining_bytes,
            ticket.weight,
            ticket.issued_s,
            _tag(ticket.client),
            _tag(ticket.file),
        )
        return self._sign("t1", body + ticket.preference.encode("ascii"))

    def read_ticket(
        self, token: str, client: str, file: str, now: float, max_age_s: float = 30 * 86_400.0
    ) -> Ticket:
        """The ticket that `token` proves for this client and file.

        Raises BadToken: ticket-forged (not made by us, or damaged), ticket-foreign (of another
        client or file), ticket-expired (issued more than `max_age_s` ago).
        """
        body = self._unsign("t1", token, FORGED)
        if not _TICKET.size <= len(body) <= _TICKET.size + MAX_PREFERENCE_LENGTH:
            raise _forged(FORGED)
        fields = _TICKET.unpack_from(body)
        number, size_bytes, remaining_bytes, weight, issued_s, client_tag, file_tag = fields
        try:
            preference = body[_TICKET.size :].decode("ascii")
            _check_numbers(number, size_bytes, remaining_bytes)
            _check_class(preference, weight)
        except ValueError as error:
            raise _forged(FORGED) from error
        if not hmac.compare_digest(file_tag, _tag(file)):
            raise BadToken(
                "This ticket is for another file; ask without it for one of your own.", code=FOREIGN
            )
        if not hmac.compare_digest(client_tag, _tag(client)):
            raise BadToken(
                "This ticket belongs to another client; ask without it for one of your own.",
                code=FOREIGN,
            )
        if not now - issued_s <= max_age_s:
            raise BadToken("This ticket is too old; ask without it for a new one.", code=EXPIRED)
        return Ticket(
            number, client, file, size_bytes, remaining_bytes, weight, issued_s, preference
        )

    def write_pass(self, permit: Pass) -> str:
        """The token for a pass. Raises ValueError for fields out of bounds."""
        _check_pass(permit)
        fields = [
            permit.serial,
            permit.preference,
            permit.weight,
            permit.path,
            permit.not_before_s,
            permit.expires_s,
            permit.max_uses,
        ]
        return self._sign("p1", json.dumps(fields, separators=(",", ":")).encode())

    def read_pass(self, token: str) -> Pass:
        """The pass that `token` proves; `Pass.check` says whether it counts here and now.

        Raises BadToken with pass-forged.
        """
        body = self._unsign("p1", token, PASS_FORGED)
        try:
            permit = Pass(*json.loads(body))
            _check_pass(permit)
        except (ValueError, TypeError, RecursionError) as error:
            raise _forged(PASS_FORGED) from error
        return permit

    def _sign(self, kind: str, body: bytes) -> str:
        payload = base64.urlsafe_b64encode(body).rstrip(b"=").decode("ascii")
        token = self._signers[self._newest].sign(f"{kind}.{self._newest}.{payload}")
        assert len(token) <= MAX_TOKEN_LENGTH
        return token.decode("ascii")

    def _unsign(self, kind: str, token: str, code: str) -> bytes:
        match = _SHAPE.fullmatch(token) if len(token) <= MAX_TOKEN_LENGTH else None
        if match is None or match[1] != kind:
            raise _forged(code)
        signer = self._signers.get(match[2])
        # Signing again and comparing the whole text leaves no second spelling of a token.
        if signer is None or not hmac.compare_digest(
            signer.sign(token.rpartition(".")[0]), token.encode("ascii")
        ):
            raise _forged(code)
        payload = match[3]
        try:
            return base64.b64decode(payload + "=" * (-len(payload) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise _forged(code) from error


def _signer(secret: bytes) -> Signer:
    return Signer(
        secret, salt=b"tidegate.token.1", key_derivation="hmac", digest_method=hashlib.sha256
    )


def _tag(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:12]


def _forged(code: str) -> BadToken:
    what = "pass" if code == PASS_FORGED else "ticket"
    return BadToken(f"This {what} was not issued by this server, or it is damaged.", code=code)


def _check_numbers(*numbers: int) -> None:
    for number in numbers:
        if not 0 <= number <= _LARGEST:
            raise ValueError("numbers of a ticket must be from 0 to 2**63 - 1")


def _check_class(preference: str, weight: float) -> None:
    if preference and not _NAME.fullmatch(preference):
        raise ValueError(f"preference class {preference!r}: use 1 to 32 of A-Z a-z 0-9 _ -")
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError("the weight must be a positive number")


def _check_pass(permit: Pass) -> None:
    if not (isinstance(permit.serial, str) and _NAME.fullmatch(permit.serial)):
        raise ValueError("the serial of a pass must be 1 to 32 of A-Z a-z 0-9 _ -")
    if not isinstance(permit.preference, str):
        raise ValueError("the preference class must be text")
    _check_class(permit.preference, permit.weight)
    if not (isinstance(permit.path, str) and 0 < len(permit.path.encode()) <= MAX_PATH_LENGTH):
        raise ValueError(f"the path pattern must be text of 1 to {MAX_PATH_LENGTH} bytes")
    if not (math.isfinite(permit.not_before_s) and math.isfinite(permit.expires_s)):
        raise ValueError("the times of a pass must be finite")
    uses = permit.max_uses
    if not isinstance(uses, int) or isinstance(uses, bool) or not 0 < uses <= _LARGEST:
        raise ValueError("a pass must allow at least one use")
