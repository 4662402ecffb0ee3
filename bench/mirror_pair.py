"""The pair of trees of the mirror benchmark: two versions of four large wheels.

pip downloads them. They are unpacked with the times and modes in the wheels: reproducible builds
have the same time for different contents.
"""

from __future__ import annotations

import calendar
import os
import subprocess
import sys
import zipfile
from pathlib import Path

#: Package -> (old version, new version).
PAIR = {
    "numpy": ("2.4.5", "2.4.6"),
    "sqlalchemy": ("2.1.8", "2.1.9"),
    "twisted": ("26.4.0", "26.10.0"),
    "botocore": ("1.44.4", "1.44.5"),
}
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_PIP = [sys.executable, "-m", "pip", "download", "-q"]
_WHEELS = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.11"]


def fetch_pair(folder: Path) -> tuple[Path, Path]:
    """The old and the new tree below `folder`; existing ones are not fetched again."""
    trees = []
    for side, name in enumerate(("old", "new")):
        tree = folder / name
        if not tree.exists():
            wheels = folder / f"wheels-{name}"
            wanted = [f"{package}=={versions[side]}" for package, versions in PAIR.items()]
            platforms = [word for one in (*_PLATFORMS, "any") for word in ("--platform", one)]
            subprocess.run(
                [*_PIP, *_WHEELS, *platforms, "-d", str(wheels), *wanted],
                check=True,
            )
            partial = folder / f"{name}.partial"
            for wheel in sorted(wheels.glob("*.whl")):
                unpack(wheel, partial / wheel.name.split("-")[0])
            partial.rename(tree)
        trees.append(tree)
    return trees[0], trees[1]


def unpack(wheel: Path, target: Path) -> None:
    """Unpack a wheel with times and modes, which `zipfile` leaves out."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = Path(archive.extract(info, target))
            if mode := info.external_attr >> 16 & 0o777:
                path.chmod(mode)
            seconds = calendar.timegm(info.date_time)
            os.utime(path, (seconds, seconds))


def described(tree: Path) -> tuple[int, int]:
    """The numbers of files and of bytes in a tree."""
    sizes = [path.stat().st_size for path in tree.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)
