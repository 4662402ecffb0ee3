"""The metrics are for this machine, and not for all whom a proxy on it lets through."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from tests.attacks.test_proxies import proxying
from tests.running import RunningServer, make_release, serving, wait_for

pytestmark = pytest.mark.e2e


ADMIN = ("--admin", "127.0.0.1:0")


def admin_port(server: RunningServer) -> int:
    def found() -> list[int]:
        lines = [line for line in server.lines if line.startswith("Admin ")]
        return [int(line.split()[1].rstrip("/").rpartition(":")[2]) for line in lines]

    wait_for(found, 30)
    return found()[0]


def status(port: int, **fields: str) -> int:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    url = f"http://127.0.0.1:{port}/metrics"
    return requests.get(url, headers=headers, timeout=30).status_code


@pytest.mark.parametrize(
    ("told", "direct", "proxied"),
    [
        ((), 200, 401),
        (("--trusted-proxy", "127.0.0.1"), 401, 401),
        (("--trusted-proxy", "127.0.0.1", "--metrics-from", "127.0.0.1"), 200, 200),
        (("--trusted-proxy", "127.0.0.1", "--metrics-from", "192.0.2.0/24"), 401, 401),
    ],
)
def test_only_a_setting_opens_them_through_a_proxy(
    tmp_path: Path, told: tuple[str, ...], direct: int, proxied: int
) -> None:
    make_release(tmp_path / "release", a_txt=10)
    with serving(tmp_path / "release", tmp_path / "state", *ADMIN, *told) as server:
        admin = admin_port(server)
        with proxying("nginx", tmp_path / "proxy", admin) as port:
            assert status(admin) == direct
            # The proxy adds the address that it sees after whatever the client says.
            assert status(port) == proxied
            assert status(port, X_Forwarded_For="192.0.2.1", Forwarded="for=192.0.2.1") == proxied


def test_every_trace_of_a_proxy_counts(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    with serving(tmp_path / "release", tmp_path / "state", *ADMIN) as server:
        admin = admin_port(server)
        assert status(admin) == 200
        for trace in ("Via", "X_Real_IP", "X_Forwarded_Proto", "X_Forwarded_Host"):
            assert status(admin, **{trace: "192.0.2.1"}) == 401
