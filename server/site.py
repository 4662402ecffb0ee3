"""From a request to what answers it: files, listings, generated files, and routes under `/-/`.

A small file that many ask for is answered from memory in one write, after one look at the file's
status; everything else is planned as a `BodyPlan` and handed to the admission.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from protocol.errors import BadRange
from protocol.headers import (
    EntityTag,
    format_http_date,
    format_link,
    format_repr_digest,
    parse_want_digest,
)
from protocol.manifest import FileDigests, Source
from protocol.ranges import ContentRange, multipart_pieces, parse_range
from server.catalog import Catalog
from server.files import IsDirectory, NotHere, OpenFile, Tree, split_path, url_of
from server.folders import Folders
from server.http.answers import Header, header_block
from server.http.request import Request
from server.mediatypes import content_type_of
from server.pacer import Pacer
from server.preconditions import range_counts, verdict
from server.sender import Piece, WholeTransfer, sender_for
from server.transfer import (
    Admission,
    BodyPlan,
    FileKey,
    Representation,
    Transfer,
    TransferListener,
)

SMALL_BYTES = 64 * 1024
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
#: A content written this short a time ago may be written again within the same timestamp.
_UNSETTLED_NS = 100_000_000
_MOST_OPENED = 256
_LONG_TARGET_BYTES = 512
_ALLOW: Header = (b"Allow", b"GET, HEAD, OPTIONS")

Handler = Callable[[Request], None]
Finder = Callable[[Request, list[bytes]], bool]


@dataclass(slots=True)
class _Small:
    """A small file in memory: its identity, the header of its answer, and its bytes."""

    rep: Representation
    key: FileKey
    head: bytes
    body: bytes


class Site:
    """The handler of all requests of a server.

    `admission` may be replaced while running. `mirrors` hold the whole tree: their URLs are bases
    and end in a slash. `generated` and `listing` answer what is no file:
    each is given the request and the path's components, and says whether it took the request.
    """

    def __init__(
        self,
        tree: Tree,
        catalog: Catalog,
        admission: Admission,
        pacer: Pacer,
        *,
        mirrors: Sequence[Source] = (),
        small_cache_bytes: int = 32 * 1024 * 1024,
        server_name: str = "Tidegate",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.tree = tree
        self.catalog = catalog
        self.admission = admission
        self.pacer = pacer
        self.mirrors: tuple[Source, ...] = tuple(mirrors)
        #: More places that have a file now, by its URL path; set by who watches the mirrors.
        self.elsewhere: Callable[[str], Sequence[Source]] = lambda url_path: ()
        #: Whether a URL path is to look as if nothing were there (a release before its hour).
        self.hidden: Callable[[str], bool] = lambda url_path: False
        #: Answers a request for a hidden file that one may register for; False: there is none.
        self.register: Callable[[Request, Representation], bool] = lambda request, rep: False
        self.folders = Folders(tree, lambda url_path: self.hidden(url_path))
        self.listing: Finder | None = None
        self.generated: Finder | None = None
        self.wall = wall
        self._server: Header = (b"Server", server_name.encode("ascii"))
        self._routes: dict[bytes, tuple[Handler, frozenset[bytes]]] = {}
        self._small: OrderedDict[bytes, _Small] = OrderedDict()
        self._small_bytes = 0
        #: Files that were asked for lately, by target: spares the walk while they are current.
        self._opened: dict[bytes, OpenFile] = {}
        #: Counts the times that what is said of files has changed as a whole.
        self._said = 0
        self._small_most_bytes = small_cache_bytes
        self._targets: dict[FileKey, set[bytes]] = {}
        catalog.on_learned(self._learned)

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

    def __call__(self, request: Request) -> None:
        """Answer a request (or have it answered)."""
        small = self._small.get(request.target)
        if (
            small is not None
            and request.method == b"GET"
            and _CONDITIONAL.isdisjoint(request.headers)
        ):
            if self._is_current(small.rep):
                if self.admission.admit_small(request, small.rep):
                    request.connection.answer_ready(request, small.head, small.body)
                    return
            else:
                self._forget(request.target)
        path = request.path
        if path.startswith(b"/-/"):
            self._route(request)
        elif request.method == b"GET" or request.method == b"HEAD":
            file = self._opened.get(request.target)
            if file is not None and self._is_current(file.rep):
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
        self.not_found(request)

    def not_found(self, request: Request) -> None:
        """The answer for everything that is not there or not to be seen."""
        request.refuse(404, "not-found", "There is nothing here under this name.")

    def _find(self, request: Request) -> None:
        parts = split_path(request.path)
        if parts is None:
            self.not_found(request)
            return
        as_directory = request.path.endswith((b"/", b"/."))
        try:
            file = self.tree.open(parts)
        except IsDirectory:
            self._directory(request, parts, as_directory)
            return
        except NotHere:
            if as_directory or self.generated is None or not self.generated(request, parts):
                self.not_found(request)
            return
        if as_directory:
            self.not_found(request)
            return
        if len(self._opened) >= _MOST_OPENED:
            self._opened.clear()
        if len(request.target) < _LONG_TARGET_BYTES:
            self._opened[request.target] = file
        self._serve_visible(request, file)

    def _serve_visible(self, request: Request, file: OpenFile) -> None:
        """Serve a file that was found, unless it is hidden until its hour."""
        if self.hidden(file.rep.url_path):
            if request.method != b"GET" or not self.register(request, file.rep):
                self.not_found(request)
        else:
            self.serve(request, file)

    def _directory(self, request: Request, parts: list[bytes], as_directory: bool) -> None:
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
        hidden = self.hidden(url_of(b"/".join(parts)))
        if hidden or self.listing is None or not self.listing(request, parts):
            self.not_found(request)

    # -- answering with a file --------------------------------------------------------------

    def serve(self, request: Request, file: OpenFile) -> None:
        """Answer with a file: conditions, ranges, then admission and body."""
        rep = file.rep
        headers = request.headers
        now = self.wall()
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
        digests = self._digests(request, file)
        fields = self._fields_of(file, now, mtime_s, digests, headers.get(b"want-repr-digest"))
        if status == 304:
            request.respond(304, [field for field in fields if field[0] != b"Content-Type"])
            return
        try:
            plan, pieces = self._plan(request, rep, fields, etag, mtime_s, now)
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
            request.begin(plan.status, plan.headers, plan.body_bytes, more=False)
            request.finish()
        elif plan.status == 200 and rep.size_bytes <= SMALL_BYTES:
            self._serve_small(request, file, plan)
        else:
            self.admission.enter(request, rep, plan, _FileStart(self, request, file, plan, pieces))

    def _plan(
        self,
        request: Request,
        rep: Representation,
        fields: list[Header],
        etag: EntityTag,
        mtime_s: int,
        now: float,
    ) -> tuple[BodyPlan, list[Piece]]:
        """Decide what to send. Raises BadRange."""
        size = rep.size_bytes
        value = request.headers.get(b"range")
        ranges = None
        if (
            value is not None
            and request.method == b"GET"
            and range_counts(request.headers, etag, mtime_s, now)
        ):
            ranges = parse_range(value.decode("latin-1"), size)
        if ranges is None:
            whole: list[Piece] = [(0, size)] if size else []
            return BodyPlan(200, tuple(fields), ((0, size),), size), whole
        if len(ranges) == 1:
            start, end = ranges[0]
            content_range = b"bytes %d-%d/%d" % (start, end - 1, size)
            headers = (*fields, (b"Content-Range", content_range))
            return BodyPlan(206, headers, (ranges[0],), end - start), [ranges[0]]
        boundary = secrets.token_hex(12)
        content_type = dict(fields)[b"Content-Type"].decode("latin-1")
        pieces, total = multipart_pieces(ranges, size, content_type, boundary)
        multipart = f"multipart/byteranges; boundary={boundary}".encode("ascii")
        headers = tuple(
            (name, multipart if name == b"Content-Type" else field) for name, field in fields
        )
        return BodyPlan(206, headers, tuple(ranges), total), pieces

    def _fields_of(
        self,
        file: OpenFile,
        now: float,
        mtime_s: int,
        digests: FileDigests | None,
        want: bytes | None,
    ) -> list[Header]:
        """`_fields`, remembered as long as nothing of it can have changed."""
        memo = file.memo
        if want is None and memo is not None and memo[0] == self._said and memo[1] is digests:
            return memo[2]
        fields = self._fields(file.rep, mtime_s, digests, want)
        if want is None and file.rep.mtime_s <= now:
            file.memo = (self._said, digests, fields)
        return fields

    def _fields(
        self, rep: Representation, mtime_s: int, digests: FileDigests | None, want: bytes | None
    ) -> list[Header]:
        """The fields that describe a file, the same for GET, HEAD and 304."""
        name = rep.path.rpartition(b"/")[2].decode("utf-8", "replace")
        fields: list[Header] = [
            (b"Content-Type", content_type_of(name).encode("latin-1")),
            (b"Accept-Ranges", b"bytes"),
            (b"ETag", rep.etag.encode("ascii")),
            (b"Last-Modified", format_http_date(mtime_s).encode("ascii")),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        if digests is not None and (
            want is None or parse_want_digest(want.decode("latin-1")).get("sha-256", 1) > 0
        ):
            value = format_repr_digest({"sha-256": digests.sha256})
            fields.append((b"Repr-Digest", value.encode("ascii")))
        fields.append((b"Link", self._links(rep).encode("ascii")))
        return fields

    def sources_of(self, url_path: str) -> list[Source]:
        """Where else the file under this URL path can be had: configured mirrors first."""
        found = [Source(m.url + url_path[1:], m.priority, m.location) for m in self.mirrors]
        last = max((mirror.priority for mirror in found), default=0)
        more = self.elsewhere(url_path)
        return [*found, *(replace(one, priority=one.priority + last) for one in more)]

    def _links(self, rep: Representation) -> str:
        links = [
            format_link(
                rep.url_path + ".meta4", rel="describedby", type="application/metalink4+xml"
            )
        ]
        for mirror in self.sources_of(rep.url_path):
            more = {"geo": mirror.location} if mirror.location else {}
            links.append(
                format_link(
                    mirror.url,
                    rel="duplicate",
                    pri=str(mirror.priority),
                    **more,
                )
            )
        return ", ".join(links)

    def _digests(self, request: Request, file: OpenFile) -> FileDigests | None:
        """What is known of the digest; computed now when it is wanted and cheap."""
        known = self.catalog.known(file.rep.key)
        if known is None:
            want = request.headers.get(b"want-repr-digest")
            if want is not None and parse_want_digest(want.decode("latin-1")).get("sha-256", 0) > 0:
                known = self.catalog.at_once(file)
            if known is None:
                self.catalog.ask(file)
        return known

    # -- small files ------------------------------------------------------------------------

    def _serve_small(self, request: Request, file: OpenFile, plan: BodyPlan) -> None:
        body = file.read_all()
        rep = file.rep
        if body is None:
            request.refuse(
                503,
                "file-changing",
                "The file is being written; ask again.",
                [(b"Retry-After", b"1")],
            )
            return
        self._remember(request, rep, body)
        if self.admission.admit_small(request, rep):
            request.respond(plan.status, plan.headers, body)
        else:
            self.admission.enter(request, rep, plan, _BytesStart(request, plan, body))

    def _remember(self, request: Request, rep: Representation, body: bytes) -> None:
        """Keep a small file in memory, unless it was written only just now."""
        now_ns = int(self.wall() * 1e9)
        if max(rep.key.mtime_ns, rep.key.ctime_ns) > now_ns - _UNSETTLED_NS:
            return
        if request.method != b"GET" or len(body) > self._small_most_bytes // 8:
            return
        target = request.target
        self._forget(target)
        self._small[target] = _Small(rep, rep.key, self._ready_head(rep, len(body)), body)
        self._targets.setdefault(rep.key, set()).add(target)
        self._small_bytes += len(body) + len(target) + 1024
        while self._small_bytes > self._small_most_bytes:
            self._forget(next(iter(self._small)))

    def _ready_head(self, rep: Representation, length: int) -> bytes:
        fields = self._fields(rep, int(rep.mtime_s // 1), self.catalog.known(rep.key), None)
        return b"%bContent-Length: %d\r\n" % (
            header_block([self._server, *fields]),
            length,
        )

    def _is_current(self, rep: Representation) -> bool:
        status = self.tree.status_of(rep.path)
        if status is None:
            return False
        key = rep.key
        return (
            status.st_mtime_ns == key.mtime_ns
            and status.st_size == key.size_bytes
            and status.st_ino == key.inode
            and status.st_ctime_ns == key.ctime_ns
        )

    def _forget(self, target: bytes) -> None:
        small = self._small.pop(target, None)
        if small is None:
            return
        self._small_bytes -= len(small.body) + len(target) + 1024
        targets = self._targets[small.key]
        targets.discard(target)
        if not targets:
            del self._targets[small.key]

    def forget_all(self) -> None:
        """Drop every ready answer: what is said of files (mirrors, links) has changed."""
        self._said += 1
        self.folders.forget()
        self._small.clear()
        self._targets.clear()
        self._small_bytes = 0

    def _learned(self, key: FileKey, digests: FileDigests) -> None:
        """A digest became known: ready answers of this content say it from now on."""
        for target in self._targets.get(key, ()):
            small = self._small[target]
            small.head = self._ready_head(small.rep, len(small.body))


class _FileStart:
    """Starts a body from a file; see `transfer.Start`."""

    __slots__ = ("_file", "_pieces", "_plan", "_request", "_site")

    def __init__(
        self, site: Site, request: Request, file: OpenFile, plan: BodyPlan, pieces: list[Piece]
    ) -> None:
        self._site = site
        self._request = request
        self._file = file
        self._plan = plan
        self._pieces = pieces

    def __call__(self, listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
        """Send the header, then let a sender have the connection."""
        plan = self._plan
        if not self._file.unchanged():
            return self._give_up(listener)
        if plan.body_bytes <= SMALL_BYTES:
            return self._send_at_once(listener, headers)
        self._request.begin(plan.status, (*plan.headers, *headers), plan.body_bytes)
        sender = sender_for(
            self._request, self._file, self._pieces, plan.body_bytes, listener, self._site.pacer
        )
        sender.start()
        return sender

    def _send_at_once(self, listener: TransferListener, headers: Sequence[Header]) -> Transfer:
        """A short body goes with its header in one write: cheaper than any sender."""
        body = self._file.read_pieces(self._pieces)
        if body is None:
            return self._give_up(listener)
        self._request.respond(self._plan.status, (*self._plan.headers, *headers), body)
        transfer = WholeTransfer(len(body))
        listener.transfer_done(transfer, True)
        return transfer

    def _give_up(self, listener: TransferListener) -> Transfer:
        """It waited, and was written over in place meanwhile: what was planned is gone."""
        if self._request.dripped:
            self._request.abort()
        else:
            self._request.refuse(
                503,
                "file-changing",
                "The file was replaced while you waited; ask again for the new one.",
                [(b"Retry-After", b"1")],
            )
        transfer = WholeTransfer(0)
        listener.transfer_done(transfer, False)
        return transfer


class _BytesStart:
    """Starts a body that lies in memory; see `transfer.Start`."""

    __slots__ = ("_body", "_plan", "_request")

    def __init__(self, request: Request, plan: BodyPlan, body: bytes) -> None:
        self._request = request
        self._plan = plan
        self._body = body

    def __call__(self, listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
        """Send all in one write."""
        self._request.respond(self._plan.status, (*self._plan.headers, *headers), self._body)
        transfer = WholeTransfer(len(self._body))
        listener.transfer_done(transfer, True)
        return transfer
