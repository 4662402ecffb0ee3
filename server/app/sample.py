"""A small sample release, so that `make run` has something to serve."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

_FILES = {
    "tideland-1.0-amd64.iso": 24_000_000,
    "tideland-1.0-arm64.iso": 21_000_000,
    "tideland-1.0.tar.gz": 3_400_000,
}
_NOTES = """Tideland 1.0

A made-up release, for trying Tidegate: two images, one source archive, and these notes.
The images are random bytes; nothing in them runs.
"""


def make_sample(directory: Path) -> None:
    """Fill `directory`, which must not exist yet; the same bytes every time."""
    directory.mkdir(parents=True)
    rng = random.Random(1997)
    for name, size_bytes in _FILES.items():
        body = rng.randbytes(size_bytes)
        (directory / name).write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()
        (directory / f"{name}.sha256").write_text(f"{digest}  {name}\n", "ascii")
    (directory / "RELEASE-NOTES.txt").write_text(_NOTES, "utf-8")
