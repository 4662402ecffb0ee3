"""What llhttp leaves to us: targets, hosts, and telling people which rule a request broke."""

from __future__ import annotations

import re
from functools import lru_cache

import httptools

from ...protocol.errors import ProtocolError

_HOST = re.compile(
    rb"(?!.*\.\.)"
    rb"(?:\[[0-9A-Fa-f:.]+(?:%25[A-Za-z0-9._~-]+)?\]|\[[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+\]"
    rb"|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)"
    rb"(?::[0-9]{0,5})?"
)
#: The weight of a member (RFC 9110, 12.4.2): 0 to 1 with up to three digits.
_WEIGHT = re.compile(r"[01](?:\.[0-9]{0,3})?")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


@lru_cache(256)
def valid_host(host: bytes) -> bool:
    """Whether a Host field value is `uri-host [":" port]` and not empty (RFC 9112, 3.2)."""
    return len(host) <= 255 + 6 and _HOST.fullmatch(host) is not None


def origin_form(target: bytes) -> tuple[bytes, bytes | None]:
    """The target as `/path?query`, also out of an absolute one (RFC 9112, 3.2.2); `*` stays.

    And the host that an absolute one names: it counts, whatever the Host field says.
    Raises ProtocolError for what no request target is: a fragment, half an escape, no host in an
    absolute one (RFC 9110, 4.2.1). What a query holds is its reader's business.
    """
    if b"#" in target:
        raise ProtocolError(
            "A request target has no fragment; leave out # and what follows, or write %23.",
            code="bad-target",
        )
    if b"%" in target and _BROKEN_ESCAPE.search(target.partition(b"?")[0]) is not None:
        raise ProtocolError(
            "A % in the request's path is not followed by two hexadecimal digits; write %25.",
            code="bad-target",
        )
    if target.startswith(b"/"):
        return target, None
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        cut = min((i for i in (rest.find(b"/"), rest.find(b"?")) if i >= 0), default=len(rest))
        host = rest[:cut].rpartition(b"@")[2]
        if not valid_host(host):
            raise ProtocolError("The request target names no valid host.", code="bad-target")
        path = rest[cut:]
        return path if path.startswith(b"/") else b"/" + path, host
    return target, None


def weights_of(field: bytes) -> dict[str, float]:
    """The members of an Accept-like field in lower case, with their weights (RFC 9110, 12.4.2).

    A weight that is none refuses. What is beyond thirty-two members counts for nothing.
    """
    weights: dict[str, float] = {}
    for member in field.decode("latin-1").lower().split(",")[:32]:
        name, *parameters = (part.strip() for part in member.split(";"))
        weights[name] = 1.0
        for parameter in parameters:
            key, _, text = (part.strip() for part in parameter.partition("="))
            if key == "q":
                weights[name] = min(1.0, float(text)) if _WEIGHT.fullmatch(text) else 0.0
    return weights


def with_escaped_target(data: bytes) -> bytes:
    """Percent-encode raw high bytes in the request line, as curl sends them for `ü`.

    The parser takes ASCII only. Other lines are left alone, and so is a line that is not whole.
    """
    line, end, rest = data.partition(b"\r\n")
    if not end or line.isascii():
        return data
    escaped = b"".join(b"%%%02X" % byte if byte > 127 else bytes((byte,)) for byte in line)
    return escaped + end + rest


def fault_of(error: httptools.HttpParserError, data: bytes) -> ProtocolError:
    """What the client did wrong, in words; `data` starts with the request line where known."""
    reason = str(error)
    if "PRI" in reason:
        return ProtocolError(
            "This server speaks HTTP/1.1; HTTP/2 with prior knowledge is not offered.",
            status=505,
            code="http-version",
        )
    if data.startswith(b"\x16\x03"):
        return ProtocolError(
            "This port speaks plain HTTP, but a TLS handshake arrived; use http://.",
            code="tls-on-plain-port",
        )
    request_line = rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) \S+ HTTP/[0-9]\.[0-9]\r?\n"
    bad_method = isinstance(error, httptools.HttpParserInvalidMethodError)
    if bad_method and re.match(request_line, data):
        return ProtocolError(
            "This method is not known here; use GET or HEAD.", status=501, code="unknown-method"
        )
    if "Invalid HTTP version" in reason:
        return ProtocolError(
            "This server speaks HTTP/1.1 and HTTP/1.0.", status=505, code="http-version"
        )
    return ProtocolError(f"The request is not valid HTTP/1.1 ({reason}).")
