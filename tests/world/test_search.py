"""A short search from a new seed in each run: `make search` is the long one."""

from __future__ import annotations

import subprocess

from tests.installed import PYTHON


def test_worlds_of_a_new_seed_keep_their_promises() -> None:
    """What it prints: the failing seed, its story, and how to repeat it.

    It fails for promises without excuses only: others have a false alarm in some hundred worlds.
    """
    command = [PYTHON, "-m", "tests.world", "--minutes", "0.2", "--sure", "--story"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
