"""A plan: who the crowd is taken to be, and what it takes to serve it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner

from tidegate.loadtest.sim import plan as plan_module
from tidegate.loadtest.sim.bounds import alone_s
from tidegate.loadtest.sim.chronology import Chronicle
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.outcome import RunRecord
from tidegate.loadtest.sim.plan import (
    BEHIND_GATE,
    TUNING,
    Crowd,
    Felt,
    feel,
    files_below,
    gate_rows,
    make_crowd,
    make_plan,
    plan_gate,
    play,
    rows,
    sample_crowd,
    thinnest,
    verdict,
)
from tidegate.loadtest.sim.plan_cli import plan as plan_command
from tidegate.loadtest.sim.plan_cli import plan_page
from tidegate.loadtest.workloads import File, Workload

ISO, IMG, SUMS = File("a.iso", 5_000_000), File("sub/b.img", 2_000_000), File("SHA256SUMS", 300)


def test_hidden_files_are_not_offered(tmp_path: Path) -> None:
    for name in ("a.iso", "sub/b", ".hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [file.name for file in files_below(tmp_path)] == ["a.iso", "sub/b"]


def test_each_takes_a_large_file_and_a_small_one_beside_it() -> None:
    last_counts = make_crowd([ISO, IMG, SUMS], 10, 60.0, [("*", 2.0), ("*.iso", 3.0)])
    assert last_counts.large == ((ISO, 3.0), (IMG, 2.0))
    crowd = make_crowd([ISO, IMG, SUMS], 10, 60.0, [("*.iso", 3.0)])
    assert crowd.large == ((ISO, 3.0), (IMG, 1.0))
    assert crowd.small == (SUMS,)
    assert crowd.wanted_bytes == pytest.approx(10 * (4_250_000 + 300))
    played = sample_crowd(crowd)
    workload, each = played.workload, played.each
    assert each == 1.0
    assert all(visitor.files[0] == SUMS for visitor in workload.visitors)


def test_small_files_alone_are_what_people_come_for() -> None:
    crowd = make_crowd([SUMS], 10, 60.0)
    assert (crowd.large, crowd.small) == (((SUMS, 1.0),), ())
    with pytest.raises(ValueError, match="no file of the folder has content"):
        make_crowd([File("empty", 0)], 10, 60.0)
    with pytest.raises(ValueError, match="no file has a name"):
        make_crowd([SUMS], 10, 60.0, [("*.iso", 1.0)])


def test_a_large_crowd_is_played_by_few_on_a_thinner_line() -> None:
    played = sample_crowd(make_crowd([ISO], 10 * TUNING.most_clients, 60.0))
    assert (len(played.workload.visitors), played.each) == (TUNING.most_clients, 10.0)


def crowd() -> Crowd:
    return make_crowd([ISO, SUMS], 40, 60.0)


def test_the_line_that_is_named_keeps_the_wish_and_a_thinner_one_does_not() -> None:
    told: list[float] = []
    plan = make_plan(sample_crowd(crowd()), 1_000_000.0, "fair", 5.0, told.append)
    assert plan.ours.lost_s > 5.0
    assert plan.needed is not None
    assert plan.needed.lost_s <= 5.0
    assert plan.needed.bandwidth_bytes_s > 1_000_000.0
    assert plan.plain.lost_s >= plan.ours.lost_s
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert "below 5 s it takes" in verdict(plan)
    assert len(rows(plan)[0]) == 4


def test_the_thinnest_line_is_found_to_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    def felt(workload: Workload, each: float, policy: str, line: float) -> Felt:
        return Felt(policy, line, 0.0, 0.0, 0.0 if line >= 100.0 else 9.0, 0.0, 0.0, 0.0)

    monkeypatch.setattr(plan_module, "feel", felt)
    played = sample_crowd(crowd()).workload
    needed = thinnest(played, 1.0, felt(played, 1.0, "fair", 1_000.0), 5.0, 90.0)
    assert needed is not None
    assert 100.0 <= needed.bandwidth_bytes_s < 110.0


def test_a_crowd_for_days_costs_no_more_than_one_for_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played: list[float] = []

    class Watched(Engine):
        def run(self) -> RunRecord:
            tally = super().run()
            played.append(tally.ended_s)
            return tally

    monkeypatch.setattr(plan_module, "Engine", Watched)
    crowd = make_crowd([File("big.iso", 4_000_000_000), SUMS], 30, 600.0)
    workload, each = sample_crowd(crowd).workload, 1.0
    slow = feel(workload, each, "fair", 1_000_000.0)
    assert slow.mean_s > 30_000, "each takes an hour alone"
    assert slow.lost_s == pytest.approx(slow.mean_s - fmean(alone_s(workload, 1_000_000.0)))
    assert played[0] < 2_000
    # Played at full length it feels the same.
    monkeypatch.setattr(plan_module, "TUNING", plan_module.TUNING._replace(played_s=2_000.0))
    longer = feel(workload, each, "fair", 1_000_000.0)
    assert played[1] > played[0]
    assert slow.mean_s == pytest.approx(longer.mean_s, rel=0.15)


def test_the_pictures_of_a_plan_show_the_crowd_at_its_own_pace() -> None:
    """It is played faster and by fewer; axis and line are those of the real one."""
    crowd = make_crowd([File("big.iso", 40_000_000)], 1_000, 3_600.0)
    plan = make_plan(sample_crowd(crowd), 12.5e6, "fair", 60.0)
    page = plan_page(plan)
    assert page.count("<svg ") == 2
    for title in ("A plain server", "Fair"):
        assert f'font-weight="600">{title}</text>' in page
    axis = re.findall(r'text-anchor="middle">(\d+)</text>', page)
    assert 60 <= max(map(int, axis)) <= 90
    seen = Chronicle()
    run = play(plan.crowd.workload, plan.crowd.each, "fair", 12.5e6, chronicle=seen)
    assert run.fast > 2.0
    real = seen.stretched(run.fast, plan.crowd.each)
    assert max(rate for _, rate in real.served) == pytest.approx(12.5e6, rel=0.01)
    first, slowed = seen.bars[0], real.bars[0]
    assert slowed.arrived_s == pytest.approx(first.arrived_s * run.fast)
    assert slowed.ended_s == pytest.approx((first.ended_s or 0.0) * run.fast)
    assert [at for at, _ in slowed.states] == [at * run.fast for at, _ in first.states]


def test_nobody_is_told_that_small_files_never_come() -> None:
    """A file above the server's threshold is no small one there, and has no figure."""
    crowd = make_crowd([ISO, File("notes.pdf", 300_000)], 20, 60.0)
    plan = make_plan(sample_crowd(crowd), 5e6, "fair", 30.0)
    assert "never" not in str(rows(plan))


def test_a_line_that_is_wide_enough_is_said_to_be() -> None:
    plan = make_plan(sample_crowd(crowd()), 500_000_000.0, "fair", 10.0)
    assert "would be enough to stay below 10 s" in verdict(plan)
    assert not math.isnan(plan.ours.mean_s)


def test_a_gate_is_sized_for_its_worst_moment() -> None:
    big = File("big.iso", 10_000_000)
    sample = sample_crowd(make_crowd([big], 1_000, 100.0))
    line = 20_000_000.0
    found = plan_gate(sample, line)
    # Their lines carry what the slots are for, and one slot less would not fill the line.
    rate = sum(one.total_bytes for one in sample.workload.visitors) / sum(
        one.total_bytes / one.rate_bytes_s for one in sample.workload.visitors
    )
    assert (found.slots - 1) * rate < line <= found.slots * rate
    # After 100 s a fifth is served.
    assert found.waiting == pytest.approx(800, rel=0.1)
    assert found.connections == 2 * found.waiting + found.slots
    assert found.decisions_a_s > 10
    assert dict.fromkeys(name for name, _, _ in gate_rows(found)[1:]).keys() == {
        *("slots", "wait at once", "connections of nginx", "memory of nginx"),
        *("memory of the gate", "decisions a second"),
    }
    # On twice the line fewer wait, and more download.
    wider = plan_gate(sample, 2 * line)
    assert wider.waiting < found.waiting
    assert wider.slots == pytest.approx(2 * found.slots, abs=1)
    # On a wide line hardly anybody does.
    assert plan_gate(sample, 1e9).waiting < 0.1 * found.waiting


def test_a_plan_with_a_gate_is_of_a_policy_that_a_gate_can_have(tmp_path: Path) -> None:
    (tmp_path / "big.iso").write_bytes(bytes(2_000_000))
    words = [str(tmp_path), "--bandwidth", "20Mbit", "--visitors", "20", "--within", "10s"]
    page = tmp_path / "plan.html"
    done = CliRunner().invoke(plan_command, [*words, "--gate", "--report", str(page)])
    assert done.exit_code == 0, done.output
    assert "under ticket" in done.output
    for text in (done.output, page.read_text()):
        assert "A gate for this crowd" in text
        assert "worker_connections" in text
    assert "A gate for" not in CliRunner().invoke(plan_command, words).output
    short_first = CliRunner().invoke(plan_command, [*words, "--gate", "--policy", "fair"])
    assert short_first.exit_code == 0, short_first.output
    assert "under fair behind a gate" in short_first.output


def test_fair_behind_a_gate_is_played_without_pauses_and_fewer_wait_than_under_ticket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[bool] = []

    class Watched(Engine):
        def run(self) -> RunRecord:
            paused.append(self.conditions.can_pause)
            return super().run()

    monkeypatch.setattr(plan_module, "Engine", Watched)
    files = [File("big.iso", 10_000_000), File("small.deb", 1_500_000)]
    sample = sample_crowd(make_crowd(files, 100, 33.0))
    by_size = plan_gate(sample, 5e6, "fair" + BEHIND_GATE)
    assert by_size.waiting < 0.8 * plan_gate(sample, 5e6).waiting
    assert paused == [False, True]
