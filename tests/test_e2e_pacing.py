"""Real tools under a cap: a download is one share, and a paused one is not given up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.running import make_release, serving, sha256, wait_for
from tests.test_e2e_tools import MANY, need

pytestmark = pytest.mark.e2e

SIZE = 12_000_000


@pytest.mark.parametrize("policy", ["ticket", "fcfs"])
def test_eight_connections_of_one_download_get_what_a_single_one_gets(
    tmp_path: Path, policy: str
) -> None:
    need("curl")
    need("aria2c")
    digests = make_release(tmp_path / "release", one_iso=SIZE, many_iso=SIZE)
    options = ("--bandwidth", "32Mbit", "--policy", policy)
    with serving(tmp_path / "release", tmp_path / "state", *options, **MANY) as server:
        aria2 = ["aria2c", "-q", "-x8", "-s8", "-k1M", "--file-allocation=none", "-d"]
        many = subprocess.Popen(
            [*aria2, str(tmp_path), "-o", "many", server.url + "/many.iso"],
        )
        one = subprocess.Popen(["curl", "-sS", "-o", tmp_path / "one", server.url + "/one.iso"])
        wait_for(lambda: many.poll() is not None or one.poll() is not None, 60)
        # When either is done the other is nearly so; with a share a connection it has an eighth.
        if one.poll() is None:
            assert (tmp_path / "one").stat().st_size > 0.6 * SIZE
        else:
            assert (tmp_path / "many").stat().st_blocks * 512 > 0.6 * SIZE
        assert many.wait(60) == one.wait(60) == 0
    assert sha256(tmp_path / "one") == digests["one.iso"]
    assert sha256(tmp_path / "many") == digests["many.iso"]
