"""Digests: computed once, the most wanted first, and never at the price of serving."""

from __future__ import annotations

import hashlib
import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import defer
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from bench import http_peers
from tests.http_bench import Bench
from tests.open_files import MemoryDigestCache
from tidegate.protocol.manifest import FileDigests
from tidegate.server.files import digests as module
from tidegate.server.files.digest_warmup import DigestWarmup
from tidegate.server.files.digests import DigestService, FileChanged, Stopped, digest_file
from tidegate.server.files.openfile import OpenFile
from tidegate.server.files.touched import Touched
from tidegate.server.files.tree import Tree
from tidegate.server.http.clock import pause


def opened(root: Path, **sizes: int) -> dict[str, OpenFile]:
    tree = Tree(str(root), show_hidden=False)
    files = {}
    for name, size in sizes.items():
        with (root / name).open("wb") as stream:
            stream.truncate(size)
        files[name] = tree.open([name.encode()])
    return files


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> dict[str, defer.Deferred[Any]]:
    """Files that a thread is hashing: fire the Deferred to end one."""
    running: dict[str, defer.Deferred[Any]] = {}

    def start(service: DigestService, work: Any) -> Any:
        (file,) = work.args
        return running.setdefault(file.rep.path.decode(), defer.Deferred())

    monkeypatch.setattr(DigestService, "behind_others", start)
    return running


def test_long_files_leave_one_thread_to_short_ones(
    tmp_path: Path, at_work: dict[str, defer.Deferred[Any]]
) -> None:
    files = opened(tmp_path, long1=1 << 30, long2=1 << 30, short=1000)
    catalog = DigestService(Clock(), MemoryDigestCache(), threads=2)
    catalog.ask(files["long1"])
    catalog.ask(files["long2"])
    assert list(at_work) == ["long1"]
    catalog.ask(files["short"])
    assert list(at_work) == ["long1", "short"]
    at_work["long1"].errback(FileChanged())
    assert list(at_work) == ["long1", "short", "long2"]


def test_a_flood_of_files_keeps_few_of_them_open(
    tmp_path: Path, at_work: dict[str, defer.Deferred[Any]]
) -> None:
    files = opened(tmp_path, **{f"f{n}": 10 + n for n in range(module._MOST_ASKED + 20)})
    catalog = DigestService(Clock(), MemoryDigestCache(), threads=2)
    for file in files.values():
        catalog.ask(file)
    assert catalog.pending == module._MOST_ASKED + 2
    last = files[f"f{module._MOST_ASKED + 19}"]
    catalog.want(last).addErrback(lambda _: None)
    assert catalog.pending == module._MOST_ASKED + 3


def test_a_file_touched_again_while_it_is_read_is_read_again(
    tmp_path: Path, at_work: dict[str, defer.Deferred[Any]]
) -> None:
    file = opened(tmp_path, big=1 << 24)["big"]
    catalog = DigestService(Clock(), MemoryDigestCache(), threads=2)
    catalog.want(file)
    digests = FileDigests(1 << 24, b"d" * 32, 1 << 24, (b"d" * 32,))
    at_work.pop("big").callback(digests)
    told: list[bool] = []
    os.utime(tmp_path / "big", (1, 1))
    Touched(catalog).still(file).addCallback(told.append)
    os.utime(tmp_path / "big", (2, 2))
    at_work.pop("big").errback(FileChanged())
    assert not told
    at_work.pop("big").callback(digests)
    assert told == [True]
    assert file.unchanged()
    os.utime(tmp_path / "big", (3, 3))
    Touched(catalog).still(file).addCallback(told.append)
    at_work.pop("big").callback(FileDigests(1 << 24, b"e" * 32, 1 << 24, (b"e" * 32,)))
    assert told == [True, False]


def test_what_is_cheap_to_hash_is_not_kept(tmp_path: Path) -> None:
    files = opened(tmp_path, small=1000, large=1_000_000)
    cache = MemoryDigestCache()
    catalog = DigestService(Clock(), cache, threads=0)
    for file in files.values():
        catalog.ask(file)
        known = catalog.known(file.rep.key)
        assert known is not None
        assert known.sha256 == hashlib.sha256(bytes(file.rep.size_bytes)).digest()
    assert [key.size_bytes for key in cache.kept] == [1_000_000]


def test_hashing_ends_when_the_server_does(tmp_path: Path) -> None:
    file = opened(tmp_path, huge=1 << 40)["huge"]
    with pytest.raises(Stopped):
        digest_file(file, iter([False, False, True]).__next__)


def test_hashing_leaves_the_processor_to_others() -> None:
    done = threading.Event()
    niceness: list[int] = []
    clock: Any = Clock()
    clock.callFromThread = lambda *call: done.set()
    catalog = DigestService(clock, MemoryDigestCache(), threads=1)

    def work(stopped: object) -> None:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    catalog.behind_others(work)
    assert done.wait(10.0)
    catalog.stop()
    assert niceness[0] > os.getpriority(os.PRIO_PROCESS, 0)


def test_the_walk_over_a_tree_goes_in_pieces_and_leaves_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    for number in range(150):
        bench.write(f"{number}.txt", b"%d" % number)
    for number in range(30):
        bench.write(f"deep/er/{number}.bin", bytes(100_000 + number))
    bench.write("long.iso", bytes(300_000))
    bench.write(".hidden", b"nobody asks for it")
    root = Path(os.fsdecode(bench.tree.root))
    (root / "deep" / "round").symlink_to(root)
    (root / "linked.txt").symlink_to("deep/er/0.bin")
    os.mkfifo(root / "pipe")
    survey = DigestWarmup(bench.clock, bench.tree, bench.catalog)
    pauses = [0]

    def counted(reactor: Any, delay_s: float) -> defer.Deferred[None]:
        assert delay_s > 0
        pauses.append(len(bench.catalog._known))
        return pause(reactor)

    monkeypatch.setattr("tidegate.server.files.digest_warmup.pause", counted)
    with capturedLogs() as logged:
        survey.start()
        bench.clock.advance(0)
    assert not survey.running
    # The benches wait for these words.
    assert [formatEvent(event) for event in logged] == [http_peers.WALKED]
    assert max(later - sooner for sooner, later in pairwise([*pauses, 181])) <= 65
    small = [entry for folder in ([], [b"deep", b"er"]) for entry in bench.tree.entries(folder)]
    files = {entry.key: entry.name for entry in small if not entry.is_directory}
    assert len(files) == 181 == len(bench.catalog._known)
    for key in files:
        found = bench.catalog.known(key)
        assert found is not None
        assert found.size_bytes == key.size_bytes
    assert len(pauses) > 181 / 64 + 2

    # A second walk finds nothing to hash, and stops where it is told to.
    before = dict(bench.catalog._known)
    monkeypatch.setattr("tidegate.server.files.digest_warmup.digest_open", None)
    with capturedLogs() as logged:
        survey.start()
        survey.stop()
        bench.clock.advance(0)
    assert not survey.running
    assert not logged
    assert bench.catalog._known == before


def test_a_weak_tag_names_no_earlier_content(
    tmp_path: Path, at_work: dict[str, defer.Deferred[Any]]
) -> None:
    file = opened(tmp_path, big=1 << 24)["big"]
    catalog = DigestService(Clock(), MemoryDigestCache(), threads=2)
    catalog.want(file)
    at_work.pop("big").callback(FileDigests(1 << 24, b"d" * 32, 1 << 24, (b"d" * 32,)))
    touched = Touched(catalog)
    touched.serves(file.rep)
    os.utime(tmp_path / "big", (1, 1))
    now = file.as_it_is()
    assert now is not None
    tag = file.rep.etag.encode()
    assert touched.named({b"if-range": tag}, now.rep) == file.rep
    assert touched.named({b"if-range": b"W/" + tag}, now.rep) is None
