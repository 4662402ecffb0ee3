"""All served files with their downloads, as the Files page shows them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from twisted.logger import Logger

from ..admission.gate import Gate
from ..files.paths import url_of
from ..files.site import Site
from ..files.tree import NotHere
from ..http.clock import Clock, pause
from ..store.store import Store
from ..store.usage import read_usage

log = Logger()


@dataclass(frozen=True, slots=True)
class FileView:
    """One served file. `digest_state` is one of none, computing, known.

    `begun` and `complete` count downloads (`admission.popularity`).
    """

    path: str
    size_bytes: int
    modified_s: float
    sha256: str | None
    digest_state: str
    begun: int
    complete: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class _Known:
    path: str
    url: str
    entry: Any


class FileIndex:
    """Walks the tree on request, if the last walk is older than 20 s; counts are current."""

    def __init__(
        self, reactor: Clock, site: Site, gate: Gate, store: Store, now: Callable[[], float]
    ) -> None:
        self._reactor = reactor
        self._site = site
        self._gate = gate
        self._store = store
        self._now = now
        self._files: list[_Known] = []
        self._walked_s = -1e9
        self._usage: dict[str, tuple[int, int, int]] = {}

    @property
    def busy(self) -> int:
        """How many files wait for their digest."""
        return self._site.catalog.pending

    async def read(
        self, search: str, sort: str, offset: int, limit: int
    ) -> tuple[list[FileView], int]:
        """One page of files, and how many match."""
        if self._now() - self._walked_s > 20.0:
            await self._walk()
        sending = self._sending()
        await pause(self._reactor)
        found = [file for file in self._files if search in file.path]
        if sort == "size":
            found.sort(key=lambda file: -file.entry.size_bytes)
        elif sort in ("popular", "bytes"):
            column = 0 if sort == "popular" else 2
            found.sort(key=lambda file: -self._wanted(file.url, sending)[column])
        await pause(self._reactor)
        return [self._view(one, sending) for one in found[offset : offset + limit]], len(found)

    def _sending(self) -> Counter[str]:
        """Bytes that running downloads have delivered and that are not counted yet, by file.

        As of their last looks: to ask the sockets of 2 000 takes 20 ms.
        """
        found: Counter[str] = Counter()
        for download in self._gate.downloads.values():
            for delivery in download.deliveries:
                found[download.file] += delivery.seen_bytes
        return found

    def _wanted(self, url: str, sending: Counter[str]) -> tuple[int, int, int]:
        """(begun, complete, bytes) including running downloads."""
        begun, complete, sent_bytes = self._usage.get(url, (0, 0, 0))
        fresh = self._gate.parts.popularity.pending(url)
        return begun + fresh[0], complete + fresh[1], sent_bytes + fresh[2] + sending[url]

    def _view(self, file: _Known, sending: Counter[str]) -> FileView:
        catalog = self._site.catalog
        digests = catalog.known(file.entry.key)
        begun, complete, sent_bytes = self._wanted(file.url, sending)
        return FileView(
            path=file.path,
            size_bytes=file.entry.size_bytes,
            modified_s=file.entry.mtime_s,
            sha256=digests.sha256.hex() if digests is not None else None,
            digest_state="known" if digests else "computing" if catalog.pending else "none",
            begun=begun,
            complete=complete,
            sent_bytes=sent_bytes,
        )

    async def _walk(self) -> None:
        """Walk the tree, a little in each turn of the reactor."""
        self._walked_s = self._now()
        try:
            self._usage = await self._store.read(read_usage)
        except Exception:  # noqa: BLE001 - a dead database leaves the counts as they were
            log.warn("The popularity of files cannot be read now.")
        found: list[_Known] = []
        # By where they lie; those behind links last, so that a file is shown by its own name.
        folders: deque[tuple[str, list[bytes]]] = deque([("/", [])])
        entered: set[str] = set()
        began = time.monotonic()
        while folders and len(found) < 200_000:
            place, folder = folders.pop()
            try:
                entries = [] if place in entered else self._site.tree.entries(folder)
            except NotHere:
                continue
            entered.add(place)
            for entry in entries:
                parts = [*folder, entry.name]
                url = url_of(b"/".join(parts))
                if not entry.is_directory:
                    found.append(_Known(unquote(url, errors="replace"), url, entry))
                elif entry.place is None:
                    folders.append((url + "/", parts))
                else:
                    folders.appendleft((entry.place, parts))
            # Pauses for other work.
            if time.monotonic() - began > 0.01:
                await pause(self._reactor)
                began = time.monotonic()
        found.sort(key=lambda file: file.path)
        self._files = found
