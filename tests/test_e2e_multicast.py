"""Real processes, real groups: over loopback, and through lossy namespaces where this host allows.

Nothing here measures time; the lab (`make lab-multicast`) does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bench.multicast.bench import MulticastBench
from bench.multicast.network import MulticastLab
from tests.installed import PYTHON, TIDEGATE
from tests.running import RunningServer, make_release, serving, sha256, wait_for

pytestmark = pytest.mark.e2e
GATHERING = ("--multicast", "--multicast-interface", "127.0.0.1", "--multicast-window", "20s")
#: Loopback has no bandwidth: without a hold the first would be done before the second asks.
LOOPBACK = (*GATHERING, "--multicast-hold", "0")


class Get:
    """One `tidegate get --multicast --json` as a process."""

    def __init__(self, out: Path, *urls: str, home: Path, more: tuple[str, ...] = ()) -> None:
        self.out = out
        words = [TIDEGATE, "get", *urls, "--multicast", "--json", *more]
        self.process = subprocess.Popen(
            [*words, "-o", str(out)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOME": str(home)},
        )

    def end(self) -> list[dict[str, Any]]:
        """Its events, once it has ended well."""
        _, text = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, text
        return [json.loads(line) for line in text.splitlines()]


def states(events: list[dict[str, Any]]) -> list[str]:
    return [event["state"] for event in events if event["event"] == "multicast"]


def sessions(server: RunningServer) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{server.url}/-/multicast", timeout=10) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["sessions"]
    return rows


@pytest.fixture
def release(tmp_path: Path) -> tuple[Path, str]:
    digest = make_release(tmp_path / "release", obj_bin=3_000_000)["obj.bin"]
    return tmp_path / "release", digest


@pytest.mark.parametrize("code", ["auto", "xor"])
def test_three_who_ask_together_get_one_transmission(
    tmp_path: Path, release: tuple[Path, str], code: str
) -> None:
    directory, digest = release
    # So slow that a receiver that hardly gets a processor still hears some of it.
    options = (*LOOPBACK, "--multicast-rate", "12Mbit", "--multicast-fec", code)
    with serving(directory, tmp_path / "state", *options) as server:
        url = f"{server.url}/obj.bin"
        gets = [Get(tmp_path / f"{i}.bin", url, home=tmp_path) for i in range(3)]
        # Somebody who knows nothing of multicast is served at once meanwhile.
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert len(answer.read()) == 3_000_000
        for get in gets:
            events = get.end()
            assert sha256(get.out) == digest
            assert states(events)[0] == "joined"
            group = [m for m in events[-1]["mirrors"] if m["url"].startswith("udp://232.")]
            assert group, events[-1]
            assert group[0]["bytes"] > 0
        wait_for(lambda: not sessions(server))
        assert sessions(server) == []
    assert sum("multicast session" in line and " to 232." in line for line in server.errors) == 1


def test_below_the_threshold_each_goes_on_by_itself(
    tmp_path: Path, release: tuple[Path, str]
) -> None:
    directory, digest = release
    options = (*LOOPBACK, "--multicast-window", "500ms")
    with serving(directory, tmp_path / "state", *options) as server:
        gets = [Get(tmp_path / f"{i}.bin", f"{server.url}/obj.bin", home=tmp_path) for i in (0, 1)]
        for get in gets:
            assert states(get.end()) == []
            assert sha256(get.out) == digest


def test_who_is_alone_fetches_by_unicast_while_a_cohort_gathers(
    tmp_path: Path, release: tuple[Path, str]
) -> None:
    directory, digest = release
    with serving(directory, tmp_path / "state", *GATHERING) as server:
        get = Get(tmp_path / "alone.bin", f"{server.url}/obj.bin", home=tmp_path)
        events = get.end()
        assert states(events) == ["joined", "ended"]
        assert sha256(get.out) == digest
        # Held for a share of its pass, not for the window of 20 s; nothing was sent to a group.
        assert float(events[-1]["seconds"]) < 15
        wait_for(lambda: not sessions(server))
        assert sessions(server) == []
    assert not any("multicast session" in line for line in server.errors)


def test_one_with_a_lower_limit_leaves_and_finishes_by_unicast(
    tmp_path: Path, release: tuple[Path, str]
) -> None:
    directory, digest = release
    options = (*LOOPBACK, "--multicast-rate", "4Mbit", "--multicast-threshold", "4")
    with serving(directory, tmp_path / "state", *options) as server:
        url, slow = f"{server.url}/obj.bin", ("--limit-rate", "150kB/s")
        limited = Get(tmp_path / "slow.bin", url, home=tmp_path, more=slow)
        gets = [Get(tmp_path / f"{i}.bin", url, home=tmp_path) for i in range(3)]
        wait_for(lambda: any(row["sent_bytes"] > 200_000 for row in sessions(server)))
        assert sessions(server)[0]["rate_bytes_s"] >= 0.8 * 500_000
        for get in gets:
            assert states(get.end()) == ["joined", "done"]
            assert sha256(get.out) == digest
        events = limited.end()
        assert states(events) == ["joined", "ended"]
        assert sha256(limited.out) == digest


def test_who_fetches_by_unicast_changes_over_when_the_cohort_stands(tmp_path: Path) -> None:
    digest = make_release(tmp_path / "release", obj_bin=5_000_000)["obj.bin"]
    options = (*GATHERING, "--multicast-rate", "8Mbit")
    with serving(tmp_path / "release", tmp_path / "state", *options) as server:
        url, slow = f"{server.url}/obj.bin", ("--limit-rate", "500kB/s")
        first = Get(tmp_path / "0.bin", url, home=tmp_path, more=slow)
        wait_for(lambda: sessions(server))
        assert [(row["phase"], row["sent_bytes"]) for row in sessions(server)] == [("gather", 0)]
        others = [Get(tmp_path / f"{i}.bin", url, home=tmp_path, more=slow) for i in (1, 2)]
        for get in (first, *others):
            events = get.end()
            assert sha256(get.out) == digest
            assert states(events) == ["joined", "done"]
            group = [m for m in events[-1]["mirrors"] if m["url"].startswith("udp://")]
            assert group[0]["bytes"] > 0, events[-1]
            if get is first:
                assert events[-1]["mirrors"][1]["bytes"] > 0, events[-1]


def test_after_a_crash_in_mid_session_a_cohort_forms_again(tmp_path: Path) -> None:
    digest = make_release(tmp_path / "release", obj_bin=2_000_000)["obj.bin"]
    options = (*GATHERING, "--multicast-rate", "4Mbit")
    with serving(tmp_path / "release", tmp_path / "state", *options) as server:
        url = f"{server.url}/obj.bin"
        # The rest is worth a session again: nobody can have it all by unicast before that.
        slow = ("--limit-rate", "300kB/s")
        gets = [Get(tmp_path / f"{i}.bin", url, home=tmp_path, more=slow) for i in range(3)]
        wait_for(lambda: any(row["sent_bytes"] > 200_000 for row in sessions(server)))
        server.kill()
    port = url.split(":")[2].split("/")[0]
    options = (*options, "--listen", f"127.0.0.1:{port}")
    with serving(tmp_path / "release", tmp_path / "state", *options) as server:
        for get in gets:
            events = get.end()
            assert sha256(get.out) == digest
            assert states(events) == ["joined", "ended", "joined", "done"], events
        assert (
            sum("multicast session" in line and " to 232." in line for line in server.errors) == 1
        )


def test_a_scheduled_send_waits_for_its_hour(tmp_path: Path, release: tuple[Path, str]) -> None:
    directory, digest = release
    state = tmp_path / "state"
    with serving(directory, state, *LOOPBACK, "--multicast-rate", "60Mbit") as server:
        words = [TIDEGATE, "multicast", "send", "/obj.bin", "--at", "+4s"]
        words += ["--directory", str(directory), "--state", str(state)]
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout
        assert said.startswith("/obj.bin will be sent at ")
        wait_for(lambda: sessions(server))
        (row,) = sessions(server)
        assert (row["phase"], row["sent_bytes"]) == ("gather", 0)
        # One is enough: nobody is held, the offer comes at once.
        get = Get(tmp_path / "one.bin", f"{server.url}/obj.bin", home=tmp_path)
        assert states(get.end())[0] == "joined"
        assert sha256(get.out) == digest


def test_the_sender_dies_and_another_mirror_gives_the_rest(
    tmp_path: Path, release: tuple[Path, str]
) -> None:
    directory, digest = release
    slow = (*LOOPBACK, "--multicast-rate", "4Mbit", "--multicast-threshold", "2")
    with (
        serving(directory, tmp_path / "state", *slow) as server,
        serving(directory, tmp_path / "other") as other,
    ):
        urls = (f"{server.url}/obj.bin", f"{other.url}/obj.bin")
        gets = [Get(tmp_path / f"{i}.bin", urls[0], home=tmp_path) for i in range(2)]
        third = Get(tmp_path / "2.bin", *urls, home=tmp_path)
        wait_for(lambda: sessions(server) and sessions(server)[0]["sent_bytes"] > 200_000)
        server.kill()
        third.end()
        assert sha256(third.out) == digest
        for get in gets:
            get.process.send_signal(signal.SIGTERM)
            get.process.communicate(timeout=20)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_receivers_with_losses_bursts_and_changed_bits_have_the_right_file() -> None:
    # The first two, which fetch by unicast until the third asks, must not have all by then.
    bench = MulticastBench(6.0, rate_mbit=60, python=PYTHON)
    try:
        network = MulticastLab(
            3,
            rate_mbit=100,
            prefix=f"tge{os.getpid() % 10_000}",
            losses=[0.0, 3.0, 12.0],
            bursts=(60, 600),
            mangled=True,
        )
        row = bench.run("ours", network, late_s={2: 0.15})
        assert row.good == 3, row.results
        for result in row.results:
            brought = result["bytes"]
            assert isinstance(brought, dict)
            assert brought.get("udp", 0) > 0, result
    finally:
        bench.close()


def test_a_client_that_hears_nothing_takes_the_file_by_unicast(
    tmp_path: Path, release: tuple[Path, str]
) -> None:
    directory, digest = release
    with serving(directory, tmp_path / "state", *LOOPBACK) as server:
        url = f"{server.url}/obj.bin"
        deaf = [PYTHON, "-c", _DEAF, "get", url, "--multicast", "--json", "-o"]
        outs = [tmp_path / f"{i}.bin" for i in range(3)]
        processes = [
            subprocess.Popen(
                [*deaf, str(out)],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "HOME": str(tmp_path)},
            )
            for out in outs
        ]
        for process, out in zip(processes, outs, strict=True):
            _, text = process.communicate(timeout=60)
            assert process.returncode == 0, text
            assert states([json.loads(line) for line in text.splitlines()]) == ["joined", "ended"]
            assert sha256(out) == digest


#: `tidegate` whose sockets never hear a group.
_DEAF = """
import sys
sys.argv[0] = "tidegate"
import tidegate.client.multicast.socket as socket
socket.GroupSocket.read = lambda self: []
import tidegate
tidegate.main()
"""
