"""Users, API tokens and sessions in the database; the secrets of one-time codes are sealed."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from ..store.accounts import OperatorTables
from .accounts import AccountRows, ApiToken, Role, Scope, Session, User

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

#: What is kept where, and by which of its fields.
_TABLES = {User: ("users", "name"), ApiToken: ("tokens", "serial"), Session: ("sessions", "key")}
log = Logger()


class Sealer:
    """Encrypts what the database must not show: a copy of it alone opens no account.

    AES-SIV (RFC 5297) under a key that is made from the server's own; the owner's name is bound in,
    so that one user's secret cannot be put in another's row.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hmac.new(key, b"tidegate.admin.totp", hashlib.sha512).digest()

    @functools.cached_property
    def _cipher(self) -> AESSIV:
        # Most servers have no secret to seal, and its library is 6 MB.
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        return AESSIV(self._key)

    def seal(self, secret: str, owner: str) -> str:
        """The stored form of a secret."""
        sealed = self._cipher.encrypt(secret.encode(), [owner.encode()])
        return base64.b64encode(sealed).decode()

    def open(self, stored: str, owner: str) -> str | None:
        """The secret; None when it was sealed with another key or for somebody else."""
        from cryptography.exceptions import InvalidTag

        try:
            sealed = base64.b64decode(stored, validate=True)
            return self._cipher.decrypt(sealed, [owner.encode()]).decode()
        except (InvalidTag, ValueError):
            return None


class StoredAccounts:
    """An `AccountStore` on the database."""

    def __init__(self, tables: OperatorTables, key: bytes) -> None:
        self._tables = tables
        self._sealer = Sealer(key)

    def load(self) -> AccountRows:
        """Everything; blocks."""
        users = [self._user(row) for row in self._tables.read("users")]
        tokens = [
            ApiToken(**{**row, "scopes": frozenset(Scope(word) for word in row["scopes"].split())})
            for row in self._tables.read("tokens")
        ]
        return AccountRows(users, tokens, [Session(**row) for row in self._tables.read("sessions")])

    def _user(self, row: dict[str, Any]) -> User:
        stored, secret = row["totp_secret"], None
        if stored is not None:
            secret = self._sealer.open(stored, row["name"])
            if secret is None:
                log.error(
                    "The one-time codes of {name} cannot be read with admin.key; nobody can log in "
                    "under this name until `tidegate admin reset-password` has taken them off.",
                    name=row["name"],
                )
                secret = ""  # fits no code: a lost key must not open the account
        return User(**{**row, "role": Role(row["role"]), "totp_secret": secret})

    def put(self, one: User | ApiToken | Session) -> None:
        """Insert it, or overwrite what has its key."""
        values = asdict(one)
        if isinstance(one, User):
            secret = one.totp_secret
            sealed = self._sealer.seal(secret, one.name) if secret else secret
            values |= {"role": one.role.value, "totp_secret": sealed}
        elif isinstance(one, ApiToken):
            values["scopes"] = " ".join(sorted(one.scopes))
        self._tables.put(_TABLES[type(one)][0], values)

    def drop(self, one: User | ApiToken | Session) -> None:
        """Forget it."""
        table, key = _TABLES[type(one)]
        self._tables.drop(table, getattr(one, key))
