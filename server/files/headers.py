"""What is said of a file beside its bytes: type, tag, date, digest, and where else it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ...protocol.headers import format_http_date, format_link, format_repr_digest, parse_want_digest
from ...protocol.manifest import FileDigests, Source
from ..http.answers import SERVER_LINE, Header
from ..http.request import Request
from .digests import DigestService
from .mediatypes import content_type_of
from .openfile import OpenFile
from .transfer import HasTorrent, Representation

#: What stands after the address in a link to a file's metalink.
_OF_METALINK = format_link("", rel="describedby", type="application/metalink4+xml")[2:]


@dataclass
class RepresentationHeaders:
    """Fields for files. `mirrors` hold the whole tree: their URLs are bases and end in a slash.

    `elsewhere` tells more places that have a file now, by its URL path.
    """

    _catalog: DigestService
    mirrors: tuple[Source, ...]
    _elsewhere: Callable[[str], Sequence[Source]]
    _has_torrent: HasTorrent
    #: Counts the times that what is said of files has changed as a whole.
    version: int = 0

    def forget(self) -> None:
        """What is said of files has changed as a whole."""
        self.version += 1

    def fields(
        self,
        rep: Representation,
        mtime_s: int,
        digests: FileDigests | None,
        want: bytes | None = None,
    ) -> tuple[Header, ...]:
        """The fields that describe a file, the same for GET, HEAD and 304."""
        if want is not None and parse_want_digest(want.decode("latin-1")).get("sha-256", 1) <= 0:
            digests = None
        return _fields_of(b"".join(self.block(rep, mtime_s, digests)))

    def block(
        self, rep: Representation, mtime_s: int, digests: FileDigests | None
    ) -> tuple[bytes, bytes]:
        """The same as lines: the type, and those that a 304 has, too."""
        date, digest = format_http_date(mtime_s), ""
        if digests is not None:
            digest = f"Repr-Digest: {format_repr_digest(digests.sha256)}\r\n"
        text = (
            f"Accept-Ranges: bytes\r\nETag: {rep.etag}\r\nLast-Modified: {date}\r\n"
            f"X-Content-Type-Options: nosniff\r\n{digest}Link: {self._links(rep)}\r\n"
        )
        return b"Content-Type: %b\r\n" % content_type_of(rep.path), text.encode("ascii")

    def head(
        self, rep: Representation, digests: FileDigests | None, body_bytes: int | None
    ) -> bytes:
        """The header of an answer about a settled file; `body_bytes` of None: it is unchanged."""
        kind, fields = self.block(rep, int(rep.mtime_s // 1), digests)
        if body_bytes is None:
            return SERVER_LINE + fields
        return b"%b%b%bContent-Length: %d\r\n" % (SERVER_LINE, kind, fields, body_bytes)

    def sources_of(self, url_path: str) -> list[Source]:
        """Where else the file under this URL path can be had: configured mirrors first."""
        found = [Source(m.url + url_path[1:], m.priority) for m in self.mirrors]
        more = self._elsewhere(url_path)
        if not more:
            return found
        last = max((mirror.priority for mirror in found), default=0)
        return [*found, *(replace(one, priority=one.priority + last) for one in more)]

    def digests(self, request: Request, file: OpenFile) -> FileDigests | None:
        """What is known of the digest; computed now when it is wanted or cheap."""
        want = request.headers.get(b"want-repr-digest", b"").decode("latin-1")
        wanted = parse_want_digest(want).get("sha-256", 0) > 0
        known = self._catalog.at_once(file, wanted=wanted)
        if known is None:
            self._catalog.ask(file)
        return known

    def _links(self, rep: Representation) -> str:
        links = [f"<{rep.url_path}.meta4>{_OF_METALINK}"]
        if self._has_torrent(rep.url_path, rep.size_bytes):
            # RFC 6249, 3.1.
            kind = "application/x-bittorrent"
            links.append(format_link(rep.url_path + ".torrent", rel="describedby", type=kind))
        for mirror in self.sources_of(rep.url_path):
            links.append(format_link(mirror.url, rel="duplicate", pri=str(mirror.priority)))
        return ", ".join(links)


@lru_cache(maxsize=256)
def _fields_of(block: bytes) -> tuple[Header, ...]:
    """Those of these lines, once for all requests: each that waits or runs keeps them."""
    pairs = (line.partition(b": ") for line in block.splitlines())
    return tuple((name, value) for name, _, value in pairs)
