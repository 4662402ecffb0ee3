"""Digests and sources of files, in three formats.

They are a JSON manifest (one file), a Metalink 4 document (RFC 5854, any number of files) and a
`SHA256SUMS` list. Documents may come from attackers: each fault raises BadManifest, which names it.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import BadManifest

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

METALINK_TYPE = "application/metalink4+xml"
_NAMESPACE = "urn:ietf:params:xml:ns:metalink"


def piece_length_for(size_bytes: int) -> int:
    """The least power of two from 256 KiB on that gives at most 1 024 pieces."""
    # A piece is the unit in which a client checks and fetches again.
    length = 256 * 1024
    # Bounds our own manifests: 32 KiB of digests.
    while length * 1024 < size_bytes:
        length *= 2
    return length


@dataclass(frozen=True, slots=True)
class FileDigests:
    """Raw SHA-256 digests of a whole file and of its pieces in order; the last piece may be short.

    An empty file has no pieces.
    """

    size_bytes: int
    sha256: bytes
    piece_length_bytes: int
    pieces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A URL of a file, and its priority (1 first)."""

    url: str
    priority: int = 1


@dataclass(frozen=True, slots=True)
class MetalinkFile:
    """One file of a Metalink that was read; what the document lacks is None or empty.

    Algorithms have hashlib's names: the strongest in the document. `pieces` cover the whole size in
    pieces of `piece_length_bytes`. `name` is a safe relative path with forward slashes. `sources`
    are in order of priority; their URLs are unchecked and may be relative.
    """

    name: str
    size_bytes: int | None = None
    digest: tuple[str, bytes] | None = None
    piece_algorithm: str = ""
    piece_length_bytes: int = 0
    pieces: tuple[bytes, ...] = ()
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class FileManifest:
    """One file of a manifest that is written. `name` is a relative path with forward slashes."""

    name: str
    digests: FileDigests
    sources: Sequence[Source] = ()


def _checked(manifest: MetalinkFile) -> MetalinkFile:
    """Return the manifest if it is consistent and its name is safe. Raises BadManifest."""
    name = manifest.name
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BadManifest(f"A manifest names the file {name!r}, which is no safe relative path.")
    size = manifest.size_bytes
    if size is not None and not 0 <= size <= 1 << 60:
        raise BadManifest(f"A manifest gives {name!r} an impossible size.")
    if manifest.pieces:
        length = manifest.piece_length_bytes
        if size is None or length <= 0 or len(manifest.pieces) != -(-size // length):
            raise BadManifest(f"The piece digests of {name!r} do not fit its size.")
    return manifest


# -- JSON ---------------------------------------------------------------------------------------


def encode_json(manifest: FileManifest) -> bytes:
    """The JSON manifest of one file."""
    digests = manifest.digests
    document: dict[str, Any] = {
        "format": "tidegate-manifest-1",
        "name": manifest.name,
        "size_bytes": digests.size_bytes,
        "sha256": digests.sha256.hex(),
        "piece_length_bytes": digests.piece_length_bytes,
        "pieces_sha256": [piece.hex() for piece in digests.pieces],
        "sources": [{"url": s.url, "priority": s.priority} for s in manifest.sources],
    }
    return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"


# -- Metalink 4 ---------------------------------------------------------------------------------


def encode_metalink(files: Sequence[FileManifest], *, origin: str | None = None) -> bytes:
    """A Metalink 4 document. It has no dates: the same input gives the same bytes.

    Characters that XML forbids are replaced in names; such a file still has its URLs.
    """
    from xml.sax.saxutils import quoteattr

    out = [
        '<?xml version="1.0" encoding="UTF-8"?>\n',
        f'<metalink xmlns="{_NAMESPACE}">\n',
        "  <generator>Tidegate</generator>\n",
    ]
    if origin is not None:
        out.append(f'  <origin dynamic="true">{_text(origin)}</origin>\n')
    for file in files:
        digests = file.digests
        out.append(f"  <file name={quoteattr(xml_legal(file.name))}>\n")
        out.append(f"    <size>{digests.size_bytes}</size>\n")
        out.append(f'    <hash type="sha-256">{digests.sha256.hex()}</hash>\n')
        if digests.pieces:
            out.append(f'    <pieces length="{digests.piece_length_bytes}" type="sha-256">\n')
            out += [f"      <hash>{piece.hex()}</hash>\n" for piece in digests.pieces]
            out.append("    </pieces>\n")
        for source in sorted(file.sources, key=lambda s: s.priority):
            out.append(f'    <url priority="{source.priority}">{_text(source.url)}</url>\n')
        out.append("  </file>\n")
    out.append("</metalink>\n")
    return "".join(out).encode("utf-8")


def xml_legal(text: str) -> str:
    """The text with U+FFFD for characters that XML forbids even when escaped."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _text(text: str) -> str:
    return html.escape(xml_legal(text), quote=False)


def decode_metalink(data: bytes) -> list[MetalinkFile]:
    """Read a Metalink 4 document; digests of unknown algorithms are skipped. Raises BadManifest.

    A document type declaration is refused: there are no entities to expand or to fetch.
    """
    root = _parse_xml(data)
    if root.tag != _tag("metalink"):
        raise BadManifest("The document is not Metalink 4.")
    files = [_metalink_file(element) for element in root.findall(_tag("file"))]
    if not files:
        raise BadManifest("The Metalink document names no file.")
    return files


def _tag(name: str) -> str:
    return f"{_NAMESPACE}}}{name}"


def _parse_xml(data: bytes) -> Element:
    # Bounds the memory for a foreign manifest.
    if len(data) > 64 << 20:
        raise BadManifest("The Metalink document is too large.")
    # Imported here: a server reads no Metalink.
    import xml.parsers.expat
    from xml.etree.ElementTree import TreeBuilder

    builder = TreeBuilder()
    parser = xml.parsers.expat.ParserCreate(namespace_separator="}")
    # Otherwise each line of a text is kept as a string of its own.
    parser.buffer_text = True
    depth = parts = 0

    def doctype(*_: object) -> None:
        raise BadManifest("A Metalink document must not have a document type declaration.")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, parts
        depth, parts = depth + 1, parts + 1 + len(attributes)
        if depth > 16:
            raise BadManifest("The Metalink document is nested too deeply.")
        # Bounds the memory for a foreign document.
        if parts > 300_000:
            raise BadManifest("The Metalink document has too many elements.")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = doctype
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
    except (xml.parsers.expat.ExpatError, ValueError, LookupError) as error:
        # ValueError and LookupError: the parser does not know the encoding.
        raise BadManifest(f"The Metalink document is not well-formed XML ({error}).") from error
    return builder.close()


def _number(text: str | None, what: str) -> int:
    text = (text or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise BadManifest(f"The {what} in the Metalink document is no whole number.")
    return int(text)


def _named_digest(algorithm: str, text: str | None, what: str) -> bytes:
    raw = (text or "").strip()
    if re.fullmatch(rf"[0-9a-fA-F]{{{2 * hashlib.new(algorithm).digest_size}}}", raw) is None:
        raise BadManifest(f"The {what} is no {algorithm} digest in hexadecimal digits.")
    return bytes.fromhex(raw)


def _pieces(group: Element, algorithm: str, size_bytes: int) -> tuple[int, tuple[bytes, ...]]:
    length = _number(group.get("length"), "piece length")
    found = group.findall(_tag("hash"))
    if found and (length <= 0 or len(found) != -(-size_bytes // length)):
        raise BadManifest("The piece digests in the Metalink document do not fit the size.")
    return length, tuple(_named_digest(algorithm, e.text, "hash of a piece") for e in found)


def _metalink_file(element: Element) -> MetalinkFile:
    size_element = element.find(_tag("size"))
    size = None if size_element is None else _number(size_element.text, "size")
    hashes = {e.get("type", "").lower(): e.text for e in element.findall(_tag("hash"))}
    groups = {e.get("type", "").lower(): e for e in element.findall(_tag("pieces"))}
    # What a Metalink may give (RFC 5854 names IANA's list), the strongest first.
    algorithms = {"sha-512": "sha512", "sha-384": "sha384", "sha-256": "sha256", "sha-1": "sha1"}
    digest = None
    if best := next((told for told in algorithms if told in hashes), ""):
        algorithm = algorithms[best]
        digest = algorithm, _named_digest(algorithm, hashes[best], "hash of a file")
    kind, length = "", 0
    pieces: tuple[bytes, ...] = ()
    for told, algorithm in algorithms.items():
        if told in groups and size is not None:
            try:
                length, pieces = _pieces(groups[told], algorithm, size)
            except BadManifest:
                if algorithm == "sha1":
                    # SHA-1 does not stop an attacker: a broken list of it is skipped.
                    break
                raise
            kind = algorithm
            break
    sources = []
    for url in element.findall(_tag("url")):
        priority = _number(url.get("priority", "999999"), "priority")
        sources.append(Source((url.text or "").strip(), priority))
    sources.sort(key=lambda source: source.priority)
    return _checked(
        MetalinkFile(element.get("name", ""), size, digest, kind, length, pieces, tuple(sources))
    )


# -- SHA256SUMS ---------------------------------------------------------------------------------


def encode_sums(sums: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A list for `sha256sum --check` from names (raw bytes) and raw digests."""
    out = []
    for name, digest in sums:
        escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
        mark = b"\\" if escaped != name else b""
        out.append(b"%b%b  %b\n" % (mark, digest.hex().encode("ascii"), escaped))
    return b"".join(out)


def decode_sums(data: bytes) -> list[tuple[bytes, bytes]]:
    """Names and raw digests of a list in GNU or BSD form. Raises BadManifest.

    Empty lines and lines that start with `#` are skipped.
    """
    escapes = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}
    sums = []
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.removesuffix(b"\r")
        if not line.strip() or line.startswith(b"#"):
            continue
        if match := re.fullmatch(rb"(\\?)([0-9a-fA-F]{64}) [ *](.+)", line):
            mark, digest, name = match.groups()
        elif match := re.fullmatch(rb"(\\?)SHA256 \((.+)\) = ([0-9a-fA-F]{64})", line):
            mark, name, digest = match.groups()
        else:
            raise BadManifest(f"Line {number} of the checksum list cannot be read.")
        if mark:
            name = re.sub(rb"\\[\\nr]", lambda escape: escapes[escape[0]], name)
        sums.append((name, bytes.fromhex(digest.decode("ascii"))))
    return sums
