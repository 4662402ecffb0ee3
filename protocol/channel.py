"""The index of a mirror channel: its versions, and the updates between them.

The index is a TUF target, as the updates are: read from a verified repository it is authentic.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace

import msgspec

from .errors import BadManifest
from .tree import Count, Sha256, read_signed

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Version:
    """One published state of the tree; `published` is seconds since 1970."""

    version: Count
    manifest_sha256: Sha256
    files: Count
    size_bytes: Count
    published: Count


@dataclass(frozen=True, slots=True)
class Edge:
    """One update file; `from_version` 0 is a snapshot. To apply it takes `window_bytes` memory."""

    from_version: Count
    to_version: Count
    length_bytes: Count
    window_bytes: Count

    def target_path(self, channel: str) -> str:
        """Name of the file among the repository's targets."""
        return f"{channel}/{self.from_version}-{self.to_version}.update"


@dataclass(frozen=True, slots=True)
class Index:
    """The versions and updates of one channel, both in rising order."""

    channel: str
    versions: tuple[Version, ...] = ()
    edges: tuple[Edge, ...] = ()

    @property
    def latest(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def version(self, number: int) -> Version | None:
        return next((found for found in self.versions if found.version == number), None)


def check_channel(name: str) -> str:
    """Return `name` if it is a valid channel name: at most 64 letters, digits, `.`, `_`, `-`."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise BadManifest(
            f"{name!r} cannot name a channel: use letters, digits, dot, dash and underscore."
        )
    return name


def index_path(channel: str) -> str:
    """Name of the channel's index among the repository's targets."""
    return f"{channel}/index.json"


def encode_index(index: Index) -> bytes:
    fields = {
        "format": FORMAT,
        "channel": index.channel,
        "versions": [asdict(version) for version in index.versions],
        "updates": [asdict(edge) for edge in index.edges],
    }
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode("ascii")


class _Written(msgspec.Struct):
    """An index as it is written in JSON."""

    format: int
    channel: str
    versions: tuple[Version, ...]
    updates: tuple[Edge, ...]


def decode_index(data: bytes) -> Index:
    """Read an index. Raises BadManifest."""
    found = read_signed(data, _Written, "The channel's index", FORMAT)
    numbers = [version.version for version in found.versions]
    if numbers != sorted(set(numbers)):
        raise BadManifest("The channel's index lists its versions out of order.")
    if any(edge.to_version <= edge.from_version for edge in found.updates):
        raise BadManifest("The channel's index has an update that leads back.")
    return Index(check_channel(found.channel), found.versions, found.updates)


def route(index: Index, have: int, window_limit_bytes: int) -> tuple[Edge, ...] | None:
    """The updates with the fewest bytes from version `have` (0: no tree) to the latest one.

    The route may begin with a snapshot. Updates with a larger window than `window_limit_bytes` are
    left out. None: there is no route. Empty: `have` is the latest.
    """
    if index.latest is None:
        return None
    if have == index.latest.version:
        return ()
    best: dict[int, tuple[int, tuple[Edge, ...]]] = {0: (0, ()), have: (0, ())}
    for edge in sorted(index.edges, key=lambda edge: (edge.to_version, edge.from_version)):
        if edge.window_bytes > window_limit_bytes or edge.from_version not in best:
            continue
        cost, path = best[edge.from_version]
        found = (cost + edge.length_bytes, (*path, edge))
        if edge.to_version not in best or found[0] < best[edge.to_version][0]:
            best[edge.to_version] = found
    return best[index.latest.version][1] if index.latest.version in best else None


def prune(index: Index, keep: int) -> Index:
    """Remove all but the last `keep` versions, and the updates that only older followers need.

    The newest snapshot stays, with all updates from it on.
    """
    snapshots = [edge.to_version for edge in index.edges if edge.from_version == 0]
    oldest = index.versions[-keep].version if len(index.versions) > keep else 0
    newest_snapshot = max(snapshots, default=0)
    floor = min(oldest, newest_snapshot) if snapshots else oldest
    edges = tuple(
        edge
        for edge in index.edges
        if (edge.from_version >= floor or edge.from_version == 0)
        and edge.to_version >= floor
        and (edge.from_version != 0 or edge.to_version == newest_snapshot)
    )
    versions = tuple(version for version in index.versions if version.version >= floor)
    return replace(index, versions=versions, edges=edges)
