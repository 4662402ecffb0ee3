"""The access log of a running server, as rotation and log readers meet it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from bench.shared.ports import free_port
from tests.attacks.test_proxies import NGINX_FRAME
from tests.running import RunningServer, make_release, serving, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

RECIPE = Path(__file__).parents[1] / "deploy" / "logrotate" / "tidegate"


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(log)]


def release(tmp_path: Path) -> Path:
    make_release(tmp_path / "release", a_txt=100, big_iso=4_000_000)
    (tmp_path / "log").mkdir()
    return tmp_path / "release"


def get(server: RunningServer, path: str, **headers: str) -> requests.Response:
    return requests.get(server.url + path, headers=headers, timeout=60)


def open_somewhere(path: Path) -> bool:
    """Whether any process has this file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink() == path:
                return True
    return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_logrotate_turns_the_file_by_our_recipe(tmp_path: Path, workers: str) -> None:
    log = tmp_path / "log" / "access.log"
    arguments = ("--access-log", str(log), "--workers", workers)
    with serving(release(tmp_path), tmp_path / "state", *arguments) as server:
        assert get(server, "/a.txt?before").status_code == 200
        wait_for(lambda: "before" in "".join(lines(log)), 30)
        recipe = RECIPE.read_text().replace("/var/log/tidegate", str(log.parent))
        command = "systemctl kill --kill-whom=main --signal=SIGUSR1 tidegate.service"
        assert command in recipe
        recipe = recipe.replace(command, f"kill -USR1 {server.process.pid}")
        (tmp_path / "recipe").write_text(recipe)
        subprocess.run(
            ["logrotate", "--force", "--state", tmp_path / "rotated", tmp_path / "recipe"],
            check=True,
            timeout=60,
        )
        wait_for(log.exists, 30)
        # Each worker opens the new file in its own time, and writes to the old one until then.
        wait_for(lambda: not open_somewhere(Path(f"{log}.1")), 30)
        for number in range(20):
            assert get(server, f"/a.txt?after{number}").status_code == 200
        wait_for(lambda: len(lines(log)) >= 20, 30)
        assert sum("?after" in line for line in lines(log)) == 20
        assert any("?before" in line for line in lines(Path(f"{log}.1")))
        assert not any("?after" in line for line in lines(Path(f"{log}.1")))
        log.rename(f"{log}.2")
        server.signal(signal.SIGHUP)
        wait_for(log.exists, 30)
        assert log.exists()


def test_goaccess_reads_combined(tmp_path: Path) -> None:
    log = tmp_path / "log" / "access.log"
    with serving(release(tmp_path), tmp_path / "state", "--access-log", str(log)) as server:
        for agent in ("curl/8.0", 'odd "agent"\\', "Mozilla/5.0 (X11; Linux x86_64)"):
            get(server, "/a.txt", User_Agent="", **{"User-Agent": agent})
        get(server, "/big.iso", Referer="https://example.org/news")
        get(server, "/none")
    command = ["goaccess", str(log), "--log-format=COMBINED", "-o", str(tmp_path / "report.json")]
    subprocess.run(
        [*command, "--no-global-config", "--invalid-requests", str(tmp_path / "invalid")],
        check=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["general"]["total_requests"] == 5
    assert report["general"]["valid_requests"] == 5
    assert report["general"]["failed_requests"] == 0
    assert report["general"]["bandwidth"] > 4_000_000
    assert "/big.iso" in json.dumps(report["requests"])


def test_it_knows_the_client_behind_a_proxy_on_a_unix_socket(tmp_path: Path) -> None:
    log, port = tmp_path / "log" / "access.log", free_port()
    tree = release(tmp_path)
    # A socket's path has 107 bytes at most.
    unix = Path(f"/tmp/tg-{os.getpid()}.sock")
    config = tmp_path / "tidegate.toml"
    config.write_text('access_log_format = "json"\ntrusted_proxies = ["unix"]\n')
    nginx = tmp_path / "nginx"
    nginx.mkdir()
    (nginx / "frame").write_text(NGINX_FRAME.format(folder=nginx))
    (nginx / "recipe").write_text(
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://unix:{unix}; "
        "proxy_set_header X-Forwarded-For $remote_addr; } }"
    )
    arguments = ("--access-log", str(log), "--config", str(config), "--listen", f"unix:{unix}")
    with serving(tree, tmp_path / "state", *arguments):
        proxy = subprocess.Popen(
            [shutil.which("nginx") or "/usr/sbin/nginx", "-p", nginx, "-c", nginx / "frame"],
            stderr=subprocess.DEVNULL,
        )
        try:

            def arrives() -> bool:
                try:
                    return requests.get(f"http://127.0.0.1:{port}/a.txt", timeout=20).ok
                except requests.ConnectionError:
                    return False

            wait_for(arrives, 30)
            wait_for(lambda: lines(log), 30)
        finally:
            proxy.terminate()
            proxy.wait(30)
    assert {one["client"] for one in entries(log)} == {"127.0.0.1"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_says_how_long_a_download_waited(tmp_path: Path, workers: str) -> None:
    log = tmp_path / "log" / "access.log"
    config = tmp_path / "tidegate.toml"
    config.write_text('access_log_format = "json"\n[admission]\nslots = 1\nreserve_small = 0\n')
    arguments = ("--policy", "ticket", "--workers", workers)
    arguments += ("--access-log", str(log), "--config", str(config))
    make_release(tmp_path / "release", huge_iso=30_000_000)
    with serving(release(tmp_path), tmp_path / "state", *arguments) as server:
        url = server.url + "/huge.iso"
        with requests.get(url, timeout=60, stream=True) as first:
            assert first.status_code == 200
            other = {"Tidegate-Wait": "ticket", "User-Agent": "other/1"}
            told = get(server, "/huge.iso", **other)
            assert told.status_code == 503
            time.sleep(1.1)
            assert len(first.content) == 30_000_000
        ticket = {**other, "Tidegate-Ticket": told.headers["Tidegate-Ticket"]}
        wait_for(lambda: get(server, "/huge.iso", **ticket).status_code == 200, 60)
        get(server, "/huge.iso", Range="bytes=0-99", **ticket)
    found = [one for one in entries(log) if one["status"] == 200]
    assert [one["bytes"] for one in found] == [30_000_000] * 2
    # Processes write by themselves: the order of lines is nobody's promise.
    at_once, late = sorted(found, key=lambda one: float(one["waited"]))
    assert at_once["waited"] < late["waited"]
    assert late["waited"] > 1.0
    assert at_once["seconds"] > 1.0
    (part,) = [one for one in entries(log) if one["range"]]
    assert part["range"] == "bytes=0-99"
