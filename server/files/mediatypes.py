"""Content types by file name: the standard table, and what a release directory adds to it."""

from __future__ import annotations

import mimetypes
from functools import lru_cache

_OURS = {
    ".7z": "application/x-7z-compressed",
    ".apk": "application/vnd.android.package-archive",
    ".appimage": "application/vnd.appimage",
    ".asc": "application/pgp-signature",
    ".bz2": "application/x-bzip2",
    ".deb": "application/vnd.debian.binary-package",
    ".dmg": "application/x-apple-diskimage",
    ".flatpak": "application/vnd.flatpak",
    ".gz": "application/gzip",
    ".iso": "application/x-iso9660-image",
    ".lz4": "application/x-lz4",
    ".md": "text/markdown",
    ".meta4": "application/metalink4+xml",
    ".metalink": "application/metalink+xml",
    ".minisig": "text/plain",
    ".msi": "application/x-msi",
    ".patch": "text/plain",
    ".rpm": "application/x-rpm",
    ".rst": "text/plain",
    ".sha256": "text/plain",
    ".sha512": "text/plain",
    ".sig": "application/pgp-signature",
    ".snap": "application/vnd.snap",
    ".tgz": "application/gzip",
    ".toml": "application/toml",
    ".torrent": "application/x-bittorrent",
    ".vsix": "application/vsix",
    ".whl": "application/zip",
    ".xz": "application/x-xz",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".zst": "application/zstd",
}
_PLAIN_NAMES = frozenset(
    b"authors changelog copying inrelease license md5sums news readme release sha1sums sha256sums"
    b" sha512sums".split()
)
# Without the machine's own tables, so that every host says the same of the same name.
_TABLE = mimetypes.MimeTypes(filenames=())


def content_type_of(path: bytes) -> bytes:
    """The Content-Type of what lies under a path; never one that claims a content coding."""
    stem, dot, ending = path.rpartition(b"/")[2].lower().rpartition(b".")
    if stem:
        return _type_of_ending(dot + ending)
    return b"text/plain; charset=utf-8" if ending in _PLAIN_NAMES else b"application/octet-stream"


@lru_cache(maxsize=256)
def _type_of_ending(ending: bytes) -> bytes:
    name = ending.decode("latin-1")
    found = _OURS.get(name) or _TABLE.types_map[True].get(name, "application/octet-stream")
    return (f"{found}; charset=utf-8" if found.startswith("text/") else found).encode("ascii")
