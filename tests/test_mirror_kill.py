"""Dying at any point leaves the old version or the new one, and the next run puts it right.

The long version is `python -m tests.mirror_kill follow 200` and `publish 50`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.mirror_kill import kill_follow, kill_publish

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("real", [False, True])
def test_follow_killed_anywhere(tmp_path: Path, real: bool) -> None:
    found = kill_follow(tmp_path / "site", 12, random.Random(1), real=real)
    assert found["old"]
    assert found["new"]


def test_publish_killed_anywhere(tmp_path: Path) -> None:
    found = kill_publish(tmp_path / "site", 8, random.Random(2))
    assert found["old"]
    assert found["new"]
