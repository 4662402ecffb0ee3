"""The installed program: each process of the suite runs it, and none runs the checkout.

`build/installed` is an environment that holds the wheel of this checkout. The wheel comes from the
sdist. Dependencies are those of the environment that runs the suite.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "installed"
#: The interpreter and the command of the installation.
PYTHON = str(HOME / "bin" / "python")
TIDEGATE = str(HOME / "bin" / "tidegate")
#: The folder of the installed package.
PACKAGE = (
    HOME
    / "lib"
    / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    / "site-packages"
    / "tidegate"
)
#: Holds links to `tests` and `bench`, which are in no wheel, and nothing else of the checkout.
APART = ROOT / "build" / "apart"
_GUARD = ROOT / "tests" / "guard"
_PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
_SDIST = "import sys; from hatchling import build; print(build.build_sdist(sys.argv[1]))"


def _fingerprint() -> str:
    """Changes with any file that the wheel holds, and with the environment that lends to it."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    names = [
        "pyproject.toml",
        "tests/installed.py",
        *config["tool"]["hatch"]["build"]["only-include"],
    ]
    digest = hashlib.sha256(sys.prefix.encode())
    for top in names:
        path = ROOT / top
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                state = file.stat()
                digest.update(f"{file} {state.st_mtime_ns} {state.st_size}\n".encode())
    return digest.hexdigest()


def wheel() -> Path:
    """The wheel that is installed."""
    (found,) = HOME.glob("*.whl")
    return found


def _build(folder: Path) -> Path:
    """The wheel of this checkout, built from its sdist alone."""
    made = subprocess.run(
        [sys.executable, "-c", _SDIST, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    sdist = folder / made.stdout.strip()
    words = ("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sdist))
    subprocess.run([*_PIP, *words], check=True)
    (found,) = folder.glob("*.whl")
    return found


def install() -> None:
    """Install the checkout, unless the installation is of the same files already."""
    HOME.parent.mkdir(exist_ok=True)
    with open(HOME.parent / "installing", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = HOME / "fingerprint", _fingerprint()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(HOME, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", HOME], check=True)
        built = _build(HOME)
        subprocess.run([*_PIP, "--python", PYTHON, "install", "--no-deps", str(built)], check=True)
        # A line of a .pth adds one folder. An editable installation in that folder does not count.
        (PACKAGE.parent / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        APART.mkdir(exist_ok=True)
        for name in ("tests", "bench"):
            if not (APART / name).is_symlink():
                (APART / name).symlink_to(ROOT / name)
        stamp.write_text(wanted)


def user_environ() -> dict[str, str]:
    """The environment of this process, with the PYTHONPATH of a user, who has none."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def enter(environ: os._Environ[str]) -> None:
    """Have the processes that start from here find the installation, outside the checkout."""
    os.chdir(tempfile.gettempdir())
    environ["PATH"] = f"{HOME / 'bin'}{os.pathsep}{environ['PATH']}"
    environ["PYTHONPATH"] = f"{_GUARD}{os.pathsep}{APART}"
    if os.geteuid() == 0:
        # A server does not stay root unless told to, and the suite starts hundreds.
        environ["TIDEGATE_USER"] = "root"
