"""What an answer's fields tell about the file elsewhere: mirrors, digests, a Metalink."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.units import whole_number
from ..net.answers import Fields
from ..net.urls import BadUrl, Url, disposition_name


@dataclass(frozen=True, slots=True)
class Findings:
    """`mirrors` in order of preference (RFC 6249), `metalink` of type metalink4, the digest
    of the whole file (RFC 9530), the name that the server proposes, and the Last-Modified."""

    mirrors: tuple[Url, ...] = ()
    metalink: Url | None = None
    digest: tuple[str, bytes] | None = None
    name: str | None = None
    modified: str | None = None


NOTHING_FOUND = Findings()
_HASHLIB = {"sha-512": "sha512", "sha-256": "sha256"}


def read_findings(base: Url, fields: Fields) -> Findings:
    """Read Link and Repr-Digest; whatever cannot be read is not there."""
    links, digests = fields.all("link"), fields.all("repr-digest")
    name = disposition_name(fields.get("content-disposition"))
    modified = fields.get("last-modified")
    if not links and not digests:
        return Findings(name=name, modified=modified)
    from ...protocol.headers import parse_links, parse_repr_digest

    ranked: list[tuple[int, Url]] = []
    metalink: Url | None = None
    for link in parse_links(", ".join(links)):
        try:
            url = base.join(link.target)
        except BadUrl:
            continue
        if "duplicate" in link.relations:
            priority = whole_number(link.parameters.get("pri", ""))
            ranked.append((999_999 if priority is None else priority, url))
            continue
        kind = link.parameters.get("type", "").lower()
        if "describedby" in link.relations and kind == "application/metalink4+xml":
            metalink = metalink or url
    digest = None
    found = parse_repr_digest(", ".join(digests))
    for told, ours in _HASHLIB.items():
        if told in found and len(found[told]) == int(told[4:]) // 8:
            digest = (ours, found[told])
            break
    ranked.sort(key=lambda pair: pair[0])
    return Findings(tuple(url for _, url in ranked), metalink, digest, name, modified)
