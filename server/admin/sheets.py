"""Tables as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from server.admin.web import Answer


def csv_answer(name: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Answer:
    """A file to download; an empty cell where there is no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow([_inert(cell) for cell in row])
    headers = (
        ("content-type", "text/csv; charset=utf-8"),
        ("content-disposition", f'attachment; filename="{name}"'),
    )
    return Answer(200, out.getvalue().encode(), headers)


def _inert(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    return "'" + cell if isinstance(cell, str) and cell[:1] in "=+-@\t\r" and cell else cell
