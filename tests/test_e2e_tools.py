"""Real tools against a real, full server: everybody gets the file, and in order."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from tests.running import journal, make_release, serving, sha256, wait_for

pytestmark = pytest.mark.e2e

SIZE = 2_000_000
#: All tools of a test share one address; each shall be a client of its own.
MANY = {"TIDEGATE_CLIENTS_PER_ADDRESS": "65536"}
ONE_SLOT = ("--slots", "1", "--reserve-small", "0", "--bandwidth", "2MB", "--policy", "ticket")

TOOLS: dict[str, Callable[[str, str], list[str]]] = {
    "curl": lambda url, out: ["curl", "-sS", "-f", "-o", out, url],
    "curl-retry": lambda url, out: [
        *("curl", "-sS", "-f", "-A", "curl-retry/8", "--retry", "20", "-o", out, url)
    ],
    "wget": lambda url, out: ["wget", "-q", "-O", out, url],
    "aria2c": lambda url, out: [
        *("aria2c", "-q", "--allow-overwrite=true", "-d", str(Path(out).parent)),
        *("-o", Path(out).name, url),
    ],
}


def need(tool: str) -> None:
    """A missing tool is told, and in CI it fails the run."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")


def test_every_tool_gets_the_file_from_a_full_server_in_the_order_of_asking(
    tmp_path: Path,
) -> None:
    for tool in ("curl", "wget", "aria2c"):
        need(tool)
    digests = make_release(tmp_path / "release", big_iso=2 * SIZE)
    with serving(tmp_path / "release", tmp_path / "state", *ONE_SLOT, **MANY) as server:
        ready = f"{server.url}/-/ready"
        running: dict[str, subprocess.Popen[bytes]] = {}
        ended: dict[str, float] = {}
        for number, (name, command) in enumerate(TOOLS.items()):
            out = str(tmp_path / f"{name}.out")
            running[name] = subprocess.Popen(command(server.url + "/big.iso", out))
            if number == 0:
                # It starts at once, and so has no ticket.
                wait_for(lambda: requests.get(ready, timeout=10).headers["Tidegate-Free"] == "no")
            wait_for(lambda: len(journal(tmp_path / "state")) >= number)  # noqa: B023
            assert len(journal(tmp_path / "state")) >= number, "each of the others waits"
        while len(ended) < len(running):
            for name, process in running.items():
                if name not in ended and process.poll() is not None:
                    ended[name] = time.monotonic()
            time.sleep(0.01)
    for name, process in running.items():
        assert process.returncode == 0, name
        assert sha256(tmp_path / f"{name}.out") == digests["big.iso"], name
    assert list(ended) == list(TOOLS)


def test_a_tool_that_is_killed_and_started_again_resumes(tmp_path: Path) -> None:
    need("curl")
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    out = tmp_path / "out"
    with serving(tmp_path / "release", tmp_path / "state", *ONE_SLOT, **MANY) as server:
        url = server.url + "/big.iso"
        first = subprocess.Popen(["curl", "-sS", "-o", str(out), url])
        wait_for(lambda: out.exists() and out.stat().st_size > 300_000)
        first.kill()
        first.wait()
        assert 0 < out.stat().st_size < SIZE
        again = subprocess.run(["curl", "-sS", "-f", "-C", "-", "-o", str(out), url], check=False)
        assert again.returncode == 0
    assert sha256(out) == digests["big.iso"]


def test_tools_download_by_tls_whatever_they_offer(tmp_path: Path) -> None:
    for tool in ("curl", "wget", "openssl"):
        need(tool)
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    args = ("--tls-cert", str(cert), "--tls-key", str(key))
    with serving(tmp_path / "release", tmp_path / "state", *args, **MANY) as server:
        url = server.url + "/big.iso"
        assert url.startswith("https://")
        for name, command in {
            "h2": ["curl", "-sS", "-f", "--cacert", str(cert)],
            "no-alpn": ["curl", "-sS", "-f", "--no-alpn", "--cacert", str(cert)],
        }.items():
            subprocess.run([*command, "-o", str(tmp_path / name), url], check=True)
            assert sha256(tmp_path / name) == digests["big.iso"]
        wget = ["wget", "-q", f"--ca-certificate={cert}", "-O", str(tmp_path / "w"), url]
        subprocess.run(wget, check=True)
        assert sha256(tmp_path / "w") == digests["big.iso"]


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (("--listen", "300.1.1.1:x"), "is not HOST:PORT"),
        (("--slots", "0"), "at least 1"),
        (("--policy", "best"), "policy (flag --policy)"),
        (("--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"), "cannot be read"),
        (("--config", "/nowhere.toml"), "cannot be read"),
        (("--bandwidth", "fast"), "write it like 100Mbit"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_no_traceback(
    tmp_path: Path, args: tuple[str, ...], fault: str
) -> None:
    make_release(tmp_path / "release", big_iso=10)
    with pytest.raises(AssertionError) as told:
        serving(tmp_path / "release", tmp_path / "state", *args).__enter__()
    assert fault in str(told.value)
    assert "Traceback" not in str(told.value)


def test_neither_keys_nor_queue_can_be_downloaded_from_a_folder_that_holds_them(
    tmp_path: Path,
) -> None:
    release = tmp_path / "release"
    make_release(release, big_iso=1000)
    (release / "tidegate.toml").write_text("drain_s = 1\n")
    config = ("--config", str(release / "tidegate.toml"))
    with serving(release, release / "state", *config) as server:
        for path, status in (
            ("/big.iso", "200"),
            ("/state/keys.json", "404"),
            ("/state/", "404"),
            ("/state/tidegate.db", "404"),
            ("/tidegate.toml", "404"),
        ):
            told = subprocess.run(
                ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", server.url + path],
                capture_output=True,
                text=True,
                check=True,
            )
            assert told.stdout == status, path
        listed = subprocess.run(
            ["curl", "-s", server.url + "/?format=json"], capture_output=True, text=True, check=True
        )
        assert [entry["name"] for entry in json.loads(listed.stdout)["entries"]] == ["big.iso"]


def test_the_type_of_a_problem_leads_to_a_page(tmp_path: Path) -> None:
    """What a refusal names can be looked up where it was refused."""
    (tmp_path / "release").mkdir()
    with serving(tmp_path / "release", tmp_path / "state") as server:
        refused = requests.get(server.url + "/nothing", timeout=10)
        assert refused.status_code == 404
        page = requests.get(server.url + refused.json()["type"], timeout=10)
        assert page.status_code == 200
        assert "nothing under this name" in page.text
        assert requests.get(server.url + "/-/problems/none", timeout=10).status_code == 404
