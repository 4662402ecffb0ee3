"""How a follower reaches its origin: small answers whole, update files onto the disk.

Update files are ordinary served objects, so they come through the downloader like everything else:
with tickets, from several mirrors at once, or by multicast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Unpack

from tuf.api.exceptions import DownloadError

from ..net.answers import Reply
from ..net.client import RequestParts


class TooSlow(DownloadError):
    """The origin sends, but next to nothing; what came is kept for the next try."""


class ChannelTransport(Protocol):
    """What the follower asks of the network; failures raise `tuf.api.exceptions.DownloadError`."""

    def request(self, method: str, url: str, **asked: Unpack[RequestParts]) -> Reply: ...

    def download(self, url: str, path: Path, length_bytes: int, sha256: str) -> None:
        """Bring exactly this content to `path`, resuming what an earlier try left there."""
