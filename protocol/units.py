"""Reads and writes sizes, rates and durations for people.

`20KB` is 20 000 bytes and `20KiB` 20 480. `100Mbit` is 12 500 000 bytes per second, and so is
`12.5MB` or `12.5MB/s`. `90s`, `15m`, `7d` are durations. A bare number is bytes or seconds. As a
rate it is refused: it could mean bits or bytes. The code has bytes and seconds only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from .errors import ProtocolError

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATIONS |= {"d": 86400.0, "w": 7 * 86400.0, "y": 365 * 86400.0}


class BadUnit(ProtocolError):
    """A size, rate or duration that cannot be read."""

    code = "bad-unit"


def _split(text: str, kind: str, example: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]*)\s*", text)
    if match is None:
        raise BadUnit(f"{text!r} is not a {kind}; write it like {example}.")
    return float(match.group(1)), match.group(2)


def _scale(unit: str) -> int | None:
    unit = unit.lower()
    return _PREFIXES.get(unit, _BINARY.get(unit))


def parse_size(text: str) -> int:
    """Bytes from `1234`, `20KB`, `20k`, `1.5GiB`; raises `BadUnit`."""
    number, unit = _split(text, "size", "20KB or 4MiB")
    base = unit[:-1] if unit[-1:] in ("B", "b") else unit
    scale = _scale(base)
    if scale is None or unit.endswith("bit"):
        raise BadUnit(f"{text!r} is not a size; write it like 20KB or 4MiB.")
    return round(number * scale)


def parse_rate(text: str) -> int:
    """Bytes per second from `100Mbit`, `100Mbit/s`, `100Mbps`, `12.5MB/s`.

    Raises `BadUnit`, also for a bare number.
    """
    number, unit = _split(text, "rate", "100Mbit or 12MB/s")
    if not unit:
        raise BadUnit(
            f"{text!r} has no unit: write {number:g}Mbit, {number:g}MB/s or {number:g}B/s."
        )
    bare = unit.removesuffix("/s")
    for suffix in ("bit", "bits", "bps"):
        if bare.endswith(suffix):
            scale = _scale(bare.removesuffix(suffix))
            if scale is not None:
                return round(number * scale / 8)
    base = bare[:-1] if bare[-1:] in ("B", "b") else bare
    scale = _scale(base)
    if scale is None:
        raise BadUnit(f"{text!r} is not a rate; write it like 100Mbit or 12MB/s.")
    return round(number * scale)


def parse_duration(text: str) -> float:
    """Seconds from `90`, `90s`, `15m`, `1.5h`, `7d`, `250ms`; raises `BadUnit`."""
    number, unit = _split(text, "duration", "90s, 15m or 7d")
    scale = _DURATIONS.get(unit.lower())
    if scale is None:
        raise BadUnit(f"{text!r} is not a duration; write it like 90s, 15m or 7d.")
    return number * scale


def _shortest(number: float, unit: str) -> str:
    prefixes = iter(("", "k", "M", "G", "T"))
    prefix = next(prefixes)
    while number >= 999.5 and prefix != "T":
        number, prefix = number / 1000, next(prefixes)
    digits = f"{number:.0f}" if number >= 9.95 or not prefix else f"{number:.1f}"
    return f"{digits} {prefix}{unit}"


def format_size(size_bytes: float) -> str:
    """`1.4 GB`: decimal prefixes, two or three digits."""
    return _shortest(size_bytes, "B")


def format_rate(rate_bytes_s: float) -> str:
    """`100 Mbit/s`: the unit in which network lines are sold."""
    return _shortest(rate_bytes_s * 8, "bit/s")


def split_duration(duration_s: float) -> tuple[tuple[str, int], ...]:
    """A rounded duration as one or two (unit, count).

    The units are `s`, `min`, `h` and `d`, which each language translates.
    """
    seconds = max(0, round(duration_s))
    if seconds < 90:
        return (("s", seconds),)
    minutes = round(seconds / 60)
    if minutes < 90:
        return (("min", minutes),)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return (("h", hours), ("min", minutes)) if minutes else (("h", hours),)
    return (("d", round(hours / 24)),)


def bound_of(duration_s: float) -> int:
    """A duration in seconds, rounded up to what `split_duration` can write.

    An upper bound of 14 min 29 s must be shown as 15 min, not as the nearest 14 min.
    """
    for step_s, below_s in ((1, 90), (60, 48 * 3600)):
        bound_s = math.ceil(max(0.0, duration_s) / step_s) * step_s
        if bound_s < below_s:
            return bound_s
    return math.ceil(duration_s / 86_400) * 86_400


def format_duration(duration_s: float) -> str:
    """`45 s`, `14 min`, `2 h 5 min`, `3 d`."""
    return " ".join(f"{count} {unit}" for unit, count in split_duration(duration_s))


def exact_size(size_bytes: int) -> str:
    """The shortest text that `parse_size` reads as this: `256kB`, `64KiB`, `1234B`."""
    texts = [
        f"{size_bytes / scale:.12g}{prefix.capitalize() if scale > 1000 else prefix}B"
        for prefix, scale in (*_PREFIXES.items(), *_BINARY.items())
    ]
    return _exact([*texts, str(size_bytes)], size_bytes, parse_size)


def exact_rate(rate_bytes_s: float) -> str:
    """The shortest text that `parse_rate` reads as this: `40Mbit`; else the bare number."""
    texts = [
        f"{rate_bytes_s * 8 / scale:.12g}{prefix.upper() if scale > 1000 else prefix}bit"
        for prefix, scale in _PREFIXES.items()
    ]
    return _exact([*texts, f"{rate_bytes_s!r}"], rate_bytes_s, parse_rate)


def exact_duration(duration_s: float) -> str:
    """The shortest text that `parse_duration` reads as this: `45s`, `5m`, `1d`."""
    texts = [f"{duration_s / _DURATIONS[unit]:.12g}{unit}" for unit in ("s", "m", "h", "d")]
    return _exact([*texts, f"{duration_s!r}"], duration_s, parse_duration)


def _exact(texts: list[str], value: float, parse: Callable[[str], float]) -> str:
    """The shortest of these that means `value`; the last one, a bare number, if none does."""
    *with_unit, bare = texts
    return min((text for text in with_unit if _means(text, value, parse)), key=len, default=bare)


def _means(text: str, value: float, parse: Callable[[str], float]) -> bool:
    try:
        return parse(text) == value
    except BadUnit:
        return False


def whole_number(text: str) -> int | None:
    """The number in an untrusted text of at most 18 decimal digits; else None.

    `int` accepts digits of all scripts, and raises for more than 4 300.
    """
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None
