"""Tells from a request's fields whether an operator sent it: by an API token or a login's cookie.

Both are compared by their SHA-256. So the list of valid ones can be sent to other machines, which
accept large bodies from operators only: the list itself opens no session.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..http.cookies import host_name, read_cookies
from .accounts import digest

#: The name of a login's cookie; over TLS it has a prefix (`host_name`).
COOKIE = "tidegate-admin"


def api_token(authorization: str) -> str | None:
    """The API token in a field of this value (RFC 6750, 2.1)."""
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def shows_one_of(fields: Mapping[bytes, bytes], proofs: Collection[str] | None) -> bool:
    """Whether a request with these fields carries one of `proofs`: digests of tokens and logins.

    True while `proofs` is None: the valid ones are not known yet.
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
