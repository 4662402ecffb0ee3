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


def set_cookie(
    name: bytes,
    value: bytes,
    *,
    path: bytes,
    age_s: int | None,
    secure: bool,
    same_site: bytes = b"Lax",
) -> Header:
    """The Set-Cookie field; age 0 makes the browser forget it, None keeps it until its end."""
    # RFC 6265, 4.1.1 allows no `;` in a path.
    words = [b"%b=%b" % (name, value), b"Path=" + path.replace(b";", b"%3B")]
    if age_s is not None:
        words.append(b"Max-Age=%d" % age_s)
    words += [b"HttpOnly", b"SameSite=" + same_site]
    if secure:
        words.append(b"Secure")
    return (b"Set-Cookie", b"; ".join(words))
