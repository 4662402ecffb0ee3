"""What shows who sends a request to the admin page: an API token or a login's cookie.

Both are known here by their SHA-256 only, so a list of those that hold can be told to other
machines, which then know whom to trust with a large body, and nothing that opens a door.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..http.cookies import host_name, read_cookies
from .accounts import digest

#: The cookie of a login, over TLS behind a prefix (`host_name`).
COOKIE = "tidegate-admin"


def api_token(authorization: str) -> str | None:
    """The API token in a field of this value (RFC 6750, 2.1)."""
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def shows_one_of(fields: Mapping[bytes, bytes], proofs: Collection[str] | None) -> bool:
    """Whether a request with these fields shows one of `proofs`: digests of API tokens and ids of
    logins. None: they are not known yet, and everybody may be one of them."""
    if proofs is None:
        return True
    secret = api_token(fields.get(b"authorization", b"").decode("utf-8", "replace"))
    if secret is not None:
        return digest(secret) in proofs
    # Without its signature: the id is as hard to guess. By either name: it opens no door here.
    names = (host_name(COOKIE, secure=secure).encode() for secure in (True, False))
    idents = (one.rpartition(b".")[0] for name in names for one in read_cookies(fields, name))
    return any(digest(ident.decode("latin-1")) in proofs for ident in idents)
