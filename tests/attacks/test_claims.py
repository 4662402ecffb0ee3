"""A client that says it wants one byte (`Tidegate-Remaining: 1`) is served no earlier for it."""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.running import make_release, serving

CLIENTS = 14
SIZE_BYTES = 1_000_000


@pytest.mark.e2e
def test_a_liar_comes_after_those_who_came_before_it(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_bin=SIZE_BYTES)
    done: list[str] = []

    def fetch(url: str, name: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        connection.request("GET", "/big.bin", headers={"Tidegate-Client": name, **headers})
        answer = connection.getresponse()
        assert len(answer.read()) == SIZE_BYTES
        done.append(name)
        connection.close()

    args = ("--bandwidth", "12Mbit", "--policy", "fair")
    with serving(tmp_path / "release", tmp_path / "state", *args) as server:
        threads = []
        for number in range(CLIENTS):
            # The liar comes in the middle.
            is_liar = number == CLIENTS // 2
            name = "liar" if is_liar else f"honest-{number}"
            headers = {"Tidegate-Remaining": "1"} if is_liar else {}
            thread = threading.Thread(target=fetch, args=(server.url, name, headers))
            threads.append(thread)
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
    assert len(done) == CLIENTS
    # Equal downloads that have begun end in the order of what they lack: a few places apart.
    assert done.index("liar") >= CLIENTS // 2 - 4
