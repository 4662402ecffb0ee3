"""Every load profile is described, drawn and really there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.profile_pictures import draw, population_of
from tidegate.loadtest.registry import read_profile

ROOT = Path(__file__).parent.parent
PROFILES = sorted((ROOT / "loadtest").glob("*.conf"))
README = (ROOT / "loadtest" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("conf", PROFILES, ids=lambda conf: conf.stem)
def test_each_profile_is_described_and_drawn_from_what_it_replays(
    conf: Path, tmp_path: Path
) -> None:
    settings = read_profile(conf)
    assert (ROOT / settings["locustfile"]).is_file()
    assert f"({conf.name})" in README
    assert f"profile-{conf.stem}.svg" in README
    workload = population_of(settings)
    picture = tmp_path / "picture.svg"
    draw(conf.stem, workload, picture)
    title = f"{conf.stem}: {len(workload.visitors):,} clients"
    assert title in picture.read_text("utf-8")
    kept = (ROOT / "docs" / "pictures" / f"profile-{conf.stem}.svg").read_text("utf-8")
    assert title in kept, "draw them anew: python -m tests.profile_pictures"


def test_every_option_of_ours_is_described() -> None:
    source = (ROOT / "loadtest" / "options.py").read_text("utf-8")
    for option in re.findall(r'"(--[\w-]+)"', source):
        assert f"`{option}" in README, option
