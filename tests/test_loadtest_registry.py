"""Workloads and profiles of one's own: from a file, a trace, or another distribution."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tidegate.loadtest.cli import OwnCrowd, loadtest
from tidegate.loadtest.registry import find_profile, find_workload, on_release
from tidegate.loadtest.sim.cli import simulate
from tidegate.loadtest.sim.plan_cli import plan
from tidegate.loadtest.trace import from_trace, line_rate, to_trace
from tidegate.loadtest.workloads import File, Visitor, Workload, exp2

MY_DAY = """
from tidegate.loadtest.workloads import File, Visitor, Workload

def workload(seed):
    return Workload("mine", seed, (Visitor("a", 0.0, 1e6, (File("a.iso", 2_000_000),)),), 1e6)

def rush(seed):
    visitors = tuple(Visitor(f"c{n}", n / 10, 1e6, (File("a.iso", 500_000),)) for n in range(5))
    return Workload("rush", seed, visitors, 1e6)
"""


@pytest.fixture
def crowd(tmp_path: Path) -> Path:
    """What `tidegate admin arrivals` prints: nothing is known of the lines."""
    rows = (
        '{"t_s": 9, "client": "c1", "file": "old.iso", "size_bytes": 2900000}',
        '{"t_s": 5, "client": "c0", "file": "small", "size_bytes": 128000}',
    )
    path = tmp_path / "crowd.jsonl"
    path.write_text("\n".join(rows))
    return path


def test_a_workload_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "day.py"
    path.write_text(MY_DAY)
    assert find_workload(str(path), 3).seed == 3
    assert len(find_workload(f"{path}:rush", 0).visitors) == 5
    with pytest.raises(ValueError, match=r"no function calm\(seed\)"):
        find_workload(f"{path}:calm", 0)
    with pytest.raises(OSError, match=r"none\.py"):
        find_workload(str(tmp_path / "none.py"), 0)
    with pytest.raises(ValueError, match="there are exp1"):
        find_workload("nonsense", 0)


def test_a_workload_that_is_no_text_is_said_with_what_writes_one(tmp_path: Path) -> None:
    binary = tmp_path / "crowd.gz"
    binary.write_bytes(b"\x1f\x8b\x08\xff\xfe")
    done = CliRunner().invoke(simulate, ["run", "--workload", str(binary)])
    assert done.exit_code == 2
    assert "no text with one JSON object a line" in done.output
    assert "tidegate admin arrivals" in done.output


def test_a_server_in_place_of_a_profile_is_said_with_its_option() -> None:
    done = CliRunner().invoke(loadtest, ["http://staging:8080"])
    assert done.exit_code == 2
    assert "tidegate loadtest --host http://staging:8080" in done.output


def test_a_profile_comes_from_a_file(tmp_path: Path) -> None:
    conf = tmp_path / "mine.conf"
    conf.write_text("# ours, shorter\nlocustfile = day.py\nusers = 3\n")
    with pytest.raises(ValueError, match=r"no locustfile day\.py"):
        find_profile(str(conf))
    (tmp_path / "day.py").touch()
    found = find_profile(str(conf))
    assert (found.name, found.locustfile) == ("mine", tmp_path / "day.py")
    assert found.settings["users"] == "3"
    conf.write_text("users = 3\n")
    assert find_profile(str(conf)).locustfile.name == "release_day.py", "ours, unless named"
    assert find_profile(str(tmp_path / "day.py")).conf is None
    assert find_profile("ci").settings["workload"] == "exp2"
    with pytest.raises(ValueError, match="there are browser, ci"):
        find_profile("nonsense")


def test_a_recorded_crowd_comes_for_another_release(crowd: Path) -> None:
    files = [File("sub/new.iso", 3_000_000), File("SHA256SUMS", 300), File("notes.txt", 90_000)]
    found = on_release(find_workload(str(crowd), 0), files)
    assert [visitor.files[0].name for visitor in found.visitors] == ["notes.txt", "sub/new.iso"]
    assert [visitor.arrival_s for visitor in found.visitors] == [0.0, 4.0]
    assert found.visitors[1].rate_bytes_s == line_rate("c1")
    kept = on_release(found, files)
    assert kept.visitors == found.visitors, "what the release has is asked for by its name"
    with pytest.raises(ValueError, match="no files"):
        on_release(found, [])


def test_what_is_said_of_a_crowd_must_fit_together(tmp_path: Path, crowd: Path) -> None:
    (tmp_path / "a.iso").write_bytes(bytes(2_000_000))
    given = OwnCrowd(None, None, tmp_path, 30, 60.0, ())
    made = given.population()
    assert made is not None
    assert (made[0], len(made[1].visitors)) == ("30 visitors within 60 s", 30)
    assert OwnCrowd("exp2", None, None, None, 60.0, ()).population() is None, "Locust draws it"
    for wrong in (
        OwnCrowd(None, None, None, 30, 60.0, ()),
        OwnCrowd(None, crowd, tmp_path, 30, 60.0, ()),
        OwnCrowd(None, None, tmp_path, None, 60.0, ()),
    ):
        with pytest.raises(ValueError, match="--"):
            wrong.population()


def test_simulator_and_plan_play_the_same_file(tmp_path: Path, crowd: Path) -> None:
    release = tmp_path / "release"
    release.mkdir()
    (release / "new.iso").write_bytes(bytes(3_000_000))
    words = ["run", "--policy", "fair", "--trace", str(crowd), "--rate", "8Mbit", "--json"]
    done = CliRunner().invoke(simulate, words)
    assert done.exit_code == 0, done.output
    words = [str(release), "--trace", str(crowd), "--bandwidth", "8Mbit"]
    done = CliRunner().invoke(plan, words)
    assert done.exit_code == 0, done.output
    assert "2 visitors within 4 s" in done.output
    assert "as it was recorded, for 6" in done.output
    done = CliRunner().invoke(plan, [*words, "--visitors", "5"])
    assert "either --visitors or --trace" in done.output


visitors = st.builds(
    Visitor,
    st.sampled_from("abc"),
    st.sampled_from([0.0, 0.5, 1.25]),
    st.sampled_from([1e6, math.inf]),
    st.lists(st.builds(File, st.text(), st.integers(0, 10**12)), min_size=1).map(tuple),
    st.sampled_from([30.0, math.inf]),
)


@given(st.lists(visitors, unique_by=lambda one: (one.key, one.arrival_s)))
def test_a_trace_brings_back_every_visitor(crowd: list[Visitor]) -> None:
    crowd.sort(key=lambda one: one.arrival_s)
    start_s = crowd[0].arrival_s if crowd else 0.0
    again = from_trace(to_trace(Workload("any", 0, tuple(crowd), 1.0)))
    assert [(v.key, v.files, v.rate_bytes_s, v.patience_s) for v in again.visitors] == [
        (v.key, v.files, v.rate_bytes_s, v.patience_s) for v in crowd
    ]
    assert [v.arrival_s + start_s for v in again.visitors] == [v.arrival_s for v in crowd]


def test_a_trace_of_clients_with_several_files_asks_for_what_they_take() -> None:
    again = from_trace(to_trace(exp2(0)))
    assert [len(visitor.files) for visitor in again.visitors] == [
        len(visitor.files) for visitor in exp2(0).visitors
    ]


@pytest.mark.parametrize(("last_s", "bandwidth_bytes_s"), [(10.0, 100.0), (120.0, 50.0)])
def test_a_trace_asks_for_its_bytes_in_its_span_and_a_minute_at_least(
    last_s: float, bandwidth_bytes_s: float
) -> None:
    visitors = tuple(Visitor(str(at), at, 1.0, (File("f", 3_000),)) for at in (0.0, last_s))
    found = from_trace(to_trace(Workload("any", 0, visitors, 1.0)))
    assert found.bandwidth_bytes_s == bandwidth_bytes_s
