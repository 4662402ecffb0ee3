"""What a malicious mirror costs a download that has an honest server as well.

`tidegate get` fetches a file from a real server of a stated rate, with one bad mirror beside it
that is named by hand: the time against that without the mirror, and the bytes taken from it for
nothing.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cluster import serving
from tests.faulty_mirrors import Behaviour, Mirror, running

_SIZE_BYTES, _RATE = 20_000_000, "40Mbit"
_ALONE_TIMES = 3
#: A download that takes longer has failed, seconds.
_LONGEST_S = 120.0


def _behaviours(data: bytes) -> dict[str, Behaviour]:
    honest = Behaviour(data, path="/file.bin", etag=None)
    return {
        "sends wrong bytes": replace(honest, data=bytes(255 - byte for byte in data)),
        "drips 200 bytes a second": replace(honest, rate=200.0),
        "stands still after 64 KiB": replace(honest, stall_after=65_536),
        "resets after 64 KiB, again and again": replace(honest, cut_after=65_536),
        "has no ranges, and a body without an end": replace(
            honest, data=bytes(8 * len(data)), ranges=False, no_length=True
        ),
        "says that the file is twice as large": replace(honest, data=data + data),
        "is busy, come back in a day": replace(honest, busy_times=1 << 30, retry_after="86400"),
        "redirects to itself": replace(honest, redirect="/file.bin"),
    }


@dataclass(frozen=True, slots=True)
class MirrorCost:
    """Seconds against those without it, less one; bytes it sent; whether the file is right."""

    title: str
    ratio: float
    wasted_bytes: int
    right: bool


def _get(folder: Path, *urls: str) -> tuple[float, bytes]:
    out = folder / "out.bin"
    out.unlink(missing_ok=True)
    begun = time.monotonic()
    command = [sys.executable, "-m", "tidegate", "get", "-q", "-o", str(out), *urls]
    try:
        subprocess.run(command, check=False, capture_output=True, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return _LONGEST_S, b""
    return time.monotonic() - begun, out.read_bytes() if out.exists() else b""


def costs() -> Iterator[MirrorCost]:
    """Each sort of mirror; the first has the spread of the downloads without."""
    with tempfile.TemporaryDirectory(prefix="tidegate-mirror-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "release").mkdir()
        data = random.Random(1).randbytes(_SIZE_BYTES)
        (folder / "release" / "file.bin").write_bytes(data)
        _, url = stack.enter_context(serving(folder, "--bandwidth", _RATE))
        url = f"{url.rstrip('/')}/file.bin"
        alone_s = [_get(folder, url)[0] for _ in range(_ALONE_TIMES)]
        mean_s = statistics.fmean(alone_s)
        spread = (max(alone_s) - min(alone_s)) / mean_s
        yield MirrorCost("none; spread of three downloads", spread, 0, True)
        for title, behaviour in _behaviours(data).items():
            with running(behaviour) as [mirror]:
                took_s, got = _get(folder, url, mirror.url)
                yield MirrorCost(title, took_s / mean_s - 1.0, _sent(mirror), got == data)


def _sent(mirror: Mirror) -> int:
    return mirror.sent
