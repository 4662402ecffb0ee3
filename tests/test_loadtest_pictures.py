"""Every load profile is described, drawn and really there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.profile_pictures import draw, population_of
from tidegate.loadtest.registry import read_profile
from tidegate.loadtest.workloads import Workload

ROOT = Path(__file__).parent.parent
PROFILES = sorted((ROOT / "loadtest").glob("*.conf"))
README = (ROOT / "loadtest" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("conf", PROFILES, ids=lambda conf: conf.stem)
def test_each_profile_is_described_and_its_picture_is_of_what_it_replays(conf: Path) -> None:
    settings = read_profile(conf)
    assert (ROOT / settings["locustfile"]).is_file()
    assert f"({conf.name})" in README
    assert f"profile-{conf.stem}.svg" in README
    kept = (ROOT / "docs" / "pictures" / f"profile-{conf.stem}.svg").read_text("utf-8")
    assert title(conf, population_of(settings)) in kept, (
        "draw them anew: python -m tests.profile_pictures"
    )


def title(conf: Path, workload: Workload) -> str:
    return f"{conf.stem}: {len(workload.visitors):,} clients, {workload.files:,} downloads"


def test_a_picture_has_the_clients_and_downloads_of_its_profile(tmp_path: Path) -> None:
    """One with rude clients has a legend, too."""
    conf = next(one for one in PROFILES if "rude-fraction" in read_profile(one))
    workload = population_of(read_profile(conf))
    draw(conf.stem, workload, tmp_path / "picture.svg")
    shown = (tmp_path / "picture.svg").read_text("utf-8")
    assert title(conf, workload) in shown
    assert ">rude<" in shown


def test_every_option_of_ours_is_described() -> None:
    source = (ROOT / "loadtest" / "options.py").read_text("utf-8")
    for option in re.findall(r'"(--[\w-]+)"', source):
        assert f"`{option}" in README, option
