"""Doubles for a site that lets everybody have everything and remembers digests in memory."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet import defer

from tidegate.protocol.manifest import FileDigests
from tidegate.server.files.pacer import Share
from tidegate.server.files.transfer import (
    BodyPlan,
    FileKey,
    Representation,
    StartBody,
    Transfer,
    TransferListener,
)
from tidegate.server.http.request import Request


class _Silent:
    """A listener that does not care."""

    share: Share | None = None

    def may_end(self, go_on: Callable[[], None]) -> bool:
        return True

    def moves(self) -> None:
        pass

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        """Nothing to do."""


SILENT: TransferListener = _Silent()


class AdmitAll:
    """Admission without admission: everybody starts at once. For tests and benchmarks."""

    def __init__(self, started: Callable[[Transfer], None] | None = None) -> None:
        self._started = started

    def admit_small(self, request: Request, rep: Representation, body_bytes: int) -> bool:
        """Always."""
        return True

    def is_plain(self, url_path: str) -> bool:
        """Always."""
        return True

    def admit_again(self, rep: Representation, body_bytes: int) -> bool:
        """Always."""
        return True

    def has_lease(self, rep: Representation, address: str, agent: bytes | None) -> bool:
        """Nobody."""
        return False

    def count_again(self, rep: Representation, body_bytes: int, times: int) -> None:
        """Nobody counts."""

    def enter(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody
    ) -> None:
        """Start at once."""
        transfer = start(SILENT)
        if self._started is not None:
            self._started(transfer)


class Visible:
    """Everything may be seen, but for the URL paths that `hides` and `keeps_secret` name."""

    def __init__(self) -> None:
        self.hides: Callable[[str], bool] = lambda url_path: False
        self.keeps_secret: Callable[[str], bool] = lambda url_path: False

    def hidden(self, url_path: str) -> bool:
        """As the test says."""
        return self.hides(url_path)

    def opens_in_s(self, url_path: str) -> float | None:
        return None

    def secret(self, url_path: str) -> bool:
        """As the test says."""
        return self.keeps_secret(url_path)

    def turned_away(self, request: Request, url_path: str) -> bool:
        """Nobody."""
        return False

    def register(self, request: Request, rep: Representation) -> bool:
        """Nothing can be registered for."""
        return False


class MemoryDigestCache:
    """Keeps nothing beyond the process: for tests, and servers without a state directory."""

    def __init__(self) -> None:
        self.kept: dict[FileKey, FileDigests] = {}

    def find(self, rep: Representation) -> defer.Deferred[FileDigests | None]:
        """What was kept in this process."""
        return defer.succeed(self.kept.get(rep.key))

    def keep(self, key: FileKey, digests: FileDigests) -> None:
        """Keep it in memory."""
        self.kept[key] = digests
