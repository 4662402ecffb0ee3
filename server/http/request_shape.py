"""The shape of requests that need no parser: GET or HEAD, with fields that are understood here.

A request of this shape says everything that its answer may depend on in a group. Whatever is not
of this shape goes to the parser: another method, a body, a field that is not listed, one Host too
many or too few, folded lines, odd spacing, bytes that are not printable ASCII.
"""

from __future__ import annotations

import re

#: Fields that no answer to a request of this shape depends on. They may be repeated.
_IGNORED = (
    rb"Cache-Control",
    rb"Pragma",
    rb"Sec-[A-Za-z-]++",
    rb"DNT",
    rb"Priority",
    rb"Upgrade-Insecure-Requests",
    rb"Want-Digest",
    rb"Via",
    rb"X-Forwarded-(?:Host|Port|Server)",
    # Of scripts, tools with credentials, caches and content delivery networks.
    rb"Origin",
    rb"Authorization",
    rb"Accept-Charset",
    rb"[Tt][Ee]",
    rb"Keep-Alive",
    rb"X-Requested-With",
    rb"X-(?:Request|Correlation|Amzn-Trace)-Id",
    rb"Traceparent",
    rb"[Cc][Dd][Nn]-Loop",
    rb"[Cc][Ff]-[A-Za-z-]++",
    # HTTP/2 is offered by many on a connection without TLS, and need not be taken up.
    rb"HTTP2-Settings",
)
#: Fields that may stand in a request once, and what a value must be to be understood here.
_ONCE = (
    (rb"Host", rb"[!-~]++"),
    (rb"User-Agent", rb"(?! )[ -~]++"),
    (rb"Accept", rb"(?! )[ -~]++"),
    (rb"Accept-Language", rb"(?! )[ -~]++"),
    (rb"Referer", rb"[!-~]++"),
    (rb"Connection", rb"[Cc]lose|[Kk]eep-[Aa]live|Upgrade, HTTP2-Settings"),
    (rb"Cookie", rb"(?! )[ -~]++"),
    (rb"Accept-Encoding", rb"(?! )[ -~]++"),
    (rb"Range", rb"bytes=[0-9-]++(?:, ?[0-9-]++)*+"),
    (rb"If-Range", rb"(?! )[ -~]++"),
    (rb"If-Match", rb"(?! )[ -~]++"),
    (rb"If-None-Match", rb"(?! )[ -~]++"),
    (rb"If-Modified-Since", rb"(?! )[ -~]++"),
    (rb"If-Unmodified-Since", rb"(?! )[ -~]++"),
    (rb"Content-Length", rb"0"),
    (rb"Upgrade", rb"h2c"),
    # What proxies say of their clients counts only where the proxy is trusted.
    (rb"X-Forwarded-For", rb"(?! )[ -~]++"),
    (rb"X-Forwarded-Proto", rb"(?! )[ -~]++"),
    (rb"X-Real-IP", rb"(?! )[ -~]++"),
    (rb"Forwarded", rb"(?! )[ -~]++"),
)
_REQUEST_LINE = (
    rb"(?:GET|(HEAD)) (?:[Hh][Tt][Tt][Pp][Ss]?://([A-Za-z0-9.:\[\]-]{1,255}+))?+"
    rb"(/[!$-;=@-Z_a-z~]{0,1023}+)(?:\?([!$-;=?@-Z_a-z~]{0,1023}+))? HTTP/1\.(?:1|(0))\r\n"
)
_GROUPS_BEFORE = 5
#: Where `HttpLimits` are narrower than a request of this shape may be, the parser has to judge all.
MOST_FIELDS = 24
MOST_TARGET_BYTES = 2311
MOST_BYTES = 16 * 1024


def _any_case(name: bytes) -> bytes:
    """As most programs write a field's name, `If-None-Match`, or as others do: `if-none-match`."""
    return re.sub(rb"(?<![A-Za-z\[])[A-Z](?![^\[]*\])", _either, name)


def _either(letter: re.Match[bytes]) -> bytes:
    return rb"[%b%b]" % (letter[0], letter[0].lower())


def _pattern() -> bytes:
    fields = [
        # Fails where the group has matched before.
        rb"%b: (?(%d)(?!)|(%b))\r\n" % (_any_case(name), number, value)
        for number, (name, value) in enumerate(_ONCE, _GROUPS_BEFORE + 1)
    ]
    ignored = rb"(?:%b): (?! )[ -~]++\r\n" % b"|".join(_any_case(name) for name in _IGNORED)
    return _REQUEST_LINE + rb"(?:%b){1,%d}+\r\n" % (b"|".join([*fields, ignored]), MOST_FIELDS)


#: The groups: `HEAD`, host and path of the target, query, `0` of HTTP/1.0, the values of `_ONCE`.
recognise = re.compile(_pattern()).fullmatch
_NAMES = (b"",) * _GROUPS_BEFORE + tuple(name.lower() for name, _ in _ONCE)
#: Where Range and conditions stand among the groups, and what proxies say.
CONDITIONS = slice(13, 19)
FORWARDING = slice(-4, None)


def fields_of(groups: tuple[bytes | None, ...], which: slice) -> dict[bytes, bytes]:
    """The fields that stand there among the groups of a request, by lower-case name."""
    pairs = zip(_NAMES[which], groups[which], strict=True)
    return {name: value.rstrip() for name, value in pairs if value is not None}
