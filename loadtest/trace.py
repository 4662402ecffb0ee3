"""Populations as text: the arrivals that a server has recorded, one JSON object a line."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence

from ..policies.settings import SMALL_BELOW_BYTES
from .workloads import File, Visitor, Workload

_Row = tuple[float, str, File, float, float]


def line_rate(client: str) -> float:
    """The assumed speed of an unmeasured line, by the name: 0.8 to 80 Mbit/s, log-uniform."""
    share = int.from_bytes(hashlib.sha256(client.encode()).digest()[:6]) / 2**48
    return 1e5 * math.pow(100.0, share)


def asked_bandwidth(visitors: Sequence[Visitor]) -> float:
    """The line that moves what they ask for while they arrive, a minute at least."""
    span_s = max(60.0, visitors[-1].arrival_s if visitors else 0.0)
    return sum(visitor.total_bytes for visitor in visitors) / span_s


def from_trace(lines: Iterable[str], *, bandwidth_bytes_s: float | None = None) -> Workload:
    """Arrivals that a server has recorded, one JSON object a line, in any order.

    Fields: `t_s` (any origin), `client`, `file`, `size_bytes`, `rate_bytes_s` (the client's line;
    null: unlimited, missing: `line_rate`), and optionally `patience_s`. Lines of one client at one
    time are one visitor, who fetches these files one after another. Without `bandwidth_bytes_s`
    it is what the arrivals ask for. Raises ValueError naming the line that cannot be used.
    """
    rows = [_row(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    rows.sort(key=lambda row: row[0])
    start = rows[0][0] if rows else 0.0
    visitors: list[Visitor] = []
    files: list[File] = []
    for index, (at, client, file, rate, patience) in enumerate(rows):
        files.append(file)
        if index + 1 < len(rows) and rows[index + 1][:2] == (at, client):
            continue
        visitors.append(Visitor(client, at - start, rate, tuple(files), patience))
        files.clear()
    if bandwidth_bytes_s is None:
        bandwidth_bytes_s = asked_bandwidth(visitors)
    return Workload("trace", 0, tuple(visitors), bandwidth_bytes_s, SMALL_BELOW_BYTES)


def _row(number: int, line: str) -> _Row:
    try:
        row = json.loads(line)
        client = str(row["client"])
        rate = row["rate_bytes_s"] if "rate_bytes_s" in row else line_rate(client)
        patience = row.get("patience_s")
        found = (
            float(row["t_s"]),
            client,
            File(str(row["file"]), int(row["size_bytes"])),
            math.inf if rate is None else float(rate),
            math.inf if patience is None else float(patience),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"line {number} of the trace is not an arrival ({error}); it needs t_s, client, "
            "file and size_bytes"
        ) from error
    if not (math.isfinite(found[0]) and found[2].size_bytes >= 0 and found[3] > 0):
        raise ValueError(
            f"line {number} of the trace: t_s must be finite, size_bytes at least 0 and "
            "rate_bytes_s above 0"
        )
    return found


def to_trace(workload: Workload) -> Iterator[str]:
    """The population as trace lines, one a file; `from_trace` reads them back."""
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
