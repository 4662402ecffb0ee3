"""Reads untrusted JSON into typed values. Unknown keys are ignored."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from .errors import ProtocolError

#: Text without characters that control a terminal or the direction of text.
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z"
_Kind = TypeVar("_Kind")


def read_json(body: bytes, kind: type[_Kind], what: str) -> _Kind:
    """A document of this type. Raises `ProtocolError`, which names `what` and the wrong key."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} cannot be read: {error}") from error
