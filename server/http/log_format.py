"""How an entry of the access log is written: combined, JSON, or a pattern of the operator's own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import unquote_plus

from .access_entry import AccessEntry, AccessRecord

#: A ticket, visitor cookie or pass (`protocol.ticket`), wherever it stands; its dots may be quoted.
_TOKEN = re.compile(r"\b([tvp][12])(?:\.|%2[Ee])[A-Za-z0-9_-]{1,32}(?:\.|%2[Ee])[A-Za-z0-9_.%-]+")
_HIDDEN = "..."
#: Turns an entry into its line, without the line's end.
Format = Callable[[AccessEntry], str]

#: What web servers have written since NCSA, and every log reader understands untold.
COMBINED = '{client} - - [{time}] "{request}" {status} {bytes} "{referrer}" "{agent}"'

_Field = Callable[[AccessEntry], str | int | float | bool]
_FIELDS: dict[str, _Field] = {
    "client": lambda one: one.client or "unix:",
    "time": lambda one: _clf_time(one.ended_s),
    "unix_time": lambda one: round(one.ended_s, 3),
    "request": lambda one: " ".join(
        (_text(one.record.method), without_tokens(one.record.target), one.record.version)
    ),
    "method": lambda one: _text(one.record.method),
    "target": lambda one: without_tokens(one.record.target),
    "version": lambda one: one.record.version,
    "status": lambda one: one.status,
    "bytes": lambda one: one.body_bytes,
    "referrer": lambda one: without_tokens(one.record.referrer),
    "agent": lambda one: without_tokens(one.record.agent),
    "range": lambda one: _text(one.record.range),
    "seconds": lambda one: round(one.duration_s, 3),
    "waited": lambda one: round(one.waited_s, 3),
    "class": lambda one: one.priority_class,
    "complete": lambda one: one.complete,
    "tls": lambda one: one.record.is_tls,
}
#: What is the same in all entries of one record.
_OF_RECORD = frozenset(
    {"request", "method", "target", "version", "referrer", "agent", "range", "tls"}
)
_MOST_BEGUN = 512
_IN_JSON = {
    "time": "unix_time",
    **{name: name for name in _FIELDS if name not in ("time", "unix_time", "request", "version")},
}
_NAME = re.compile(r"\{([^{}]*)\}")
#: What would end a quoted field, or a line, or drive a terminal.
_UNSAFE = re.compile(r"[^ !#-\[\]-~]")


def without_tokens(target: bytes) -> str:
    """A request target as it may be kept: tickets and passes are credentials."""
    path, mark, query = target.decode("latin-1").partition("?")
    pairs = []
    for pair in query.split("&"):
        name, equals, _ = pair.partition("=")
        if equals and unquote_plus(name).startswith("tidegate-"):
            pair = f"{name}={_HIDDEN}"
        pairs.append(pair)
    return _TOKEN.sub(rf"\1.{_HIDDEN}", path + mark + "&".join(pairs))


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
    return _Pattern(pattern).line


class _Pattern:
    """A pattern whose fields that a request says of itself are written once for each record.

    Frequent clients send the same bytes, and those have one record.
    """

    def __init__(self, pattern: str) -> None:
        parts = _NAME.split(pattern)
        self._texts, self._names = parts[::2], parts[1::2]
        self._begun: dict[int, tuple[AccessRecord, list[str | _Field]]] = {}

    def line(self, entry: AccessEntry) -> str:
        """The entry as this pattern has it."""
        record = entry.record
        begun = self._begun.get(id(record))
        if begun is None or begun[0] is not record:
            if len(self._begun) >= _MOST_BEGUN:
                self._begun.clear()
            begun = self._begun[id(record)] = record, self._begin(entry)
        return "".join(
            [part if isinstance(part, str) else _quoted(part(entry)) for part in begun[1]]
        )

    def _begin(self, entry: AccessEntry) -> list[str | _Field]:
        """The texts, with the fields between them that each entry has anew."""
        found: list[str | _Field] = [self._texts[0]]
        for name, after in zip(self._names, self._texts[1:], strict=True):
            field = _FIELDS[name]
            if name in _OF_RECORD:
                before = found.pop()
                assert isinstance(before, str)
                found.append(before + _quoted(field(entry)) + after)
            else:
                found += [field, after]
        return found


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


def _clf_time(wall_s: float) -> str:
    return _clf_second(int(wall_s // 1))


@lru_cache(maxsize=16)
def _clf_second(wall_s: int) -> str:
    """As in `22/Nov/2026:08:36:47 +0000`; months are English whatever the locale."""
    then = time.gmtime(wall_s)
    month = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * then.tm_mon - 3 : 3 * then.tm_mon]
    return time.strftime(f"%d/{month}/%Y:%H:%M:%S +0000", then)
