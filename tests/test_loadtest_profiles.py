"""Each profile is what Locust takes it for: its own shape, its options, its objectives."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.installed import PACKAGE, PYTHON
from tidegate.loadtest.slo import Objective
from tidegate.loadtest.tally import is_figure

LOADTEST = PACKAGE / "loadtest"
PROFILES = sorted(path.stem for path in LOADTEST.glob("*.conf"))
#: In a process of its own: Locust changes sockets and threads for all that run beside it.
PROGRAM = """
import json, sys
from locust.util.load_locustfile import load_locustfile
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


def test_a_profile_has_one_shape_of_its_own_and_users() -> None:
    files = [str(LOADTEST.parent / (setting(profile, "locustfile") or "")) for profile in PROFILES]
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM, *files],
        capture_output=True,
        text=True,
        check=True,
        cwd=LOADTEST.parent,
    )
    for profile, line in zip(PROFILES, done.stdout.splitlines(), strict=True):
        users, shapes, again, twisted = json.loads(line)
        assert len(shapes) == 1, profile
        assert shapes != ["Replay"], profile
        assert again == [profile in ("steady", "soak")], profile
        assert ("Hoarder" in users) == (profile == "rude"), profile
        assert users, profile
        assert not twisted, "two event loops in one process"


@pytest.mark.parametrize("profile", PROFILES)
def test_the_objectives_of_a_profile_are_about_figures_that_there_are(profile: str) -> None:
    for text in (setting(profile, "slo") or "").strip("[]").split(","):
        if text:
            assert is_figure(Objective.parse(text.strip()).figure), text
