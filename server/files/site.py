"""From a request to what answers it: files, listings, generated files, and routes under `/-/`.

A file that was asked for before is in the `FileCache`, from which requests of a known shape are
answered without the parser (`http.ready`). Everything else is planned as a `BodyPlan` and handed to
the admission.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ...policies.contract import BRIEF_BYTES
from ...protocol import problems
from ...protocol.manifest import FileDigests, Source
from ..http.answers import NOT_FOUND, Header, prefers_html, problem_answer
from ..http.clock import Reactor
from ..http.ready import AT_ONCE, Ready, ready_of
from ..http.request import Request
from .body_start import FileStart, OnNoLease
from .cache import FileCache
from .digests import TINY_BYTES, DigestService, digest_piece
from .directory_cache import DirectoryCache
from .disk import Disk
from .headers import RepresentationHeaders
from .listing import Listings
from .manifests import GeneratedFiles
from .openfile import OpenFile, key_of
from .pacer import Pacer
from .pages import STATIC_ROUTE, Pages
from .paths import SIGNATURES, may_be_generated, split_path, url_of
from .precompressed import CODINGS, Chosen, Precompressed
from .response_plans import answer_or_plan
from .touched import Touched
from .transfer import Admission, HasTorrent, Representation, Visibility, kept_there, no_torrents
from .tree import IsDirectory, NotHere, Tree

#: Paths that were asked for once are told by a 32-bit number in this many places, 256 KiB in all.
_SEEN_PLACES = 1 << 16
_LONG_TARGET_BYTES = 512
_ALLOW: Header = (b"Allow", b"GET, HEAD, OPTIONS")

Handler = Callable[[Request], None]
Finder = Callable[[Request, list[bytes]], bool]


@lru_cache(maxsize=64)
def _nothing(language: bytes | None, *, is_page: bool = False) -> Ready:
    """The answer for a path that is not there."""
    fields, body = problem_answer(*NOT_FOUND, b"text/html" if is_page else None, language)
    return ready_of(404, fields, body)


def _moved(folder: bytes, query: bytes | None) -> tuple[int, str, str, list[Header]]:
    """What `Request.refuse` says of a folder whose address lacks its slash."""
    location = folder + (b"?" + query if query else b"")
    code = "moved"
    return 301, code, "This is a directory; its address ends in a slash.", [(b"Location", location)]


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
        small_files_bytes: int = 32 << 20,
        wall: Callable[[], float] = time.time,
        codings: Mapping[str, bytes] = CODINGS,
    ) -> None:
        self.tree = tree
        self.catalog = catalog
        self.admission = admission
        self.visibility = visibility
        self.pacer = pacer
        self.fields = RepresentationHeaders(catalog, tuple(mirrors), elsewhere, has_torrent)
        self.folders = DirectoryCache(tree, visibility, reactor)
        self._listings = Listings(
            tree, catalog, self.folders, visibility, pages, reactor, greet, has_torrent
        )
        self._generated = GeneratedFiles(
            tree, catalog, self.folders, visibility, self.fields, reactor
        )
        self._makers: list[Finder] = [self._generated.answer]
        self._unrouted = unrouted
        self._wall = wall
        self._routes: dict[bytes, tuple[Handler, frozenset[bytes]]] = {}
        self.precompressed = Precompressed(tree, visibility, codings)
        self._files = FileCache(
            small_files_bytes, tree, catalog, self.fields, admission, self.precompressed, wall
        )
        #: See `http.ready.Shortcut`.
        self.known = self._files.get
        self.changes = tree.watch
        self._seen = array("I", bytes(4 * _SEEN_PLACES))
        self._touched = Touched(catalog)
        #: The request that is planned once more in this turn.
        self._planned_anew: Request | None = None
        self._disk = disk if disk is not None else Disk(reactor)
        catalog.on_learned(lambda key, digests: self._files.describe(key))
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
        """Let `maker` answer for files that the server writes; it says whether it did."""
        self._makers.append(maker)

    def __call__(self, request: Request) -> None:
        """Answer a request (or have it answered)."""
        path = request.path
        if path.startswith(b"/-/"):
            self._route(request)
        elif request.method == b"GET" or request.method == b"HEAD":
            if path.startswith(b"/"):
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
        if look.hidden(url_path) and look.opens_in_s(url_path) is None:
            # Before the file is opened: what is there would take longer than what is not.
            request.not_found()
            return
        as_directory = request.path.endswith((b"/", b"/."))
        try:
            file = None if as_directory else self.tree.open(parts)
        except IsDirectory:
            file = None
        except NotHere:
            self._files.forget(request.path)
            if not any(maker(request, parts) for maker in self._makers):
                request.not_found()
            return
        if file is None:
            self._directory(request, parts, as_directory)
            return
        self._touched.serves(file.rep)
        self.folders.serves(file.rep.path, file.rep.key)
        self._serve_visible(request, file)

    def _serve_visible(self, request: Request, file: OpenFile) -> None:
        """Serve a file that was found, unless it is hidden until its hour."""
        if self.visibility.hidden(file.rep.url_path):
            if request.method != b"GET" or not self.visibility.register(request, file.rep):
                request.not_found()
        elif kept_there(self.visibility, file.rep.url_path, self.tree.place_of(file)):
            request.not_found()
        elif not self.visibility.turned_away(request, file.rep.url_path):
            chosen = self.precompressed.choose(request, file)
            self._serve(request, file if chosen is None else chosen.file, chosen)

    def _directory(self, request: Request, parts: list[bytes], as_directory: bool) -> None:
        url_path = url_of(b"/".join(parts)) + ("/" if parts else "")
        look = self.visibility
        if look.hidden(url_path) and look.opens_in_s(url_path) is None:
            request.not_found()
            return
        if look.turned_away(request, url_path):
            return
        if not as_directory:
            request.refuse(*_moved(url_path.encode("ascii"), request.query))
            return
        index = self._listings.index_of(request, parts)
        if index is not None:
            self._serve_visible(request, index)
        elif not self._listings.answer(request, parts):
            request.not_found()

    # -- answering with a file --------------------------------------------------------------

    def _serve(self, request: Request, file: OpenFile, chosen: Chosen | None) -> None:
        """Answer with a file, under the tag that the client knows if that was its content too."""
        former = self._touched.named(request.headers, file.rep)
        if former is None:
            self._serve_as(request, file, file.rep, chosen, just_compared=True)
            return

        def compared(same: bool) -> None:
            if not request.finished:
                rep = replace(file.rep, etag=former.etag) if same else file.rep
                self._serve_as(request, file, rep, chosen, just_compared=False)

        self._touched.same(former, file).addCallback(compared)

    def _serve_as(
        self,
        request: Request,
        file: OpenFile,
        rep: Representation,
        chosen: Chosen | None,
        *,
        just_compared: bool,
    ) -> None:
        """Answer with a file: conditions, ranges, then admission and body.

        `chosen`: there are compressed ones beside it, or it is one. `just_compared`: in this very
        turn it was what stands under its path.
        """
        headers, now = request.headers, self._wall()
        mtime_s = min(int(rep.mtime_s // 1), int(now))
        digests = self.fields.digests(request, file)
        fields = self.fields.fields(rep, mtime_s, digests, headers.get(b"want-repr-digest"))
        may_be_known = chosen is None and rep is file.rep
        if chosen is not None:
            fields = tuple(chosen.fields(fields))
        elif may_be_known and digests is not None:
            self._know(request, rep, digests)
        planned = answer_or_plan(request, rep, fields, mtime_s, now)
        if planned is None:
            return
        plan, pieces = planned
        start = FileStart(
            self.pacer,
            request,
            file,
            plan,
            pieces,
            self._touched,
            self._disk,
            # A file that is written again and again is not planned for ever.
            None if request is self._planned_anew else self._plan_anew,
        )
        is_whole = plan.status == 200
        # A whole file up to this may leave in one write: all that are small by default. A lease
        # costs five times what sending does.
        if plan.body_bytes > (256 * 1024 if is_whole else BRIEF_BYTES) or not (
            self.admission.admit_small(request, rep, plan.body_bytes)
        ):
            start.just_compared = just_compared
            self.admission.enter(request, rep, plan, start)
            start.just_compared = False
            return
        part = file.read_pieces_at_hand(pieces)
        if part is not None:
            if is_whole and may_be_known:
                self._know(request, rep, digests, part)
            request.respond(plan.status, plan.headers, part)
        else:
            start(OnNoLease(request))

    def _plan_anew(self, request: Request) -> None:
        """Answer a request that waited with what its path has now."""
        self._planned_anew = request
        request.answer_by(self._find)
        self._planned_anew = None

    def _know(
        self,
        request: Request,
        rep: Representation,
        digests: FileDigests | None,
        body: bytes | None = None,
    ) -> None:
        """Requests for this path are answered from what is known of the file from now on."""
        path = request.path
        known = self._files.get(path)
        if (
            known is not None
            and known.rep.key == rep.key
            and known.digests is digests
            and (known.whole is not None or body is None)
        ):
            return
        # What a folder shows depends on the query.
        shows_folder = request.query and path.endswith(b"/")
        if (
            len(path) < _LONG_TARGET_BYTES
            and not shows_folder
            and self._is_settled(rep)
            and self.admission.is_plain(rep.url_path)
        ):
            self._files.keep(path, rep, digests, body)

    # -- requests of a known shape (`http.ready.Shortcut`) ------------------------------------

    def first(
        self,
        path: bytes,
        accept: bytes | None,
        language: bytes | None,
        codings: bytes | None,
        query: bytes | None,
        is_plain: bool,
    ) -> Ready | None:
        """See `Shortcut`: a small file, which is known from its second request on, or none.

        Compressed ones beside it are looked for where the client accepts one, and before it is
        known: to look for a name that is not there costs as much as to open the file.
        """
        if path == b"/" or b"%" in path or b"//" in path or path.startswith(b"/-/"):
            return None
        if may_be_generated(path.rpartition(b"/")[2]):
            return self._generated.ready(path) if is_plain else None
        place, mark = hash(path) & _SEEN_PLACES - 1, hash(path) >> 16 & 0xFFFFFFFF
        url_path = path.decode("ascii")
        admission = self.admission
        if not admission.is_plain(url_path):
            return None
        found = self.tree.read_new(url_path, BRIEF_BYTES)
        if found is False:
            return _nothing(language, is_page=True) if prefers_html(accept) else _nothing(None)
        if found is True:
            folder = url_path + "/"
            if self.visibility.hidden(folder) or self.visibility.secret(folder):
                return None
            status, code, detail, location = _moved(path + b"/", query)
            fields, page = problem_answer(status, code, detail, accept, language)
            return ready_of(status, [*fields, *location], page)
        if found is None or not is_plain:
            return None
        keeps = self._seen[place] == mark and len(path) < _LONG_TARGET_BYTES
        self._seen[place] = mark
        rep, body = found
        self.folders.serves(rep.path, rep.key)
        digests = self.catalog.known(rep.key)
        if digests is None and rep.size_bytes <= TINY_BYTES:
            digests = digest_piece(body)
        if digests is None or not self._is_settled(rep):
            return None
        if (keeps or codings is not None) and self.precompressed.has_any(rep.path):
            return None
        if keeps:
            self._touched.serves(rep)
            return self._files.keep(path, rep, digests, body).whole
        if not admission.admit_again(rep, rep.size_bytes):
            return None
        admission.count_again(rep, rep.size_bytes, 1)
        return Ready(200, self.fields.head(rep, digests, rep.size_bytes), body, AT_ONCE)

    def _is_settled(self, rep: Representation) -> bool:
        """Whether a write now would show: one within the same timestamp would not."""
        settled_ns = int(self._wall() * 1e9) - 100_000_000
        return max(rep.key.mtime_ns, rep.key.ctime_ns) <= settled_ns

    def signatures_of(self, url_path: str) -> list[str]:
        """The endings of the signatures beside a file, as far as all visitors may see them."""
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
        self.fields.mirrors = tuple(mirrors)
        self.forget_all()

    def forget_all(self) -> None:
        """Drop every ready answer: the fields of files (mirrors, links) have changed."""
        self.fields.forget()
        self.folders.forget()
        self._files.forget_all()
