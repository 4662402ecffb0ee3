"""What `make unit` makes of tests that fail beside others and pass alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.roots import ROOT

#: Stands for the interpreter: its first run of pytest leaves failures, its second one ends as told.
PYTHON = """#!/bin/sh
case "$*" in
-c*) exec {python} "$@" ;;
*--last-failed*) exit {alone} ;;
esac
mkdir -p .pytest_cache/v/cache
echo '{failures}' > .pytest_cache/v/cache/lastfailed
exit 1
"""


@pytest.mark.parametrize(
    ("failures", "alone", "is_green"),
    [
        ('{"one": true}', 0, True),
        ('{"one": true}', 1, False),
        ('{"one": true, "two": true}', 0, False),
        # pytest itself failed.
        ("", 0, False),
    ],
)
def test_one_test_that_passes_alone_is_chance_and_two_are_not(
    tmp_path: Path, failures: str, alone: int, is_green: bool
) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / "requirements").mkdir()
    for name in ("requirements/test.txt", "pyproject.toml", ".venv/.test"):
        (tmp_path / name).touch()
    python.write_text(PYTHON.format(python=sys.executable, alone=alone, failures=failures))
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", "-f", ROOT / "Makefile", "unit", "VENV=.venv"],
        cwd=tmp_path,
        # This suite may run below a make of its own.
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == is_green, done.stdout + done.stderr
    assert "run once more, alone" in done.stdout
