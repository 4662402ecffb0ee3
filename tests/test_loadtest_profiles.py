"""Each profile is what Locust takes it for: its own shape, its options, its objectives."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.installed import PACKAGE, PYTHON
from tidegate.loadtest.tally import Objective, is_figure

LOADTEST = PACKAGE / "loadtest"
PROFILES = sorted(path.stem for path in LOADTEST.glob("*.conf"))
#: In a process of its own: Locust changes sockets and threads for all that run beside it.
PROGRAM = """
import json, sys
from itertools import islice
from types import SimpleNamespace
from locust.util.load_locustfile import load_locustfile
from tidegate.loadtest import replay
from tidegate.loadtest.recorder import tally
from tidegate.loadtest.replay import ArrivalFeed, moments
from tidegate.loadtest.users import Downloader
from tidegate.loadtest.workloads import Visitor, Workload
crowd = Workload("two", 0, (Visitor("a", 0.0, 1.0, ()), Visitor("b", 3.0, 1.0, (), rude=True)), 1.0)
replay.time = SimpleNamespace(time=lambda: 100.0)
feed = ArrivalFeed()
feed.hand([(0, 99.1), (0, 98.9)])
given = {"workload": "exp2", "seed": 1, "rude_fraction": 0.0, "time_scale": 4.0, "thin": 100.0}
feed.take(SimpleNamespace(**given)), feed.take(SimpleNamespace(**given))
manners = []
user = SimpleNamespace(_options=SimpleNamespace(manner="tickets", **given))
for visitor in crowd.visitors:
    found = Downloader.manners(user, visitor)
    manners.append(found.own_retry_s)
print(json.dumps({
    "moments": list(islice(moments(crowd, 100.0, again=True), 4)),
    "late": tally().counters["late_arrivals"],
    "manners": manners,
}))
for file in sys.argv[1:]:
    users, shapes = load_locustfile(file)
    print(json.dumps([sorted(users), [type(shape).__name__ for shape in shapes],
        [getattr(shape, "again", None) for shape in shapes], "twisted" in sys.modules]))
"""


def setting(profile: str, name: str) -> str | None:
    """A value of the profile's `.conf`."""
    for line in (LOADTEST / f"{profile}.conf").read_text("utf-8").splitlines():
        key, is_set, value = line.partition("=")
        if is_set and key.strip() == name:
            return value.strip()
    return None


@pytest.fixture(scope="module")
def told() -> list[str]:
    """What the program says, a line each."""
    files = [str(LOADTEST.parent / (setting(profile, "locustfile") or "")) for profile in PROFILES]
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM, *files],
        capture_output=True,
        text=True,
        check=True,
        cwd=LOADTEST.parent,
    )
    return done.stdout.splitlines()


def test_a_population_that_comes_again_comes_a_second_after_its_last(told: list[str]) -> None:
    found = json.loads(told[0])["moments"]
    assert found == [[0, 100.0], [1, 103.0], [0, 104.0], [1, 107.0]]


def test_an_arrival_is_late_by_more_than_a_second(told: list[str]) -> None:
    assert json.loads(told[0])["late"] == 1


def test_the_rude_ask_every_second(told: list[str]) -> None:
    assert json.loads(told[0])["manners"] == [None, 0.25]


def test_a_profile_has_one_shape_of_its_own_and_users(told: list[str]) -> None:
    for profile, line in zip(PROFILES, told[1:], strict=True):
        users, shapes, again, twisted = json.loads(line)
        assert len(shapes) == 1, profile
        assert shapes != ["Replay"], profile
        assert again == [profile in ("steady", "soak")], profile
        assert users, profile
        assert not twisted, "two event loops in one process"


@pytest.mark.parametrize("profile", PROFILES)
def test_the_objectives_of_a_profile_are_about_figures_that_there_are(profile: str) -> None:
    for text in (setting(profile, "slo") or "").strip("[]").split(","):
        if text:
            assert is_figure(Objective.parse(text.strip()).figure), text
