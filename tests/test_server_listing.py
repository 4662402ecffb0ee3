"""Listings of large directories: pages, and a bounded price whatever clients invent."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.http_bench import Bench
from tests.open_files import Visible
from tidegate.server.files import listing
from tidegate.server.files.directory_cache import REUSE_FACTOR, DirectoryCache
from tidegate.server.files.tree import NotHere, Tree


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

    class SlowClock:
        now = 1000.0

        def seconds(self) -> float:
            return self.now

    clock, tree, reads = SlowClock(), Tree(str(tmp_path)), []
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


def test_a_folder_in_which_all_stays_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, look, reads = Tree(str(tmp_path)), Visible(), []
    clock = Clock()
    real = tree.entries

    def entries(parts: list[bytes]) -> Any:
        reads.append(parts)
        return real(parts)

    monkeypatch.setattr(tree, "entries", entries)
    folders = DirectoryCache(tree, look, clock)

    def shown() -> tuple[list[tuple[bytes, int]], int]:
        """What a look shows a minute later, and how often the folder was read for it."""
        clock.advance(60)
        reads.clear()
        found = [(entry.name, entry.size_bytes) for entry in folders.entries([b"in"])]
        return found, len(reads)

    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("x")
    both = [(b"a", 1), (b"b", 1)]
    assert [shown() for _ in range(4)] == [(both, 1), (both, 1), (both, 0), (both, 0)]
    # A rule, and its end.
    look.hides = lambda url_path: url_path == "/in/a"
    assert shown() == ([(b"b", 1)], 0)
    look.keeps_secret = lambda url_path: url_path == "/in/b"
    assert shown() == ([], 0)
    look.hides = look.keeps_secret = lambda url_path: False
    assert shown() == (both, 0)
    # A content that is written in place leaves its folder as it was.
    (folder / "a").write_text("more")
    assert shown() == ([(b"a", 4), (b"b", 1)], 1)
    (folder / "c").symlink_to("a")
    assert [shown()[1] for _ in range(4)] == [1] * 4, "what a link leads to is looked at"
    (folder / "c").unlink()
    (folder / "a").unlink()
    assert shown() == ([(b"b", 1)], 1)
    (folder / "b").unlink()
    folder.rmdir()
    with pytest.raises(NotHere):
        shown()
    tree.close()


def test_a_name_that_comes_within_the_same_time_stamp_is_shown(tmp_path: Path) -> None:
    tree, clock = Tree(str(tmp_path)), Clock()
    folders = DirectoryCache(tree, Visible(), clock)
    (tmp_path / "a").write_text("x")
    status = tmp_path.stat()
    for name in ("b", "c"):
        assert b"a" in [entry.name for entry in folders.entries([])]
        (tmp_path / name).write_text("x")
        os.utime(tmp_path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert name.encode() in [entry.name for entry in folders.entries([])]
        clock.advance(0.01)
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
