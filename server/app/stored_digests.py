"""Digests that survive a restart: `files.digests.DigestCache` on the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...protocol.manifest import FileDigests
from ..files.transfer import FileKey, Representation
from ..store.database import words_of
from ..store.queries import read_digest, write_digest
from ..store.store import Store

_log = Logger()


class StoredDigests:
    """Finds and keeps digests by the identity of the content; never blocks."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now

    def find(self, rep: Representation) -> Deferred[FileDigests | None]:
        """What is kept for this content; None also while the database is ill."""

        def failed(failure: Failure) -> None:
            _log.warn("Kept digests cannot be read: {reason}", reason=words_of(failure.value))

        name = rep.key.text.decode()
        found: Deferred[Any] = self._store.read(lambda connection: read_digest(connection, name))
        found.addCallback(_decode)
        found.addErrback(failed)
        return found

    def keep(self, key: FileKey, digests: FileDigests) -> None:
        """Keep it with the next batch."""
        body = {
            "size": digests.size_bytes,
            "sha256": digests.sha256.hex(),
            "piece": digests.piece_length_bytes,
            "pieces": b"".join(digests.pieces).hex(),
        }
        now = self._now()
        self._store.note(lambda connection: write_digest(connection, key.text.decode(), body, now))


def _decode(body: dict[str, Any] | None) -> FileDigests | None:
    if body is None:
        return None
    joined = bytes.fromhex(body["pieces"])
    return FileDigests(
        size_bytes=body["size"],
        sha256=bytes.fromhex(body["sha256"]),
        piece_length_bytes=body["piece"],
        pieces=tuple(joined[start : start + 32] for start in range(0, len(joined), 32)),
    )
