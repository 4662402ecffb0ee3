"""The manifest, its differences, the scan with its cache, and the channel's index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirror_trees import Tree, digest_of, edited_pairs, open_update, trees

from tidegate.protocol.channel import Edge, Index, Version, decode_index, encode_index, prune, route
from tidegate.protocol.errors import BadManifest
from tidegate.protocol.tree import (
    Entry,
    check_path,
    decode_entry,
    encode_entry,
    encode_row,
    first_clash,
    from_row,
    in_order,
    leads_out,
    name_some,
    order_key,
    to_row,
)
from tidegate.protocol.tree_diff import Difference, change_to_row, merge
from tidegate.protocol.tree_scan import (
    GRAIN_NS,
    Cached,
    Found,
    Seen,
    Stamp,
    decode_cached,
    encode_cached,
)
from tidegate.protocol.tree_scan import scan as scan_disk

VECTORS = Path(__file__).parent / "vectors" / "mirror.json"


@given(trees())
def test_entries_survive_the_line(tree: Tree) -> None:
    entries = tree.entries()
    assert [decode_entry(encode_entry(entry)) for entry in entries] == entries
    # However it is spelled, and one spelling only.
    assert [encode_entry(entry) for entry in entries] == [encode_row(to_row(e)) for e in entries]
    loose = [json.dumps(to_row(entry), indent=1).encode() for entry in entries]
    assert [decode_entry(line) for line in loose] == entries
    assert list(in_order(entries)) == entries


@given(edited_pairs())
def test_changes_put_back_into_the_old_tree_give_the_new_one(pair: tuple[Tree, Tree]) -> None:
    old, new = pair[0].entries(), pair[1].entries()
    rows = [change_to_row(change) for change in Difference(old, new).changes()]
    rows = json.loads(json.dumps(rows))
    assert [change.entry for change in merge(old, rows)] == new
    if old == new:
        assert rows == []


@pytest.mark.parametrize("path", ["../up", "a/../b", "/etc/passwd", "a//b", "a/", ".", "a\0b", 7])
def test_paths_that_could_lead_out_are_refused(path: object) -> None:
    with pytest.raises(BadManifest):
        check_path(path)


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("latest", "9.0", False),
        ("latest", "./9.0/", False),
        ("a/b/link", "../../c/d", False),
        ("a/b/link", "../..", False),
        ("a/b/link", "../../..", True),
        ("link", "..", True),
        ("link", "/etc/passwd", True),
        ("link", "//etc", True),
        ("a/link", ".././../etc", True),
        # `a/b` may be a link to a folder that lies higher than it seems.
        ("c/link", "../a/b/../../x", True),
        ("link", "..x/...", False),
    ],
)
def test_links_that_could_lead_out_are_known(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out


def test_names_in_a_sentence_are_few() -> None:
    assert name_some(["a", "b"]) == "'a', 'b'"
    assert name_some([str(number) for number in range(7)]).endswith("'4' and 2 more")


@pytest.mark.parametrize(
    "row",
    [
        ["f", "a", 0o644, 0, -1, "0" * 64],
        ["f", "a", 0o644, 0, 1, "0" * 63],
        ["f", "a", 0o10644, 0, 1, "0" * 64],
        ["f", "a", True, 0, 1, "0" * 64],
        ["l", "a", 0o777, 0, ""],
        ["h", "a", "b"],
        ["h", "a", "a"],
        ["p", "a", 0o644, 0],
        ["d", "a"],
        {},
    ],
)
def test_malformed_entries_are_refused(row: object) -> None:
    with pytest.raises(BadManifest):
        decode_entry(json.dumps(row).encode())


def test_nothing_can_stand_below_a_link() -> None:
    rows = [Entry("d", ""), Entry("l", "a", target="/etc"), Entry("d", "a/b")]
    with pytest.raises(BadManifest, match="in no directory"):
        list(in_order(rows))


def test_the_order_keeps_directories_together() -> None:
    paths = ["a-b", "a/b", "a", "a/b/c", "a.b", "a/-"]
    assert sorted(paths, key=order_key) == ["a", "a/-", "a/b", "a/b/c", "a-b", "a.b"]


def test_case_clashes_are_found_within_a_directory_only() -> None:
    entries = [Entry("d", ""), Entry("d", "A"), Entry("f", "A/x"), Entry("d", "b")]
    assert first_clash([*entries, Entry("f", "b/X")]) is None
    assert first_clash([*entries, Entry("f", "b/X"), Entry("f", "b/x")]) == ("b/X", "b/x")


class FakeDisk:
    """A flat directory; counts what is read."""

    def __init__(self, files: dict[str, tuple[Stamp, bytes]]) -> None:
        self.files = files
        self.read: list[str] = []

    def root(self) -> Found:
        return Found("", "d", 0o755, Stamp(0, 5, 5, 1, 1))

    def list(self, path: str) -> Iterator[Found]:
        for name, (stamp, _) in self.files.items():
            yield Found(name, "f", 0o644, stamp)

    def digest(self, path: str, found: Found) -> tuple[Stamp, str]:
        self.read.append(path)
        stamp, content = self.files[path]
        return stamp, hashlib.sha256(content).hexdigest()


def scan(disk: FakeDisk, cache: list[Cached], now_ns: int) -> tuple[list[Entry], list[Cached]]:
    kept: list[Cached] = []
    seen = Seen()
    entries = list(scan_disk(disk, cache, kept.append, now_ns, seen=seen))
    assert seen.read_files == len(disk.read)
    return entries, kept


def test_the_cache_spares_reading_until_a_stamp_changes() -> None:
    later = 100 * GRAIN_NS
    disk = FakeDisk({"b": (Stamp(1, 10, 10, 2, 1), b"b"), "a": (Stamp(1, 10, 10, 3, 1), b"a")})
    first, cache = scan(disk, [], later)
    assert disk.read == ["a", "b"]
    disk.read.clear()
    assert scan(disk, cache, later)[0] == first
    assert disk.read == []
    # Same size, same mtime, other content: the ctime tells.
    disk.files["b"] = (Stamp(1, 10, 11, 2, 1), b"B")
    changed, _ = scan(disk, cache, later)
    assert disk.read == ["b"]
    assert digest_of(changed) != digest_of(first)


def test_a_stamp_within_the_clocks_grain_is_not_believed() -> None:
    disk = FakeDisk({"a": (Stamp(1, 10, 5 * GRAIN_NS, 3, 1), b"a")})
    assert scan(disk, [], 5 * GRAIN_NS + 1)[1] == []
    assert len(scan(FakeDisk(disk.files), [], 7 * GRAIN_NS)[1]) == 1


@given(st.integers(0, 2**60), st.integers(-(2**60), 2**60), st.text(min_size=1, max_size=5))
def test_cache_lines_survive(size: int, time_ns: int, name: str) -> None:
    line = Cached(
        name.replace("/", "_").replace(".", "_").replace("\0", "_"),
        Stamp(size, time_ns, time_ns, size, 1),
        "a" * 64,
    )
    assert decode_cached(encode_cached(line)) == line


def index_of(latest: int, edges: list[tuple[int, int, int]], window: int = 10) -> Index:
    versions = tuple(Version(n, "0" * 64, 1, 1, 1) for n in range(1, latest + 1))
    return Index("main", versions, tuple(Edge(a, b, size, window) for a, b, size in edges))


def hops(index: Index, have: int, window: int = 10) -> list[tuple[int, int]] | None:
    found = route(index, have, window)
    return None if found is None else [(edge.from_version, edge.to_version) for edge in found]


def test_the_route_with_the_fewest_bytes_is_taken() -> None:
    index = index_of(4, [(0, 1, 100), (1, 2, 5), (2, 3, 5), (3, 4, 5), (0, 3, 90)])
    assert hops(index, 4) == []
    assert hops(index, 1) == [(1, 2), (2, 3), (3, 4)]
    assert hops(index, 0) == [(0, 3), (3, 4)]
    assert hops(index, 99) == [(0, 3), (3, 4)]
    costly = index_of(4, [(0, 1, 100), (1, 2, 50), (2, 3, 50), (3, 4, 5), (0, 3, 90)])
    assert hops(costly, 1) == [(0, 3), (3, 4)]
    assert hops(costly, 1, window=9) is None


def test_pruning_keeps_a_way_for_new_and_recent_mirrors() -> None:
    edges = [(0, 1, 100), *((n, n + 1, 10) for n in range(1, 9)), (0, 6, 100)]
    kept = prune(index_of(9, edges), keep=3)
    assert [version.version for version in kept.versions] == [6, 7, 8, 9]
    assert hops(kept, 0) == [(0, 6), (6, 7), (7, 8), (8, 9)]
    assert hops(kept, 7) == [(7, 8), (8, 9)]
    assert decode_index(encode_index(kept)) == kept


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":9}', b"\xff", b'{"format":[]}']
)
def test_an_unreadable_index_is_named(data: bytes) -> None:
    with pytest.raises(BadManifest):
        decode_index(data)


def test_golden_update_is_read_the_same_for_ever() -> None:
    vectors = json.loads(VECTORS.read_text())
    update = open_update(bytes.fromhex(vectors["update"]))
    update.verify()
    assert update.header.before == vectors["before"]
    assert list(update.rows()) == vectors["rows"]
    old = [decode_entry(line.encode()) for line in vectors["old"]]
    assert digest_of(old) == vectors["before"]
    new = [change.entry for change in merge(old, update.rows())]
    assert [encode_entry(e).decode() for e in new if e] == vectors["new"]
    assert digest_of([e for e in new if e]) == vectors["after"]


@pytest.mark.parametrize(
    "mode",
    [
        [0o644],
        [0o644, {}],
        [0o644, {"user.a": "not base64!"}],
        [0o644, {"user.a": 5}],
        [0o644, {"security.capability": "AAAA"}],
        [0o644, {"user.b": "", "user.a": ""}],
        [0o644, {"user.a": "A" * 60_000}],
        [0o644, {"user.a\0": ""}],
        ["0644", {"user.a": ""}],
    ],
)
def test_attributes_that_may_not_travel_are_refused(mode: object) -> None:
    from_row(["d", "a", [0o755, {"user.a": "AAAA"}], 1])
    for row in (["f", "a", mode, 1, 0, "0" * 64], ["d", "a", mode, 1]):
        with pytest.raises(BadManifest):
            from_row(row)
    with pytest.raises(BadManifest):
        from_row(["l", "a", [0o777, {"user.a": ""}], 1, "b"])
