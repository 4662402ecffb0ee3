"""Reads untrusted JSON: each getter raises `ProtocolError`, which names the wrong key.

Unknown keys are ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from .errors import ProtocolError

#: Bounds a list of rows: a file of 1 TiB has as many blocks.
MAX_ROWS = 1 << 20


def load_object(body: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `body`. `what` is its name in the error."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} is not JSON") from error
    if not isinstance(document, dict):
        raise ProtocolError(f"{what} is not a JSON object")
    return document


def get_map(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object."""
    value = document.get(name)
    if not isinstance(value, dict):
        raise ProtocolError(f"{name!r} is missing or no object")
    return value


def get_text(document: Mapping[str, Any], name: str, limit: int) -> str:
    """A printable text."""
    value = document.get(name)
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise ProtocolError(f"{name!r} is missing or no text of at most {limit} characters")
    return value


def plain_int(value: object, limit: int) -> int:
    """A whole number from 0 to `limit`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise ProtocolError(f"a number between 0 and {limit} was expected")
    return value


def get_int(
    document: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None
) -> int:
    """A whole number in bounds, or `default` if the key is missing."""
    value = document.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ProtocolError(f"{name!r} is missing or not between {low} and {high}")
    return value


def get_number(document: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """A number in bounds."""
    value = document.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ProtocolError(f"{name!r} is missing or not between {low:g} and {high:g}")
    return float(value)


def get_rows(document: Mapping[str, Any], name: str, width: int) -> list[list[Any]]:
    """A list of rows of equal width (at most `MAX_ROWS`)."""
    rows = document.get(name, [])
    if (
        not isinstance(rows, list)
        or len(rows) > MAX_ROWS
        or any(not isinstance(row, list) or len(row) != width for row in rows)
    ):
        raise ProtocolError(f"{name!r} is no list of rows of {width}")
    return rows


def to_base64(data: bytes) -> str:
    """Bytes as JSON text."""
    return base64.b64encode(data).decode()


def get_bytes(document: Mapping[str, Any], name: str) -> bytes:
    """Bytes from base64 text."""
    value = document.get(name)
    try:
        if not isinstance(value, str):
            raise ValueError
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ProtocolError(f"{name!r} is missing or no base64") from error
