"""Manifests survive the round trip in all three forms, and hostile ones are refused in words."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.errors import BadManifest
from tidegate.protocol.manifest import (
    FileDigests,
    FileManifest,
    MetalinkFile,
    Source,
    decode_metalink,
    decode_sums,
    encode_json,
    encode_metalink,
    encode_sums,
    piece_length_for,
)

ZERO = hashlib.sha256(b"").digest()
NAMES = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\ufffe\uffff"),
    min_size=1,
    max_size=30,
).filter(lambda name: name not in (".", ".."))


@st.composite
def manifests(draw: st.DrawFn) -> FileManifest:
    size = draw(st.integers(0, 10_000_000))
    length = piece_length_for(size)
    pieces = tuple(draw(st.binary(min_size=32, max_size=32)) for _ in range(-(-size // length)))
    sources = [Source(f"http://m{i}/{i}?a&b=<c>", i + 1) for i in range(draw(st.integers(0, 3)))]
    digests = FileDigests(size, draw(st.binary(min_size=32, max_size=32)), length, pieces)
    return FileManifest(draw(NAMES), digests, sources)


def same(found: MetalinkFile, made: FileManifest) -> bool:
    digests = made.digests
    return (found.name, found.size_bytes, found.digest, found.pieces, [*found.sources]) == (
        made.name,
        digests.size_bytes,
        ("sha256", digests.sha256),
        digests.pieces,
        made.sources,
    ) and (not digests.pieces or found.piece_length_bytes == digests.piece_length_bytes)


@given(manifests())
@settings(max_examples=40)
def test_json_has_everything(manifest: FileManifest) -> None:
    document = json.loads(encode_json(manifest))
    assert document.pop("format") == "tidegate-manifest-1"
    assert [Source(**source) for source in document.pop("sources")] == list(manifest.sources)
    digests = manifest.digests
    assert [bytes.fromhex(one) for one in document.pop("pieces_sha256")] == list(digests.pieces)
    assert bytes.fromhex(document.pop("sha256")) == digests.sha256
    assert document.pop("name") == manifest.name
    assert document == {
        name: getattr(digests, name) for name in ("size_bytes", "piece_length_bytes")
    }


@given(st.lists(manifests(), min_size=1, max_size=3))
@settings(max_examples=40)
def test_metalink_survives_the_round_trip(files: list[FileManifest]) -> None:
    document = encode_metalink(files, origin="http://o/?x&y")
    assert all(same(a, b) for a, b in zip(decode_metalink(document), files, strict=True))
    assert document == encode_metalink(files, origin="http://o/?x&y")


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=30).filter(lambda n: b"\0" not in n and b"/" not in n),
            st.binary(min_size=32, max_size=32),
        ),
        max_size=5,
    )
)
@settings(max_examples=60)
def test_checksum_lists_survive_any_file_name(sums: list[tuple[bytes, bytes]]) -> None:
    assert decode_sums(encode_sums(sums)) == sums


def test_checksum_lists_are_read_in_both_spellings() -> None:
    hexed = ZERO.hex().encode()
    text = b"# c\n\n" + hexed + b" *a b\r\nSHA256 (c) = " + hexed + b"\n"
    assert decode_sums(text) == [(b"a b", ZERO), (b"c", ZERO)]
    with pytest.raises(BadManifest, match="Line 1"):
        decode_sums(b"nonsense\n")


def test_a_metalink_of_another_hand_is_read() -> None:
    document = b"""<?xml version="1.0"?>
    <metalink xmlns="urn:ietf:params:xml:ns:metalink" xmlns:x="urn:x">
     <x:other>1</x:other>
     <file name="dir/a.iso"><size>300000</size>
      <hash type="md5">00</hash><hash type="sha-256">%b</hash>
      <pieces length="1" type="sha-1"><hash>00</hash></pieces>
      <url>http://late/</url><url priority="1" location="fr"> http://first/ </url>
     </file></metalink>""" % ZERO.hex().encode()
    (file,) = decode_metalink(document)
    assert (file.name, file.size_bytes, file.pieces) == ("dir/a.iso", 300000, ())
    assert file.digest == ("sha256", ZERO)
    assert [s.url for s in file.sources] == ["http://first/", "http://late/"]


def test_the_strongest_digest_of_a_metalink_counts() -> None:
    sha1, sha512 = hashlib.sha1(b"").hexdigest(), hashlib.sha512(b"").hexdigest()
    document = f"""<metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="a"><size>2</size>
      <hash type="sha-1">{sha1}</hash><hash type="SHA-512">{sha512}</hash>
      <pieces length="1" type="sha-1"><hash>{sha1}</hash><hash>{sha1}</hash></pieces>
      </file></metalink>"""
    (file,) = decode_metalink(document.encode())
    assert file.digest == ("sha512", bytes.fromhex(sha512))
    assert (file.piece_algorithm, file.piece_length_bytes) == ("sha1", 1)
    assert file.pieces == (bytes.fromhex(sha1),) * 2


#: Each entity is ten of the one before: 10^7 times the last one's length.
BOMB = """<?xml version="1.0" encoding="UTF-16"?>
<!DOCTYPE metalink [<!ENTITY a "aaaaaaaaaa">{}]>
<metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="&g;"/></metalink>""".format(
    "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in pairwise("abcdefg"))
)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8"])
def test_no_encoding_hides_a_document_type(encoding: str) -> None:
    text = BOMB if encoding == "utf-16" else BOMB.replace("UTF-16", encoding.upper())
    with pytest.raises(BadManifest, match=r"document type|encodings are not"):
        decode_metalink(text.encode(encoding))


WRAP = b'<metalink xmlns="urn:ietf:params:xml:ns:metalink">%b</metalink>'


@pytest.mark.parametrize(
    "document",
    [
        b'<!DOCTYPE m [<!ENTITY a "b">]><m>&a;</m>',
        b'<!DOCTYPE m SYSTEM "file:///etc/passwd"><m/>',
        b"<m",
        b"",
        b"<other/>",
        WRAP % b"",
        WRAP % b'<file name="../../etc/passwd"/>',
        WRAP % b'<file name="/etc/passwd"/>',
        WRAP % b'<file name=""/>',
        WRAP % b"<file/>",
        WRAP % b'<file name="a"><size>-1</size></file>',
        WRAP % b'<file name="a"><size>99999999999999999999</size></file>',
        WRAP % b'<file name="a"><hash type="sha-256">zz</hash></file>',
        WRAP % b'<file name="a"><size>9</size><pieces type="sha-256" length="0"/></file>',
        WRAP % b'<file name="a"><url priority="x">u</url></file>',
        b"<a>" * 100 + b"</a>" * 100,
    ],
)
def test_a_hostile_metalink_is_refused(document: bytes) -> None:
    if b'length="0"' in document:
        # No piece at all is no fault: there is just nothing to check by.
        assert decode_metalink(document)[0].pieces == ()
        return
    with pytest.raises(BadManifest):
        decode_metalink(document)


@given(st.integers(0, 1 << 45))
@settings(max_examples=60)
def test_pieces_are_few_and_not_tiny(size: int) -> None:
    length = piece_length_for(size)
    assert length >= 256 * 1024
    assert -(-size // length) <= 1024
