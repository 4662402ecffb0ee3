"""A form as it comes in a body, of either encoding, in a few steps a byte: anybody may send one."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from protocol.errors import ProtocolError

_FIELDS_MOST = 500
#: A boundary has at most this many characters (RFC 2046, 5.1.1), and a part's head so many bytes.
_BOUNDARY_MOST, _HEAD_MOST = 70, 4096


def read_form(kind: str, body: bytes) -> Mapping[str, list[bytes]]:
    """The fields of a body of this content type; empty for every kind that is no form.

    Raises ProtocolError for a form that cannot be read.
    """
    if kind.startswith("application/x-www-form-urlencoded"):
        try:
            pairs = parse_qs(body, keep_blank_values=True, max_num_fields=_FIELDS_MOST)
        except ValueError:
            raise ProtocolError("The form has too many fields.", code="bad-form") from None
        return {name.decode("utf-8", "replace"): values for name, values in pairs.items()}
    if not kind.startswith("multipart/form-data"):
        return {}
    found: dict[str, list[bytes]] = {}
    for part in _parts(kind, body):
        head, _, value = part.partition(b"\r\n\r\n")
        name = _name(head)
        if name is not None:
            found.setdefault(name, []).append(value)
    return found


def _unreadable() -> ProtocolError:
    return ProtocolError("The form cannot be read.", code="bad-form")


def _parts(kind: str, body: bytes) -> list[bytes]:
    """What stands between the boundaries (RFC 7578): head, empty line, value."""
    boundary = _parameter(kind.encode("latin-1", "replace"), b"boundary")
    if boundary is None or not 0 < len(boundary) <= _BOUNDARY_MOST:
        raise _unreadable()
    # A first boundary begins the body, each other one a line.
    _, *parts = b"\r\n".join((b"", body)).split(b"\r\n--" + boundary, _FIELDS_MOST + 2)
    for at, part in enumerate(parts):
        if part.startswith(b"--"):
            parts = parts[:at]
            break
    else:
        raise _unreadable()
    if not parts or len(parts) > _FIELDS_MOST:
        raise _unreadable()
    return parts


def _name(head: bytes) -> str | None:
    """The name of the field that a part with this head brings; None if it names none."""
    if len(head) > _HEAD_MOST:
        raise _unreadable()
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            name = _parameter(value, b"name")
            return None if name is None else name.decode("utf-8", "replace")
    return None


def _parameter(value: bytes, wanted: bytes) -> bytes | None:
    """A parameter of a field as browsers write it: in quotes, or as it is; none escape quotes."""
    at = value.find(b";")
    while at >= 0:
        equals = value.find(b"=", at)
        if equals < 0:
            return None
        name, start = value[at + 1 : equals].strip().lower(), equals + 1
        if value[start : start + 1] == b'"':
            start += 1
            end = value.find(b'"', start)
            if end < 0:
                return None
            after = value.find(b";", end)
        else:
            end = after = value.find(b";", start)
        if name == wanted:
            return value[start : end if end >= 0 else len(value)].strip()
        at = after
    return None
