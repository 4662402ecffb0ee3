"""Who may use the admin pages: users, roles, passwords, one-time codes and API tokens.

Laws:
- A password is known only as its Argon2id hash, an API token only as its SHA-256.
- Hashing runs off the reactor, one at a time; an unknown name costs as much as a wrong password.
- An API token acts within its own scopes, those of the token that issued it, and its owner's role;
  it ends with either.
- Accounts live in memory and are written through: users can log in while the database is dead.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyotp
from argon2 import PasswordHasher
from argon2.exceptions import HashingError

from ..control.problems import Problem, wrong
from .hashing import Asker, password_hasher

#: See `hashing.Hashing`.
Hash = Callable[[Asker, str, str | None], Awaitable[str | None]]
#: The pattern of a user's name.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
#: The fewest and the most characters of a password: NIST SP 800-63B asks for 8 or more, and to
#: allow 64 or more. The most bounds the text of a form that is hashed.
PASSWORD = (10, 256)


class Scope(enum.StrEnum):
    """A permission that a page or an operation needs."""

    READ = "read"
    QUEUE = "queue"
    POLICY = "policy"
    FILES = "files"
    ACCOUNTS = "accounts"


Scopes = frozenset[Scope]


class Role(enum.StrEnum):
    """A viewer reads; an operator also changes things."""

    VIEWER = "viewer"
    OPERATOR = "operator"

    @property
    def scopes(self) -> Scopes:
        return frozenset(Scope) if self is Role.OPERATOR else frozenset({Scope.READ})


@dataclass(frozen=True, slots=True)
class User:
    """One person. `must_change`: the password was given by another person and must be replaced.

    `subject` names the person at the OpenID Connect provider, once they logged in through it. An
    empty `password_hash` fits no password.
    """

    name: str
    role: Role
    password_hash: str = field(repr=False)
    created_s: float
    must_change: bool = False
    totp_secret: str | None = field(default=None, repr=False)
    totp_step: int = 0
    subject: str | None = None

    @property
    def has_password(self) -> bool:
        return bool(self.password_hash)

    @property
    def one_time_codes(self) -> bool:
        """Whether a login of this user needs a one-time code."""
        return self.totp_secret is not None


@dataclass(frozen=True, slots=True)
class ProviderLogin:
    """A person whom the OpenID Connect provider has logged in: `subject` is theirs for good.

    `role` is what their groups give. `account` is the name of the account that they own here by a
    claim, or empty. A new account would have the name `name`.
    """

    subject: str
    name: str
    account: str = ""
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A key for programs. `digest` is the SHA-256 of the secret that the holder has.

    `parent` is the serial of the token that issued this one; None when a person issued it.
    """

    serial: str
    label: str
    scopes: Scopes
    digest: str = field(repr=False)
    owner: str
    created_s: float
    expires_s: float | None = None
    used_s: float | None = None
    parent: str | None = None

    @property
    def role(self) -> Role:
        """Fewer scopes than an operator's make a viewer."""
        return Role.OPERATOR if self.scopes == Role.OPERATOR.scopes else Role.VIEWER


@dataclass(frozen=True, slots=True)
class Session:
    """One login. `key` is the SHA-256 of the id in the cookie."""

    key: str = field(repr=False)
    user: str
    created_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class AccountRows:
    """Everything an account store holds."""

    users: Sequence[User] = ()
    tokens: Sequence[ApiToken] = ()
    sessions: Sequence[Session] = ()


class AccountStore(Protocol):
    """Where accounts survive a restart. `load` may block (start only); the rest must not."""

    def load(self) -> AccountRows: ...
    def put(self, one: User | ApiToken | Session) -> None: ...
    def drop(self, one: User | ApiToken | Session) -> None: ...


def check_password(password: str) -> None:
    """Check the length, which is the only rule (NIST SP 800-63B). Raises Problem 422."""
    least, most = PASSWORD
    if len(password) < least:
        raise wrong("password", f"A password has at least {least} characters.")
    if len(password) > most:
        raise wrong("password", f"A password has at most {most} characters.")


def digest(secret: str) -> str:
    """The stored form of a random secret. A fast hash is enough: it has 160 bits or more."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(slots=True)
class Accounts:
    """All users and API tokens. Not thread-safe.

    `hash` hashes off the reactor. Only the first password is hashed in place.
    """

    store: AccountStore
    hash: Hash
    hasher: PasswordHasher = field(default_factory=password_hasher)
    users: dict[str, User] = field(default_factory=dict)
    tokens: dict[str, ApiToken] = field(default_factory=dict, repr=False)
    _decoy: str = field(default="", repr=False)

    def open(self, rows: AccountRows, now: float) -> str | None:
        """Load the stored accounts. Returns the first password if there was no user yet.

        Raises MemoryError when hashing it needs more memory than there is.
        """
        self.users = {user.name: user for user in rows.users}
        self.tokens = {token.digest: token for token in rows.tokens}
        self._decoy = _hash_of_nothing(self.hasher)
        if self.users:
            return None
        # Without 0, 1, i, l and o, which look alike on a terminal.
        letters = "abcdefghjkmnpqrstuvwxyz23456789"
        groups = ("".join(secrets.choice(letters) for _ in range(5)) for _ in range(4))
        password = "-".join(groups)
        try:
            hashed = self.hasher.hash(password)
        except HashingError as fault:
            # A hash takes 64 MiB and a few threads.
            raise MemoryError(str(fault)) from fault
        self._put(User("admin", Role.OPERATOR, hashed, now, must_change=True))
        return password

    @property
    def one_time_codes(self) -> bool:
        """Whether a login of any user needs one."""
        return any(user.one_time_codes for user in self.users.values())

    def by_name(self) -> list[User]:
        return sorted(self.users.values(), key=lambda user: user.name)

    def _put(self, user: User) -> User:
        self.users[user.name] = user
        self.store.put(user)
        return user

    async def login(
        self, name: str, password: str, code: str, now: float, asker: Asker
    ) -> User | None:
        """The user if name, password and (where set up) one-time code are right, else None."""
        known, kept = await self._compare(name, password, asker)
        # The user may have changed meanwhile.
        user = self.users.get(name)
        if user is None or kept is None or user.password_hash != known:
            return None
        user = replace(user, password_hash=kept)
        if user.totp_secret is None:
            return user if kept == known else self._put(user)
        # The stored secret could not be decrypted, see `StoredAccounts`: no code is right.
        if not user.totp_secret:
            return None
        step = _matching_step(user.totp_secret, code, now)
        if step is None or step <= user.totp_step:
            return None
        return self._put(replace(user, totp_step=step))

    async def _compare(self, name: str, password: str, asker: Asker) -> tuple[str, str | None]:
        """The known hash of a name (any name has one), and the one to keep if it fits."""
        user = self.users.get(name)
        known = (user.password_hash if user else "") or self._decoy
        return known, await self.hash(asker, password[: PASSWORD[1] + 1], known)

    def login_by_provider(self, person: ProviderLogin, now: float) -> User:
        """The user of this person, linked or made at their first login. Raises Problem 403.

        Groups decide the role where they give one. A user without a password ends, with its API
        tokens, when the person has neither group nor account any more.
        """
        user = next((u for u in self.users.values() if u.subject == person.subject), None)
        if user is None and person.account in self.users:
            user = self.users[person.account]
            if user.subject is not None:
                raise Problem(403, f"The account {user.name} belongs to another person.")
            # The first password was chosen by another person.
            kept = "" if user.must_change else user.password_hash
            user = replace(user, subject=person.subject, password_hash=kept, must_change=False)
        if user is None and person.role is not None:
            if not re.fullmatch(NAME[1:-1], person.name):
                raise Problem(403, f"{person.name[:64]!r} cannot be the name of an account.")
            if person.name in self.users:
                raise Problem(403, f"The name {person.name} belongs to another account.")
            user = User(person.name, person.role, "", now, subject=person.subject)
        if user is None or (person.role is None and person.account != user.name):
            if user is not None and not user.has_password:
                self.drop_user(user.name)
            told = "The provider knows you, but you have no rights here."
            raise Problem(403, f"{told} An operator can give you some.")
        if person.role is not None and person.role is not user.role:
            if user.role is Role.OPERATOR:
                self._keep_an_operator(user.name)
            user = replace(user, role=person.role)
        return user if self.users.get(user.name) == user else self._put(user)

    async def _hash_of(self, password: str) -> str:
        kept = await self.hash(Asker(), password, None)
        assert kept is not None, "a password without a known hash is never wrong"
        return kept

    async def set_password(self, name: str, password: str) -> User:
        check_password(password)
        hashed = await self._hash_of(password)
        return self._put(replace(self._known(name), password_hash=hashed, must_change=False))

    def reset_password(self, name: str, password_hash: str, now: float) -> bool:
        """Set a password that was given on the host; the user must change it at the next login.

        One-time codes are switched off. An unknown name becomes an operator if there is no other
        operator; else False.
        """
        user = self.users.get(name)
        if user is None:
            if any(one.role is Role.OPERATOR for one in self.users.values()):
                return False
            user = User(name, Role.OPERATOR, password_hash, now)
        user = replace(user, password_hash=password_hash, must_change=True)
        self._put(replace(user, totp_secret=None, totp_step=0))
        return True

    async def check(self, name: str, password: str, asker: Asker) -> bool:
        """Whether this is the user's current password. Forms ask for it before grave changes."""
        return (await self._compare(name, password, asker))[1] is not None

    async def add_user(self, name: str, role: Role, password: str, now: float) -> User:
        if not re.fullmatch(NAME[1:-1], name):
            raise wrong(
                "name", "A name is 1 to 64 letters, digits, dots, dashes, underscores or @."
            )
        if name in self.users:
            raise Problem(409, f"There is already a user {name}.")
        check_password(password)
        hashed = await self._hash_of(password)
        if name in self.users:
            raise Problem(409, f"There is already a user {name}.")
        return self._put(User(name, role, hashed, now, must_change=True))

    def drop_user(self, name: str) -> None:
        user = self._known(name)
        self._keep_an_operator(name)
        del self.users[name]
        self.store.drop(user)
        for token in [t for t in self.tokens.values() if t.owner == name]:
            self.drop_token(token.serial)

    def _known(self, name: str) -> User:
        user = self.users.get(name)
        if user is None:
            raise Problem(404, f"There is no user {name}.")
        return user

    def _keep_an_operator(self, leaving: str) -> None:
        others = (u for u in self.users.values() if u.name != leaving)
        if not any(user.role is Role.OPERATOR for user in others):
            raise wrong("role", "At least one operator must remain.")

    def set_totp(self, name: str, secret: str, code: str, now: float) -> User:
        """Switch one-time codes on if `code` is right now. Raises Problem 422."""
        step = _matching_step(secret, code, now) if is_totp_secret(secret) else None
        if step is None:
            raise wrong("code", "That code does not fit; check the clock of the device.")
        return self._put(replace(self._known(name), totp_secret=secret, totp_step=step))

    def clear_totp(self, name: str) -> User:
        return self._put(replace(self._known(name), totp_secret=None, totp_step=0))

    def issue_token(
        self,
        label: str,
        scopes: Iterable[Scope],
        owner: str,
        now: float,
        expires_s: float | None,
        parent: ApiToken | None = None,
    ) -> tuple[str, ApiToken]:
        """A new API token: its secret, which is shown once, and its record."""
        secret = "tga_" + secrets.token_urlsafe(24)
        if parent is not None and parent.expires_s is not None:
            expires_s = parent.expires_s if expires_s is None else min(expires_s, parent.expires_s)
        token = ApiToken(
            serial=secrets.token_hex(4),
            label=label,
            scopes=frozenset(scopes),
            digest=digest(secret),
            owner=owner,
            created_s=now,
            expires_s=expires_s,
            parent=parent.serial if parent is not None else None,
        )
        self.tokens[token.digest] = token
        self.store.put(token)
        return secret, token

    def token(self, serial: str) -> ApiToken | None:
        return next((t for t in self.tokens.values() if t.serial == serial), None)

    def drop_token(self, serial: str) -> bool:
        """Revoke a token and all tokens that it issued; False when it does not exist."""
        token = self.token(serial)
        if token is None:
            return False
        issued: dict[str | None, list[ApiToken]] = {}
        for one in self.tokens.values():
            issued.setdefault(one.parent, []).append(one)
        ended = [token]
        for one in ended:
            ended += issued.get(one.serial, ())
            del self.tokens[one.digest]
            self.store.drop(one)
        return True

    def by_token(self, secret: str, now: float) -> ApiToken | None:
        """The valid token with this secret, with the scopes of `scopes_of`."""
        token = self.tokens.get(digest(secret))
        if token is None:
            return None
        scopes = self.scopes_of(token, now)
        if scopes is None:
            return None
        # Otherwise each poll would write.
        if token.used_s is None or now - token.used_s > 60.0:
            token = replace(token, used_s=now)
            self.tokens[token.digest] = token
            self.store.put(token)
        return replace(token, scopes=scopes)

    def scopes_of(self, token: ApiToken, now: float) -> Scopes | None:
        """The scopes that a token shares with its owner and its parents now; None when it ended."""
        owner = self.users.get(token.owner)
        if owner is None:
            return None
        scopes = owner.role.scopes
        serial: str | None = token.serial
        while serial is not None:
            link = self.token(serial)
            if link is None or (link.expires_s is not None and link.expires_s <= now):
                return None
            scopes &= link.scopes
            serial = link.parent
        return scopes


def _hash_of_nothing(hasher: PasswordHasher) -> str:
    """A hash that no password has, and that costs as much to check as a real one.

    It is random text: nothing is hashed.
    """

    def some(size: int) -> str:
        return base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=")

    cost = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    kind = hasher.type.name.lower()
    return f"$argon2{kind}$v=19${cost}${some(hasher.salt_len)}${some(hasher.hash_len)}"


def new_totp_secret() -> str:
    """A fresh shared secret of 160 bits in base 32 (RFC 6238)."""
    return pyotp.random_base32()


def is_totp_secret(text: str) -> bool:
    """Whether codes can be made of it."""
    try:
        pyotp.TOTP(text).at(0)
    except ValueError:
        return False
    return True


def totp_uri(secret: str, name: str, server: str) -> str:
    """The URI that an authenticator app scans."""
    return pyotp.TOTP(secret).provisioning_uri(name=name, issuer_name=f"Tidegate {server}".strip())


def _matching_step(secret: str, code: str, now: float) -> int | None:
    """The 30 s step with this code, at most one step of clock error away (RFC 6238, 5.2)."""
    given = code.replace(" ", "")
    if not (given.isascii() and given.isdigit() and len(given) == 6):
        return None
    totp = pyotp.TOTP(secret)
    step = int(now // 30)
    for candidate in (step, step - 1, step + 1):
        if hmac.compare_digest(totp.at(candidate * 30), given):
            return candidate
    return None
