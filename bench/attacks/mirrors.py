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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.attacks.simulated import Cost
from bench.cluster import serving
from bench.shared.subject import require
from tests.faulty_mirrors import Behaviour, running

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


TITLES = ("is none; spread of three downloads", *_behaviours(b""))
#: Stands for the bytes that were taken where the file came out wrong.
WRONG = float("inf")


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


def require_alone(right: Sequence[bool]) -> None:
    """Raise NothingMeasured unless each download without a bad mirror brought the file."""
    require(right and all(right), f"{sum(right)} of {len(right)} honest downloads were right.")


def require_asked(title: str, requests: int) -> None:
    """Raise NothingMeasured if the bad mirror never got a request."""
    require(requests, f"A mirror that {title}: nobody asked it for anything.")


def costs() -> Iterator[Cost]:
    """Each of `TITLES`: time against that without, less one; `taken` is bytes, or `WRONG`."""
    with tempfile.TemporaryDirectory(prefix="tidegate-mirror-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "release").mkdir()
        data = random.Random(1).randbytes(_SIZE_BYTES)
        (folder / "release" / "file.bin").write_bytes(data)
        _, url = stack.enter_context(serving(folder, "--bandwidth", _RATE))
        url = f"{url.rstrip('/')}/file.bin"
        alone = [_get(folder, url) for _ in range(_ALONE_TIMES)]
        require_alone([got == data for _, got in alone])
        alone_s = [took_s for took_s, _ in alone]
        mean_s = statistics.fmean(alone_s)
        yield Cost((max(alone_s) - min(alone_s)) / mean_s, 0.0)
        for title, behaviour in _behaviours(data).items():
            with running(behaviour) as [mirror]:
                took_s, got = _get(folder, url, mirror.url)
                require_asked(title, len(mirror.requests))
                sent = float(mirror.sent) if got == data else WRONG
                yield Cost(took_s / mean_s - 1.0, 0.0, sent)
