"""Files that were asked for before, with their answers ready, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from ...policies.contract import BRIEF_BYTES
from ...protocol.errors import BadRange
from ...protocol.headers import EntityTag
from ...protocol.manifest import FileDigests
from ...protocol.ranges import parse_range
from ..http.answers import SERVER_LINE
from ..http.ready import AT_ONCE, Ready, Subject
from .digests import DigestService
from .headers import RepresentationHeaders
from .mediatypes import content_type_of
from .openfile import Piece
from .precompressed import Precompressed
from .response_plans import parts_of, range_counts, verdict
from .transfer import Admission, FileKey, Representation
from .tree import Tree

#: What each holds beside its body and path: measured with twenty thousand.
_OVERHEAD_BYTES = 2560


@dataclass(eq=False, repr=False)
class FileCache:
    """Files by the path of a request, as it was spelled.

    Bodies make room before answers do: what is read again costs less than what is found again. The
    oldest go first. A caller compares one with the file first: nothing here notices a change.
    """

    most_bytes: int
    tree: Tree
    catalog: DigestService
    fields: RepresentationHeaders
    admission: Admission
    precompressed: Precompressed
    wall: Callable[[], float]
    #: The way to look a path up, without a call of ours in between.
    get: Callable[[bytes], FileAnswers | None] = field(init=False)
    #: Answers with one range, by path and range.
    parts: dict[tuple[bytes, bytes], Ready] = field(init=False, default_factory=dict)
    _files: OrderedDict[bytes, FileAnswers] = field(init=False, default_factory=OrderedDict)
    #: Those that have their body here, by age.
    _bodies: OrderedDict[bytes, int] = field(init=False, default_factory=OrderedDict)
    _bytes: int = field(init=False, default=0)
    _paths: dict[FileKey, set[bytes]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.get = self._files.get

    def keep(
        self, path: bytes, rep: Representation, digests: FileDigests | None, body: bytes | None
    ) -> FileAnswers:
        """Have this file ready from now on; `body` is that of a short one."""
        self.forget(path)
        file = self._files[path] = FileAnswers(self, rep, digests, body)
        self._paths.setdefault(rep.key, set()).add(path)
        if body is not None:
            self._bodies[path] = len(body)
            self._bytes += len(body)
        self._bytes += len(path) + _OVERHEAD_BYTES
        while self._bytes > self.most_bytes:
            if self._bodies:
                self._drop_body(next(iter(self._bodies)))
            else:
                self.forget(next(iter(self._files)))
        return file

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
        for kept in (self._files, self._bodies, self._paths, self.parts):
            kept.clear()
        self._bytes = 0

    def describe(self, key: FileKey) -> None:
        """What is said of one content has changed: its digest became known."""
        for path in self._paths.get(key, ()):
            self._files[path].describe(in_memory=path in self._bodies)


@dataclass(slots=True, eq=False, repr=False)
class FileAnswers(Subject):
    """What is known of a file, and the answers about it; the subject of those without a body."""

    cache: FileCache
    rep: Representation
    digests: FileDigests | None
    #: That of a short file; it is read again when it made room.
    body: InitVar[bytes | None]
    whole: Ready | None = field(init=False, default=None)
    _fields_version: int = field(init=False)
    _known_version: int = field(init=False)
    _unchanged: Ready | None = field(init=False)
    _without_body: Ready | None = field(init=False)
    _part_fields: tuple[bytes, bytes] | None = field(init=False)
    _etag: EntityTag = field(init=False)

    def __post_init__(self, body: bytes | None) -> None:
        self._etag = EntityTag(self.rep.etag[1:-1])
        if body is not None:
            self.whole = Ready(200, b"", body, AT_ONCE)
        self.describe(in_memory=body is not None)

    def describe(self, *, in_memory: bool) -> None:
        """What is said of the content has changed: say it anew.

        `in_memory`: its whole answer keeps its body.
        """
        cache, rep = self.cache, self.rep
        self._fields_version = cache.fields.version
        self._known_version = cache.catalog.version
        self._unchanged = self._without_body = self._part_fields = None
        self.digests = cache.catalog.known(rep.key) or self.digests
        whole = self.whole
        if whole is not None:
            head = cache.fields.head(rep, self.digests, rep.size_bytes)
            body = whole.body if in_memory else None
            size = rep.size_bytes
            self.whole = Ready(200, head, body, FilePieces(self, [(0, size)], size), size)

    def answer_to(
        self,
        head: bytes | None,
        conditions: Mapping[bytes, bytes],
        address: str,
        agent: bytes | None,
    ) -> Ready | None:
        """See `ready.KnownFile`."""
        rep, cache = self.rep, self.cache
        mtime_s = int(rep.mtime_s // 1)
        status = verdict(conditions, self._etag, mtime_s)
        if status == 412 or not range_counts(conditions, self._etag, mtime_s, cache.wall()):
            # A tag may be from before a touch (`files.touched`).
            return None
        if status == 304:
            if self._unchanged is None:
                fields = cache.fields.head(rep, self.digests, None)
                self._unchanged = Ready(304, fields, b"", self)
            return self._unchanged
        if head is not None:
            if self._without_body is None:
                fields = cache.fields.head(rep, self.digests, rep.size_bytes)
                self._without_body = Ready(200, fields, b"", self)
            return self._without_body
        if (part := conditions.get(b"range")) is None:
            return self.whole
        if cache.admission.has_lease(rep, address, (agent or b"").rstrip()):
            return None
        return self._part(part)

    def _part(self, wanted: bytes) -> Ready | None:
        """The answer with these ranges; None: the parser's way."""
        rep, parts = self.rep, self.cache.parts
        ready = parts.get((rep.path, wanted))
        if (
            ready is not None
            and isinstance(ready.subject, FilePieces)
            and ready.subject.file is self
        ):
            return ready
        try:
            ranges = parse_range(wanted.decode("ascii"), rep.size_bytes)
        except BadRange:
            return None
        if ranges is None:
            return self.whole
        if self._part_fields is None:
            block = self.cache.fields.block(rep, int(rep.mtime_s // 1), self.digests)
            self._part_fields = content_type_of(rep.path), block[1]
        kind, fields = self._part_fields
        kind, span, pieces, count = parts_of(kind, ranges, rep.size_bytes)
        # What is answered is told of within a second: till then each takes 2 kB at most.
        if count > BRIEF_BYTES or len(ranges) > 8:
            return None
        span = span and b"Content-Range: %b\r\n" % span
        line = b"%bContent-Type: %b\r\n%b%bContent-Length: %d\r\n"
        head = line % (SERVER_LINE, kind, fields, span, count)
        ready = Ready(206, head, None, FilePieces(self, pieces, count), count)
        if len(ranges) == 1 and len(wanted) <= 64:
            # Answers with a part of a file that are kept: each takes 1 kB at most.
            if len(parts) >= 2048:
                parts.clear()
            parts[rep.path, wanted] = ready
        return ready

    def current(self) -> bool:
        return self.cache.tree.has(self.rep.path, self.rep.key) and self.has_current_fields()

    def is_watched(self) -> bool:
        return self.cache.tree.watch.watches(self.rep.path.rpartition(b"/")[0])

    def admit(self) -> bool:
        return self.cache.admission.is_plain(self.rep.url_path)

    def has_current_fields(self) -> bool:
        """Whether the fields beside the body of the file still hold."""
        cache, rep = self.cache, self.rep
        if self._known_version != cache.catalog.version:
            if cache.catalog.known(rep.key) is not self.digests:
                return False
            self._known_version = cache.catalog.version
        return cache.fields.version == self._fields_version


@dataclass(slots=True, eq=False, repr=False)
class FilePieces(Subject):
    """Parts of a file, or all of it; a `ready.Subject`. `_count` is what they have in bytes."""

    file: FileAnswers
    _pieces: Sequence[Piece]
    _count: int

    def current(self) -> bool:
        return self.file.current()

    def is_watched(self) -> bool:
        return self.file.is_watched()

    def admit(self) -> bool:
        admission, rep = self.file.cache.admission, self.file.rep
        return admission.is_plain(rep.url_path) and admission.admit_again(rep, self._count)

    def used(self, times: int) -> None:
        cache, rep = self.file.cache, self.file.rep
        cache.admission.count_again(rep, self._count, times)
        if self._count == rep.size_bytes and cache.precompressed.has_any(rep.path):
            # One has come: what is sent depends on the request from now on.
            cache.forget_content(rep.key)

    def read(self) -> bytes | None:
        file, rep = self.file, self.file.rep
        if not file.has_current_fields():
            return None
        return file.cache.tree.read_again(rep.path, rep.key, self._pieces)
