"""Compressed files beside a file are representations of it, chosen by Accept-Encoding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http_bench import OLD_S, Answer, Bench, Dialled
from tidegate.server.files.precompressed import CODINGS, accepted

TEXT = b"plain " * 100
BODIES = {ending.decode(): f"as {coding}".encode() for coding, ending in CODINGS.items()}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    for name in ("notes.txt", "alone.txt", "pack.deb"):
        bench.write(name, TEXT)
    for ending, body in BODIES.items():
        bench.write("notes.txt" + ending, body)
        bench.write("pack.deb" + ending, body)
    yield bench
    Dialled.hang_up()


def get(bench: Bench, path: str = "/notes.txt", accept: str | None = "gzip", **more: str) -> Answer:
    fields = {name.replace("_", "-"): value for name, value in more.items()}
    if accept is not None:
        fields["Accept-Encoding"] = accept
    client = bench.connect()
    try:
        return client.get(path, fields)
    finally:
        client.leave()


@pytest.mark.parametrize(
    ("accept", "ending"),
    [
        ("gzip, deflate, br, zstd", ".zst"),
        ("gzip, br", ".br"),
        ("gzip", ".gz"),
        ("X-GZIP", ".gz"),
        ("br;q=0.5, gzip;q=0.6", ".gz"),
        ("zstd;q=0, *;q=0.1", ".br"),
        ("gzip;q=0.5, identity", None),
        ("deflate", None),
        ("", None),
        (None, None),
    ],
)
def test_the_coding_that_a_client_likes_best_is_sent(
    bench: Bench, accept: str | None, ending: str | None
) -> None:
    for _ in range(3):
        answer = get(bench, accept=accept)
        assert answer.body == (TEXT if ending is None else BODIES[ending])
        codings = {ending.decode(): coding for coding, ending in CODINGS.items()}
        assert answer.text("content-encoding") == (None if ending is None else codings[ending])
        assert answer.text("content-type") == "text/plain; charset=utf-8"
        assert answer.text("vary") == "Accept-Encoding"


def test_each_has_its_own_tag_and_is_unchanged_under_it(bench: Bench) -> None:
    plain, packed = get(bench, accept=None), get(bench)
    tags = plain.text("etag"), packed.text("etag")
    assert None not in tags
    assert tags[0] != tags[1]
    unchanged = get(bench, If_None_Match=str(tags[1]))
    assert (unchanged.status, unchanged.body, unchanged.text("etag")) == (304, b"", tags[1])
    assert unchanged.text("vary") == "Accept-Encoding"
    assert unchanged.text("content-encoding") is None
    assert get(bench, If_None_Match=str(tags[0])).body == BODIES[".gz"]
    assert get(bench, accept=None, If_None_Match=str(tags[1])).body == TEXT
    assert get(bench, If_Match=str(tags[0])).status == 412


def test_a_range_is_of_the_plain_file_unless_the_condition_names_another(bench: Bench) -> None:
    plain, packed = get(bench, accept=None), get(bench)
    by_plain = get(bench, Range="bytes=1-2", If_Range=str(plain.text("etag")))
    by_packed = get(bench, Range="bytes=1-2", If_Range=str(packed.text("etag")))
    none = get(bench, Range="bytes=1-2")
    assert [one.status for one in (by_plain, by_packed, none)] == [206, 206, 206]
    assert by_plain.body == none.body == TEXT[1:3]
    assert by_packed.body == BODIES[".gz"][1:3]
    assert by_packed.text("content-encoding") == "gzip"
    assert none.text("content-encoding") is None


def test_what_is_compressed_by_its_name_or_stands_alone_does_not_vary(bench: Bench) -> None:
    for path in ("/pack.deb", "/alone.txt", "/notes.txt.gz"):
        answer = get(bench, path)
        assert answer.text("vary") is None
        assert answer.text("content-encoding") is None
    assert get(bench, "/notes.txt.gz").text("content-type") == "application/gzip"


def test_an_older_hidden_or_secret_one_is_not_sent(bench: Bench, tmp_path: Path) -> None:
    os.utime(tmp_path / "notes.txt.gz", (OLD_S - 1, OLD_S - 1))
    bench.visible.hides = lambda url_path: url_path.endswith(".br")
    assert get(bench).body == TEXT
    assert get(bench, accept="br, gzip").body == TEXT
    assert get(bench, accept="br, zstd;q=0.1").body == BODIES[".zst"]
    bench.visible.keeps_secret = lambda url_path: url_path.endswith(".zst")
    assert get(bench, accept="br, zstd;q=0.1").body == TEXT


def test_no_request_of_a_known_shape_is_answered_without_its_coding(bench: Bench) -> None:
    client = Dialled(bench)
    for _ in range(4):
        assert Answer(client.get("/notes.txt", Accept_Encoding="br")).body == BODIES[".br"]
        assert Answer(client.get("/notes.txt")).body == TEXT


def test_one_that_comes_later_is_sent_within_two_seconds(bench: Bench) -> None:
    client = Dialled(bench)
    for _ in range(4):
        assert Answer(client.get("/alone.txt", Accept_Encoding="gzip")).body == TEXT
    bench.write("alone.txt.gz", b"new")
    client.get("/alone.txt", Accept_Encoding="gzip")
    bench.tick(2)
    assert Answer(client.get("/alone.txt", Accept_Encoding="gzip")).body == b"new"


_WEIGHTS = ("", ";q=1", "; Q=1.000", ";q=0.5", " ; q=0.25", ";q=0", ";q=0.000", ";q=2", ";q=x")
_WORTH = dict(zip(_WEIGHTS, (1, 1, 1, 0.5, 0.25, 0, 0, 0, 0), strict=True))


@given(
    st.dictionaries(
        st.sampled_from([*CODINGS, "*", "identity", "deflate"]), st.sampled_from(_WEIGHTS)
    ).flatmap(lambda known: st.permutations(list(known.items()))),
    st.booleans(),
)
def test_weights_decide_and_then_our_order(members: list[tuple[str, str]], upper: bool) -> None:
    text = ", ".join(name + weight for name, weight in members)
    worth = {name: _WORTH[weight] for name, weight in members}
    found = accepted((text.upper() if upper else text).encode())
    of = {coding: worth.get(coding, worth.get("*", 0)) for coding in CODINGS}
    assert set(found) == {
        coding for coding in CODINGS if of[coding] > 0 and of[coding] >= worth.get("identity", 0)
    }
    assert list(found) == sorted(found, key=lambda one: (-of[one], list(CODINGS).index(one)))


@given(st.binary(max_size=60) | st.text("gzip brztd;q=,.*019 ²", max_size=60).map(str.encode))
def test_any_bytes_are_read_as_some_codings_of_ours(value: bytes) -> None:
    found = accepted(value)
    assert set(found) <= set(CODINGS)
    assert len(set(found)) == len(found)
