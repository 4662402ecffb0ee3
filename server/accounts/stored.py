"""Users, API tokens and sessions in the database, and what a start reads there.

The secrets of one-time codes are encrypted.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from ..store.accounts import OperatorTables
from .accounts import AccountRows, Accounts, AccountStore, ApiToken, Role, Scope, Session, User
from .hash_process import kept_hash_apart
from .hashing import Hashing, Off, password_hasher
from .sessions import Logins

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

#: The table of each kind of row, and the field that is its key.
_TABLES = {
    User: ("admin_users", "name"),
    ApiToken: ("admin_tokens", "serial"),
    Session: ("admin_sessions", "key"),
}
log = Logger()


class Sealer:
    """Encrypts the secrets of one-time codes: a copy of the database alone opens no account.

    AES-SIV (RFC 5297) under a key derived from the server's own. The owner's name is associated
    data, so that one user's secret is not valid in another user's row.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hmac.new(key, b"tidegate.admin.totp", hashlib.sha512).digest()

    @functools.cached_property
    def _cipher(self) -> AESSIV:
        # The library takes 6 MB of memory, and most servers have no secret to seal.
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        return AESSIV(self._key)

    def seal(self, secret: str, owner: str) -> str:
        """The stored form of `owner`'s secret."""
        return base64.b64encode(self._cipher.encrypt(secret.encode(), [owner.encode()])).decode()

    def open(self, stored: str, owner: str) -> str | None:
        """The secret; None when it was sealed with another key or for another owner."""
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
        users = [self._user(row) for row in self._tables.read("admin_users")]
        tokens = [
            ApiToken(**{**row, "scopes": frozenset(Scope(word) for word in row["scopes"].split())})
            for row in self._tables.read("admin_tokens")
        ]
        sessions = [Session(**row) for row in self._tables.read("admin_sessions")]
        return AccountRows(users, tokens, sessions)

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
                # No code is right for an empty secret: a lost key must not open the account.
                secret = ""
        return User(**{**row, "role": Role(row["role"]), "totp_secret": secret})

    def put(self, one: User | ApiToken | Session) -> None:
        """Insert a row, or replace the one with its key."""
        values = asdict(one)
        if isinstance(one, User):
            secret = one.totp_secret
            sealed = self._sealer.seal(secret, one.name) if secret else secret
            values |= {"role": one.role.value, "totp_secret": sealed}
        elif isinstance(one, ApiToken):
            values["scopes"] = " ".join(sorted(one.scopes))
        self._tables.put(_TABLES[type(one)][0], values)

    def drop(self, one: User | ApiToken | Session) -> None:
        table, key = _TABLES[type(one)]
        self._tables.drop(table, getattr(one, key))


@dataclass(frozen=True, slots=True)
class OpenedAccounts:
    """The stored accounts and sessions.

    `first_password` belongs to a new database's first user and is shown once; else None.
    """

    accounts: Accounts
    logins: Logins
    first_password: str | None = field(repr=False)

    def proofs(self, now: float) -> frozenset[str]:
        """The digests of all valid API tokens and sessions, see `server.accounts.sessions`."""
        tokens, scopes_of = self.accounts.tokens, self.accounts.scopes_of
        held = {key for key, one in tokens.items() if scopes_of(one, now) is not None}
        return frozenset(held.union(self.logins.live(now)))


def open_accounts(store: AccountStore, off: Off, now: float, key: bytes) -> OpenedAccounts:
    """Read what is stored; blocks. `key` signs sessions."""
    rows = store.load()
    hasher = password_hasher()
    accounts = Accounts(store, Hashing(off, kept_hash_apart, hasher), hasher)
    first_password = accounts.open(rows, now)
    logins = Logins(store, key)
    logins.open(rows.sessions, now)
    return OpenedAccounts(accounts, logins, first_password)
