"""Open files: what the server asks of the system, and what it promises on that."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from tidegate.server.app import resources
from tidegate.server.app.config import CannotStart
from tidegate.server.app.resources import affordable, kept_files
from tidegate.server.files.tree import Overloaded, Tree
from tidegate.server.http.limits import HttpLimits


@pytest.mark.parametrize(
    ("asked", "files", "most"),
    [
        (10_000, 262_144, 10_000),
        (0, 262_144, 261_244),
        (10_000, 1024, 472),
        (0, 1024, 472),
        (100, 1024, 100),
        (9, 10, 9),
    ],
)
def test_no_more_connections_than_open_files_carry(asked: int, files: int, most: int) -> None:
    limits = affordable(HttpLimits(max_connections=asked), files)
    assert limits.max_connections == most
    assert 1 <= limits.max_refusals <= max(1, (files - most) // 4)


@pytest.mark.parametrize("files", [128, 256, 1024, 4096, 262_144])
def test_connections_and_kept_files_leave_room_for_the_servers_own(files: int) -> None:
    limits = affordable(HttpLimits(max_connections=0), files)
    taken = limits.max_connections + limits.max_refusals + kept_files(files)
    # The database, its log, listeners, threads, and child processes.
    assert files - taken >= 28


@pytest.mark.parametrize(("asked", "told"), [(0, True), (100, False), (900, False), (5000, True)])
def test_a_bound_that_the_system_sets_is_said(
    asked: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, int]] = []
    for level in ("info", "warn"):
        monkeypatch.setattr(resources._log, level, lambda text, **values: said.append(values))
    affordable(HttpLimits(max_connections=asked), 1024)
    assert said == ([{"most": 472, "files": 1024}] if told else [])


def test_the_soft_limit_goes_up_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: told.append(pair))
    assert resources.raise_limit() == 4096
    assert told == [(4096, 4096)]


def test_a_server_with_too_few_open_files_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for files in (127, 128):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        if files == 127:
            with pytest.raises(CannotStart, match="open files is 127, and a server needs 128"):
                resources.raise_limit()
        else:
            assert resources.raise_limit() == 128


def test_a_file_that_cannot_be_opened_now_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    tree = Tree(str(tmp_path))

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("tidegate.server.files.tree.open_beneath", full)
    monkeypatch.setattr(os, "dup", full)
    with pytest.raises(Overloaded) as told:
        tree.open([b"file"])
    assert told.value.status == 503
    monkeypatch.undo()
    assert tree.open([b"file"]).rep.size_bytes == 1
    tree.close()
