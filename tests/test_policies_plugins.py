"""A policy of another distribution: found by its entry point, run by simulator and server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.installed import PYTHON
from tidegate.policies.registry import GROUP, find_policies

ROOT = Path(__file__).parent.parent


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment in which the example of the manual is installed as a distribution."""
    manual = (ROOT / "docs/policies.md").read_text("utf-8")
    example = re.search(r"```python\n(.*?)```", manual.split("## Write your own")[1], re.DOTALL)
    assert example is not None
    assert len(example[1].splitlines()) <= 40
    (tmp_path / "shortest.py").write_text(example[1], "utf-8")
    info = tmp_path / "shortest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shortest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nshortest = shortest:ShortestPolicy\n")
    paths = [str(tmp_path), os.environ["PYTHONPATH"]]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def python(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [PYTHON, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_runs_in_the_simulator_and_its_told_times_hold(
    installed: dict[str, str],
) -> None:
    shown = python(
        installed,
        *("-m", "tidegate", "simulate", "run", "--policy", "shortest", "--json", "--hold"),
        *("--workload", "exp2", "--bandwidth", "0.5", "--reserve-small", "6", "--seeds", "1"),
        *("--jobs", "1"),
    )
    figures = json.loads(shown)
    assert figures["eta_told"] > 20
    assert figures["eta_within_p90"] > 0.8
    assert figures["eta_median_error"] < 0.4


def test_the_example_keeps_the_laws_and_is_a_choice_of_the_server(
    installed: dict[str, str],
) -> None:
    script = """
        from tidegate.policies.testing import check_laws
        from tidegate.server.app.settings import ServerConfig
        from tidegate.server.admin.forms import settings_of
        check_laws("shortest", examples=5)
        assert ServerConfig(policy="shortest").policy == "shortest"
        assert any("shortest" in setting.policies for setting in settings_of())
    """
    python(installed, "-c", textwrap.dedent(script))


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=GROUP)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (point("gone", "no_such_module:Policy"), "does not load"),
        (point("text", "tidegate.policies.contract:Job"), "subclass"),
        (point("other", "tidegate.policies.hooks:Policy"), "calls itself ''"),
    ],
)
def test_a_foreign_policy_that_cannot_be_used_is_named_and_stops_nobody(
    entry: EntryPoint, fault: str
) -> None:
    found = find_policies([entry])
    assert fault in found.faults[entry.name]
    assert set(found.policies) == {"fcfs", "reserve", "ticket", "fair", "adaptive"}
