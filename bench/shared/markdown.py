"""Tables as Markdown: all at once, or line by line while figures come in."""

from __future__ import annotations

from collections.abc import Iterable


def head(*columns: object) -> str:
    """The first two lines of a table."""
    return f"{row(*columns)}\n{'|---' * len(columns)}|"


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(columns: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([head(*columns), *(row(*cells) for cells in rows)])
