"""Known files are compared when the kernel tells of a change, and once a second."""

from __future__ import annotations

import gc
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.http_bench import OLD_S, Answer, Bench, Dialled
from tidegate.server.files import folder_watch
from tidegate.server.files.folder_watch import FolderWatch
from tidegate.server.files.tree import Tree

OLD, NEW = b"old", b"new"


def watch_of(root: Path) -> FolderWatch:
    """The kernel gives a user 128 of these: those of sites that other tests are done with go."""
    watch = FolderWatch(bytes(root) + b"/")
    for _ in range(50):
        if watch.fd >= 0:
            break
        gc.collect()
        time.sleep(0.2)
        watch = FolderWatch(bytes(root) + b"/")
    return watch


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "first/sub").mkdir(parents=True)
    (tmp_path / "first/sub/a.bin").write_bytes(OLD)
    (tmp_path / "root").symlink_to("first")
    watch_of(tmp_path / "root")  # There is one now, and it goes at once.
    yield Bench(tmp_path / "root")
    Dialled.hang_up()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Each path that was compared."""
    found: list[bytes] = []
    has = Tree.has

    def noted(self: Tree, path: bytes, key: object) -> bool:
        found.append(path)
        return has(self, path, key)  # type: ignore[arg-type]

    monkeypatch.setattr(Tree, "has", noted)
    return found


def body(client: Dialled) -> bytes:
    return Answer(client.get("/sub/a.bin")).body


def known(bench: Bench) -> Dialled:
    """A client that was given the file again and again."""
    client = Dialled(bench)
    assert [body(client) for _ in range(5)] == [OLD] * 5
    return client


def _in_place(root: Path) -> None:
    (root / "sub/a.bin").write_bytes(NEW)


def _renamed(root: Path) -> None:
    (root / "b").write_bytes(NEW)
    (root / "b").rename(root / "sub/a.bin")


def _folder(root: Path) -> None:
    (root / "sub").rename(root / "away")
    (root / "sub").mkdir()
    (root / "sub/a.bin").write_bytes(NEW)


def _root(root: Path) -> None:
    """A mirror switches whole trees."""
    (root.parent / "second/sub").mkdir(parents=True)
    (root.parent / "second/sub/a.bin").write_bytes(NEW)
    (root.parent / "next").symlink_to("second")
    (root.parent / "next").rename(root)


@pytest.mark.parametrize("change", [_in_place, _renamed, _folder, _root])
def test_a_file_is_compared_once_until_it_changes(
    bench: Bench, looks: list[bytes], change: Callable[[Path], None]
) -> None:
    client = known(bench)
    looks.clear()
    assert {body(client) for _ in range(50)} == {OLD}
    assert not looks
    change(bench.root)
    assert body(client) == NEW
    assert {body(client) for _ in range(5)} == {NEW}
    bench.clock.advance(0.02)
    _in_place(bench.root)
    (bench.root / "sub/a.bin").write_bytes(b"last")
    assert body(client) == b"last", "what is there now is watched, too"


@pytest.mark.parametrize("pause_s", [0.02, 5.0])
def test_what_the_kernel_does_not_tell_is_found_within_a_second(
    bench: Bench, tmp_path: Path, pause_s: float
) -> None:
    (tmp_path / "elsewhere").mkdir()
    os.link(bench.root / "sub/a.bin", tmp_path / "elsewhere/hard")
    client = known(bench)
    (tmp_path / "elsewhere/hard").write_bytes(NEW)
    for _ in range(51):
        bench.clock.advance(pause_s)
        found = body(client)
    assert found == NEW


def test_each_answer_is_compared_where_nothing_is_watched(
    tmp_path: Path, looks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch._libc, "inotify_init1", lambda flags: -1)
    bench = Bench(tmp_path)
    bench.write("sub/a.bin", OLD)
    client = known(bench)
    looks.clear()
    assert {body(client) for _ in range(5)} == {OLD}
    assert len(looks) == 5
    Dialled.hang_up()


def test_a_folder_that_changes_all_the_time_wakes_the_loop_once(bench: Bench) -> None:
    client = known(bench)
    waits = select.poll()
    waits.register(bench.front, select.POLLIN)
    bench.write("sub/other", NEW, OLD_S)
    assert waits.poll(0)
    client.turn()
    bench.write("sub/other", OLD, OLD_S)
    assert not waits.poll(0)
    bench.clock.advance(0.02)
    assert body(client) == OLD
    bench.write("sub/other", NEW, OLD_S)
    assert waits.poll(0), "told again after a turn"


def test_only_so_many_folders_are_watched_which_may_be_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, "_MOST_WATCHES", 4)
    watch = watch_of(tmp_path)
    for name in "abcdef":
        (tmp_path / name).mkdir()
    assert [watch.watches(name.encode()) for name in "abcdef"] == [True] * 3 + [False] * 3
    assert not watch.watches(b"none")
    (tmp_path / "f/new").write_bytes(NEW)
    assert not select.select([watch.fd], [], [], 0)[0]
    for name in "ab":
        (tmp_path / name).rmdir()
    assert select.select([watch.fd], [], [], 0)[0]
    watch.read()
    assert [watch.watches(name.encode()) for name in "def"] == [True, True, False]
    (tmp_path / "c").rename(tmp_path / "g")
    watch.read()
    assert [watch.watches(name.encode()) for name in "gde"] == [True, True, True]
    (tmp_path / "e/new").write_bytes(NEW)
    assert select.select([watch.fd], [], [], 0)[0]
