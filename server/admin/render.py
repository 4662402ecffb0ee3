"""The pages of operators: how their templates write numbers and times."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import pass_context
from jinja2.runtime import Context

from ...protocol.units import format_duration, format_rate, format_size
from ..files.pages import Pages
from .forms import in_words, policy_title, setting_title


def zone_of(name: str) -> tzinfo:
    """The time zone of this name; UTC for one that is unknown here."""
    try:
        return ZoneInfo(name.replace("%2F", "/") or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def clock(at_s: float, zone: tzinfo = UTC) -> str:
    return datetime.fromtimestamp(at_s, zone).strftime("%H:%M")


def moment(at_s: float | None, zone: tzinfo = UTC) -> str:
    return "–" if at_s is None else datetime.fromtimestamp(at_s, zone).strftime("%Y-%m-%d %H:%M:%S")


def stamp(at_s: float) -> str:
    """A time for programs, as in CSV: UTC, to the second."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


def read_time(text: str, zone: tzinfo) -> float | None:
    """A `datetime-local` field or a link's seconds as Unix time; None: empty. Raises ValueError."""
    if not text:
        return None
    if text.replace(".", "").isdecimal():
        return float(text)
    found = datetime.fromisoformat(text)
    return (found.replace(tzinfo=zone) if found.tzinfo is None else found).timestamp()


@pass_context
def _moment(context: Context, at_s: float | None) -> str:
    return moment(at_s, context["zone"])


@pass_context
def _field_time(context: Context, at_s: float | None) -> str:
    """As `datetime-local` inputs want it."""
    if at_s is None:
        return ""
    return datetime.fromtimestamp(at_s, context["zone"]).strftime("%Y-%m-%dT%H:%M")


def short(value: object, length: int = 48) -> str:
    """The text, its middle cut out when it is long."""
    text = str(value)
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[-(length - 1 - head) :]}"


@functools.cache
def make_pages() -> Pages:
    """Pages of operators: with their own static files, and filters for what templates show.

    All are compiled, which takes half a second: call it on a thread first.
    """
    pages = Pages("/static", ("static", "vendor"))
    pages.environment.filters.update(
        bytes=format_size,
        rate=format_rate,
        span=format_duration,
        moment=_moment,
        field_time=_field_time,
        short=short,
        setting_title=setting_title,
        in_words=in_words,
        policy_title=policy_title,
    )
    pages.compile("admin/")
    return pages
