"""What is built is what runs: the wheel alone, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

from tidegate import COMMANDS

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tidegate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of a fresh environment that holds the wheel; dependencies are lent."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    archive = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in archive.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    home = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    install = ["--python", str(python), "install", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    (site,) = home.glob("lib/python*/site-packages")
    # A plain path line: editable installations over there do not count here.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "tidegate"


def test_every_command_is_in_the_wheel(tidegate: Path, tmp_path: Path) -> None:
    for words in COMMANDS:
        done = subprocess.run(
            [tidegate, *words.split(), "--help"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        assert done.stdout.startswith("Usage: tidegate"), words


def test_a_release_is_served_and_fetched_from_the_wheel(tidegate: Path, tmp_path: Path) -> None:
    release = tmp_path / "release"
    release.mkdir()
    (release / "tool-1.0.tar.gz").write_bytes(b"content" * 10_000)
    command = [tidegate, "serve", release, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--state", tmp_path / "state"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line.startswith("ready http"):
                    break
            url = lines[-1].split()[1].rstrip("/")
            with urllib.request.urlopen(url + "/", timeout=10) as page:
                assert "tool-1.0.tar.gz" in page.read().decode()
            admin = next(line.split()[1] for line in lines if line.startswith("Admin"))
            with urllib.request.urlopen(admin, timeout=10) as page:
                assert "password" in page.read().decode().lower()
            out = tmp_path / "got"
            get = [tidegate, "get", url + "/tool-1.0.tar.gz", "-o", out, "--quiet"]
            done = subprocess.run(get, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert out.read_bytes() == b"content" * 10_000
        finally:
            server.terminate()
