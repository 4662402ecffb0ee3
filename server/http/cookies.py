"""Cookies (RFC 6265): reading one by its name, and a field no script or other site can use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from .answers import Header


def host_name(name: str, *, secure: bool) -> str:
    """The name of a cookie for this host and the path `/`: over TLS browsers take it, with its
    prefix, only from the host itself over TLS (RFC 6265bis, 4.1.3.2)."""
    return f"__Host-{name}" if secure else name


def read_cookie(headers: Mapping[bytes, bytes], name: bytes) -> bytes | None:
    """The value of the first cookie of this name; None when there is none."""
    return next(read_cookies(headers, name), None)


def read_cookies(headers: Mapping[bytes, bytes], name: bytes) -> Iterator[bytes]:
    """The values of the cookies of this name: a page of another path or of a neighbouring domain
    may have set one, which comes first then. No more than eight: each may cost a check."""
    field = headers.get(b"cookie")
    if field is None or name not in field:
        return
    # Repeated Cookie fields arrive joined by a comma, which no cookie value of ours contains.
    pairs = (cookie.partition(b"=") for cookie in field.replace(b",", b";").split(b";"))
    values = (value.strip() for found, equals, value in pairs if equals and found.strip() == name)
    yield from islice(values, 8)


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
