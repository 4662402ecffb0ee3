"""Bring what a verified state of the origin names: update files, and single contents.

What arrives is believed by its signed length and digest alone, wherever it came from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ...protocol.channel import Edge
from ...protocol.tree import Entry
from .place import Place
from .problem import MirrorProblem
from .transport import ChannelTransport
from .trust import Verified


class Bringer:
    """Fetches into the mirror's folder of downloads; `fetched_bytes` counts since it was set.

    Update files and contents only, not metadata.
    """

    def __init__(self, place: Place, url: str, channel: str, transport: ChannelTransport) -> None:
        self._place = place
        self._url = url.rstrip("/")
        self._channel = channel
        self._transport = transport
        self.fetched_bytes = 0

    def update(self, verified: Verified, edge: Edge) -> Path:
        """An update file; one that was fetched before is not fetched again."""
        url, length, sha256 = verified.locate(edge.target_path(self._channel))
        return self._bring(url, self._place.downloads / f"{sha256}.update", length, sha256)

    def content(self, entry: Entry) -> Path:
        """One content whole, by its digest, from the origin's store."""
        url = f"{self._url}/objects/{entry.sha256[:2]}/{entry.sha256}"
        path = self._place.downloads / entry.sha256
        return self._bring(url, path, entry.size_bytes, entry.sha256)

    def _bring(self, url: str, path: Path, length: int, sha256: str) -> Path:
        if _right(path, length, sha256):
            return path
        for _ in range(2):
            self._transport.download(url, path, length, sha256)
            self.fetched_bytes += length
            if _right(path, length, sha256):
                return path
            path.unlink(missing_ok=True)
        raise MirrorProblem(
            "corrupt-update",
            f"What arrived as {url} is not what was signed; nothing was changed.",
            passing=True,
        )

    def relay(
        self, verified: Verified, folder: Path, edges: Sequence[Edge], files: Sequence[Path]
    ) -> None:
        """Offer what was fetched and verified to other mirrors; drop what the channel dropped."""
        folder = folder / "targets" / self._channel
        folder.mkdir(parents=True, exist_ok=True)
        for edge, path in zip(edges, files, strict=True):
            url, _, _ = verified.locate(edge.target_path(self._channel))
            target = folder / url.rpartition("/")[2]
            if not target.exists():
                beside = folder / f".{target.name}"
                shutil.copyfile(path, beside)
                os.replace(beside, target)
        named = {edge.target_path("").lstrip("/") for edge in verified.index.edges}
        for path in folder.iterdir():
            if path.name.partition(".")[2] not in named:
                path.unlink()


def _right(path: Path, length: int, sha256: str) -> bool:
    """Whether the file is there, and is what was signed."""
    try:
        content = path.open("rb")
    except FileNotFoundError:
        return False
    with content:
        if os.fstat(content.fileno()).st_size != length:
            return False
        return hashlib.file_digest(content, "sha256").hexdigest() == sha256
