"""Login sessions, and form tokens against cross-site request forgery.

The cookie holds a random id with a signature; the server stores only the id's SHA-256. A login
always makes a new id (no session fixation); a logout ends it on the server, too. The form token is
a MAC of the session id: it needs no storage and ends with the session.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from itsdangerous import BadSignature, Signer

from ..http.cookies import host_name, read_cookies
from .accounts import AccountStore, Session, digest

#: The name of a login's cookie; over TLS it has a prefix (`host_name`).
COOKIE = "tidegate-admin"


def api_token(authorization: str) -> str | None:
    """The API token in a field of this value (RFC 6750, 2.1)."""
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def shows_one_of(fields: Mapping[bytes, bytes], proofs: Collection[str] | None) -> bool:
    """Whether a request with these fields carries one of `proofs`: digests of tokens and logins.

    True while `proofs` is None: the valid ones are not known yet. The list of valid ones can be
    sent to other machines: digests open no session.
    """
    if proofs is None:
        return True
    secret = api_token(fields.get(b"authorization", b"").decode("utf-8", "replace"))
    if secret is not None:
        return digest(secret) in proofs
    # The id without its signature is as hard to guess. Either name will do: nothing is opened here.
    names = (host_name(COOKIE, secure=secure).encode() for secure in (True, False))
    idents = (one.rpartition(b".")[0] for name in names for one in read_cookies(fields, name))
    return any(digest(ident.decode("latin-1")) in proofs for ident in idents)


#: A session ends after a week in any case, so that a stolen cookie does, too.
LIFETIME_S = 7 * 86400.0


@dataclass(slots=True)
class Logins:
    """All valid sessions. `key` is the server's secret for signing."""

    store: AccountStore
    key: bytes = field(repr=False)
    by_key: dict[str, Session] = field(default_factory=dict, repr=False)

    def open(self, rows: Iterable[Session], now: float) -> None:
        self.by_key.update((session.key, session) for session in rows)
        self.sweep(now)

    def begin(self, user: str, now: float) -> str:
        """A new session; returns the cookie's value."""
        self.sweep(now)
        ident = secrets.token_urlsafe(24)
        session = Session(digest(ident), user, now, now)
        self.by_key[session.key] = session
        self.store.put(session)
        return _signer(self.key).sign(ident).decode()

    def ident(self, cookie: str) -> str | None:
        """The id inside a cookie; None when the signature is not ours."""
        try:
            return _signer(self.key).unsign(cookie).decode()
        except (BadSignature, UnicodeDecodeError):
            return None

    def find(self, cookie: str, now: float) -> Session | None:
        """The valid session of this cookie, now marked as seen."""
        ident = self.ident(cookie)
        session = self.by_key.get(digest(ident)) if ident else None
        if session is None:
            return None
        if _over(session, now):
            self.end(session)
            return None
        # Otherwise each refresh would write.
        if now - session.seen_s > 60.0:
            session = replace(session, seen_s=now)
            self.by_key[session.key] = session
            self.store.put(session)
        return session

    def end(self, session: Session) -> None:
        self.by_key.pop(session.key, None)
        self.store.drop(session)

    def end_all(self, user: str) -> None:
        """End all sessions of a user: the password was changed, or the user was removed."""
        for session in [s for s in self.by_key.values() if s.user == user]:
            self.end(session)

    def live(self, now: float) -> Iterator[str]:
        """The keys of the valid sessions."""
        return (key for key, session in self.by_key.items() if not _over(session, now))

    def sweep(self, now: float) -> None:
        for session in [s for s in self.by_key.values() if _over(s, now)]:
            self.end(session)

    def form_token(self, ident: str) -> str:
        """The token in every form of this session, or of this visitor before the login."""
        return hmac.new(self.key, b"form:" + ident.encode(), hashlib.sha256).hexdigest()

    def form_token_fits(self, ident: str, given: str) -> bool:
        return hmac.compare_digest(self.form_token(ident).encode(), given.encode())

    def visitor(self) -> str:
        """A signed id for the form's token before a login."""
        return _signer(self.key).sign("v." + secrets.token_urlsafe(12)).decode()

    def is_known(self, browser: str) -> bool:
        """Whether `known_browser` made this."""
        return (self.ident(browser) or "").startswith("k.")


def known_browser(key: bytes) -> str:
    """A signed id of a browser whose logins come before those of strangers."""
    return _signer(key).sign("k." + secrets.token_urlsafe(12)).decode()


def _signer(key: bytes) -> Signer:
    return Signer(key, salt="tidegate.admin.session", digest_method=hashlib.sha256)


def _over(session: Session, now: float) -> bool:
    # A session ends after half a day without a request: an operator logs in once a working day.
    return now - session.seen_s > 12 * 3600.0 or now - session.created_s > LIFETIME_S
