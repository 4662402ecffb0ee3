"""Cookies in and out (RFC 6265): reading one by its name, and a field no script and no other site
can use."""

from __future__ import annotations

from collections.abc import Mapping

from server.http.answers import Header


def read_cookie(headers: Mapping[bytes, bytes], name: bytes) -> bytes | None:
    """The value of the first cookie of this name; None when there is none."""
    field = headers.get(b"cookie")
    if field is None or name not in field:
        return None
    # Repeated Cookie fields arrive joined by a comma, which no cookie value of ours contains.
    for cookie in field.replace(b",", b";").split(b";"):
        found, equals, value = cookie.partition(b"=")
        if equals and found.strip() == name:
            return value.strip()
    return None


def set_cookie(name: bytes, value: bytes, *, path: bytes, age_s: int, secure: bool) -> Header:
    """The Set-Cookie field; an age of 0 makes the browser forget it."""
    # RFC 6265, 4.1.1 allows no `;` in a path.
    fields = (name, value, path.replace(b";", b"%3B"), age_s, b"; Secure" if secure else b"")
    return (
        b"Set-Cookie",
        b"%b=%b; Path=%b; Max-Age=%d; HttpOnly; SameSite=Lax%b" % fields,
    )
