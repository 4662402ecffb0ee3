"""Programs that know nothing of queues, through a full server: each waits, and gets its file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import requests

from tests import real_clients as clients
from tests.running import serving, wait_for

pytestmark = pytest.mark.e2e

PACKAGE_BYTES = 1_000_000
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
    """A release with one package as RPM, with its index."""
    need("rpmbuild", "createrepo_c")
    work = tmp_path_factory.mktemp("packages")
    release = work / "release"
    (release / "rpm").mkdir(parents=True)
    (release / "first.iso").write_bytes(os.urandom(6 * PACKAGE_BYTES))
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
    return release


def test_everybody_at_once_by_default_gets_the_file(repositories: Path, tmp_path: Path) -> None:
    """Each real program as it is, all of one address: none is refused, each gets every byte."""
    need("dnf")
    tools = clients.there()
    assert {"curl", "mamba", "wget", "pip"} <= set(tools)
    clients.lay_out(repositories, tools)
    log = tmp_path / "access.json"
    told = {"TIDEGATE_ACCESS_LOG_FORMAT": "json"}
    repos = tmp_path / "repos"
    repos.mkdir()
    with serving(
        repositories, tmp_path / "state", *FULL, "--access-log", str(log), **told
    ) as server:
        (repos / "waves.repo").write_text(
            f"[waves]\nname=waves\nbaseurl={server.url}/rpm\ngpgcheck=0\n"
        )
        first = subprocess.Popen(["curl", "-sS", "-o", os.devnull, f"{server.url}/first.iso"])
        ready = f"{server.url}/-/ready"
        wait_for(lambda: requests.get(ready, timeout=10).headers["Tidegate-Free"] == "no")
        dnf = subprocess.Popen(
            [
                *("dnf", "-q", "-y", "--releasever=1", f"--installroot={tmp_path}/root"),
                *(f"--setopt=reposdir={repos}", f"--setopt=cachedir={tmp_path}/cache"),
                *("install", "--downloadonly", f"--downloaddir={tmp_path}/got", "waves"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # Under a short name: podman insists on it.
        with tempfile.TemporaryDirectory() as work:
            Path(work).chmod(0o755)
            said = clients.all_at_once(server.url, tools, Path(work), 100)
            outs = {
                tool: {out.read_bytes() for out in Path(work, place).glob("out*")}
                for tool in tools
                for place in [clients.place_of(tool)]
            }
        assert first.wait(60) == 0
        assert dnf.wait(100) == 0, dnf.communicate()[0]
        assert len(list((tmp_path / "got").glob("waves-*.rpm"))) == 1
        dnf.communicate()
    answers = [json.loads(line) for line in log.read_text().splitlines()]
    for tool in tools:
        begin = f"/{clients.place_of(tool)}/payload"
        of_it = [one for one in answers if one["target"].startswith(begin)]
        assert [one for one in of_it if one["status"] >= 400] == [], tool
        code, text = said[tool]
        sent = sum(one["bytes"] for one in of_it)
        assert clients.got_it(tool, code, sent), f"{tool}: {text}"
        assert outs[tool] <= {clients.PAYLOAD}, tool
    assert max(one["waited"] for one in answers) > 1
