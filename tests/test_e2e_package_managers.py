"""Package managers through a full server: dnf, zypper and pacman wait, and get their package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.running import RunningServer, serving, wait_for

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


def test_zypper(repositories: Path, tmp_path: Path) -> None:
    need("zypper")
    with full(repositories, tmp_path / "state") as server:
        zypper = ("zypper", "-q", "--root", str(tmp_path / "root"), "--non-interactive")
        run(*zypper, "ar", "-G", f"{server.url}/rpm", "waves", cwd=tmp_path)
        run(*zypper, "--no-gpg-checks", "download", "waves", cwd=tmp_path)
    assert len(list((tmp_path / "root").rglob("waves-*.rpm"))) == 1


def test_pacman(repositories: Path, tmp_path: Path) -> None:
    need("pacman")
    with full(repositories, tmp_path / "state") as server:
        (tmp_path / "db").mkdir()
        (tmp_path / "got").mkdir()
        (tmp_path / "pacman.conf").write_text(
            "[options]\nArchitecture = auto\nSigLevel = Never\n"
            f"[waves]\nServer = {server.url}/arch\n"
        )
        run(
            *("pacman", "--config", "pacman.conf", "--dbpath", str(tmp_path / "db")),
            *("--cachedir", str(tmp_path / "got"), "--noconfirm", "-Syw", "waves"),
            cwd=tmp_path,
        )
    assert len(list((tmp_path / "got").glob("waves-*.zst"))) == 1


@pytest.mark.parametrize(
    "script",
    [
        "import urllib.request as u; u.urlretrieve(url, out)",
        "import requests\nr = requests.get(url, timeout=10)\nr.raise_for_status()\n"
        "open(out, 'wb').write(r.content)",
    ],
    ids=["urllib", "requests"],
)
def test_a_script_that_knows_nothing_of_queues(
    repositories: Path, tmp_path: Path, script: str
) -> None:
    (package,) = (repositories / "rpm").glob("*.rpm")
    out = tmp_path / "out"
    with full(repositories, tmp_path / "state") as server:
        start = f"url, out = {server.url + '/rpm/' + package.name!r}, {str(out)!r}\n"
        run(sys.executable, "-c", start + script, cwd=tmp_path)
    wait_for(out.exists, 1)
    assert out.read_bytes() == package.read_bytes()
