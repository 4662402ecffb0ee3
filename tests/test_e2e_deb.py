"""The Debian package: installed into a root of its own, what it brings serves and is removed."""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.booted import booted
from tests.running import ROOT, wait_for
from tests.test_docs_commands import blocks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def run(*command: str | Path, **more: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **more},
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the working folder; dependencies are those of this environment."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed: this is no Debian")
    debian = run("/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])").strip()
    if debian != str(sys.version_info[:2]):
        pytest.skip(f"dependencies of this Python cannot be lent to Debian's, {debian}")
    folder = tmp_path_factory.mktemp("deb")
    built = run(sys.executable, ROOT / "tools" / "build-deb", folder, "--lend")
    return Path(built.strip())


def test_the_package_installs_serves_and_goes(package: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("dpkg installs for root only")
    root = tmp_path / "root"
    admin = root / "var" / "lib" / "dpkg"
    for folder in ("info", "updates", "triggers"):
        (admin / folder).mkdir(parents=True)
    for file in ("status", "available"):
        (admin / file).touch()
    # An empty root has no dependencies to be found, and no shell to run scripts with.
    dpkg = ("dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless")
    run(*dpkg, "--install", package, PYTHONDONTWRITEBYTECODE="")
    program = (root / "opt/tidegate/bin/python3", root / "opt/tidegate/bin/tidegate")
    # The service may write nothing there.
    assert list(
        (root / "opt/tidegate").glob(
            "lib/python3*/site-packages/tidegate/server/app/__pycache__/s*"
        )
    )
    assert (root / "usr/bin/tidegate").readlink() == Path("/opt/tidegate/bin/tidegate")
    version = run("dpkg-deb", "-f", package, "Version").strip()
    assert f"version {version} " in run(*program, "--version")
    manual = gzip.decompress((root / "usr/share/man/man1/tidegate.1.gz").read_bytes())
    assert b"tidegate serve" in manual
    run("bash", "-n", root / "usr/share/bash-completion/completions/tidegate")
    settings = root / "etc/tidegate/tidegate.toml"
    # What the unit starts, with this root's places and another port.
    unit = (root / "lib/systemd/system/tidegate.service").read_text()
    (line,) = (text for text in unit.splitlines() if text.startswith("ExecStart="))
    words = shlex.split(line.removeprefix("ExecStart="))
    assert words[0] == "/usr/bin/tidegate"
    (root / "srv/release/image.iso").write_bytes(b"tide" * 100_000)
    (root / "var/log/tidegate").mkdir(parents=True)
    settings.write_text(settings.read_text().replace("/var/log", f"{root}/var/log"))
    run(*program, "config", "check", "--config", settings)
    placed = [f"{root}{word}" if word.startswith("/") else word for word in words[1:]]
    (root / "var/lib/tidegate").mkdir(parents=True)
    start = [*map(str, program), *placed, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    told = tmp_path / "told"
    with told.open("w") as out, subprocess.Popen(start, stdout=out, cwd=tmp_path) as server:
        try:
            wait_for(lambda: "ready http" in told.read_text() or server.poll() is not None, 60)
            (ready,) = (text for text in told.read_text().splitlines() if "ready http" in text)
            url = ready.split()[1].rstrip("/")
            run(*program, "get", f"{url}/image.iso", "-o", tmp_path / "got", "--quiet")
        finally:
            server.send_signal(signal.SIGTERM)
    assert (tmp_path / "got").read_bytes() == b"tide" * 100_000
    assert "image.iso" in (root / "var/log/tidegate/access.log").read_text()
    run(*dpkg, "--remove", "tidegate")
    assert not (root / "opt/tidegate").exists()
    assert settings.exists(), "what the operator wrote stays until the package is purged"
    assert (root / "srv/release/image.iso").exists()


def test_a_service_in_the_four_commands_of_the_manual(package: Path, tmp_path: Path) -> None:
    (block,) = (text for text in blocks("docs/deployment.md") if "systemctl enable" in text)
    make, install, copy, start = (line.removeprefix("$ ") for line in block.splitlines())
    assert make == "make deb", "what the fixture has done"
    brought = tmp_path / "brought"
    (brought / "dist").mkdir(parents=True)
    shutil.copy(package, brought / "dist")
    (brought / "build").mkdir()
    (brought / "build/image.iso").write_bytes(b"tide" * 100_000)
    with booted(tmp_path / "machine", brought) as machine:
        assert "could not be found" in machine.run("systemctl status tidegate", check=False)
        for line in (install, copy, start):
            machine.run(line.removeprefix("sudo ").replace("apt install", "apt install -y"))
        told = "journalctl -u tidegate --no-pager -o cat"
        wait_for(lambda: "ready http" in machine.run(told), 60)
        assert "ready http" in machine.run(told), machine.run(
            "systemctl status tidegate", check=False
        )
        machine.run(
            "tidegate get http://127.0.0.1/image.iso -o got --quiet && cmp got build/image.iso"
        )
        log = "cat /var/log/tidegate/access.log"
        wait_for(lambda: "image.iso" in machine.run(log))
        assert "image.iso" in machine.run(log)
        assert "admin" in machine.run(told), "the banner has the first password"
        # Nobody but the service reads its keys, and it is nobody who could log in.
        assert machine.run("stat -Lc %a /var/lib/tidegate").strip() == "700"
        assert machine.run("ps -o user= -p $(systemctl show -P MainPID tidegate)").strip() != "root"
        machine.run("systemctl reload tidegate && curl -fsS http://127.0.0.1/ >/dev/null")
        machine.run("apt remove -y tidegate && ! systemctl is-active tidegate")
