"""Files that were asked for before, with their answers ready, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ..http.ready import Ready
from .transfer import FileKey, Representation

#: What each holds beside its body and path: measured with twenty thousand.
_OVERHEAD_BYTES = 2560


class CachedFile(Protocol):
    """What is kept of a file (`site.SiteFile`)."""

    rep: Representation
    whole: Ready | None

    def describe(self, *, in_memory: bool) -> None:
        """What is said of the content has changed: say it anew.

        `in_memory`: its whole answer keeps its body.
        """


F = TypeVar("F", bound=CachedFile)


class FileCache(Generic[F]):
    """Files by the path of a request, as it was spelled.

    Bodies make room before answers do: what is read again costs less than what is found again. The
    oldest go first. A caller compares one with the file first: nothing here notices a change.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._files: OrderedDict[bytes, F] = OrderedDict()
        #: The way to look a path up, without a call of ours in between.
        self.get: Callable[[bytes], F | None] = self._files.get
        #: Those that have their body here, by age.
        self._bodies: OrderedDict[bytes, int] = OrderedDict()
        self._bytes = 0
        self._paths: dict[FileKey, set[bytes]] = {}

    def keep(self, path: bytes, file: F) -> None:
        """Have this file ready from now on; its whole answer has its body in memory."""
        self.forget(path)
        self._files[path] = file
        self._paths.setdefault(file.rep.key, set()).add(path)
        if file.whole is not None:
            self._bodies[path] = file.whole.body_bytes
            self._bytes += file.whole.body_bytes
        self._bytes += len(path) + _OVERHEAD_BYTES
        while self._bytes > self._most_bytes:
            if self._bodies:
                self._drop_body(next(iter(self._bodies)))
            else:
                self.forget(next(iter(self._files)))

    def _drop_body(self, path: bytes) -> None:
        self._bytes -= self._bodies.pop(path)
        whole = self._files[path].whole
        assert whole is not None
        whole.drop_body()

    def forget(self, path: bytes) -> None:
        """The file has changed."""
        file = self._files.pop(path, None)
        if file is None:
            return
        self._bytes -= self._bodies.pop(path, 0) + len(path) + _OVERHEAD_BYTES
        paths = self._paths[file.rep.key]
        paths.discard(path)
        if not paths:
            del self._paths[file.rep.key]

    def forget_content(self, key: FileKey) -> None:
        """What is said of one content is not true any more."""
        for path in tuple(self._paths.get(key, ())):
            self.forget(path)

    def forget_all(self) -> None:
        """What is said of files has changed."""
        self._files.clear()
        self._bodies.clear()
        self._paths.clear()
        self._bytes = 0

    def describe(self, key: FileKey) -> None:
        """What is said of one content has changed: its digest became known."""
        for path in self._paths.get(key, ()):
            self._files[path].describe(in_memory=path in self._bodies)
