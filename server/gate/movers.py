"""What each mover says with a request, and what it is told to send a file.

The snippet of a mover writes `FIELDS.mover` over what its client sent:
`NAME PROTOCOL CLIENT-ADDRESS CLIENT-PORT OWN-ADDRESS OWN-PORT ROOT`. The last words may be missing.
A socket without its own end is found by its client's end. ROOT is needed by X-Sendfile alone.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from ..files.transfer import BodyPlan, FileKey, Representation
from ..http.answers import Header
from .inet_diag import read_socket_name
from .moves import MovedOn


class MoverFields(NamedTuple):
    """The fields between a gate and a mover."""

    mover: bytes = b"tidegate-mover"
    lease: bytes = b"Tidegate-Lease"
    #: The range that was admitted, as a request has it; empty for the whole file. A mover with
    #: entity tags of its own asks its files for this one instead of `Range` and `If-Range`.
    range: bytes = b"Tidegate-Range"
    #: The tag by which an origin knows the content of that range. It answers with the whole file
    #: if it has another one by now, or a client would join parts of two.
    range_tag: bytes = b"Tidegate-Range-Tag"


FIELDS = MoverFields()
#: Under this path nginx has the release for its own use (`internal`).
INTERNAL_PATH = "/-/moved"

MOVERS = frozenset({"apache", "caddy", "envoy", "haproxy", "lighttpd", "nginx"})
#: These fetch files of an origin; the others send files that they have.
FETCHING = frozenset({"nginx"})


def orders(
    rep: Representation, where: MovedOn, rate_bytes_s: float | None, place: str
) -> list[Header]:
    """The fields that tell a mover to send this file, at no more than this rate (None: no limit).

    `place` is the encoded path of the file, with the query with which an origin is asked.
    """
    if where.mover == "apache":
        # X-Sendfile takes the path as it is, from the root of the file system on.
        return [(b"X-Sendfile", unquote_to_bytes(where.root) + b"/" + rep.path)]
    if where.mover == "lighttpd":
        # It decodes that path.
        return [(b"X-Sendfile", f"{where.root}{rep.url_path}".encode("ascii"))]
    # X-Accel-Redirect takes a percent-encoded path. Only nginx knows the rate.
    below = "" if where.mover == "envoy" else INTERNAL_PATH
    fields: list[Header] = [(b"X-Accel-Redirect", f"{below}{place}".encode("ascii"))]
    if rate_bytes_s is not None:
        fields.append((b"X-Accel-Limit-Rate", b"%d" % max(1, int(rate_bytes_s))))
    return fields


def range_of(plan: BodyPlan) -> bytes:
    """The value of `FIELDS.range`."""
    if plan.status != 206:
        return b""
    begin, end = plan.ranges[0]
    return b"bytes=%d-%d" % (begin, end - 1)


def mover_tag(fd: int, key: FileKey) -> str:
    """The entity tag that nginx gives to a file: seconds and size, hexadecimal."""
    return f'"{key.mtime_ns // 1_000_000_000:x}-{key.size_bytes:x}"'


def read_mover(field: bytes | None) -> MovedOn | None:
    """Where a mover with this field sends a body; None if the field is none of a known mover."""
    if field is None or len(field) > 1000:
        return None
    name, _, rest = field.decode("latin-1").partition(" ")
    if name not in MOVERS:
        return None
    protocol, *ends = rest.split(" ")
    root = ends.pop() if ends and ends[-1].startswith("/") else ""
    is_sequential = protocol in ("HTTP/1.0", "HTTP/1.1")
    return MovedOn(name, read_socket_name(ends), not is_sequential, root)
