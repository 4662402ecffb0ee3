"""What is remembered of hosts between downloads: rates and round trips.

A small JSON file in the user's data folder; a spoilt or unwritable one is no reason to fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib

from ..schedule.model import Path

_FADE = 0.5
_HOSTS = 500
#: Beyond these a row was written by somebody else, and nothing could be computed from it.
_MOST_BYTES_S = 1e12
_LEAST_BYTES_S = 1.0
_MOST_RTT_S = 60.0


class Rates:
    """The rate database of paper B: bytes per second by `host:port`, refreshed by each download."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._path = folder / "rates.json"
        self._rows: dict[str, list[float]] = {}
        rows: object = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            rows = json.loads(self._path.read_text())
        for host, row in rows.items() if isinstance(rows, dict) else ():
            with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError):
                rate, rtt_s = float(row[0]), float(row[1])
                if _LEAST_BYTES_S <= rate <= _MOST_BYTES_S and 0 <= rtt_s <= _MOST_RTT_S:
                    self._rows[str(host)] = [rate, rtt_s]

    def path(self, host: str) -> Path | None:
        """The way to a host as it was last time, or None for a stranger."""
        row = self._rows.get(host)
        return Path(row[1], row[0]) if row else None

    def learn(self, host: str, rate_bytes_s: float, rtt_s: float) -> None:
        """A new measurement; half of the old one stays."""
        old = self._rows.pop(host, None)
        if old is not None:
            rate_bytes_s = _FADE * old[0] + (1 - _FADE) * rate_bytes_s
        self._rows[host] = [round(rate_bytes_s, 1), round(rtt_s, 6)]

    def save(self) -> None:
        """Write it back; the most recently used hosts stay."""
        rows = dict(list(self._rows.items())[-_HOSTS:])
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(rows))
            fresh.replace(self._path)
