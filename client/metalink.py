"""Reads Metalink 4 (RFC 5854): name, size, digests, pieces, mirrors of a file."""

from __future__ import annotations

from dataclasses import dataclass

from client.failures import UsageProblem
from client.sink import Pieces
from client.urls import BadUrl, Url, parse, safe_name

_NS = "{urn:ietf:params:xml:ns:metalink}"
_STRONG = {"sha-512": "sha512", "sha-384": "sha384", "sha-256": "sha256", "sha-1": "sha1"}
_LENGTHS = {"sha512": 64, "sha384": 48, "sha256": 32, "sha1": 20}
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

    Documents with a DTD are refused, so entities cannot blow up. URLs that are not http or https
    are left out; names are made safe (RFC 5854, 4.1.2.1 warns of traversal).
    """
    if len(data) > LIMIT_BYTES or b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise UsageProblem("this Metalink is too large or carries a DTD; it is not read")
    from xml.etree import ElementTree  # dear to import, and rarely needed

    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise UsageProblem(f"this is not a Metalink: {error}") from None
    if root.tag != f"{_NS}metalink":
        raise UsageProblem("this is not a Metalink 4 document (RFC 5854)")
    found = []
    for file in root.findall(f"{_NS}file"):
        size_text = (file.findtext(f"{_NS}size") or "").strip()
        size = int(size_text) if size_text.isdecimal() and len(size_text) < 19 else None
        ranked: list[tuple[int, int, Url]] = []
        for place, element in enumerate(file.findall(f"{_NS}url")):
            told = element.get("priority", "")
            text = (element.text or "").strip()
            try:
                url = base.join(text) if base is not None else parse(text)
            except BadUrl:
                continue
            ranked.append((int(told) if told.isdecimal() else 999_999, place, url))
        hashes = [(e.get("type", ""), e.text or "") for e in file.findall(f"{_NS}hash")]
        pieces = None
        for element in file.findall(f"{_NS}pieces"):
            length = element.get("length", "")
            texts = [e.text or "" for e in element.findall(f"{_NS}hash")]
            raw = [_digest([(element.get("type", ""), text)]) for text in texts]
            good = [digest for digest in raw if digest is not None]
            if length.isdecimal() and int(length) > 0 and good and len(good) == len(raw):
                made = Pieces(int(length), good[0][0], tuple(d for _, d in good))
                if size is not None and made.fits(size):
                    pieces = made
        name = safe_name(file.get("name", "")) or "download"
        urls = tuple(url for _, _, url in sorted(ranked, key=lambda row: row[:2]))
        found.append(Metalink(name, size, _digest(hashes), pieces, urls))
    if not found:
        raise UsageProblem("this Metalink names no file")
    return found


def _digest(hashes: list[tuple[str, str]]) -> tuple[str, bytes] | None:
    by_name = {name.strip().lower(): text.strip() for name, text in hashes}
    for name, ours in _STRONG.items():
        try:
            raw = bytes.fromhex(by_name.get(name, ""))
        except ValueError:
            continue
        if len(raw) == _LENGTHS[ours]:
            return ours, raw
    return None
