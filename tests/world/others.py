"""Other servers that have the files of a world, and `tidegate get` fetches from them, too.

They are the mirrors of `faulty_mirrors`, on connections of their own: their bytes take no part of
the server's line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TESTS = str(Path(__file__).parent.parent)
if _TESTS not in sys.path:
    # As under pytest, whose path has the folder.
    sys.path.append(_TESTS)

from faulty_mirrors import Behaviour, Script  # noqa: E402
from virtual_network import LATENCY_S, Connection  # noqa: E402

__all__ = ["LATENCY_S", "LYING", "OTHERS", "Connection", "Script", "other_server"]

#: What such a server does, see `faulty_mirrors.Behaviour`; counts are bytes of bodies.
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "no validator": {"etag": None},
    "no ranges": {"ranges": False},
    "chunked": {"chunked": True},
    "no length": {"no_length": True},
    "late": {"delay_s": 2.0},
    "closes": {"close_each": True},
    "closes hastily": {"close_each": True, "hasty": True},
    "deaf": {"deaf": True},
    "swallows": {"swallows": True},
    "cuts": {"cut_after": 80_000},
    "resets": {"reset_after": 150_000},
    "stalls": {"stall_after": 150_000},
    "busy": {"busy_times": 3},
    "too many requests": {"busy_times": 4, "busy_status": 429, "retry_after": "2"},
    "crowded": {"most_connections": 1},
    "gone": {"status": 404},
    "refuses": {"status": 403},
    "fails": {"status": 500},
    "refuses ranges": {"status": 416, "told_range": "bytes */7"},
    "leads back": {"redirect": "http://files.example"},
    "leads round": {"redirect": ""},
    "ends early": {"short_by": 100},
    "ends parts early": {"scant_by": 100},
    "tells shorter parts": {"scant_by": 100, "scant_told": True},
    "to the end": {"to_the_end": True},
    "huge header": {"huge_head": True},
    "hints": {"interim": True},
    "wrong start": {"wrong_start": True},
    "changes": {"new_etag_after": 200_000},
    "tells another size": {"told_bytes": 1_000_000},
    "other copy": {},
    "empty copy": {},
    "shorter copy": {},
}
#: Those that have, or tell of, another file.
LYING = frozenset(
    {
        *("changes", "tells another size", "other copy", "empty copy", "shorter copy"),
        "wrong start",
    }
)


def other_server(kind: str, path: str, content: bytes, host: str, rate_bytes_s: float) -> Script:
    """Such a server with this file, which it sends at this rate."""
    does = dict(OTHERS[kind])
    if kind == "other copy":
        at = len(content) // 3
        content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    elif kind == "empty copy":
        content = b""
    elif kind == "shorter copy":
        content = content[:-100]
    elif "redirect" in does:
        does["redirect"] = (does["redirect"] or f"http://{host}") + path
    return Script(Behaviour(content, path=path, rate=rate_bytes_s, **does))
