"""From a request to what answers it: files, listings, generated files, and routes under `/-/`.

A small file that many ask for is answered from memory in one write, after one look at the file's
status; everything else is planned as a `BodyPlan` and handed to the admission.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...policies.contract import BRIEF_BYTES
from ...protocol import problems
from ...protocol.errors import BadRange
from ...protocol.headers import EntityTag
from ...protocol.manifest import FileDigests, Source
from ...protocol.ranges import ContentRange
from ..http.answers import Header, header_block
from ..http.clock import Reactor
from ..http.ready import Plainly, Ready
from ..http.request import Request
from .body_start import FileStart, OnNoLease
from .cache import SmallFiles
from .conditions import verdict
from .digests import DigestService
from .directory_cache import DirectoryCache
from .disk import Disk
from .headers import RepresentationHeaders
from .listing import Listings
from .manifests import GeneratedFiles
from .openfile import OpenFile, key_of
from .pacer import Pacer
from .pages import STATIC_ROUTE, Pages
from .paths import SIGNATURES, may_be_generated, split_path, url_of
from .response_plans import plan_body
from .touched import Touched, under
from .transfer import (
    Admission,
    BodyPlan,
    HasTorrent,
    Representation,
    Visibility,
    kept_there,
    no_torrents,
)
from .tree import IsDirectory, NotHere, Tree

#: Fields that make an answer depend on more than the file.
_CONDITIONAL = frozenset(
    {
        b"if-match",
        b"if-modified-since",
        b"if-none-match",
        b"if-range",
        b"if-unmodified-since",
        b"range",
        b"want-repr-digest",
    }
)
#: Fields that may say who asks, by a ticket or a pass.
_PROOFS = frozenset({b"cookie", b"tidegate-pass", b"tidegate-ticket"})
#: A content written this short a time ago may be written again within the same timestamp.
_UNSETTLED_NS = 100_000_000
_MOST_OPENED = 256
_SMALL_FILES_BYTES = 32 << 20
_SERVER: Header = (b"Server", b"Tidegate")
_LONG_TARGET_BYTES = 512
_ALLOW: Header = (b"Allow", b"GET, HEAD, OPTIONS")

Handler = Callable[[Request], None]
Finder = Callable[[Request, list[bytes]], bool]


class Site:
    """The handler of all requests of a server.

    `reactor` keeps the time. `elsewhere` says where else a URL path can be had now, beside the
    configured `mirrors`; `unrouted` answers what is under `/-/` and no route of this server;
    `greet` gives the fields that a browser gets with its first page; `disk` reads what the page
    cache does not have (without one, in line). Small files take up to `small_files_bytes` of
    memory. `has_torrent` says whether the file of a URL path and size has a torrent.
    """

    def __init__(
        self,
        tree: Tree,
        catalog: DigestService,
        admission: Admission,
        visibility: Visibility,
        pacer: Pacer,
        pages: Pages,
        reactor: Reactor,
        *,
        mirrors: Sequence[Source] = (),
        elsewhere: Callable[[str], Sequence[Source]] = lambda url_path: (),
        unrouted: Handler = Request.not_found,
        greet: Callable[[Request], Sequence[Header]] = lambda request: (),
        has_torrent: HasTorrent = no_torrents,
        disk: Disk | None = None,
        small_files_bytes: int = _SMALL_FILES_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.tree = tree
        self.catalog = catalog
        self.admission = admission
        self.visibility = visibility
        self.pacer = pacer
        self.said = RepresentationHeaders(catalog, mirrors, elsewhere, has_torrent)
        self.folders = DirectoryCache(tree, visibility, reactor)
        self._listings = Listings(
            tree, catalog, self.folders, visibility, pages, reactor, greet, has_torrent
        )
        self._generated = GeneratedFiles(
            tree, catalog, self.folders, visibility, self.said, reactor
        )
        self._makers: list[Finder] = [self._generated.answer]
        self._unrouted = unrouted
        self._wall = wall
        self._routes: dict[bytes, tuple[Handler, frozenset[bytes]]] = {}
        self._small = SmallFiles(small_files_bytes, self._whole_answer)
        #: Files that were asked for lately, by target: spares the walk while they are current.
        self._opened: dict[bytes, OpenFile] = {}
        self._touched = Touched(catalog)
        self._disk = disk if disk is not None else Disk(reactor)
        catalog.on_learned(lambda key, digests: self._small.write_anew(key))
        self.add_route(STATIC_ROUTE, pages.answer_static)
        self.add_route(problems.BASE.rstrip("/"), pages.answer_problem)

    def add_route(
        self, prefix: str, handler: Handler, methods: Sequence[str] = ("GET", "HEAD")
    ) -> None:
        """Answer `prefix` and all below it (`/-/name`, no slash at the end) with `handler`.

        The longest prefix wins. Methods not named are refused with 405. `OPTIONS` is answered here.
        """
        if not prefix.startswith("/-/") or prefix.endswith("/"):
            raise ValueError(f"a route starts with /-/ and has no slash at its end, not {prefix!r}")
        self._routes[prefix.encode("ascii")] = (
            handler,
            frozenset(name.encode("ascii") for name in methods),
        )

    def add_maker(self, maker: Finder) -> None:
        """Have `maker` answer for files that nobody wrote; it says whether it took the request."""
        self._makers.append(maker)

    def __call__(self, request: Request) -> None:
        """Answer a request (or have it answered)."""
        small = self._small.get(request.target)
        if (
            small is not None
            and request.method == b"GET"
            and _CONDITIONAL.isdisjoint(request.headers)
        ):
            rep, ready = small.rep, small.ready
            body = ready.body
            if body is None:
                body = ready.subject.read()
            elif not self.is_current(rep):
                body = None
            if body is None:
                self._small.forget(request.target)
            elif self.admission.admit_small(request, rep, rep.size_bytes):
                again = not _may_prove(request)
                request.connection.answer_ready(request, ready, body, again=again)
                return
        path = request.path
        if path.startswith(b"/-/"):
            self._route(request)
        elif request.method == b"GET" or request.method == b"HEAD":
            file = self._opened.get(request.target)
            if file is not None and self.is_current(file.rep):
                self._serve_visible(request, file)
            elif path.startswith(b"/"):
                self._find(request)
            else:
                request.refuse(400, "bad-target", "The request target must be a path.")
        elif request.method == b"OPTIONS":
            request.respond(204, [_ALLOW])
        else:
            request.refuse(
                405, "method-not-allowed", "Only GET and HEAD are served here.", [_ALLOW]
            )

    # -- finding ----------------------------------------------------------------------------

    def _route(self, request: Request) -> None:
        prefix = request.path
        while len(prefix) > 2:
            found = self._routes.get(prefix)
            if found is not None:
                handler, methods = found
                if request.method in methods:
                    handler(request)
                    return
                allow = (b"Allow", b", ".join(sorted(methods | {b"OPTIONS"})))
                if request.method == b"OPTIONS":
                    request.respond(204, [allow])
                else:
                    request.refuse(405, "method-not-allowed", "Not by this method.", [allow])
                return
            prefix = prefix.rpartition(b"/")[0]
        self._unrouted(request)

    def _find(self, request: Request) -> None:
        parts = split_path(request.path)
        if parts is None:
            request.not_found()
            return
        look, url_path = self.visibility, url_of(b"/".join(parts))

        def nowhere() -> bool:
            return look.hidden(url_path) and look.opens_in_s(url_path) is None

        if nowhere():
            # Before the file is opened: what is there would take longer than what is not.
            request.not_found(nowhere)
            return
        as_directory = request.path.endswith((b"/", b"/."))
        try:
            file = self.tree.open(parts)
        except IsDirectory:
            self._directory(request, parts, as_directory)
            return
        except NotHere:
            if as_directory or not any(maker(request, parts) for maker in self._makers):
                self._missing(request, parts)
            return
        if as_directory:
            request.not_found()
            return
        self._touched.serves(file.rep)
        if len(self._opened) >= _MOST_OPENED:
            self._opened.clear()
        if len(request.target) < _LONG_TARGET_BYTES:
            self._opened[request.target] = file
        self._serve_visible(request, file)

    def _missing(self, request: Request, parts: list[bytes]) -> None:
        """Nothing is here; the same holds for who asks again, until something is."""
        path = b"/".join(parts)

        def current() -> bool:
            return self.tree.status_of(path) is None

        known = path and not may_be_generated(parts[-1]) and current()
        request.not_found(current if known else None)

    def _serve_visible(self, request: Request, file: OpenFile) -> None:
        """Serve a file that was found, unless it is hidden until its hour."""
        if self.visibility.hidden(file.rep.url_path):
            if request.method != b"GET" or not self.visibility.register(request, file.rep):
                request.not_found()
        elif kept_there(self.visibility, file.rep.url_path, self.tree.place_of(file)):
            request.not_found()
        elif not self.visibility.turned_away(request, file.rep.url_path):
            self._serve(request, file)

    def _directory(self, request: Request, parts: list[bytes], as_directory: bool) -> None:
        url_path = url_of(b"/".join(parts)) + ("/" if parts else "")
        look = self.visibility
        if look.hidden(url_path) and look.opens_in_s(url_path) is None:
            request.not_found()
            return
        if look.turned_away(request, url_path):
            return
        if not as_directory:
            query = b"?" + request.query if request.query else b""
            location = url_of(b"/".join(parts)).encode("ascii") + b"/" + query
            request.refuse(
                301,
                "moved",
                "This is a directory; its address ends in a slash.",
                [(b"Location", location)],
            )
            return
        index = self._listings.index_of(request, parts)
        if index is not None:
            self._serve_visible(request, index)
        elif not self._listings.answer(request, parts):
            request.not_found()

    # -- answering with a file --------------------------------------------------------------

    def _serve(self, request: Request, file: OpenFile) -> None:
        """Answer with a file, under the tag that the client knows if that was its content too."""
        former = self._touched.named(request.headers, file.rep)
        if former is None:
            self._serve_as(request, file, file.rep, just_compared=True)
            return

        def compared(same: bool) -> None:
            if not request.finished:
                rep = under(file.rep, former) if same else file.rep
                self._serve_as(request, file, rep, just_compared=False)

        self._touched.same(former, file).addCallback(compared)

    def _serve_as(
        self, request: Request, file: OpenFile, rep: Representation, *, just_compared: bool
    ) -> None:
        """Answer with a file: conditions, ranges, then admission and body.

        `just_compared`: in this very turn it was what stands under its path.
        """
        headers, admitted = request.headers, None
        as_it_is = request.method == b"GET" and _CONDITIONAL.isdisjoint(headers)
        if as_it_is and rep is file.rep and rep.size_bytes <= BRIEF_BYTES:
            # So most are asked for; then nothing has to be planned.
            admitted = self.admission.admit_small(request, rep, rep.size_bytes)
            if admitted and self._send_whole(request, file):
                return
        now = self._wall()
        mtime_s = min(int(rep.mtime_s // 1), int(now))
        etag = EntityTag(rep.etag[1:-1])
        status = verdict(headers, etag, mtime_s)
        if status == 412:
            request.refuse(
                412,
                "precondition-failed",
                "The file is not the one your condition names.",
                [(b"ETag", rep.etag.encode("ascii"))],
            )
            return
        digests, _ = self.said.digests(request, file)
        fields = self.said.fields_of(file, now, mtime_s, digests, headers.get(b"want-repr-digest"))
        if rep is not file.rep:
            tag = (b"ETag", rep.etag.encode("ascii"))
            fields = [tag if field[0] == b"ETag" else field for field in fields]
        if status == 304:
            request.respond(
                304,
                [field for field in fields if field[0] != b"Content-Type"],
                current=self._while_same(rep, digests),
            )
            return
        try:
            plan, pieces = plan_body(request, rep, fields, etag, mtime_s, now)
        except BadRange as error:
            unsatisfied = str(ContentRange(None, None, rep.size_bytes)).encode("ascii")
            request.refuse(
                416,
                error.code,
                str(error),
                [(b"Content-Range", unsatisfied), (b"Accept-Ranges", b"bytes")],
            )
            return
        if request.method == b"HEAD":
            current = self._while_same(rep, digests)
            if current is not None and not request.dripped:
                head = header_block([_SERVER, *plan.headers])
                head += b"Content-Length: %d\r\n" % plan.body_bytes
                ready = Ready(plan.status, head, b"", Plainly(current))
                request.connection.answer_ready(request, ready, b"")
            else:
                request.begin(plan.status, plan.headers, plan.body_bytes, more=False)
                request.finish()
        else:
            start = FileStart(self.pacer, request, file, plan, pieces, self._touched, self._disk)
            if admitted is None and plan.body_bytes <= BRIEF_BYTES:
                admitted = self.admission.admit_small(request, rep, plan.body_bytes)
            if not admitted:
                start.just_compared = just_compared
                self.admission.enter(request, rep, plan, start)
                start.just_compared = False
            else:
                part = file.read_pieces_at_hand(pieces)
                if part is not None:
                    self._send_at_once(request, file, plan, part, digests)
                else:
                    start(OnNoLease(request))

    # -- bodies that leave in one write -----------------------------------------------------

    def _send_whole(self, request: Request, file: OpenFile) -> bool:
        """A short file as it is, to who was admitted; False where its disk has to be waited for.

        The same request is answered the same from now on.
        """
        rep = file.rep
        digests, body = self.said.digests(request, file)
        if body is None:
            body = file.read_pieces_at_hand([(0, rep.size_bytes)])
        if body is None:
            return False
        if self._is_settled(rep):
            ready = self._whole_answer(rep, body)
            self._small.keep(request.target, rep, ready)
            again = not _may_prove(request)
            request.connection.answer_ready(request, ready, body, again=again)
        else:
            now = self._wall()
            mtime_s = min(int(rep.mtime_s // 1), int(now))
            request.respond(200, self.said.fields_of(file, now, mtime_s, digests, None), body)
        return True

    def _send_at_once(
        self,
        request: Request,
        file: OpenFile,
        plan: BodyPlan,
        body: bytes,
        digests: FileDigests | None,
    ) -> None:
        """A short part that was admitted; the same request is answered the same from now on."""
        rep = file.rep
        one_range = _CONDITIONAL & request.headers.keys() == {b"range"} and len(plan.ranges) == 1
        if one_range and self._is_settled(rep):
            head = header_block([_SERVER, *plan.headers])
            head += b"Content-Length: %d\r\n" % len(body)
            about = _FileAnswer(self, rep, digests, plan.ranges[0])
            ready = Ready(plan.status, head, None, about, len(body))
            again = not _may_prove(request)
            request.connection.answer_ready(request, ready, body, again=again)
        else:
            request.respond(plan.status, plan.headers, body)

    def _whole_answer(self, rep: Representation, body: bytes | None) -> Ready:
        """The answer that has a small file whole."""
        digests = self.catalog.known(rep.key)
        fields = self.said.fields(rep, int(rep.mtime_s // 1), digests)
        size = rep.size_bytes
        head = header_block([_SERVER, *fields]) + b"Content-Length: %d\r\n" % size
        return Ready(200, head, body, _FileAnswer(self, rep, digests, (0, size)), size)

    def _while_same(
        self, rep: Representation, digests: FileDigests | None
    ) -> Callable[[], bool] | None:
        """What says whether all that is said of a file still holds; None where nobody can say."""
        if digests is None or not self._is_settled(rep) or not self.admission.is_plain(rep):
            return None
        return _FileAnswer(self, rep, digests, (0, 0)).current

    def _is_settled(self, rep: Representation) -> bool:
        """Whether a write now would show: one within the same timestamp would not."""
        settled_ns = int(self._wall() * 1e9) - _UNSETTLED_NS
        return max(rep.key.mtime_ns, rep.key.ctime_ns) <= settled_ns

    def is_current(self, rep: Representation) -> bool:
        """Whether the file is still the one that was described."""
        return self.tree.has(rep.path, rep.key)

    def signatures_of(self, url_path: str) -> list[str]:
        """The endings of the signatures beside a file, as far as everybody may see them."""
        parts = split_path(url_path.encode("ascii"))
        look = self.visibility
        return [
            ending.decode()
            for ending in SIGNATURES
            if parts is not None
            and self.tree.status_of(b"/".join(parts) + ending) is not None
            and not look.hidden(url_path + ending.decode())
            and not look.secret(url_path + ending.decode())
        ]

    def digest_of(self, url_path: str, size_bytes: int) -> bytes | None:
        """The SHA-256 of the file at this path, if it has this size and the digest is known."""
        parts = split_path(url_path.encode("ascii"))
        status = self.tree.status_of(b"/".join(parts)) if parts is not None else None
        if status is None or status.st_size != size_bytes:
            return None
        digests = self.catalog.known(key_of(status))
        return digests.sha256 if digests is not None else None

    def use_mirrors(self, mirrors: Sequence[Source]) -> None:
        """Name these with every file from now on."""
        self.said.mirrors = tuple(mirrors)
        self.forget_all()

    def forget_all(self) -> None:
        """Drop every ready answer: what is said of files (mirrors, links) has changed."""
        self.said.forget()
        self.folders.forget()
        self._small.forget_all()


class _FileAnswer:
    """What an answer about a file, or the part of it in `span`, depends on; a `ready.Subject`."""

    __slots__ = ("_digests", "_known", "_rep", "_said", "_site", "_span")

    def __init__(
        self,
        site: Site,
        rep: Representation,
        digests: FileDigests | None,
        span: tuple[int, int],
    ) -> None:
        self._site = site
        self._rep = rep
        self._digests = digests
        self._said = site.said.version
        self._known = site.catalog.version
        self._span = span

    def current(self) -> bool:
        """See `Subject`."""
        rep = self._rep
        return self._site.tree.has(rep.path, rep.key) and self._is_said_so()

    def admit(self) -> bool:
        """See `Subject`."""
        start, stop = self._span
        return self._site.admission.admit_again(self._rep, stop - start)

    def used(self, times: int) -> None:
        """See `Subject`."""
        start, stop = self._span
        self._site.admission.count_again(self._rep, stop - start, times)

    def read(self) -> bytes | None:
        """See `Subject`."""
        rep = self._rep
        if not self._is_said_so():
            return None
        return self._site.tree.read_again(rep.path, rep.key, *self._span)

    def _is_said_so(self) -> bool:
        """Whether all that is said of the file beside its bytes still holds."""
        site, rep = self._site, self._rep
        if self._known != site.catalog.version:
            if site.catalog.known(rep.key) is not self._digests:
                return False
            self._known = site.catalog.version
        return site.said.version == self._said and site.admission.is_plain(rep)


def _may_prove(request: Request) -> bool:
    """Whether a request may say who asks, so that its answer is for no other."""
    return not _PROOFS.isdisjoint(request.headers) or b"tidegate-" in request.query
