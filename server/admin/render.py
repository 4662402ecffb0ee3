"""The templates' surroundings: where they lie, how they write numbers, and the static files."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from importlib.resources import files
from importlib.resources.abc import Traversable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context, select_autoescape
from jinja2.runtime import Context

from protocol.units import format_duration, format_rate, format_size

_ROOMS = ("static", "vendor")
UTC_ZONE = ZoneInfo("UTC")


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name; UTC for one that is unknown here."""
    try:
        return ZoneInfo(name.replace("%2F", "/") or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC_ZONE


def clock(at_s: float, zone: tzinfo = UTC_ZONE) -> str:
    """Time of day."""
    return datetime.fromtimestamp(at_s, zone).strftime("%H:%M")


def moment(at_s: float | None, zone: tzinfo = UTC_ZONE) -> str:
    """Date and time, to the second."""
    if at_s is None:
        return "–"
    return datetime.fromtimestamp(at_s, zone).strftime("%Y-%m-%d %H:%M:%S")


def field_time(at_s: float | None, zone: tzinfo = UTC_ZONE) -> str:
    """As `datetime-local` inputs want it."""
    return "" if at_s is None else datetime.fromtimestamp(at_s, zone).strftime("%Y-%m-%dT%H:%M")


def read_time(text: str, zone: tzinfo) -> float | None:
    """A `datetime-local` field as Unix time; None when empty. Raises ValueError."""
    if not text:
        return None
    found = datetime.fromisoformat(text)
    return (found.replace(tzinfo=zone) if found.tzinfo is None else found).timestamp()


@pass_context
def _moment(context: Context, at_s: float | None) -> str:
    return moment(at_s, context["zone"])


@pass_context
def _field_time(context: Context, at_s: float | None) -> str:
    return field_time(at_s, context["zone"])


def short(value: object, length: int = 48) -> str:
    """The text, its middle cut out when it is long."""
    text = str(value)
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[-(length - 1 - head) :]}"


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file as it is served; `tag` changes when its bytes do."""

    body: bytes
    media: str
    tag: str


@dataclass(slots=True)
class Assets:
    """Static files by name, read once at the start: they are few and small."""

    by_name: dict[str, Asset] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Assets:
        found = cls()
        root = files("templates")
        for room in _ROOMS:
            for entry in _entries(root / room):
                media = mimetypes.guess_type(entry.name)[0]
                if media in ("text/css", "text/javascript", "image/svg+xml"):
                    body = entry.read_bytes()
                    tag = hashlib.sha256(body).hexdigest()[:12]
                    found.by_name[entry.name] = Asset(body, media, tag)
        return found

    def url(self, name: str) -> str:
        """The address of a file, with its tag, so that browsers may keep it for ever."""
        asset = self.by_name.get(name)
        return f"/static/{name}?v={asset.tag}" if asset else f"/static/{name}"


def _entries(room: Traversable) -> list[Traversable]:
    return [entry for entry in room.iterdir() if entry.is_file()] if room.is_dir() else []


def make_environment(assets: Assets) -> Environment:
    """Jinja with escaping always on and unknown names a fault."""
    found = Environment(
        loader=PackageLoader("templates", ""),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        bytes=format_size,
        rate=format_rate,
        span=format_duration,
        moment=_moment,
        field_time=_field_time,
        short=short,
    )
    found.globals.update(asset=assets.url)
    return found
