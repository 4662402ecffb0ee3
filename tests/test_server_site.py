"""What a site answers: conditions, ranges, digests, listings, generated files and routes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet import defer

from tests.http_bench import OLD_S, Answer, Bench, Client, Dialled
from tests.open_files import SILENT
from tidegate.policies.keep_alive import KEEP_ALIVE
from tidegate.protocol.headers import EntityTag, parse_links, parse_repr_digest
from tidegate.protocol.manifest import Source, decode_metalink, decode_sums
from tidegate.server.files.openfile import OpenFile
from tidegate.server.files.response_plans import range_counts
from tidegate.server.files.transfer import (
    BodyPlan,
    Representation,
    StartBody,
    Transfer,
    TransferListener,
)
from tidegate.server.http.answers import Header
from tidegate.server.http.request import Request
from tidegate.server.torrent.metainfo import CannotMake, MetainfoStore
from tidegate.server.torrent.room import TorrentRoom
from tidegate.server.torrent.settings import TorrentSettings

BODY = bytes(range(256)) * 20
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"
EARLIER = "Tue, 14 Nov 2023 22:13:19 GMT"
LATER = "Tue, 14 Nov 2023 22:13:21 GMT"
BIG = bytes(os.urandom(1024)) * 300


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.write("a.bin", BODY)
    made.write("big.bin", BIG)
    made.write("empty", b"")
    made.write("sub/x.txt", b"hello")
    return made


def etag_of(bench: Bench, target: str = "/a.bin") -> str:
    tag = bench.connect().get(target).text("etag")
    assert tag is not None
    return tag


def test_a_file_comes_whole_with_all_that_describes_it(bench: Bench) -> None:
    client = bench.connect()
    for _ in range(3):
        answer = client.get("/a.bin")
        assert (answer.status, answer.body) == (200, BODY)
        assert answer.text("content-type") == "application/octet-stream"
        assert answer.text("accept-ranges") == "bytes"
        assert answer.text("last-modified") == DATE
        assert answer.text("x-content-type-options") == "nosniff"
        assert answer.text("content-encoding") is None
        assert re.fullmatch('"[0-9a-f]{24}"', answer.text("etag") or "")


def test_large_and_empty_files_come_whole_too(bench: Bench) -> None:
    client = bench.connect()
    client.send(b"GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    while not Answer(client.wire.value()).whole:
        bench.clock.advance(0)
    assert Answer(client.taken()).body == BIG
    answer = client.get("/empty")
    assert (answer.status, answer.body, answer.text("content-length")) == (200, b"", "0")


def test_the_entity_tag_survives_a_restart_and_changes_with_the_content(bench: Bench) -> None:
    first = etag_of(bench)
    assert etag_of(Bench(bench.root)) == first
    bench.write("a.bin", BODY + b"x")
    assert etag_of(bench) != first


@pytest.mark.parametrize("target", ["/a.bin", "/big.bin", "/empty", "/sub/", "/SHA256SUMS"])
def test_head_says_what_get_says(bench: Bench, target: str) -> None:
    bench.connect().get(target)
    client = bench.connect()
    client.send(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    for _ in range(20):
        bench.clock.advance(0)
    get = Answer(client.taken())
    head = client.get(target, method="HEAD")
    # Asking is what makes a digest known, so the later answer may know more.
    drop = b"Repr-Digest"
    assert [f for f in head.fields if f[0] != drop] == [f for f in get.fields if f[0] != drop]


CONDITIONS: list[tuple[dict[str, str], int]] = [
    ({"If-Match": "ETAG"}, 200),
    ({"If-Match": '"x", ETAG'}, 200),
    ({"If-Match": "*"}, 200),
    ({"If-Match": '"x"'}, 412),
    ({"If-Match": "W/ETAG"}, 412),
    ({"If-Match": "nonsense"}, 412),
    ({"If-None-Match": "ETAG"}, 304),
    ({"If-None-Match": "W/ETAG"}, 304),
    ({"If-None-Match": "*"}, 304),
    ({"If-None-Match": '"x"'}, 200),
    ({"If-Modified-Since": DATE}, 304),
    ({"If-Modified-Since": LATER}, 304),
    ({"If-Modified-Since": EARLIER}, 200),
    ({"If-Modified-Since": "nonsense"}, 200),
    ({"If-Unmodified-Since": DATE}, 200),
    ({"If-Unmodified-Since": EARLIER}, 412),
    ({"If-Unmodified-Since": "nonsense"}, 200),
    ({"If-Match": "ETAG", "If-Unmodified-Since": EARLIER}, 200),
    ({"If-None-Match": '"x"', "If-Modified-Since": DATE}, 200),
    ({"If-None-Match": "ETAG", "If-Modified-Since": EARLIER}, 304),
    ({"If-Match": '"x"', "If-None-Match": "ETAG"}, 412),
    ({"If-Match": "ETAG", "If-None-Match": "ETAG"}, 304),
    ({"If-None-Match": "ETAG", "Range": "bytes=0-1"}, 304),
    ({"If-Match": '"x"', "Range": "bytes=0-1"}, 412),
]


@pytest.mark.parametrize(("age_s", "counts"), [(0.0, False), (0.9, False), (1.0, True)])
def test_a_date_within_its_own_second_and_a_weak_tag_resume_nothing(
    age_s: float, counts: bool
) -> None:
    """Two contents may share them (RFC 9110, 8.8.2.2 and 13.1.5)."""
    mtime_s = 784_111_777
    dated = {b"if-range": b"Sun, 06 Nov 1994 08:49:37 GMT"}
    assert range_counts(dated, EntityTag("a"), mtime_s, mtime_s + age_s) is counts
    weak = EntityTag("a", weak=True)
    assert not range_counts({b"if-range": b'W/"a"'}, weak, mtime_s, mtime_s + age_s)
    assert range_counts({b"if-range": b'"a"'}, EntityTag("a"), mtime_s, mtime_s + age_s)


@pytest.mark.parametrize(("headers", "status"), CONDITIONS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_conditions_are_judged_in_the_order_of_the_rfc(
    bench: Bench, headers: dict[str, str], status: int, method: str
) -> None:
    etag = etag_of(bench)
    filled = {name: value.replace("ETAG", etag) for name, value in headers.items()}
    answer = bench.connect().get("/a.bin", filled, method)
    assert answer.status == status
    assert answer.text("etag") == etag
    if status == 304:
        assert answer.text("content-length") is None
        assert answer.text("last-modified") == DATE


RANGES: list[tuple[str, dict[str, str], int, tuple[int, int] | None]] = [
    ("bytes=0-0", {}, 206, (0, 1)),
    ("bytes=100-", {}, 206, (100, 5120)),
    ("bytes=-20", {}, 206, (5100, 5120)),
    ("bytes=0-", {}, 206, (0, 5120)),
    ("bytes=5-99999", {}, 206, (5, 5120)),
    ("bytes=9-5", {}, 200, None),
    ("pages=1-2", {}, 200, None),
    ("bytes=1-2", {"If-Range": "ETAG"}, 206, (1, 3)),
    ("bytes=1-2", {"If-Range": "W/ETAG"}, 200, None),
    ("bytes=1-2", {"If-Range": '"x"'}, 200, None),
    ("bytes=1-2", {"If-Range": DATE}, 206, (1, 3)),
    ("bytes=1-2", {"If-Range": LATER}, 200, None),
    ("bytes=1-2", {"If-Range": EARLIER}, 200, None),
    ("bytes=1-2", {"If-Range": "nonsense"}, 200, None),
    ("bytes=99999-", {"If-Range": '"x"'}, 200, None),
]


@pytest.mark.parametrize(("value", "more", "status", "span"), RANGES)
def test_ranges_and_if_range(
    bench: Bench, value: str, more: dict[str, str], status: int, span: tuple[int, int] | None
) -> None:
    etag = etag_of(bench)
    headers = {"Range": value, **{k: v.replace("ETAG", etag) for k, v in more.items()}}
    client = bench.connect()
    answer = client.get("/a.bin", headers)
    assert answer.status == status
    assert answer.whole
    if span is None:
        assert answer.body == BODY
        assert answer.text("content-range") is None
    else:
        start, end = span
        assert answer.body == BODY[start:end]
        assert answer.text("content-range") == f"bytes {start}-{end - 1}/{len(BODY)}"
    # A HEAD never has ranges (RFC 9110, 14.2).
    assert client.get("/a.bin", {"Range": "bytes=0-0"}, "HEAD").status == 200


@pytest.mark.parametrize("value", ["bytes=5120-", "bytes=-0", "bytes=9999-10000"])
def test_a_range_beyond_the_end_is_told_the_size(bench: Bench, value: str) -> None:
    answer = bench.connect().get("/a.bin", {"Range": value})
    assert answer.status == 416
    assert answer.text("content-range") == "bytes */5120"
    assert json.loads(answer.body)["type"].endswith("/range-not-satisfiable")


def test_an_empty_file_ignores_ranges(bench: Bench) -> None:
    assert bench.connect().get("/empty", {"Range": "bytes=0-"}).status == 200


def test_several_ranges_come_as_parts(bench: Bench) -> None:
    answer = bench.connect().get("/a.bin", {"Range": "bytes=0-9, 1000-1009, -10"})
    assert answer.status == 206
    assert answer.whole
    kind = answer.text("content-type") or ""
    assert kind.startswith("multipart/byteranges; boundary=")
    boundary = kind.rpartition("=")[2].encode()
    parts = answer.body.split(b"--" + boundary)
    # zsync wants a line end before the first boundary, too.
    assert (parts[0], parts[-1]) == (b"\r\n", b"--\r\n")
    got = []
    for part in parts[1:-1]:
        head, _, body = part.partition(b"\r\n\r\n")
        match = re.search(rb"Content-Range: bytes (\d+)-(\d+)/5120", head)
        assert match
        got.append((int(match[1]), int(match[2])))
        assert body[:-2] == BODY[int(match[1]) : int(match[2]) + 1]
    assert got == [(0, 9), (1000, 1009), (5110, 5119)]


def test_a_digest_is_told_once_known_and_at_once_when_wanted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write("a.bin", BODY)
    sha256 = hashlib.sha256(BODY).digest()
    wanted = bench.connect().get("/a.bin", {"Want-Repr-Digest": "sha-256=5"})
    assert parse_repr_digest(wanted.text("repr-digest") or "") == {"sha-256": sha256}
    for headers, told in [
        ({}, True),
        ({"Want-Repr-Digest": "sha-256=0"}, False),
        ({"Want-Repr-Digest": "sha-512=9"}, True),
        ({"Want-Repr-Digest": "nonsense"}, True),
        ({"Range": "bytes=0-1"}, True),
    ]:
        answer = bench.connect().get("/a.bin", headers)
        assert (answer.text("repr-digest") is not None) is told, headers


def test_an_answer_in_memory_learns_its_digest_and_a_changed_file_is_seen_at_once(
    bench: Bench,
) -> None:
    client = bench.connect()
    client.get("/a.bin")
    assert client.get("/a.bin").text("repr-digest") is not None
    bench.write("a.bin", b"new")
    answer = client.get("/a.bin")
    assert answer.body == b"new"
    assert answer.text("content-length") == "3"
    digest = parse_repr_digest(client.get("/a.bin").text("repr-digest") or "")
    assert digest == {"sha-256": hashlib.sha256(b"new").digest()}
    os.unlink(bench.root / "a.bin")
    assert client.get("/a.bin").status == 404


def test_a_small_file_is_known_from_its_second_request_on_and_never_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    bench.write("a.bin", b"old")

    def planned(parts: Sequence[bytes]) -> OpenFile:
        raise AssertionError(f"{parts} was opened for a plan")

    monkeypatch.setattr(bench.site.tree, "open", planned)
    answers = []
    for is_known in (False, True, True):
        client = Dialled(bench)
        answers.append(client.get("/a.bin"))
        assert (bench.site.known(b"/a.bin") is not None) is is_known
    assert answers[0].endswith(b"old")
    assert len(set(answers)) == 1
    bench.write("a.bin", b"new one")
    monkeypatch.undo()
    assert Dialled(bench).get("/a.bin").endswith(b"new one")
    Dialled.hang_up()


def test_mirrors_and_the_metalink_are_named_in_links(tmp_path: Path) -> None:
    bench = Bench(tmp_path, mirrors=[Source("http://m1/r/", 2), Source("http://m2/", 1)])
    bench.write("a b.iso", b"x")
    links = parse_links(bench.connect().get("/a%20b.iso").text("link") or "")
    assert links[0].target == "/a%20b.iso.meta4"
    assert links[0].parameters["type"] == "application/metalink4+xml"
    assert [(link.target, link.parameters["pri"]) for link in links[1:]] == [
        ("http://m1/r/a%20b.iso", "2"),
        ("http://m2/a%20b.iso", "1"),
    ]
    (file,) = decode_metalink(bench.connect().get("/a%20b.iso.meta4").body)
    assert [s.url for s in file.sources] == [
        "http://m2/a%20b.iso",
        "http://m1/r/a%20b.iso",
        "http://h/a%20b.iso",
    ]


def test_generated_files_describe_the_real_ones(bench: Bench) -> None:
    client = bench.connect()
    sums = decode_sums(client.get("/SHA256SUMS").body)
    assert dict(sums) == {
        name.encode(): hashlib.sha256((bench.root / name).read_bytes()).digest()
        for name in ("a.bin", "big.bin", "empty")
    }
    answer = client.get("/big.bin.manifest.json")
    manifest = json.loads(answer.body)
    length = manifest["piece_length_bytes"]
    pieces = [hashlib.sha256(BIG[i : i + length]) for i in range(0, len(BIG), length)]
    assert manifest["pieces_sha256"] == [piece.hexdigest() for piece in pieces]
    metalink = client.get("/big.bin.meta4")
    assert metalink.text("content-type") == "application/metalink4+xml"
    assert decode_metalink(metalink.body)[0].pieces == tuple(p.digest() for p in pieces)
    tag = metalink.text("etag") or ""
    assert client.get("/big.bin.meta4", {"If-None-Match": tag}).status == 304
    names = [file.name for file in decode_metalink(client.get("/index.meta4").body)]
    assert names == ["a.bin", "big.bin", "empty"]
    assert [f.name for f in decode_metalink(client.get("/sub.meta4").body)] == ["x.txt"]
    for target in ("/none.meta4", "/none/SHA256SUMS", "/.meta4", "/none.manifest.json"):
        assert client.get(target).status == 404
    bench.write("SHA256SUMS", b"by hand")
    assert client.get("/SHA256SUMS").body == b"by hand"


def test_a_client_that_waits_too_long_for_a_digest_is_told_to_come_back(bench: Bench) -> None:
    from twisted.internet import defer

    bench.catalog._cache.find = lambda key: defer.Deferred()  # type: ignore[method-assign]
    client = bench.connect()
    client.send(b"GET /SHA256SUMS HTTP/1.1\r\nHost: h\r\n\r\n")
    assert client.taken() == b""
    bench.tick(11)
    answer = Answer(client.taken())
    assert (answer.status, answer.text("retry-after")) == (503, "5")


def test_a_directory_is_redirected_to_its_slash_and_never_elsewhere(bench: Bench) -> None:
    client = bench.connect()
    answer = client.get("/sub?sort=size")
    assert (answer.status, answer.text("location")) == (301, "/sub/?sort=size")
    answer = client.get("//sub")
    assert (answer.status, answer.text("location")) == (301, "/sub/")
    (bench.root / "evil.example").mkdir()
    assert client.get("//evil.example").text("location") == "/evil.example/"


def test_a_listing_for_programs(bench: Bench) -> None:
    client = bench.connect()
    client.get("/a.bin")
    big = None
    for target, headers in [
        ("/", {"Accept": "application/json"}),
        ("/?format=json", {"Accept": "text/html"}),
    ]:
        answer = client.get(target, headers)
        assert answer.text("content-type") == "application/json"
        document = json.loads(answer.body)
        assert [e["name"] for e in document["entries"]] == ["a.bin", "big.bin", "empty", "sub"]
        first = document["entries"][0]
        assert first == {
            "name": "a.bin",
            "type": "file",
            "size_bytes": 5120,
            "modified": "2023-11-14T22:13:20Z",
            "sha256": hashlib.sha256(BODY).hexdigest(),
            "url": "/a.bin",
        }
        # The first listing has it computed for the next one.
        assert document["entries"][1]["sha256"] == big
        big = hashlib.sha256((bench.root / "big.bin").read_bytes()).hexdigest()
        assert document["entries"][3]["url"] == "/sub/"


def test_a_listing_for_people_is_sorted_by_links_and_leads_up(bench: Bench) -> None:
    client = bench.connect()
    page = client.get("/?sort=size&order=desc").body.decode()
    assert page.index('href="big.bin"') < page.index('href="a.bin"') < page.index('href="empty"')
    assert 'aria-sort="descending"' in page
    assert 'href="?sort=size&amp;order=asc"' in page
    assert "307 kB" in page
    sub = client.get("/sub/").body.decode()
    assert 'href="../"' in sub
    assert 'aria-current="page">sub<' in sub
    assert client.get("/sub/?sort=nonsense&order=x&format=%00").status == 200


EVIL = [
    b"<script>alert(1)</script>.txt",
    b'"><img src=x onerror=alert(1)>.whl',
    b"javascript:alert(1)",
    b"a\nb",
    b"{{ 7*7 }}",
    b"\xff\xfe",
    b"%2e%2e",
    b"a?b#c;d&e",
    "ü 😀".encode(),
]


def test_no_file_name_becomes_markup_or_another_address(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in EVIL:
        with open(os.path.join(os.fsencode(tmp_path), name.replace(b"/", b"_")), "wb") as stream:
            stream.write(name)
    client = bench.connect()
    page = client.get("/").body.decode()
    assert "<script" not in page
    assert "<img" not in page
    assert "{{ 7*7 }}" in page
    hrefs = re.findall(r'<span class="name"><a href="([^"]*)"', page)
    assert len(hrefs) == len(EVIL)
    for href in hrefs:
        assert re.fullmatch(r"[A-Za-z0-9%._~-]+(#sha256=[0-9a-f]{64})?", href)
    bodies = {client.get("/" + href).body for href in hrefs}
    assert bodies == set(EVIL)
    entries = json.loads(client.get("/?format=json").body)["entries"]
    assert {client.get(entry["url"]).body for entry in entries} == set(EVIL)
    policy = client.get("/").text("content-security-policy") or ""
    assert "default-src 'self'" in policy


def test_an_index_page_is_served_where_there_is_one(bench: Bench) -> None:
    bench.write("sub/index.html", b"<p>mine</p>")
    client = bench.connect()
    answer = client.get("/sub/")
    assert answer.body == b"<p>mine</p>"
    assert answer.text("content-type") == "text/html; charset=utf-8"
    assert b"index.html" in client.get("/sub/?format=html").body
    assert client.get("/sub/?format=json").text("content-type") == "application/json"


METHODS = [
    ("POST", "/a.bin", 405),
    ("PUT", "/a.bin", 405),
    ("DELETE", "/a.bin", 405),
    ("PATCH", "/a.bin", 405),
    ("TRACE", "/a.bin", 405),
    ("PROPFIND", "/a.bin", 405),
    ("OPTIONS", "/a.bin", 204),
    ("OPTIONS", "*", 204),
    ("GET", "*", 400),
    ("POST", "/-/here", 405),
    ("OPTIONS", "/-/here", 204),
]


@pytest.mark.parametrize(("method", "target", "status"), METHODS)
def test_other_methods_are_refused_with_what_is_allowed(
    bench: Bench, method: str, target: str, status: int
) -> None:
    bench.site.add_route("/-/here", lambda request: request.respond(200))
    answer = bench.connect().get(target, method=method)
    assert answer.status == status
    if status != 400:
        assert "GET" in (answer.text("allow") or "")


def test_routes_take_the_longest_prefix(bench: Bench) -> None:
    for prefix in ("/-/a", "/-/a/b"):
        bench.site.add_route(
            prefix, lambda request, p=prefix: request.respond(200, [], p.encode()), ["GET", "POST"]
        )
    client = bench.connect()
    assert client.get("/-/a").body == b"/-/a"
    assert client.get("/-/a/x/y").body == b"/-/a"
    assert client.get("/-/a/b/c", method="POST").body == b"/-/a/b"
    assert client.get("/-/ab").status == 404
    assert client.get("/-/").status == 404
    for wrong in ("/a", "/-/a/", "-/a"):
        with pytest.raises(ValueError, match="route"):
            bench.site.add_route(wrong, lambda request: None)


class Gatekeeper:
    """An admission that keeps everybody waiting until told otherwise."""

    share = None

    def __init__(self) -> None:
        self.waiting: list[tuple[Request, Representation, BodyPlan, StartBody]] = []
        self.ended: list[tuple[Transfer, bool]] = []

    def is_plain(self, url_path: str) -> bool:
        return True

    def admit_small(self, request: Request, rep: Representation, body_bytes: int) -> bool:
        return False

    def enter(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody
    ) -> None:
        self.waiting.append((request, rep, plan, start))

    def may_end(self, go_on: Callable[[], None]) -> bool:
        return True

    def moves(self) -> None:
        pass

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        self.ended.append((transfer, complete))


def test_an_admission_may_start_a_body_later_and_add_its_fields(tmp_path: Path) -> None:
    keeper = Gatekeeper()
    bench = Bench(tmp_path, admission=keeper)
    bench.write("a.bin", BODY)
    client = bench.connect()
    client.send(b"GET /a.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    assert client.taken() == b""
    request, rep, plan, start = keeper.waiting.pop()
    assert (rep.url_path, rep.size_bytes, plan.status, plan.ranges) == (
        "/a.bin",
        5120,
        200,
        ((0, 5120),),
    )
    listener: TransferListener = keeper
    headers: Sequence[Header] = [(b"Tidegate-Ticket", b"t")]
    transfer = start(listener, headers)
    answer = Answer(client.taken())
    assert (answer.body, answer.text("tidegate-ticket")) == (BODY, "t")
    assert keeper.ended == [(transfer, True)]
    assert transfer.sent_bytes == transfer.total_bytes == 5120
    assert request.finished


def test_a_transfer_pauses_resumes_and_tells_when_its_peer_leaves(tmp_path: Path) -> None:
    keeper = Gatekeeper()
    bench = Bench(tmp_path, admission=keeper, bandwidth_bytes_s=2_000_000)
    bench.write("big.bin", BIG)
    client = bench.connect()
    client.send(b"GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    transfer = keeper.waiting.pop()[3](keeper)
    transfer.pause()
    transfer.pause()
    for _ in range(5):
        bench.clock.advance(0.02)
    sent = transfer.sent_bytes
    # What its program needs to live, and nothing else for a while.
    assert 0 < sent <= KEEP_ALIVE.burst_bytes
    for _ in range(50):
        bench.clock.advance(0.02)
    assert transfer.sent_bytes == sent
    transfer.resume()
    bench.clock.advance(0.02)
    assert transfer.sent_bytes > sent
    client.leave()
    assert keeper.ended == [(transfer, False)]
    transfer.resume()
    transfer.abort("late")
    assert keeper.ended == [(transfer, False)]


def test_a_file_that_changes_in_place_while_it_is_sent_cuts_the_connection(
    tmp_path: Path,
) -> None:
    keeper = Gatekeeper()
    bench = Bench(tmp_path, admission=keeper, bandwidth_bytes_s=2_000_000)
    path = bench.write("big.bin", BIG)
    client = bench.connect()
    client.send(b"GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    transfer = keeper.waiting.pop()[3](keeper)
    bench.clock.advance(0.02)
    assert 0 < transfer.sent_bytes < len(BIG)
    with open(path, "r+b") as stream:
        stream.write(b"other")
    bench.clock.advance(0.02)
    assert client.wire.aborted
    assert keeper.ended == [(transfer, False)]
    assert not Answer(client.taken()).whole


def test_a_file_that_is_replaced_while_it_is_sent_arrives_as_it_was(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write("big.bin", BIG)
    client = bench.connect()
    client.send(b"GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    bench.clock.advance(0)
    os.rename(bench.write("new", b"other" * 1000), bench.root / "big.bin")
    while not Answer(client.wire.value()).whole:
        bench.clock.advance(0)
    assert Answer(client.taken()).body == BIG
    assert client.get("/big.bin").body == b"other" * 1000


def test_a_capped_server_shares_its_bandwidth_and_small_answers_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path, bandwidth_bytes_s=100_000)
    bench.write("big.bin", BIG)
    clients = [bench.connect() for _ in range(2)]
    for client in clients:
        client.send(b"GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    for _ in range(100):
        bench.clock.advance(0.01)
    first, second = (len(client.wire.value()) for client in clients)
    assert 80_000 < first + second < 150_000
    assert abs(first - second) < 12_000
    clients[0].leave()
    before = second
    for _ in range(100):
        bench.clock.advance(0.01)
    assert 80_000 < len(clients[1].wire.value()) - before < 120_000


def test_nothing_is_told_to_the_silent_listener(tmp_path: Path) -> None:
    keeper = Gatekeeper()
    bench = Bench(tmp_path, admission=keeper)
    bench.write("a.bin", BODY, OLD_S)
    client = bench.connect()
    client.send(b"GET /a.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    assert keeper.waiting.pop()[3](SILENT).sent_bytes == 5120


def test_nothing_is_opened_under_a_hidden_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there took six times as long to be refused as what was not."""
    opened: list[list[bytes]] = []
    find = bench.tree.open

    def open_(parts: list[bytes]) -> OpenFile:
        opened.append(parts)
        return find(parts)

    monkeypatch.setattr(bench.tree, "open", open_)
    bench.visible.hides = lambda url_path: url_path.startswith("/sub")
    client = bench.connect()
    for target in ("/sub/x.txt", "/sub/nothing", "/./sub//x.txt", "/%73ub/x.txt", "/sub/", "/sub"):
        for _ in range(2):
            assert client.get(target).status == 404, target
    assert opened == []
    bench.visible.hides = lambda url_path: False
    assert client.get("/sub/x.txt").status == 200


@pytest.mark.parametrize("asked", ["/link.txt", "/folder/x.txt"])
def test_a_link_that_is_moved_after_it_was_followed_shows_nothing_hidden(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """One answer in ten had what is hidden while a link was moved all the time."""
    root = Path(os.fsdecode(bench.tree.root))
    link, hidden, shown = {
        "/link.txt": (root / "link.txt", "sub/x.txt", "a.bin"),
        "/folder/x.txt": (root / "folder", "sub", "other"),
    }[asked]
    (root / "other").mkdir()
    (root / "other" / "x.txt").write_text("other")
    link.symlink_to(shown)
    find = bench.tree.open

    def open_(parts: list[bytes]) -> OpenFile:
        link.unlink()
        link.symlink_to(hidden)
        found = find(parts)
        link.unlink()
        link.symlink_to(shown)
        return found

    # As the rules judge: by the name, and by where its links lead now.
    bench.visible.hides = lambda path: "/sub" in (path[:4], bench.tree.real_url(path)[:4])
    client = bench.connect()
    with monkeypatch.context() as moving:
        moving.setattr(bench.tree, "open", open_)
        assert client.get(asked).status == 404
    assert client.get(asked).status == 200


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("/link.txt.meta4", 404),
        ("/link.txt.manifest.json", 404),
        ("/folder/x.txt.meta4", 404),
        ("/folder/?format=json", 200),
        ("/folder/SHA256SUMS", 200),
        ("/folder/index.meta4", 200),
        ("/folder.meta4", 200),
        ("/inner/?format=json", 200),
        ("/inner/SHA256SUMS", 200),
        ("/inner/", 200),
    ],
)
def test_what_describes_files_tells_nothing_hidden_while_a_link_is_moved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, asked: str, status: int
) -> None:
    root = Path(os.fsdecode(bench.tree.root))
    secret = b"nobody may read this yet"
    (root / "other").mkdir()
    (root / "inner").mkdir()
    (root / "sub" / "x.txt").write_bytes(secret)
    (root / "other" / "x.txt").write_text("other")
    (root / "other" / "plain.txt").write_text("other")
    links = {
        root / "link.txt": ("sub/x.txt", "other/x.txt"),
        root / "folder": ("sub", "other"),
        root / "inner" / "README.txt": ("../sub/x.txt", "../other/x.txt"),
    }

    def move(to: int) -> None:
        for link, ends in links.items():
            link.unlink(missing_ok=True)
            link.symlink_to(ends[to])

    def while_moved(work: Callable[..., Any]) -> Callable[..., Any]:
        def moved(parts: list[bytes]) -> Any:
            move(0)
            try:
                return work(parts)
            finally:
                move(1)

        return moved

    move(1)
    bench.visible.hides = lambda path: "/sub" in (path[:4], bench.tree.real_url(path)[:4])
    client = bench.connect()
    with monkeypatch.context() as moving:
        for name in ("open", "entries"):
            moving.setattr(bench.tree, name, while_moved(getattr(bench.tree, name)))
        answer = client.get(asked)
    assert answer.status == status
    digest = hashlib.sha256(secret).hexdigest().encode()
    assert digest not in answer.body
    assert secret not in answer.body
    if status == 200:
        # What lies there is named only where it was judged: not by sizes of what is hidden.
        assert b'"size_bytes":%d' % len(secret) not in answer.body
        assert b"x.txt" not in answer.body
    bench.tick(1)
    assert client.get(asked).status == 200


def test_no_torrent_is_made_of_what_a_moved_link_led_to(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(os.fsdecode(bench.tree.root))
    link = root / "link.txt"
    find = bench.tree.open
    made: list[bytes] = []

    class Store:
        def want(self, file: OpenFile) -> defer.Deferred[None]:
            made.append(file.rep.path)
            return defer.fail(CannotMake())

    def open_(parts: list[bytes]) -> OpenFile:
        link.unlink(missing_ok=True)
        link.symlink_to("sub/x.txt")
        try:
            return find(parts)
        finally:
            link.unlink()
            link.symlink_to("a.bin")

    TorrentRoom(
        bench.clock,
        TorrentSettings(),
        bench.site,
        cast(MetainfoStore, Store()),
        lambda url_path, size_bytes: True,
        random.Random(1),
        bench.clock.seconds,
    )
    link.symlink_to("a.bin")
    bench.visible.hides = lambda path: "/sub" in (path[:4], bench.tree.real_url(path)[:4])
    client = bench.connect()
    with monkeypatch.context() as moving:
        moving.setattr(bench.tree, "open", open_)
        assert client.get("/link.txt.torrent").status == 404
    assert made == []
    assert client.get("/a.bin.torrent").status == 503
    assert made == [b"a.bin"]


def test_what_is_hidden_until_its_hour_is_nowhere(bench: Bench) -> None:
    client = bench.connect()
    assert client.get("/a.bin").status == client.get("/sub/x.txt").status == 200
    client.get("/SHA256SUMS")
    bench.visible.hides = lambda path: path.startswith(("/a", "/sub"))
    bench.site.forget_all()
    bench.tick(1)
    for target in ("/a.bin", "/%61.bin", "/a.bin.meta4", "/a.bin.manifest.json"):
        for method in ("GET", "HEAD"):
            assert client.get(target, method=method).status == 404, target
    for target in ("/sub/", "/sub/x.txt", "/sub.meta4", "/sub/SHA256SUMS", "/sub/index.meta4"):
        assert client.get(target).status == 404, target
    for target in ("/", "/?format=json", "/SHA256SUMS", "/index.meta4"):
        body = client.get(target).body
        assert b"big.bin" in body
        assert b"a.bin" not in body
        assert b"sub" not in body


def waiting(bench: Bench, keeper: Gatekeeper, dripped: int, fields: bytes = b"") -> Client:
    client = bench.connect()
    client.send(b"GET /big.bin HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n")
    if dripped:
        keeper.waiting[0][0].drip(dripped, b"X-Wait", b"1")
    return client


def written_over(path: Path, content: bytes, mtime_s: int) -> None:
    with open(path, "r+b") as stream:
        stream.write(content)
        stream.truncate()
    os.utime(path, (mtime_s, mtime_s))


@pytest.mark.parametrize("dripped", [0, 200])
def test_a_client_that_waited_has_the_file_that_was_written_over_meanwhile(
    tmp_path: Path, dripped: int
) -> None:
    keeper = Gatekeeper()
    bench = Bench(tmp_path, admission=keeper)
    path = bench.write("big.bin", BIG)
    client = waiting(bench, keeper, dripped)
    written_over(path, BIG[:200_001], OLD_S + 5)
    keeper.waiting.pop()[3](keeper)
    assert [complete for _, complete in keeper.ended] == [False]
    _, rep, plan, start = keeper.waiting.pop()
    assert (rep.size_bytes, plan.status) == (200_001, 200)
    start(keeper)
    while not Answer(client.wire.value()).whole:
        bench.clock.advance(0)
    answer = Answer(client.taken())
    assert (answer.body, answer.text("etag")) == (BIG[:200_001], rep.etag)
    assert [complete for _, complete in keeper.ended] == [False, True]


@pytest.mark.parametrize("dripped", [0, 200])
def test_a_file_that_is_written_again_and_again_is_not_planned_for_ever(
    tmp_path: Path, dripped: int
) -> None:
    keeper = Gatekeeper()
    bench = Bench(tmp_path, admission=keeper)
    path = bench.write("big.bin", BIG)
    client = waiting(bench, keeper, dripped)
    for change in range(2):
        written_over(path, BIG, OLD_S + 5 + change)
        keeper.waiting.pop()[3](keeper)
    assert not keeper.waiting
    if dripped:
        assert client.wire.aborted
    else:
        answer = Answer(client.taken())
        assert (answer.status, answer.text("retry-after")) == (503, "1")


@pytest.mark.parametrize("dripped", [0, 206])
def test_a_resume_that_waited_is_never_of_another_content(tmp_path: Path, dripped: int) -> None:
    keeper = Gatekeeper()
    bench = Bench(tmp_path, admission=keeper)
    path = bench.write("big.bin", BIG)
    tag = bench.connect().get("/big.bin", method="HEAD").text("etag")
    assert tag is not None
    fields = b"Range: bytes=9-\r\nIf-Range: " + tag.encode() + b"\r\n"
    client = waiting(bench, keeper, dripped, fields)
    written_over(path, BIG[:-1], OLD_S + 5)
    for _ in range(2):
        keeper.waiting.pop()[3](keeper)
    if dripped:
        # Its status line said that the old content goes on. Its program asks again.
        assert client.wire.aborted
    else:
        while not Answer(client.wire.value()).whole:
            bench.clock.advance(0)
        answer = Answer(client.taken())
        assert (answer.status, answer.body) == (200, BIG[:-1])


def test_requests_that_wait_for_the_same_file_share_its_fields_and_plan(tmp_path: Path) -> None:
    """Each had a copy of 1.5 KB while it waited."""
    keeper = Gatekeeper()
    bench = Bench(tmp_path, admission=keeper)
    bench.write("a.bin", BODY)
    for lines in (b"", b"", b"Range: bytes=1-9\r\n", b"Range: bytes=2-9\r\n"):
        bench.connect().send(b"GET /a.bin HTTP/1.1\r\nHost: h\r\n%b\r\n" % lines)
    one, same, part, other = (plan for _, _, plan, _ in keeper.waiting)
    assert one is same
    shared = {id(field) for field in one.headers}
    for plan in (part, other):
        assert len([field for field in plan.headers if id(field) not in shared]) == 2
        assert plan.status == 206
