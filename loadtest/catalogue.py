"""What the server under test has: sizes and digests, read once from its own SHA256SUMS."""

from __future__ import annotations

import time
from dataclasses import dataclass
from urllib.parse import quote

import gevent
import gevent.lock

from ..client.fetch.metalink import read_metalink
from ..client.net.errors import UsageProblem
from ..client.storage.piece_writer import Pieces
from ..policies.settings import SMALL_BELOW_BYTES
from ..protocol.errors import ProtocolError
from ..protocol.manifest import decode_sums
from .probe import ServerProbe
from .workloads import File

#: A server that still computes its digests is waited for this long.
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class CatalogueFile:
    """Where a file is, the digest its server states, and whether it counts as small or large."""

    path: str
    sha256_hex: str | None
    kind: str


class Catalogue:
    """One per process; asks each host once, waiting while the server still computes digests.

    `ca` is a file of certificates to trust beside the system's.
    """

    def __init__(self) -> None:
        self.ca: str | None = None
        self._sums: dict[str, dict[str, str]] = {}
        self._pieces: dict[str, Pieces | None] = {}
        self._lock = gevent.lock.Semaphore()

    def find(self, host: str, file: File) -> CatalogueFile:
        """The entry of `file`; a server without SHA256SUMS leaves its digest unchecked."""
        with self._lock:
            if host not in self._sums:
                self._sums[host] = _fetch_sums(self._probe(host))
        kind = "small" if file.size_bytes < SMALL_BELOW_BYTES else "large"
        return CatalogueFile("/" + quote(file.name), self._sums[host].get(file.name), kind)

    def pieces(self, host: str, path: str, size_bytes: int) -> Pieces | None:
        """The digests of a file's parts; None from a server that names none that fit."""
        url = f"{host}{path}.meta4"
        with self._lock:
            if url not in self._pieces:
                self._pieces[url] = _fetch_pieces(self._probe(host), f"{path}.meta4", size_bytes)
            return self._pieces[url]

    def _probe(self, host: str) -> ServerProbe:
        return ServerProbe(host, self.ca, patience_s=PATIENCE_S, sleep=gevent.sleep)


def _fetch_pieces(probe: ServerProbe, path: str, size_bytes: int) -> Pieces | None:
    try:
        found = read_metalink(probe.get(path).body)
    except (OSError, UsageProblem):
        return None
    pieces = found[0].pieces if found else None
    return pieces if pieces is not None and pieces.fits(size_bytes) else None


def _fetch_sums(probe: ServerProbe) -> dict[str, str]:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            answer = probe.get("/SHA256SUMS")
            sums = decode_sums(answer.body) if answer.ok else []
            return {name.decode("utf-8", "surrogateescape"): d.hex() for name, d in sums}
        except ProtocolError:
            return {}
        except OSError:
            if time.monotonic() > until:
                return {}
            gevent.sleep(1.0)


CATALOGUE = Catalogue()
