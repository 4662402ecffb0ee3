"""Files that were asked for before, with their answers ready, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import lru_cache

from ...policies.contract import BRIEF_BYTES
from ...protocol.errors import BadRange
from ...protocol.headers import parse_http_date
from ...protocol.manifest import FileDigests
from ...protocol.ranges import parse_range
from ..http.answers import SERVER_LINE
from ..http.ready import AT_ONCE, Ready, Subject
from .digests import DigestService
from .headers import RepresentationHeaders
from .precompressed import Precompressed
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
    _part_fields: bytes | None = field(init=False)

    def __post_init__(self, body: bytes | None) -> None:
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
            self.whole = Ready(200, head, body, FileRange(self, 0, rep.size_bytes), rep.size_bytes)

    def answer_to(
        self,
        head: bytes | None,
        none_match: bytes | None,
        since: bytes | None,
        part: bytes | None,
        if_range: bytes | None,
        address: str,
        agent: bytes | None,
    ) -> Ready | None:
        """See `ready.KnownFile`: conditions in the order of RFC 9110, 13.2.2."""
        rep, cache = self.rep, self.cache
        if if_range is not None and if_range != rep.etag.encode():
            # A date, or an earlier content.
            return None
        unchanged = False
        if none_match is not None:
            unchanged = none_match == b"*" or none_match.removeprefix(b"W/") == rep.etag.encode()
        elif since is not None:
            date = _date(since)
            unchanged = date is not None and int(rep.mtime_s // 1) <= date
        if unchanged:
            if self._unchanged is None:
                fields = cache.fields.head(rep, self.digests, None)
                self._unchanged = Ready(304, fields, b"", self)
            return self._unchanged
        if head is not None:
            if self._without_body is None:
                fields = cache.fields.head(rep, self.digests, rep.size_bytes)
                self._without_body = Ready(200, fields, b"", self)
            return self._without_body
        if part is None:
            return self.whole
        if cache.admission.has_lease(rep, address, (agent or b"").rstrip()):
            return None
        return self._part(part)

    def _part(self, wanted: bytes) -> Ready | None:
        """The answer with one range; None: the parser's way."""
        rep, parts = self.rep, self.cache.parts
        ready = parts.get((rep.path, wanted))
        if (
            ready is not None
            and isinstance(ready.subject, FileRange)
            and ready.subject.file is self
        ):
            return ready
        try:
            ranges = parse_range(wanted.decode("ascii"), rep.size_bytes)
        except BadRange:
            return None
        if ranges is None:
            return self.whole
        start, stop = ranges[0]
        length = stop - start
        if length > BRIEF_BYTES:
            return None
        if self._part_fields is None:
            block = self.cache.fields.block(rep, int(rep.mtime_s // 1), self.digests)
            self._part_fields = SERVER_LINE + b"".join(block)
        span = b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, rep.size_bytes)
        head = b"%b%bContent-Length: %d\r\n" % (self._part_fields, span, length)
        # Answers with a part of a file that are kept: each takes 1 kB at most.
        if len(parts) >= 2048:
            parts.clear()
        ready = parts[rep.path, wanted] = Ready(
            206, head, None, FileRange(self, start, stop), length
        )
        return ready

    def current(self) -> bool:
        """See `Subject`."""
        return self.cache.tree.has(self.rep.path, self.rep.key) and self.has_current_fields()

    def is_watched(self) -> bool:
        """See `Subject`."""
        return self.cache.tree.watch.watches(self.rep.path.rpartition(b"/")[0])

    def admit(self) -> bool:
        """See `Subject`: no rule restricts the file now."""
        return self.cache.admission.is_plain(self.rep)

    def has_current_fields(self) -> bool:
        """Whether the fields beside the body of the file still hold."""
        cache, rep = self.cache, self.rep
        if self._known_version != cache.catalog.version:
            if cache.catalog.known(rep.key) is not self.digests:
                return False
            self._known_version = cache.catalog.version
        return cache.fields.version == self._fields_version


@dataclass(slots=True, eq=False, repr=False)
class FileRange(Subject):
    """A part of a file, or all of it; a `ready.Subject`."""

    file: FileAnswers
    _start: int
    _stop: int

    def current(self) -> bool:
        """See `Subject`."""
        return self.file.current()

    def is_watched(self) -> bool:
        """See `Subject`."""
        return self.file.is_watched()

    def admit(self) -> bool:
        """See `Subject`."""
        admission, rep = self.file.cache.admission, self.file.rep
        return admission.is_plain(rep) and admission.admit_again(rep, self._stop - self._start)

    def used(self, times: int) -> None:
        """See `Subject`."""
        cache, rep = self.file.cache, self.file.rep
        count = self._stop - self._start
        cache.admission.count_again(rep, count, times)
        if count == rep.size_bytes and cache.precompressed.has_any(rep.path):
            # One has come: what is sent depends on the request from now on.
            cache.forget_content(rep.key)

    def read(self) -> bytes | None:
        """See `Subject`."""
        file, rep = self.file, self.file.rep
        if not file.has_current_fields():
            return None
        return file.cache.tree.read_again(rep.path, rep.key, self._start, self._stop)


@lru_cache(maxsize=1024)
def _date(text: bytes) -> int | None:
    """The date in a condition; clients send the one that they were told."""
    return parse_http_date(text.decode("ascii"))
