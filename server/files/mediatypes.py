"""Content types by file name: the standard table, and what a release directory adds to it."""

from __future__ import annotations

import mimetypes
from functools import lru_cache

_OURS = {
    ".7z": "application/x-7z-compressed",
    ".apk": "application/vnd.android.package-archive",
    ".appimage": "application/vnd.appimage",
    ".asc": "application/pgp-signature",
    ".br": "application/octet-stream",
    ".bz2": "application/x-bzip2",
    ".deb": "application/vnd.debian.binary-package",
    ".dmg": "application/x-apple-diskimage",
    ".flatpak": "application/vnd.flatpak",
    ".gz": "application/gzip",
    ".img": "application/octet-stream",
    ".iso": "application/x-iso9660-image",
    ".lz4": "application/x-lz4",
    ".md": "text/markdown; charset=utf-8",
    ".meta4": "application/metalink4+xml",
    ".metalink": "application/metalink+xml",
    ".minisig": "text/plain; charset=utf-8",
    ".msi": "application/x-msi",
    ".patch": "text/plain; charset=utf-8",
    ".qcow2": "application/octet-stream",
    ".rpm": "application/x-rpm",
    ".rst": "text/plain; charset=utf-8",
    ".sha256": "text/plain; charset=utf-8",
    ".sha512": "text/plain; charset=utf-8",
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
    {
        "authors",
        "changelog",
        "copying",
        "inrelease",
        "license",
        "md5sums",
        "news",
        "readme",
        "release",
        "sha1sums",
        "sha256sums",
        "sha512sums",
    }
)
# Without the machine's own tables, so that every host says the same of the same name.
_TABLE = mimetypes.MimeTypes(filenames=())


def content_type_of(name: str) -> str:
    """The Content-Type for a file name; never one that claims a content coding."""
    lower = name.lower()
    dot = lower.rfind(".")
    found = _type_of_ending(lower[dot:]) if dot > 0 else None
    if found is not None:
        return found
    return "text/plain; charset=utf-8" if lower in _PLAIN_NAMES else "application/octet-stream"


@lru_cache(maxsize=256)
def _type_of_ending(ending: str) -> str | None:
    ours = _OURS.get(ending)
    if ours is not None:
        return ours
    guessed = _TABLE.types_map[True].get(ending)
    if guessed is None:
        return None
    return guessed + "; charset=utf-8" if guessed.startswith("text/") else guessed
