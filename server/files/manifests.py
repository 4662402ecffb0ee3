"""Files that the server writes: `SHA256SUMS`, `*.meta4` and `*.manifest.json`, answered once known.

A real file of the same name always wins. Digests that are missing are computed first; a client
waits for them inside its request for a while, and is then told when to come back.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from twisted.internet import defer
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...protocol.headers import EntityTag
from ...protocol.manifest import (
    METALINK_TYPE,
    FileDigests,
    FileManifest,
    Source,
    encode_json,
    encode_metalink,
    encode_sums,
)
from ..http.answers import Header
from ..http.clock import Clock, Waiters
from ..http.ready import Ready, Subject, ready_of
from ..http.request import Request
from .digests import DigestService, FileChanged
from .directory_cache import REUSE_FACTOR, SOME_ORIGIN, DirectoryCache
from .headers import RepresentationHeaders
from .paths import MANIFEST, METALINK, SUMS, url_of
from .response_plans import verdict
from .transfer import Visibility, kept_from_all, kept_there
from .tree import IsDirectory, NotHere, Tree

_INDEX = b"index.meta4"
_MOST_KEPT = 16

_log = Logger()
_Digested = list[tuple[bytes, FileDigests]]
#: Makes a content type and a body out of a directory's path and its files' digests.
_Maker = Callable[[list[bytes], _Digested], tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, eq=False)
class _KeptBody(Subject):
    """A body that was dear to make, and `DirectoryCache.changes` of what it was made from."""

    owner: GeneratedFiles
    kept_as: tuple[_Maker, bytes]
    until_s: float
    changes: int
    content_type: bytes
    body: bytes

    def is_watched(self) -> bool:
        return self.owner.tree.watch.watches(self.kept_as[1])

    def current(self) -> bool:
        return self.owner.is_current(self)

    def admit(self) -> bool:
        return self.owner.is_shown(self.kept_as[1])


def _at_origin(body: bytes, request: Request) -> bytes:
    """The body with the addresses of this server as the client calls it."""
    return body.replace(SOME_ORIGIN, html.escape(request.origin.decode()).encode())


def _manifest(described: FileManifest) -> tuple[bytes, bytes]:
    return b"application/json", encode_json(described)


def _described_by(folder: list[bytes], name: bytes) -> list[bytes]:
    """The path of what a generated file would describe."""
    for ending in (METALINK, MANIFEST):
        if name.endswith(ending) and name not in (ending, _INDEX):
            return [*folder, name[: -len(ending)]]
    return folder


@dataclass(eq=False)
class GeneratedFiles:
    """Answers for generated files."""

    tree: Tree
    _catalog: DigestService
    _folders: DirectoryCache
    _visibility: Visibility
    _fields: RepresentationHeaders
    _reactor: Clock
    _kept: dict[tuple[_Maker, bytes], _KeptBody] = field(default_factory=dict)
    #: `SHA256SUMS` that were made before, by the path of a request.
    _ready: dict[bytes, Ready] = field(default_factory=dict)
    _running: dict[bytes, Waiters[tuple[int, _Digested]]] = field(default_factory=dict)

    def ready(self, path: bytes) -> Ready | None:
        """The `SHA256SUMS` under a path, if they were made before."""
        return self._ready.get(path)

    def answer(self, request: Request, parts: list[bytes]) -> bool:
        """Answer when the path names a generated file of something that exists; else False."""
        if not parts:
            return False
        folder, name = parts[:-1], parts[-1]
        if name != SUMS and not name.endswith((METALINK, MANIFEST)):
            return False
        described = url_of(b"/".join(_described_by(folder, name)))
        names = {described, described.rstrip("/") + "/"}
        if any(self._visibility.hidden(one) for one in names):
            return False
        if any(self._visibility.turned_away(request, one) for one in sorted(names)):
            return True
        try:
            if name == SUMS:
                self._whole_folder(request, folder, self._sums)
            elif name == _INDEX:
                self._whole_folder(request, folder, self._metalink_of)
            elif name.endswith(METALINK) and name != METALINK:
                self._metalink(request, [*folder, name[: -len(METALINK)]])
            elif name.endswith(MANIFEST) and name != MANIFEST:
                self._describe(request, [*folder, name[: -len(MANIFEST)]], _manifest)
            else:
                return False
        except (NotHere, IsDirectory):
            return False
        return True

    # -- what is answered -------------------------------------------------------------------

    def _whole_folder(self, request: Request, folder: list[bytes], make: _Maker) -> None:
        """Answer about all files directly in a directory; kept as long as it was dear to make."""
        key = (make, b"/".join(folder))
        kept = self._kept.get(key)
        if kept is not None and self.is_current(kept):
            self._answer_kept(request, kept)
            return
        self._folders.entries(folder)

        def answer(request: Request, changes: int, digested: _Digested) -> None:
            began_s = self._reactor.seconds()
            content_type, body = make(folder, digested)
            cost_s = self._reactor.seconds() - began_s
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            # What was made is used again for so long at the least.
            until_s = began_s + max(0.02, cost_s * REUSE_FACTOR)
            kept = self._kept[key] = _KeptBody(self, key, until_s, changes, content_type, body)
            self._answer_kept(request, kept)

        self._when_digested(request, folder, answer)

    def _answer_kept(self, request: Request, kept: _KeptBody) -> None:
        fields = self._answer(request, kept.content_type, _at_origin(kept.body, request))
        if kept.kept_as[0] == self._sums:
            if len(self._ready) >= _MOST_KEPT:
                self._ready.clear()
            self._ready[request.path] = ready_of(200, fields, kept.body, kept)

    def is_current(self, kept: _KeptBody) -> bool:
        """Whether what was made names what its directory has now."""
        return (
            self._kept.get(kept.kept_as) is kept
            and self._reactor.seconds() < kept.until_s
            and self._folders.is_current(kept.kept_as[1])
            and self._folders.changes == kept.changes
        )

    def is_shown(self, folder: bytes) -> bool:
        """Whether all visitors may see a directory."""
        path, look = url_of(folder), self._visibility
        names = {path, path.rstrip("/") + "/"}
        return not any(look.hidden(one) or look.secret(one) for one in names)

    def _sums(self, folder: list[bytes], digested: _Digested) -> tuple[bytes, bytes]:
        body = encode_sums((name, digests.sha256) for name, digests in digested)
        return b"text/plain; charset=utf-8", body

    def _metalink_of(self, folder: list[bytes], digested: _Digested) -> tuple[bytes, bytes]:
        files = [self._described(SOME_ORIGIN.decode(), folder, name, d) for name, d in digested]
        origin = SOME_ORIGIN.decode() + url_of(b"/".join([*folder, _INDEX]))
        return METALINK_TYPE.encode("ascii"), encode_metalink(files, origin=origin)

    def _metalink(self, request: Request, parts: list[bytes]) -> None:
        origin = request.origin.decode("latin-1") + request.path.decode("latin-1")

        def metalink(described: FileManifest) -> tuple[bytes, bytes]:
            return METALINK_TYPE.encode("ascii"), encode_metalink([described], origin=origin)

        try:
            self._describe(request, parts, metalink)
        except IsDirectory:
            self._whole_folder(request, parts, self._metalink_of)

    def _describe(
        self,
        request: Request,
        parts: list[bytes],
        encode: Callable[[FileManifest], tuple[bytes, bytes]],
    ) -> None:
        """Answer with what describes a file. Raises NotHere or IsDirectory."""
        file = self.tree.open(parts)
        if kept_there(self._visibility, file.rep.url_path, self.tree.place_of(file)):
            raise NotHere

        def answer(digests: FileDigests) -> None:
            origin = request.origin.decode("latin-1")
            self._answer(request, *encode(self._described(origin, parts[:-1], parts[-1], digests)))

        self._wait(request, self._catalog.want(file), answer)

    def _described(
        self, origin: str, folder: list[bytes], name: bytes, digests: FileDigests
    ) -> FileManifest:
        url = url_of(b"/".join([*folder, name]))
        sources = self._fields.sources_of(url)
        last = max((source.priority for source in sources), default=0)
        sources.append(Source(origin + url, last + 1))
        return FileManifest(name.decode("utf-8", "replace"), digests, sources)

    def _answer(self, request: Request, content_type: bytes, body: bytes) -> list[Header]:
        """The fields that describe it, whatever the client's conditions say."""
        tag = hashlib.blake2b(body, digest_size=12).hexdigest()
        fields: list[Header] = [
            (b"ETag", f'"{tag}"'.encode("ascii")),
            (b"Cache-Control", b"no-cache"),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        headers = [(b"Content-Type", content_type), *fields]
        status = verdict(request.headers, EntityTag(tag), 0) if not request.finished else 200
        if status == 412:
            request.refuse(412, "precondition-failed", "The file is not the one you named.")
        elif status == 304 and b"if-none-match" in request.headers:
            request.respond(304, fields)
        else:
            request.respond(200, headers, body)
        return headers

    # -- waiting ----------------------------------------------------------------------------

    def _when_digested(
        self, request: Request, folder: list[bytes], then: Callable[[Request, int, _Digested], None]
    ) -> None:
        """Call `then` with the digests of all files directly in a directory."""
        key = b"/".join(folder)
        begun = key in self._running
        waiting = self._running.setdefault(key, Waiters()).wait()
        if not begun:
            work = defer.Deferred.fromCoroutine(self._digest_all(folder))
            work.addBoth(lambda result: self._running.pop(key).tell(result))
        self._wait(request, waiting, lambda found: then(request, *found))

    async def _digest_all(self, folder: list[bytes]) -> tuple[int, _Digested]:
        """With `DirectoryCache.changes` as it was when the directory was looked at."""
        digested: _Digested = []
        changes = self._folders.changes
        for entry in self._folders.entries(folder):
            if entry.is_directory or entry.name == SUMS:
                continue
            known = self._catalog.known(entry.key)
            if known is None:
                try:
                    file = self.tree.open([*folder, entry.name])
                except (NotHere, IsDirectory):
                    continue
                if kept_from_all(self._visibility, self.tree.place_of(file)):
                    continue
                known = await self._catalog.want(file)
            digested.append((entry.name, known))
        return changes, digested

    def _wait(
        self, request: Request, ready: defer.Deferred[Any], answer: Callable[[Any], None]
    ) -> None:
        when_ready(self._reactor, request, ready, answer, (FileChanged, NotHere))


def when_ready(
    reactor: Clock,
    request: Request,
    ready: defer.Deferred[Any],
    answer: Callable[[Any], None],
    expected: tuple[type[Exception], ...],
) -> None:
    """Answer when `ready`, or say "come back" when that takes too long or fails.

    Failures other than the `expected` ones and those of the disk are faults of ours.
    """

    def late(detail: str) -> None:
        request.refuse(503, "digest-pending", detail, [(b"Retry-After", b"5")])

    def failed(failure: Failure) -> None:
        if isinstance(failure.value, defer.TimeoutError | defer.CancelledError):
            late("Digests are being computed; ask again in a few seconds.")
            return
        if not isinstance(failure.value, (OSError, *expected)):
            _log.failure("a generated file failed", failure)
        late("A file changed while its digest was computed; ask again in a moment.")

    def done(result: Any) -> None:
        if not request.finished:
            answer(result)

    ready.addTimeout(10.0, cast(IReactorTime, reactor)).addCallback(done).addErrback(failed)
    if not request.finished:
        request.on_gone(ready.cancel)
