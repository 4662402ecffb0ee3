"""Tables as Markdown: all at once, or line by line while figures come in."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def head(*columns: object) -> str:
    """The first two lines of a table."""
    return f"{row(*columns)}\n{'|---' * len(columns)}|"


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(columns: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([head(*columns), *(row(*cells) for cells in rows)])


def put_between_marks(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- /NAME -->` in a document.

    Raises SystemExit if the document has no such marks.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, found, rest = page.read_text("utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise SystemExit(f"{page} needs the lines {begin}and {end}")
    page.write_text(f"{before}{begin}{text}\n{end}{after}", "utf-8")
    sys.stderr.write(f"wrote {page}\n")
