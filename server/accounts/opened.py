"""What a start finds: users, tokens and logins that hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from .accounts import Accounts, AccountStore
from .hash_process import kept_hash_apart
from .hashing import Hashing, Off, password_hasher
from .sessions import Logins


@dataclass(frozen=True, slots=True)
class OpenedAccounts:
    """The accounts, the logins that were open, and where there was no user yet the password of the
    first one, to be shown once.
    """

    accounts: Accounts
    logins: Logins
    first_password: str | None = field(repr=False)

    def proofs(self, now: float) -> frozenset[str]:
        """The digests of all API tokens and logins that hold, see `server.accounts.proofs`."""
        tokens, scopes_of = self.accounts.tokens, self.accounts.scopes_of
        held = {key for key, one in tokens.items() if scopes_of(one, now) is not None}
        return frozenset(held.union(self.logins.live(now)))


def open_accounts(store: AccountStore, off: Off, now: float, key: bytes) -> OpenedAccounts:
    """Read what is stored; blocks. `key` signs logins."""
    rows = store.load()
    hasher = password_hasher()
    accounts = Accounts(store, Hashing(off, kept_hash_apart, hasher), hasher)
    first_password = accounts.open(rows, now)
    logins = Logins(store, key)
    logins.open(rows.sessions, now)
    return OpenedAccounts(accounts, logins, first_password)
