"""How an entry of the access log is written: combined, JSON, or a pattern of the operator's own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import lru_cache

from ..http.accesslog import without_tokens
from ..http.request import AccessEntry

#: Turns an entry into its line, without the line's end.
Format = Callable[[AccessEntry], str]

#: What web servers have written since NCSA, and every log reader understands untold.
COMBINED = '{client} - - [{time}] "{request}" {status} {bytes} "{referrer}" "{agent}"'

_Field = Callable[[AccessEntry], str | int | float | bool]


@lru_cache(maxsize=16)
def _clf_second(wall_s: int) -> str:
    """As in `22/Nov/2026:08:36:47 +0000`; months are English whatever the locale."""
    then = time.gmtime(wall_s)
    month = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * then.tm_mon - 3 : 3 * then.tm_mon]
    return time.strftime(f"%d/{month}/%Y:%H:%M:%S +0000", then)


_FIELDS: dict[str, _Field] = {
    "client": lambda one: one.client or "unix:",
    "time": lambda one: _clf_second(int(one.ended_s)),
    "unix_time": lambda one: round(one.ended_s, 3),
    "request": lambda one: " ".join((_text(one.method), without_tokens(one.target), one.version)),
    "method": lambda one: _text(one.method),
    "target": lambda one: without_tokens(one.target),
    "version": lambda one: one.version,
    "status": lambda one: one.status,
    "bytes": lambda one: one.body_bytes,
    "referrer": lambda one: without_tokens(one.referrer),
    "agent": lambda one: without_tokens(one.agent),
    "range": lambda one: _text(one.range),
    "seconds": lambda one: round(one.duration_s, 3),
    "waited": lambda one: round(one.waited_s, 3),
    "class": lambda one: one.priority_class,
    "complete": lambda one: one.complete,
    "tls": lambda one: one.is_tls,
}
_IN_JSON = {
    "time": "unix_time",
    **{name: name for name in _FIELDS if name not in ("time", "unix_time", "request", "version")},
}
_NAME = re.compile(r"\{([^{}]*)\}")
#: What would end a quoted field, or a line, or drive a terminal.
_UNSAFE = re.compile(r"[^ !#-\[\]-~]")


def parse_format(text: str) -> Format:
    """`combined`, `json`, or a pattern with {fields}. Raises ValueError."""
    if text == "json":
        return _json_line
    pattern = COMBINED if text == "combined" else text
    names = _NAME.findall(pattern)
    for name in names:
        if name not in _FIELDS:
            raise ValueError(f"{{{name}}} is none of the fields: {', '.join(_FIELDS)}")
    if not names:
        raise ValueError(f"{text!r} is neither combined nor json, and names no {{field}}")
    if any(not one.isprintable() for one in pattern):
        raise ValueError("a line's pattern has printable characters only")
    parts = _NAME.split(pattern)
    begin, fields = parts[0], [_FIELDS[name] for name in parts[1::2]]
    after = list(zip(fields, parts[2::2], strict=True))

    def line(entry: AccessEntry) -> str:
        return begin + "".join([_quoted(field(entry)) + text for field, text in after])

    return line


def _json_line(entry: AccessEntry) -> str:
    members = {name: _FIELDS[source](entry) for name, source in _IN_JSON.items()}
    return json.dumps(members, separators=(",", ":"))


def _quoted(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return str(value)
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02X}", value) or "-"


def _text(value: bytes) -> str:
    return value.decode("latin-1")
