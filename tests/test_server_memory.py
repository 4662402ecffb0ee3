"""How much memory small files may take: by what there is, by what was asked for, by process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.server.app import resources
from tidegate.server.app.resources import small_files_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("usable", "processes", "expected"),
    [
        (512 * MIB, 1, 32 * MIB),
        (4096 * MIB, 1, 64 * MIB),
        (4096 * MIB, 4, 32 * MIB),
        (1 << 40, 1, 256 * MIB),
        (1 << 40, 2, 128 * MIB),
    ],
)
def test_it_is_a_part_of_what_there_is(
    monkeypatch: pytest.MonkeyPatch, usable: int, processes: int, expected: int
) -> None:
    monkeypatch.setattr(resources, "_usable_bytes", lambda: usable)
    assert small_files_bytes(None, processes) == expected


def test_what_was_asked_for_counts_over_all_processes() -> None:
    assert small_files_bytes(100 * MIB, 4) == 25 * MIB
    assert small_files_bytes(0, 1) == 0


@pytest.mark.parametrize(
    ("bound", "expected"), [("max\n", 64 * MIB), (f"{3072 * MIB}\n", 48 * MIB), (None, 64 * MIB)]
)
def test_a_bound_below_the_machines_memory_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bound: str | None, expected: int
) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "cgroup").write_text("0::/unit\n")
    if bound is not None:
        (tmp_path / "unit" / "memory.max").write_text(bound)
    places = {"/sys/fs/cgroup": tmp_path, "/proc/self/cgroup": tmp_path / "cgroup"}
    monkeypatch.setattr(resources, "Path", lambda name: places[name])
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert small_files_bytes(None, 1) == expected
