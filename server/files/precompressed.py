"""Compressed files beside a file: `notes.txt.zst`, `.br`, `.gz` (RFC 9110, 8.4 and 12.5.3).

A client that accepts the coding gets the compressed file as a representation of the plain one, with
an entity tag, digest and ranges of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..http.answers import Header
from ..http.parsing import weights_of
from ..http.request import Request
from .mediatypes import content_type_of
from .openfile import OpenFile
from .transfer import Representation, Visibility, kept_from_all
from .tree import IsDirectory, NotHere, Tree

#: Content codings and how their files end. Of those that a client likes alike the first is sent:
#: it is the smallest as a rule.
CODINGS = {"zstd": b".zst", "br": b".br", "gzip": b".gz"}
#: How names end of files that gain nothing, or are what they are by their coding.
_COMPRESSED = tuple(
    f".{ending}".encode("ascii")
    for ending in (
        *("7z", "apk", "appimage", "asc", "br", "bz2", "deb", "dmg", "flatpak", "gz", "jar"),
        *("lz4", "lzma", "msi", "rpm", "sig", "snap", "tbz2", "tgz", "txz", "tzst", "whl", "xz"),
        *("zip", "zst", "avif", "gif", "jpeg", "jpg", "mp3", "mp4", "ogg", "png", "webm", "webp"),
        *("woff", "woff2"),
    )
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is sent of a file that has compressed ones beside it; `coding` is None for the plain."""

    file: OpenFile
    plain: Representation
    coding: str | None

    def fields(self, fields: Iterable[Header]) -> list[Header]:
        """The fields that describe the file that is sent, as a representation of the plain one."""
        vary = (b"Vary", b"Accept-Encoding")
        if self.coding is None:
            return [*fields, vary]
        kind = (b"Content-Type", content_type_of(self.plain.path))
        coding = (b"Content-Encoding", self.coding.encode("ascii"))
        return [kind, coding, *[field for field in fields if field[0] != b"Content-Type"], vary]


@dataclass
class Precompressed:
    """Finds compressed files beside those of a tree, as far as all visitors may see them.

    `_codings` are those to look for, with the ends of their names.
    """

    _tree: Tree
    _visibility: Visibility
    _codings: Mapping[str, bytes]

    def has_any(self, path: bytes) -> bool:
        """Whether there may be one beside the file under this relative path."""
        return not path.lower().endswith(_COMPRESSED) and self._tree.has_beside(
            path, self._codings.values()
        )

    def choose(self, request: Request, file: OpenFile) -> Chosen | None:
        """What is sent of a file; None: there is no compressed one beside it.

        A range is one of the plain file unless `If-Range` names a compressed one: a client that
        goes on with what it has already stored decoded would mix the two.
        """
        plain = file.rep
        if not self.has_any(plain.path):
            return None
        condition = None
        if b"range" in request.headers:
            condition = request.headers.get(b"if-range", b"").decode("latin-1")
        for coding in accepted(request.headers.get(b"accept-encoding", b"")):
            found = self._open(plain, CODINGS[coding])
            if found is not None and condition in (None, found.rep.etag):
                return Chosen(found, plain, coding)
        return Chosen(file, plain, None)

    def _open(self, plain: Representation, ending: bytes) -> OpenFile | None:
        path, look = plain.path + ending, self._visibility
        url_path = plain.url_path + ending.decode("ascii")
        if look.hidden(url_path) or look.secret(url_path):
            return None
        try:
            found = self._tree.open(path.split(b"/"))
        except (IsDirectory, NotHere):
            return None
        # An older one is of an older content. Some compressors keep only the seconds of the time.
        is_older = found.rep.mtime_s // 1 < plain.mtime_s // 1
        return None if is_older or kept_from_all(look, self._tree.place_of(found)) else found


def accepted(value: bytes) -> tuple[str, ...]:
    """The codings of ours that an Accept-Encoding field prefers to plain bytes, best first."""
    weights = weights_of(value)
    if "x-gzip" in weights:
        weights["gzip"] = weights["x-gzip"]
    others = weights.get("*", 0.0)
    least = weights.get("identity", 0.0)
    found = {coding: weights.get(coding, others) for coding in CODINGS}
    wanted = [coding for coding, weight in found.items() if weight > 0.0 and weight >= least]
    return tuple(sorted(wanted, key=lambda coding: -found[coding]))
