"""Programs that know nothing of queues, through a full server: each waits, and gets its file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from bench import clients
from tests.running import RunningServer, make_release, serving, wait_for

pytestmark = pytest.mark.e2e

PACKAGE_BYTES = 1_000_000
PAYLOAD_BYTES = 400_000
#: One slot at 2 MB/s: a client that comes while it is taken waits some seconds.
FULL = (
    *("--slots", "1", "--reserve-small", "0", "--bandwidth", "2MB", "--policy", "ticket"),
    *("--small-below", "20KB"),
)


def need(*tools: str) -> None:
    """A missing tool is told, and in CI it fails the run."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with one package as RPM and as Arch package, with the indexes of both."""
    need("rpmbuild", "createrepo_c", "repo-add", "bsdtar", "zstd")
    work = tmp_path_factory.mktemp("packages")
    release = work / "release"
    (release / "rpm").mkdir(parents=True)
    (release / "arch").mkdir()
    (release / "first.iso").write_bytes(os.urandom(8 * PACKAGE_BYTES))
    payload = work / "waves.dat"
    payload.write_bytes(os.urandom(PACKAGE_BYTES))
    (work / "waves.spec").write_text(
        "Name: waves\nVersion: 1\nRelease: 1\nSummary: waves\nLicense: Apache-2.0\n"
        "BuildArch: noarch\n%description\nwaves\n%install\nmkdir -p %{buildroot}/opt\n"
        f"cp {payload} %{{buildroot}}/opt/waves.dat\n%files\n/opt/waves.dat\n"
    )
    run("rpmbuild", "-bb", "--define", f"_topdir {work}/rpmbuild", "waves.spec", cwd=work)
    (package,) = work.glob("rpmbuild/RPMS/noarch/*.rpm")
    shutil.copy(package, release / "rpm")
    run("createrepo_c", "-q", str(release / "rpm"), cwd=work)
    (work / ".PKGINFO").write_text(
        "pkgname = waves\npkgver = 1-1\npkgdesc = waves\nbuilddate = 1700000000\n"
        f"packager = tests\nsize = {PACKAGE_BYTES}\narch = any\n"
    )
    run("bsdtar", "-cf", "waves.tar", ".PKGINFO", "waves.dat", cwd=work)
    arch = release / "arch" / "waves-1-1-any.pkg.tar.zst"
    run("zstd", "-q", "waves.tar", "-o", str(arch), cwd=work)
    run("repo-add", "-q", str(release / "arch" / "waves.db.tar.gz"), str(arch), cwd=work)
    return release


@contextmanager
def full(release: Path, state: Path) -> Iterator[RunningServer]:
    """A server whose only slot is taken by a download of some four seconds."""
    with serving(release, state, *FULL) as server:
        first = subprocess.Popen(["curl", "-sS", "-o", os.devnull, f"{server.url}/first.iso"])
        try:
            ready = f"{server.url}/-/ready"
            wait_for(lambda: requests.get(ready, timeout=10).headers["Tidegate-Free"] == "no")
            yield server
            assert first.wait(60) == 0
        finally:
            first.kill()
            first.wait()


def test_dnf(repositories: Path, tmp_path: Path) -> None:
    need("dnf")
    with full(repositories, tmp_path / "state") as server:
        repos = tmp_path / "repos"
        repos.mkdir()
        (repos / "waves.repo").write_text(
            f"[waves]\nname=waves\nbaseurl={server.url}/rpm\ngpgcheck=0\n"
        )
        run(
            *("dnf", "-q", "-y", "--releasever=1", f"--installroot={tmp_path}/root"),
            *(f"--setopt=reposdir={repos}", f"--setopt=cachedir={tmp_path}/cache"),
            *("install", "--downloadonly", f"--downloaddir={tmp_path}/got", "waves"),
            cwd=tmp_path,
        )
    assert len(list((tmp_path / "got").glob("waves-*.rpm"))) == 1


#: Programs of the benchmark's table -> what they ask for. Those that fetch by another protocol's
#: index, and players, are measured there only.
ASKED = {
    "zypper": "payload.rpm",
    "pacman": "payload-1-1-any.pkg.tar.zst",
    "pip": "payload-1.0.tar.gz",
    "npm": "payload.tgz",
    **dict.fromkeys(
        (
            *("curl", "wget", "wget2", "aria2", "axel", "apt", "Go", "Java", "Node", "rclone"),
            *("Python: urllib", "Python: requests", "Python: aiohttp", "lftp"),
        ),
        "payload.wav",
    ),
}


def test_everybody_at_once_by_default_gets_the_file(tmp_path: Path) -> None:
    """Each real program as it is, all of one address: none is refused, each gets every byte."""
    tools = [tool for tool in clients.there() if tool in ASKED]
    assert {"curl", "wget", "pip"} <= set(tools)
    release = tmp_path / "release"
    make_release(release, first_iso=8_000_000)
    for name in set(ASKED.values()):
        (release / name).write_bytes(clients.PAYLOAD[:PAYLOAD_BYTES])
    log = tmp_path / "access.json"
    told = {"TIDEGATE_ACCESS_LOG_FORMAT": "json"}
    running = {}
    with serving(release, tmp_path / "state", *FULL, "--access-log", str(log), **told) as server:
        first = subprocess.Popen(["curl", "-sS", "-o", os.devnull, f"{server.url}/first.iso"])
        ready = f"{server.url}/-/ready"
        wait_for(lambda: requests.get(ready, timeout=10).headers["Tidegate-Free"] == "no")
        for tool in tools:
            folder = tmp_path / "work" / tool
            folder.mkdir(parents=True)
            running[tool] = subprocess.Popen(
                clients.TOOLS[tool].command(server.url, folder),
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        said = {tool: process.communicate(timeout=120)[0] for tool, process in running.items()}
        assert first.wait(60) == 0
    for tool, process in running.items():
        assert process.returncode == 0 or clients.TOOLS[tool].opens, f"{tool}: {said[tool]}"
        for out in (tmp_path / "work" / tool).glob("out*"):
            assert out.read_bytes() == clients.PAYLOAD[:PAYLOAD_BYTES], tool
    answers = [json.loads(line) for line in log.read_text().splitlines()]
    asked = [one for one in answers if "/payload" in one["target"]]
    assert [one for one in asked if one["status"] >= 400] == []
    assert {name for tool in tools for name in [ASKED[tool]]} <= {
        one["target"].strip("/") for one in asked if one["bytes"] == PAYLOAD_BYTES
    }
    assert max(one["waited"] for one in asked) > 1
