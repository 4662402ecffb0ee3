"""How `tidegate admin` shows what the API gives: plain tables that also read well in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from ...protocol.units import format_duration, format_rate, format_size


def moment(at_s: float | None) -> str:
    """Date and time, UTC."""
    if at_s is None:
        return "-"
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def size(value: float | None) -> str:
    return "-" if value is None else format_size(int(value))


def rate(value: float | None) -> str:
    return "-" if value is None else format_rate(value)


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


def clean(value: object) -> str:
    """Text from strangers without the control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Columns as wide as their longest word; numbers to the right."""
    cells = [[clean(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty)
        return
    widths = [max(len(head), *(len(row[at]) for row in cells)) for at, head in enumerate(heads)]
    right = [
        all(row[at][:1].isdigit() or row[at] == "-" for row in cells) for at in range(len(heads))
    ]
    for row in ([*heads], *cells):
        line = "  ".join(
            word.rjust(width) if to_right else word.ljust(width)
            for word, width, to_right in zip(row, widths, right, strict=True)
        )
        click.echo(line.rstrip())


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Name and value, one a line."""
    known = [(name, clean(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{name.ljust(width)}  {value}")


def lines(name: str, text: str) -> list[tuple[str, object]]:
    """A text of several lines as `facts`."""
    return [(name if at == 0 else "", line) for at, line in enumerate(text.split("\n"))]


def measure(value: float | None, unit: str) -> str:
    """A figure of a preview."""
    if value is None:
        return "-"
    if unit == "s":
        return f"{value:.1f} s" if value < 120 else format_duration(value)
    return f"{value:,.0f}" if unit == "count" else f"{value:.2f}"


def settings(held: Mapping[str, Any]) -> Iterable[tuple[str, object]]:
    """Settings as they can be given back to `settings set`."""
    for name, value in held.items():
        if isinstance(value, Mapping):
            yield name, ",".join(f"{key}={number:g}" for key, number in value.items())
        elif value is None:
            yield name, "auto"
        elif isinstance(value, bool):
            yield name, "true" if value else "false"
        else:
            yield name, f"{value:.12g}" if isinstance(value, float) else value
