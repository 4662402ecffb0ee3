"""A Metalink (RFC 5854) as a download needs it: parsed URLs, a name that is safe here, pieces."""

from __future__ import annotations

from dataclasses import dataclass

from ..net.errors import UsageProblem
from ..net.urls import BadUrl, Url, parse, safe_name
from ..storage.piece_writer import Pieces

#: No Metalink larger than this is fetched.
LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Metalink:
    """One file of a Metalink document; `urls` in order of priority."""

    name: str
    size_bytes: int | None
    digest: tuple[str, bytes] | None
    pieces: Pieces | None
    urls: tuple[Url, ...]


def read_metalink(data: bytes, base: Url | None = None) -> list[Metalink]:
    """All files of a document; raises UsageProblem when it cannot be read.

    URLs that are not http or https are left out; relative ones count from `base`.
    """
    # Few downloads meet a Metalink, and the XML parser takes long to load.
    from ...protocol.errors import BadManifest
    from ...protocol.manifest import decode_metalink

    try:
        files = decode_metalink(data)
    except BadManifest as error:
        raise UsageProblem(f"this Metalink cannot be used: {error}") from None
    found = []
    for file in files:
        urls = []
        for source in file.sources:
            try:
                urls.append(base.join(source.url) if base is not None else parse(source.url))
            except BadUrl:
                continue
        pieces = None
        if file.pieces:
            pieces = Pieces(file.piece_length_bytes, file.piece_algorithm, file.pieces)
        name = safe_name(file.name) or "download"
        found.append(Metalink(name, file.size_bytes, file.digest, pieces, tuple(urls)))
    return found
