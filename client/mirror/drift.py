"""What the mirror knows of its own files: the manifest, their stamps, and how the tree drifted.

Every file's stamp (size, mtime, ctime, inode) was written down when its content was last known to
be right; looking for drift reads only files whose stamp is another one now.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ...protocol.disk.pieces import read_cache, stamp_of
from ...protocol.errors import BadManifest
from ...protocol.tree import KEPT_MODE, Entry, decode_entry
from ...protocol.tree_diff import pair_up
from ...protocol.tree_scan import GRAIN_NS, Cached, Seen, encode_cached, scan
from .place import Place
from .stage import LiveDisk, attributes_of


@dataclass(slots=True)
class Drift:
    """How the live tree differs from its manifest: `lost` contents, `touched` attributes.

    `cost_bytes` weighs bringing the lost contents one by one.
    """

    lost: set[str]
    touched: set[str]
    named: list[str]
    cost_bytes: int

    def __bool__(self) -> bool:
        return bool(self.named)

    @classmethod
    def none(cls, *named: str) -> Drift:
        return cls(set(), set(), list(named), 0)


class KeptManifest:
    """A manifest on disk under its digest, one entry a line; iterate it as often as needed.

    An iteration that comes to the end raises `BadManifest` if the file is not the one it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Entry]:
        hasher = hashlib.sha256()
        with self.path.open("rb") as lines:
            for line in lines:
                hasher.update(line)
                yield decode_entry(line)
        if hasher.hexdigest() != self.path.name:
            raise BadManifest(f"{self.path} is damaged.")

    def some_file(self, rng: Random) -> Entry | None:
        """A file from a random place, without reading all of it; None when none is near."""
        with self.path.open("rb") as lines:
            lines.seek(rng.randrange(max(1, self.path.stat().st_size)))
            lines.readline()
            for _, line in zip(range(200), lines, strict=False):
                entry = decode_entry(line)
                if entry.kind == "f":
                    return entry
        return None


def find_drift(place: Place, now: float, *, paranoid: bool) -> Drift | None:
    """Compare the live tree with its manifest, reading only files whose stamp changed.

    None: the manifest itself is damaged, so that nothing can be said.
    """
    try:
        return _find_drift(place, now, paranoid=paranoid)
    except BadManifest:
        return None


def _find_drift(place: Place, now: float, *, paranoid: bool) -> Drift:
    drift = Drift.none()
    seen = Seen()
    cache = [] if paranoid else read_cache(place.cache)
    fresh = place.home / "next.cache"
    with fresh.open("wb") as out:
        actual = scan(
            LiveDisk(place.live),
            cache,
            lambda line: out.write(encode_cached(line)),
            int(now * 1e9),
            seen=seen,
        )
        for expected, found in pair_up(KeptManifest(place.manifest), actual):
            if expected == found or (
                expected is not None
                and found == expected._replace(mode=expected.mode & KEPT_MODE, attributes=())
                and (
                    not expected.attributes
                    or expected.attributes == attributes_of(f"{place.live}/{expected.path}")
                )
            ):
                continue
            differs = expected or found
            assert differs is not None
            drift.named.append(differs.path)
            if expected is None or expected.kind != "f":
                continue
            if found is not None and found.kind == "f" and found.sha256 == expected.sha256:
                drift.touched.add(expected.path)
            else:
                drift.lost.add(expected.path)
                # Fetching a single content costs about as much as this many bytes of a snapshot.
                drift.cost_bytes += expected.size_bytes + (16 << 10)
    if seen.read_files and not drift:
        os.replace(fresh, place.cache)
    else:
        fresh.unlink()
    return drift


def remember(place: Place, now: float) -> None:
    """Write down the stamps of the live files, so that the next round need not read them.

    Linking and unlinking moved their ctimes, so this comes last.
    """
    now_ns = int(now * 1e9)
    root = str(place.live)
    fresh = place.home / "next.cache"
    with fresh.open("wb") as out:
        for entry in KeptManifest(place.manifest):
            if entry.kind != "f":
                continue
            try:
                stamp = stamp_of(os.lstat(f"{root}/{entry.path}"))
            except FileNotFoundError:
                # Another program was here already: the next round sees it.
                continue
            # Written to while we worked, or just now: the next round reads it.
            known = (stamp.size_bytes, stamp.mtime_ns) == (entry.size_bytes, entry.mtime_ns)
            if known and stamp.mtime_ns < now_ns - GRAIN_NS:
                out.write(encode_cached(Cached(entry.path, stamp, entry.sha256)))
    os.replace(fresh, place.cache)
