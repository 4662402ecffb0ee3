"""Sessions, the tokens against forged forms, and the brake on guessing passwords.

The cookie holds a random id, signed; the server knows only its SHA-256. A login always makes a new
id (no fixation), a logout ends it on the server too. The form token is a MAC of the session id, so
it needs no storage and dies with the session.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from itsdangerous import BadSignature, Signer

from ..http.proxies import block_of
from .accounts import AccountStore, Session, digest

IDLE_S = 12 * 3600.0
LIFETIME_S = 7 * 86400.0
_SEEN_GRAIN_S = 60.0
#: Wrong passwords before the brake bites, and how long it does.
_FREE_TRIES, _FREE_TRIES_CLIENT = 5, 20
_PAUSE_S, _PAUSE_MAX_S, _FORGET_S = 2.0, 900.0, 3600.0


@dataclass(slots=True)
class Logins:
    """All logins that hold. `key` is the server's secret for signing."""

    store: AccountStore
    key: bytes = field(repr=False)
    by_key: dict[str, Session] = field(default_factory=dict, repr=False)

    def open(self, rows: Iterable[Session], now: float) -> None:
        for session in rows:
            self.by_key[session.key] = session
        self.sweep(now)

    def _signer(self) -> Signer:
        return Signer(self.key, salt="tidegate.admin.session", digest_method=hashlib.sha256)

    def begin(self, user: str, now: float) -> str:
        """A new session; returns the cookie's value."""
        self.sweep(now)
        ident = secrets.token_urlsafe(24)
        session = Session(digest(ident), user, now, now)
        self.by_key[session.key] = session
        self.store.put(session)
        return self._signer().sign(ident).decode()

    def ident(self, cookie: str) -> str | None:
        """The id inside a cookie, if we signed it."""
        try:
            return self._signer().unsign(cookie).decode()
        except (BadSignature, UnicodeDecodeError):
            return None

    def find(self, cookie: str, now: float) -> Session | None:
        """The live session of this cookie; also marks it as seen."""
        ident = self.ident(cookie)
        session = self.by_key.get(digest(ident)) if ident else None
        if session is None:
            return None
        if _over(session, now):
            self.end(session)
            return None
        if now - session.seen_s > _SEEN_GRAIN_S:
            session = replace(session, seen_s=now)
            self.by_key[session.key] = session
            self.store.put(session)
        return session

    def end(self, session: Session) -> None:
        self.by_key.pop(session.key, None)
        self.store.drop(session)

    def end_all(self, user: str) -> None:
        """Log a user out everywhere: the password was changed, or the user is gone."""
        for session in list(self.by_key.values()):
            if session.user == user:
                self.end(session)

    def live(self, now: float) -> Iterator[str]:
        """The keys of the sessions that hold."""
        return (key for key, session in self.by_key.items() if not _over(session, now))

    def sweep(self, now: float) -> None:
        for session in [s for s in self.by_key.values() if _over(s, now)]:
            self.end(session)

    def form_token(self, ident: str) -> str:
        """The token every form of this session carries (or of this visitor before login)."""
        return hmac.new(self.key, b"form:" + ident.encode(), hashlib.sha256).hexdigest()

    def form_token_fits(self, ident: str, given: str) -> bool:
        return hmac.compare_digest(self.form_token(ident).encode(), given.encode())

    def visitor(self) -> str:
        """A signed id for somebody who is not logged in yet, so that the login form has a token."""
        return self._signer().sign("v." + secrets.token_urlsafe(12)).decode()


def _over(session: Session, now: float) -> bool:
    return now - session.seen_s > IDLE_S or now - session.created_s > LIFETIME_S


@dataclass(slots=True)
class _Score:
    failures: int = 0
    free_at_s: float = 0.0
    last_s: float = 0.0


@dataclass(slots=True)
class LoginBrake:
    """Slows guessing: after a few failures each further one doubles the pause, up to a limit.

    Scores are kept per client (IPv4 whole, IPv6 by /64) and name, and per client with a higher
    allowance. There is none per name alone: strangers could lock its owner out. What a botnet can
    try against one name is bounded by `Hashing`. Memory is bounded, too.
    """

    limit: int = 10_000
    _scores: OrderedDict[tuple[str, str], _Score] = field(default_factory=OrderedDict, repr=False)

    def _keys(self, address: str, name: str) -> tuple[tuple[tuple[str, str], int], ...]:
        client = block_of(address)
        return (
            ((client, "n:" + name[:64]), _FREE_TRIES),
            ((client, ""), _FREE_TRIES_CLIENT),
        )

    def wait_s(self, address: str, name: str, now: float) -> float:
        """Seconds until another try is allowed; 0 when it may go now."""
        scores = (self._scores.get(key) for key, _ in self._keys(address, name))
        return max(0.0, *(score.free_at_s - now for score in scores if score is not None), 0.0)

    def start(self, address: str, name: str, now: float) -> None:
        """Count a try as failed before it is checked, so that parallel tries cannot slip by."""
        for key, free in self._keys(address, name):
            score = self._scores.pop(key, None)
            if score is None or now - score.last_s > _FORGET_S:
                score = _Score()
            score.failures += 1
            score.last_s = now
            over = score.failures - free
            if over >= 0:
                score.free_at_s = now + min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** min(over, 20))
            self._scores[key] = score
            while len(self._scores) > self.limit:
                self._scores.popitem(last=False)

    def succeeded(self, address: str, name: str) -> None:
        """A right password: what failed before under this name from here is forgiven."""
        (pair, _), (client, _) = self._keys(address, name)
        known = self._scores.pop(pair, None)
        whole = self._scores.get(client)
        if known is not None and whole is not None:
            whole.failures = max(0, whole.failures - known.failures)
            whole.free_at_s = 0.0
