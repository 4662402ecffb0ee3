"""A crowd's requests: a seeded sample of programs, files, sizes and conditions.

Header lines are those of the programs. Shares, sizes and popularity are assumed: a mirror and a
registry beside a release's pages.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mix:
    """How much is drawn. Sizes are log-normal; larger files are measured by rows of bytes."""

    seed: int = 37
    requests: int = 4000
    files: int = 400
    median_bytes: int = 8000
    spread: float = 1.5
    least_bytes: int = 200
    most_bytes: int = 250_000
    #: Of these requests there is no file.
    missing: float = 0.03


MIX = Mix()


@dataclass(frozen=True)
class Program:
    """A program. `has_copy` is how often it asks for news alone; `{number}` is new each time."""

    share: float
    fields: Sequence[str]
    has_copy: float = 0.0
    ranges: float = 0.0


PROGRAMS = (
    Program(0.20, ("User-Agent: curl/8.{number}.1", "Accept: */*")),
    Program(0.08, ("User-Agent: Wget/1.25.{number}", "Accept-Encoding: identity"), has_copy=0.2),
    Program(0.24, ("User-Agent: Debian APT-HTTP/1.3 (2.9.{number})",), has_copy=0.5),
    Program(0.14, ("User-Agent: pip/25.{number}", "Accept-Encoding: identity", "Accept: */*")),
    Program(0.06, ("User-Agent: uv/0.9.{number}", "Accept: */*"), ranges=0.5),
    Program(0.10, ("user-agent: cargo/1.90.{number}", "accept: */*", "accept-encoding: gzip")),
    Program(
        0.18,
        (
            "User-Agent: Mozilla/5.0 (X11; rv:{number}.0)",
            "Accept: text/html,*/*;q=0.8",
            "Accept-Language: {language}",
            "Accept-Encoding: gzip, deflate, br, zstd",
            "Cookie: session={number:x}",
        ),
        has_copy=0.2,
    ),
)


def sizes() -> list[int]:
    """The size of each file, the same in each run."""
    draw, mean = random.Random(MIX.seed), math.log(MIX.median_bytes)
    drawn = (round(draw.lognormvariate(mean, MIX.spread)) for _ in range(MIX.files))
    return [max(MIX.least_bytes, min(MIX.most_bytes, size)) for size in drawn]


def requests() -> list[bytes]:
    """The requests in their order, the same in each run."""
    draw = random.Random(MIX.seed)
    # Zipf's law.
    popularity = [1 / rank for rank in range(1, MIX.files + 1)]
    found = []
    for number in range(MIX.requests):
        program = draw.choices(PROGRAMS, [one.share for one in PROGRAMS])[0]
        file = draw.choices(range(MIX.files), popularity)[0]
        path = f"/mix/none-{number}" if draw.random() < MIX.missing else f"/mix/{file}.bin"
        language = draw.choice(("de,en;q=0.7", "en-US,en;q=0.5", "fr,en;q=0.6", "ja"))
        lines = [one.format(number=number, language=language) for one in program.fields]
        if draw.random() < program.has_copy:
            lines.append("If-Modified-Since: Tue, 14 Nov 2023 22:13:20 GMT")
        elif draw.random() < program.ranges:
            lines.append("Range: bytes=0-99")
        head = "\r\n".join([f"GET {path} HTTP/1.1", "Host: downloads.example", *lines])
        found.append(head.encode("ascii") + b"\r\n\r\n")
    return found


def fill(folder: Path) -> None:
    folder.mkdir()
    for number, size in enumerate(sizes()):
        path = folder / f"{number}.bin"
        path.write_bytes(os.urandom(size))
        # The date in the conditions.
        os.utime(path, (1_700_000_000, 1_700_000_000))


def script(first: int) -> str:
    """A script for wrk that sends them in turn, from this one on."""
    # Lua reads strings of ASCII as JSON writes them.
    listed = ",\n".join(json.dumps(one.decode("ascii")) for one in requests())
    return (
        f"local all, n = {{\n{listed}\n}}, {first}\n"
        "request = function() n = n + 1; return all[n % #all + 1] end\n"
    )
