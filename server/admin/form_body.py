"""Reads a form from a body of either encoding, in few steps a byte: strangers may send one."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from multipart import MultipartError, PushMultipartParser, parse_options_header

from ...protocol.errors import ProtocolError

#: Fields of one form.
_FIELDS_MOST = 500
#: Characters of a boundary (RFC 2046, 5.1.1).
_BOUNDARY_MOST = 70


def read_form(kind: str, body: bytes) -> Mapping[str, list[bytes]]:
    """The fields of a body of this content type; empty for every kind that is no form.

    Raises ProtocolError for a form that cannot be read.
    """
    if kind.startswith("application/x-www-form-urlencoded"):
        # Latin-1 keeps each byte: of bytes, `parse_qs` takes none that is not ASCII.
        text, exact = body.decode("latin-1"), "latin-1"
        try:
            pairs = parse_qs(
                text, keep_blank_values=True, encoding=exact, max_num_fields=_FIELDS_MOST
            )
        except ValueError:
            raise ProtocolError("The form has too many fields.", code="bad-form") from None
        return {_name(name): [value.encode(exact) for value in pairs[name]] for name in pairs}
    if not kind.startswith("multipart/form-data"):
        return {}
    try:
        return _fields_of_parts(kind, body)
    except MultipartError:
        raise ProtocolError("The form cannot be read.", code="bad-form") from None


def _name(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "replace")


def _fields_of_parts(kind: str, body: bytes) -> dict[str, list[bytes]]:
    """What the parts of a body bring (RFC 7578). Raises MultipartError."""
    boundary = parse_options_header(kind)[1].get("boundary", "")[: _BOUNDARY_MOST + 1]
    if len(boundary) > _BOUNDARY_MOST:
        raise MultipartError("the boundary is too long")
    found: dict[str, list[bytes]] = {}
    name, value = "", bytearray()
    # Strict: a line that goes on in the next one takes the more steps the longer it is.
    with PushMultipartParser(
        boundary,
        max_header_size=4096,  # Bytes of a line in the head of a part.
        max_header_count=8,
        max_segment_count=_FIELDS_MOST,
        strict=True,
    ) as parser:
        for event in parser.parse(body):
            if event is None:
                found.setdefault(name, []).append(bytes(value))
            elif isinstance(event, bytes):
                value += event
            else:
                name, value = event.name or "", bytearray()
    return found
