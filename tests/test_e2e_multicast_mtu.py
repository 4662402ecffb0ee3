"""An interface that takes less than an Ethernet: real processes in namespaces. Needs root."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.multicast.network import SENDER_ADDRESS, MulticastLab
from bench.shared.namespaces import LabFailed, run
from tests.installed import TIDEGATE
from tests.running import make_release, sha256, wait_for
from tests.test_e2e_multicast import states

pytestmark = [pytest.mark.e2e, pytest.mark.root]
RECEIVERS = 3


class House:
    """A server and its receivers, each in a namespace; the sender's interface can change."""

    def __init__(self, network: MulticastLab, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.env = {**os.environ, "HOME": str(folder)}
        self.log = folder / "server.log"
        self.digest = make_release(folder / "release", obj_bin=3_000_000)["obj.bin"]

    def set_mtu(self, mtu: int) -> None:
        run("ip", "-n", self.network.sender(), "link", "set", "eth0", "mtu", str(mtu))

    def serve(self, rate: str) -> None:
        words = [TIDEGATE, "serve", str(self.folder / "release")]
        words += ["--admin", "off", "--listen", f"{SENDER_ADDRESS}:8080"]
        words += ["--state", str(self.folder / "state"), "--multicast"]
        words += ["--multicast-interface", SENDER_ADDRESS, "--multicast-rate", rate]
        words += ["--multicast-window", "60s", "--multicast-hold", "0"]
        self.network.start(self.network.sender(), words, self.log, self.folder, self.env)
        wait_for(lambda: "ready http" in self.log.read_text(), 60)

    def get(self, number: int) -> subprocess.Popen[bytes]:
        words = [TIDEGATE, "get", f"http://{SENDER_ADDRESS}:8080/obj.bin"]
        words += ["--multicast", "--json", "-o", str(self.folder / f"{number}.bin")]
        log = self.folder / f"{number}.log"
        name = self.network.receiver(number)
        return self.network.start(name, words, log, self.folder, self.env)

    def events(self, number: int, process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
        log = self.folder / f"{number}.log"
        assert process.wait(120) == 0, log.read_text()
        assert sha256(self.folder / f"{number}.bin") == self.digest
        return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    try:
        network = MulticastLab(RECEIVERS, 0.0, 100, f"tgw{os.getpid() % 10_000}").__enter__()
    except (LabFailed, FileNotFoundError) as error:
        pytest.skip(f"no namespaces here: {error}")
    try:
        yield House(network, tmp_path)
    finally:
        network.__exit__()


def test_a_session_fits_a_small_mtu(house: House) -> None:
    house.set_mtu(1280)
    house.serve("60Mbit")
    gets = [house.get(number) for number in range(RECEIVERS)]
    for number, get in enumerate(gets):
        events = house.events(number, get)
        assert states(events) == ["joined", "done"]
        assert any(m["bytes"] for m in events[-1]["mirrors"] if m["url"].startswith("udp://"))
    assert "the network refused" not in house.log.read_text()


def test_an_mtu_that_shrinks_sends_everybody_on_by_unicast(house: House) -> None:
    # So slow that it cannot be over before the interface has changed.
    house.serve("300kbit")
    gets = [house.get(number) for number in range(RECEIVERS)]
    wait_for(lambda: "multicast session" in house.log.read_text(), 90)
    house.set_mtu(1280)
    for number, get in enumerate(gets):
        assert states(house.events(number, get))[-1] == "ended"
    assert "do not fit the interface's MTU any more" in house.log.read_text()
