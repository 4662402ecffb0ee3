"""Populations as text: the arrivals that a server has recorded, one JSON object a line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator

from .workloads import KB, File, Visitor, Workload


def from_trace(lines: Iterable[str], *, bandwidth_bytes_s: float) -> Workload:
    """Arrivals that a server has recorded, one JSON object a line, in any order.

    Fields: `t_s` (any origin), `client`, `file`, `size_bytes`, `rate_bytes_s` (what the client
    took; null or missing: unlimited), and optionally `patience_s`. Each line is one download of
    its own. Raises ValueError naming the line that cannot be used.
    """
    rows: list[tuple[float, str, File, float, float]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rate = row.get("rate_bytes_s")
            patience = row.get("patience_s")
            fields = (
                float(row["t_s"]),
                str(row["client"]),
                File(str(row["file"]), int(row["size_bytes"])),
                math.inf if rate is None else float(rate),
                math.inf if patience is None else float(patience),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"line {number} of the trace is not an arrival ({error}); it needs t_s, client, "
                "file and size_bytes"
            ) from error
        if not (math.isfinite(fields[0]) and fields[2].size_bytes >= 0 and fields[3] > 0):
            raise ValueError(
                f"line {number} of the trace: t_s must be finite, size_bytes at least 0 and "
                "rate_bytes_s above 0"
            )
        rows.append(fields)
    rows.sort(key=lambda fields: fields[0])
    start = rows[0][0] if rows else 0.0
    visitors = tuple(
        Visitor(client, at - start, rate, (file,), patience)
        for at, client, file, rate, patience in rows
    )
    return Workload("trace", 0, visitors, bandwidth_bytes_s, 20 * KB)


def to_trace(workload: Workload) -> Iterator[str]:
    """The population as trace lines; `from_trace` reads them back (one line a file)."""
    for visitor in workload.visitors:
        for file in visitor.files:
            row: dict[str, object] = {
                "t_s": visitor.arrival_s,
                "client": visitor.key,
                "file": file.name,
                "size_bytes": file.size_bytes,
                "rate_bytes_s": None if math.isinf(visitor.rate_bytes_s) else visitor.rate_bytes_s,
            }
            if not math.isinf(visitor.patience_s):
                row["patience_s"] = visitor.patience_s
            yield json.dumps(row)
