"""Files that nobody wrote: `SHA256SUMS`, `*.meta4` and `*.manifest.json`, answered once known.

A real file of the same name always wins. Digests that are missing are computed first; a client
waits for them inside its request for a while, and is then told when to come back.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable
from typing import Any

from twisted.internet import defer
from twisted.logger import Logger
from twisted.python.failure import Failure

from protocol.headers import EntityTag
from protocol.manifest import (
    METALINK_TYPE,
    FileDigests,
    FileManifest,
    Source,
    encode_json,
    encode_metalink,
    encode_sums,
)
from server.catalog import Catalog, FileChanged
from server.files import IsDirectory, NotHere, Tree
from server.folders import REUSE_FACTOR
from server.http.request import Request
from server.paths import url_of
from server.preconditions import verdict
from server.site import Site

SUMS = b"SHA256SUMS"
_METALINK = b".meta4"
_MANIFEST = b".manifest.json"
_INDEX = b"index.meta4"
_WAIT_S = 10.0
_MOST_KEPT = 16
#: Stands in kept bodies for how the server was called; `.invalid` is nobody's name (RFC 2606).
_SOME_ORIGIN = "http://this-server.invalid"

_log = Logger()
_Digested = list[tuple[bytes, FileDigests]]
#: Makes a content type and a body out of a directory's path and its files' digests.
_Maker = Callable[[list[bytes], _Digested], tuple[bytes, bytes]]


def _at_origin(body: bytes, request: Request) -> bytes:
    """The body with the addresses of this server as the client calls it."""
    return body.replace(_SOME_ORIGIN.encode("ascii"), html.escape(request.origin.decode()).encode())


def _described_by(folder: list[bytes], name: bytes) -> list[bytes]:
    """The path of what a generated file would describe."""
    for ending in (_METALINK, _MANIFEST):
        if name.endswith(ending) and name not in (ending, _INDEX):
            return [*folder, name[: -len(ending)]]
    return folder


class Generated:
    """Answers for generated files; give `answer` to `Site.generated`."""

    def __init__(self, site: Site, reactor: Any, *, wait_s: float = _WAIT_S) -> None:
        self._site = site
        self._tree: Tree = site.tree
        self._catalog: Catalog = site.catalog
        self._reactor = reactor
        self._wait_s = wait_s
        self._kept: dict[tuple[_Maker, bytes], tuple[float, bytes, bytes]] = {}
        self._running: dict[bytes, list[defer.Deferred[_Digested]]] = {}

    def answer(self, request: Request, parts: list[bytes]) -> bool:
        """Answer when the path names a generated file of something that exists; else False."""
        if not parts:
            return False
        folder, name = parts[:-1], parts[-1]
        if self._site.hidden(url_of(b"/".join(_described_by(folder, name)))):
            return False
        try:
            if name == SUMS:
                self._whole_folder(request, folder, self._sums)
            elif name == _INDEX:
                self._whole_folder(request, folder, self._metalink_of)
            elif name.endswith(_METALINK) and name != _METALINK:
                self._metalink(request, [*folder, name[: -len(_METALINK)]])
            elif name.endswith(_MANIFEST) and name != _MANIFEST:
                self._manifest(request, [*folder, name[: -len(_MANIFEST)]])
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
        if kept is not None and self._reactor.seconds() < kept[0]:
            self._answer(request, kept[1], _at_origin(kept[2], request))
            return
        self._site.folders.entries(folder)

        def answer(request: Request, digested: _Digested) -> None:
            began_s = self._reactor.seconds()
            content_type, body = make(folder, digested)
            cost_s = self._reactor.seconds() - began_s
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = (began_s + cost_s * REUSE_FACTOR, content_type, body)
            self._answer(request, content_type, _at_origin(body, request))

        self._when_digested(request, folder, answer)

    def _sums(self, folder: list[bytes], digested: _Digested) -> tuple[bytes, bytes]:
        body = encode_sums((name, digests.sha256) for name, digests in digested)
        return b"text/plain; charset=utf-8", body

    def _metalink_of(self, folder: list[bytes], digested: _Digested) -> tuple[bytes, bytes]:
        files = [self._described(_SOME_ORIGIN, folder, name, d) for name, d in digested]
        origin = _SOME_ORIGIN + url_of(b"/".join([*folder, _INDEX]))
        return METALINK_TYPE.encode("ascii"), encode_metalink(files, origin=origin)

    def _metalink(self, request: Request, parts: list[bytes]) -> None:
        try:
            file = self._tree.open(parts)
        except IsDirectory:
            self._whole_folder(request, parts, self._metalink_of)
            return

        def answer(digests: FileDigests) -> None:
            described = self._described(self._origin(request), parts[:-1], parts[-1], digests)
            origin = self._origin(request) + request.path.decode("latin-1")
            body = encode_metalink([described], origin=origin)
            self._answer(request, METALINK_TYPE.encode("ascii"), body)

        self._wait(request, self._catalog.want(file), answer)

    def _manifest(self, request: Request, parts: list[bytes]) -> None:
        file = self._tree.open(parts)

        def answer(digests: FileDigests) -> None:
            described = self._described(self._origin(request), parts[:-1], parts[-1], digests)
            self._answer(request, b"application/json", encode_json(described))

        self._wait(request, self._catalog.want(file), answer)

    def _described(
        self, origin: str, folder: list[bytes], name: bytes, digests: FileDigests
    ) -> FileManifest:
        url = url_of(b"/".join([*folder, name]))
        sources = self._site.said.sources_of(url)
        last = max((source.priority for source in sources), default=0)
        sources.append(Source(origin + url, last + 1))
        return FileManifest.of(name.decode("utf-8", "replace"), digests, sources)

    @staticmethod
    def _origin(request: Request) -> str:
        return request.origin.decode("latin-1")

    def _answer(self, request: Request, content_type: bytes, body: bytes) -> None:
        tag = hashlib.blake2b(body, digest_size=12).hexdigest()
        fields = [
            (b"ETag", f'"{tag}"'.encode("ascii")),
            (b"Cache-Control", b"no-cache"),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        status = verdict(request.headers, EntityTag(tag), 0) if not request.finished else 200
        if status == 412:
            request.refuse(412, "precondition-failed", "The file is not the one you named.")
        elif status == 304 and b"if-none-match" in request.headers:
            request.respond(304, fields)
        else:
            request.respond(200, [(b"Content-Type", content_type), *fields], body)

    # -- waiting ----------------------------------------------------------------------------

    def _when_digested(
        self, request: Request, folder: list[bytes], then: Callable[[Request, _Digested], None]
    ) -> None:
        """Call `then` with the digests of all files directly in a directory."""
        key = b"/".join(folder)
        waiting: defer.Deferred[_Digested] = defer.Deferred()
        if key in self._running:
            self._running[key].append(waiting)
        else:
            self._running[key] = [waiting]
            work = defer.Deferred.fromCoroutine(self._digest_all(folder))
            work.addBoth(self._all_digested, key)
        self._wait(request, waiting, lambda digested: then(request, digested))

    async def _digest_all(self, folder: list[bytes]) -> _Digested:
        digested: _Digested = []
        for entry in self._site.folders.entries(folder):
            if entry.is_directory or entry.name == SUMS:
                continue
            known = self._catalog.known(entry.key)
            if known is None:
                try:
                    known = await self._catalog.want(self._tree.open([*folder, entry.name]))
                except (NotHere, IsDirectory):
                    continue
            digested.append((entry.name, known))
        return digested

    def _all_digested(self, result: _Digested | Failure, key: bytes) -> None:
        for waiting in self._running.pop(key):
            if isinstance(result, Failure):
                waiting.errback(result)
            else:
                waiting.callback(result)

    def _wait(
        self, request: Request, ready: defer.Deferred[Any], answer: Callable[[Any], None]
    ) -> None:
        """Answer when `ready`, or say "come back" when that takes too long or fails."""
        clocks: list[Any] = []

        def stop_clock() -> None:
            for clock in clocks:
                if clock.active():
                    clock.cancel()

        def late(detail: str) -> None:
            request.refuse(503, "digest-pending", detail, [(b"Retry-After", b"5")])

        def failed(failure: Failure) -> None:
            stop_clock()
            if not isinstance(failure.value, FileChanged | OSError | NotHere):
                _log.failure("a generated file failed", failure)
            late("A file changed while its digest was computed; ask again in a moment.")

        def done(result: Any) -> None:
            stop_clock()
            if not request.finished:
                answer(result)

        ready.addCallback(done).addErrback(failed)
        if not request.finished and not ready.called:
            pending = "Digests are being computed; ask again in a few seconds."
            clocks.append(self._reactor.callLater(self._wait_s, late, pending))
            request.on_gone(stop_clock)
