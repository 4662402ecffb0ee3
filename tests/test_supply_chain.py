"""What is shipped is what was reviewed, and everybody who builds it gets the same bytes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import user_environ

ROOT = Path(__file__).parent.parent
VENDOR = ROOT / "templates" / "vendor"


def test_scripts_of_others_are_those_that_were_fetched() -> None:
    sums = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    scripts = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert scripts <= set(sums)
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_release_has_the_same_bytes_wherever_it_is_built(tmp_path: Path) -> None:
    found = []
    for umask in (0o022, 0o077):
        folder = tmp_path / f"{umask:o}"
        subprocess.run(
            [sys.executable, ROOT / "tools" / "build-release", folder],
            check=True,
            env=user_environ(),
            capture_output=True,
            umask=umask,
        )
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found[0] == found[1]
    assert len(found[0]) == 3
    for line in found[0]["SHA256SUMS"].decode().splitlines():
        digest, name = line.split()
        assert hashlib.sha256(found[0][name]).hexdigest() == digest
