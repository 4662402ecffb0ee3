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
