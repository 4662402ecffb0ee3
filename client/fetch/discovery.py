"""What the first answers tell about the file elsewhere, put to use: mirrors, digest, pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from client.fetch.findings import Findings, read_findings
from client.fetch.metalink import LIMIT_BYTES, Metalink, read_metalink
from client.fetch.sources import Source
from client.net.answers import Fields
from client.net.urls import Url, disposition_name

if TYPE_CHECKING:
    from client.fetch.download import Download

#: Below this, other mirrors and piece digests cost more than they save.
_WORTH_BYTES = 1 << 20
_MOST_MIRRORS = 16


class Learning:
    """Listens to the mirrors that the user named, and believes only those."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._asked: Url | None = None
        self._digest: tuple[str, bytes] | None = None

    def heard(self, source: Source, fields: Fields, size_bytes: int | None) -> None:
        """The first answer of a mirror."""
        download = self._download
        found = read_findings(source.at, fields)
        if download.proposed_name is None and source.number == 0:
            download.proposed_name = disposition_name(fields.get("content-disposition"))
        if not source.listed:
            return
        if download.options.mirrors and (size_bytes or 0) >= _WORTH_BYTES:
            self._add(list(found.mirrors), size_bytes or 0)
            wanted = len(download.sources) > 1 and download.target.path is not None
            if found.metalink is not None and self._asked is None and wanted:
                self._asked = found.metalink
                download.network.call_later(0.0, lambda: self._fetch(source, found))
        if found.digest is not None and source.number == 0:
            self._digest = found.digest

    def _add(self, urls: list[Url], size_bytes: int) -> None:
        download = self._download
        for url in urls:
            if len(download.sources) >= _MOST_MIRRORS:
                break
            fresh = download.add(url, listed=False)
            if fresh is not None:
                download.emit("mirror", {"url": url.text, "state": "found"})
                download.planning.found(fresh, size_bytes)
                download.workers[fresh.lanes[0]].connect()
        download.expect()

    def apply(self) -> None:
        """The sink stands: the digest that was told is checked from the first byte on."""
        download, digest = self._download, self._digest
        sink = download.sink
        if sink is None or digest is None or sink.digest is not None:
            return
        if not download.pieces_vouch(sink.pieces):
            sink.use_digest(digest)
            download.digest_from = "digest"

    def _fetch(self, source: Source, found: Findings) -> None:
        """Get the Metalink beside the file: it names pieces, and perhaps more mirrors."""
        from client.fetch.download import Download
        from client.storage.output import MemoryTarget

        download = self._download
        if download.over or self._asked is None:
            return
        target = MemoryTarget(LIMIT_BYTES)
        options = replace(
            download.options,
            mirrors=False,
            multicast=False,
            checksum=None,
            strategy="single",
            connections=None,
            max_failures=2,
            max_wait_s=5.0,
        )
        aside = Download(download.network, [self._asked], target, options, lambda event, data: None)
        aside.when_over = lambda: self._read(aside, target.data)
        download.aside = aside
        aside.start()

    def _read(self, aside: Download, data: bytes) -> None:
        from client.net.errors import UsageProblem

        download = self._download
        download.aside = None
        if aside.result is None or download.over or self._asked is None or download.sink is None:
            return
        try:
            documents = read_metalink(data, self._asked)
        except UsageProblem:
            return
        size = download.sink.size_bytes
        for metalink in documents:
            if metalink.size_bytes == size:
                self.adopt(metalink)
                return

    def adopt(self, metalink: Metalink) -> None:
        """Piece digests (and mirrors) learnt while the download runs."""
        download = self._download
        sink, pieces = download.sink, metalink.pieces
        if sink is None or metalink.size_bytes != sink.size_bytes:
            return
        wanted = sink.digest
        if wanted is not None and metalink.digest is not None:
            same_kind = wanted[0] == metalink.digest[0]
            if same_kind and wanted[1] != metalink.digest[1]:
                return
        if pieces is not None and sink.pieces is None and pieces.fits(sink.size_bytes):
            sink.use_pieces(pieces)
        self._add(list(metalink.urls), sink.size_bytes)
