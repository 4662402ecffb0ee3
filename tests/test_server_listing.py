"""Listings of large directories: pages, and a bounded price whatever clients invent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.http_bench import Bench
from tests.open_files import Visible
from tidegate.server.files import listing
from tidegate.server.files.directory_cache import REUSE_FACTOR, DirectoryCache
from tidegate.server.files.tree import Tree


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(listing, "_ROWS", 10)
    made = Bench(tmp_path)
    for number in range(25):
        made.write(f"many/f{number:02}", b"x" * number)
    return made


def names(page: bytes) -> list[str]:
    return re.findall(r'href="(f\d\d)"', page.decode())


def test_a_long_listing_has_pages_and_json_has_all(bench: Bench) -> None:
    client = bench.connect()
    first = client.get("/many/").body
    assert names(first) == [f"f{n:02}" for n in range(10)]
    assert b"Files: 25" in first
    assert b"Page 1 of 3" in first
    assert b'rel="next"' in first
    assert b'rel="prev"' not in first
    last = client.get("/many/?page=3&sort=size&order=desc").body
    assert names(last) == ["f04", "f03", "f02", "f01", "f00"]
    assert b'rel="next"' not in last
    assert b"sort=size&amp;order=desc&amp;page=2" in last
    entries = json.loads(client.get("/many/?format=json").body)["entries"]
    assert len(entries) == 25


@pytest.mark.parametrize("page", ["0", "-1", "x", "", "999999999999999999999", "²"])
def test_a_page_that_is_none_is_the_nearest_one(bench: Bench, page: str) -> None:
    answer = bench.connect().get("/many/?page=" + page)
    assert answer.status == 200
    assert names(answer.body)


def test_the_commands_name_the_server_as_the_client_did(bench: Bench) -> None:
    for host, shown in (("a.example:81", b"http://a.example:81/"), ("a$(b)", b"http://SERVER/")):
        client = bench.connect()
        request = f"GET /many/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        page = client.ask(request).body
        assert b"tidegate get " + shown in page
        assert b".invalid" not in page
        assert b"$(" not in page


def test_what_was_dear_to_read_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")

    class Clock:
        now = 1000.0

        def seconds(self) -> float:
            return self.now

    clock, tree, reads = Clock(), Tree(str(tmp_path)), []
    real = tree.entries

    def slow(parts: list[bytes]) -> Any:
        reads.append(parts)
        clock.now += 0.5
        return real(parts)

    monkeypatch.setattr(tree, "entries", slow)
    folders = DirectoryCache(tree, Visible(), clock)
    for _ in range(5):
        assert [entry.name for entry in folders.entries([])] == [b"file"]
    assert len(reads) == 1
    clock.now += 0.5 * REUSE_FACTOR
    folders.entries([])
    assert len(reads) == 2
    folders.forget()
    folders.entries([])
    assert len(reads) == 3
    tree.close()


def test_a_page_is_rendered_anew_once_its_folder_shows_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    rendered: list[str] = []
    real = bench.site._listings._pages.render

    def render(template: str, **values: Any) -> bytes:
        rendered.append(values["directory_url"])
        return real(template, **values)

    monkeypatch.setattr(bench.site._listings._pages, "render", render)
    folders = [f"/{number}/" for number in range(100)]
    for folder in folders:
        bench.write(f"{folder[1:]}a.bin", b"x")
    client = bench.connect()
    for folder in folders:
        client.get(folder)
    for _ in range(3):
        bench.clock.advance(30)
        for folder in folders:
            assert b"a.bin" in client.get(folder).body
    # Digests have become known since the first time; the clock stood still meanwhile.
    assert len(rendered) <= 2 * len(folders)
    rendered.clear()
    bench.write("7/b.bin", b"y")
    bench.clock.advance(30)
    assert b"b.bin" in client.get("/7/").body
    assert rendered == ["/7/"]
    client.leave()


def test_pages_that_are_kept_have_a_bound(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(300):
        bench.write(f"{number}.bin", b"x")
    client = bench.connect()
    for number in range(400):
        client.get(f"/?q=&page={number}")
    listings = bench.site._listings
    assert listings._kept_bytes == sum(len(kept.body) for kept in listings._kept.values())
    assert len(listings._kept) < 400
    assert listings._kept_bytes <= 16 << 20
    client.leave()
