"""IPv6 groups with real processes: in namespaces where this host allows, else over loopback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.multicast.network import MulticastLab
from bench.shared.namespaces import LabFailed, run
from tests.installed import TIDEGATE
from tests.running import make_release, serving, sha256, wait_for
from tests.test_e2e_multicast import Get, states

pytestmark = pytest.mark.e2e
RECEIVERS = 3


def _address(number: int) -> str:
    return f"fd77::{number:x}"


def _build(network: MulticastLab) -> None:
    """An address for the sender (1) and each receiver (2 and on); raises LabFailed."""
    network.__enter__()
    names = [network.sender(), *map(network.receiver, range(RECEIVERS))]
    try:
        for number, name in enumerate(names, 1):
            address = f"{_address(number)}/64"
            run("ip", "-n", name, "-6", "addr", "add", address, "dev", "eth0", "nodad")
    except LabFailed:
        network.__exit__()
        raise


@pytest.mark.parametrize("named", [False, True], ids=["by route", "by name"])
def test_ipv6_receivers_get_one_transmission_through_loss(tmp_path: Path, named: bool) -> None:
    digest = make_release(tmp_path / "release", obj_bin=3_000_000)["obj.bin"]
    network = MulticastLab(RECEIVERS, 3.0, 100, f"tgv{os.getpid() % 10_000}")
    try:
        _build(network)
    except (LabFailed, FileNotFoundError):
        _over_loopback(tmp_path, digest)
        return
    env = {**os.environ, "HOME": str(tmp_path)}
    interface = f"{_address(1)}%eth0" if named else _address(1)
    command = [TIDEGATE]
    serve = [*command, "serve", str(tmp_path / "release"), "--admin", "off"]
    serve += ["--listen", f"[{_address(1)}]:8080", "--state", str(tmp_path / "state")]
    serve += ["--multicast", "--multicast-interface", interface, "--multicast-rate", "90Mbit"]
    serve += ["--multicast-hold", "0"]
    try:
        log = tmp_path / "server.log"
        network.start(network.sender(), serve, log, tmp_path, env)
        wait_for(lambda: b"ready http" in log.read_bytes())
        processes = []
        for number in range(RECEIVERS):
            get = [*command, "get", f"http://[{_address(1)}]:8080/obj.bin", "--multicast"]
            get += ["--json", "-o", str(tmp_path / f"{number}.bin")]
            if named:
                get += ["--multicast-interface", f"{_address(2 + number)}%eth0"]
            own = tmp_path / f"{number}.log"
            processes.append(network.start(network.receiver(number), get, own, tmp_path, env))
        for number, process in enumerate(processes):
            assert process.wait(60) == 0, (tmp_path / f"{number}.log").read_text()
            assert sha256(tmp_path / f"{number}.bin") == digest
            lines = (tmp_path / f"{number}.log").read_text().splitlines()
            events = [json.loads(line) for line in lines]
            assert states(events) == ["joined", "done"]
            ways = {mirror["url"]: mirror["bytes"] for mirror in events[-1]["mirrors"]}
            assert any(url.startswith("udp://[ff35::") and size for url, size in ways.items())
        assert "ff35::" in log.read_text()
    finally:
        network.__exit__()


def _over_loopback(tmp_path: Path, digest: str) -> None:
    """Linux gives its loopback no route for IPv6 groups: everybody takes the file by unicast."""
    options = ("--multicast", "--multicast-interface", "::1", "--multicast-window", "3s")
    options += ("--multicast-hold", "0")
    with serving(tmp_path / "release", tmp_path / "state", *options) as server:
        url = f"{server.url}/obj.bin"
        gets = [Get(tmp_path / f"{i}.bin", url, home=tmp_path) for i in range(RECEIVERS)]
        for get in gets:
            assert states(get.end()) in ([], ["joined", "done"])
            assert sha256(get.out) == digest


def test_without_a_route_for_groups_everybody_takes_the_file_by_unicast(tmp_path: Path) -> None:
    digest = make_release(tmp_path / "release", obj_bin=3_000_000)["obj.bin"]
    _over_loopback(tmp_path, digest)
