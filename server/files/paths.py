"""URL paths and file-system paths: pure, canonical in one direction, strict in the other."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote_from_bytes, unquote_to_bytes

#: Names of files that the server writes; see `manifests` and `server.torrent`.
SUMS = b"SHA256SUMS"
METALINK = b".meta4"
MANIFEST = b".manifest.json"
TORRENT = b".torrent"
#: Endings of what is signed with a file's name before it.
SIGNATURES = (b".asc", b".sig", b".minisig", b".sigstore", b".sigstore.json")
#: Endings of all that goes with another file, whose name stands before it.
COMPANIONS = (
    *(ending.decode() for ending in (*SIGNATURES, METALINK, MANIFEST, TORRENT)),
    *(".sha256", ".sha512", ".sha1", ".md5", ".b2", ".sha256sum", ".sha512sum", ".md5sum"),
    *(".zsync", ".sbom", ".pem", ".crt"),
)


def may_be_generated(name: bytes) -> bool:
    """Whether a file of this name is made where there is none."""
    return name == SUMS or name.endswith((METALINK, MANIFEST, TORRENT))


def accompanied(url_path: str) -> Iterator[str]:
    """The files that a path goes with: `a` for `a.asc`, both `a.sha256` and `a` for their `.asc`.

    No more than four: an address may be of any length.
    """
    for _ in range(4):
        lowered = url_path.lower()
        if not lowered.endswith(COMPANIONS):
            return
        ending = next(one for one in COMPANIONS if lowered.endswith(one))
        if url_path[: -len(ending)].endswith("/"):
            return
        url_path = url_path[: -len(ending)]
        yield url_path


def url_of(path: bytes) -> str:
    """The canonical URL path of a file-system path relative to the served directory."""
    return "/" + quote_from_bytes(path, safe="/-._~!$&'()*+,;=:@")


def split_path(path: bytes) -> list[bytes] | None:
    """The components of a percent-encoded URL path; None for one that is never served.

    Encoded slashes, NUL and `..` (however it is spelled) are refused, not resolved: no honest
    client sends them. Empty components and `.` are dropped. What has half an escape is no request
    target (`http.parsing`); here it stands for itself.
    """
    if path.startswith(b"/") and b"%" not in path and b"//" not in path and b"/." not in path:
        # As nearly all are: nothing of it has to be decoded or left out.
        return None if b"\0" in path else [part for part in path.split(b"/") if part]
    parts = []
    for raw in path.split(b"/"):
        part = unquote_to_bytes(raw)
        if b"/" in part or b"\0" in part or part == b"..":
            return None
        if part and part != b".":
            parts.append(part)
    return parts
