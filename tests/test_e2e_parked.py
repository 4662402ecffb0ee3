"""Parked requests on a real server: nobody who waits inside its request is forgotten."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.installed import TIDEGATE
from tests.running import make_release, serving, sha256, wait_for

pytestmark = pytest.mark.e2e


def test_twelve_curls_and_four_clients_of_one_machine_all_get_their_files(tmp_path: Path) -> None:
    """They share client keys, so some share downloads and tickets."""
    names = ["a.bin", "b.bin", "c.bin"]
    digests = make_release(tmp_path / "release", **{n.replace(".", "_"): 2_000_000 for n in names})
    options = ("--policy", "ticket", "--slots", "4", "--reserve-small", "2")
    with serving(tmp_path / "release", tmp_path / "state", *options, "--bandwidth", "64Mbit") as s:
        running: dict[Path, subprocess.Popen[bytes]] = {}
        for number in range(4):
            for name in names:
                to = tmp_path / f"curl{number}-{name}"
                running[to] = subprocess.Popen(["curl", "-sSf", "-o", to, f"{s.url}/{name}"])
        for number, name in enumerate([*names, "a.bin"]):
            to = tmp_path / f"get{number}-{name}"
            command = [TIDEGATE, "get", "--quiet", "-o", to]
            running[to] = subprocess.Popen([*command, f"{s.url}/{name}"], env={**os.environ})
        wait_for(lambda: all(one.poll() is not None for one in running.values()), 60)
        late = [to.name for to, one in running.items() if one.poll() is None]
        for one in running.values():
            if one.poll() is None:
                one.kill()
            one.wait()
        assert late == []
        for to, one in running.items():
            assert one.returncode == 0
            assert sha256(to) == digests[to.name.partition("-")[2]]
        assert not any("forgotten" in line for line in s.errors)
