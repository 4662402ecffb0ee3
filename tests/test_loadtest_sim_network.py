"""The path between server and clients: windows grow, shrink in pauses, and cost what they cost."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.test_loadtest_sim_cli import few_clients
from tidegate.loadtest.sim import sight
from tidegate.loadtest.sim.cli import simulate
from tidegate.loadtest.sim.conditions import Conditions, CongestionWindow, NetworkPath
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import columns
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import File, Visitor, Workload
from tidegate.policies.bottleneck import Bottleneck, LineOrders

__all__ = ["few_clients"]

LINE_BYTES_S = 10_000_000.0
RTT_S = 0.1


def alone(network: NetworkPath | None, size_bytes: int = 1_000_000) -> float:
    """How long one client alone takes for a file on a wide line."""
    visitor = Visitor("a", 0.0, math.inf, (File("a.iso", size_bytes),))
    workload = Workload("one", 0, (visitor,), LINE_BYTES_S)
    conditions = Conditions(LINE_BYTES_S, attempt_s=0.0, accept_s=0.0, network=network, paced=False)
    tally = Engine(workload, Scenario("ps").make_policy(workload, 0), conditions).run()
    return float(columns(tally.downloads, DOWNLOAD_FIELDS)["ended_s"][0])


def test_slow_start_ends_once_a_window_holds_back_no_more() -> None:
    window = CongestionWindow(NetworkPath((RTT_S,)), RTT_S)
    most = window.rate_bytes_s()
    assert window.in_slow_start(most, most)
    assert not window.in_slow_start(0.99 * most, most), "a slow client"
    assert not window.in_slow_start(most, 0.4 * most), "a full line"
    for _ in range(20):
        window.grow(window.rate_bytes_s())
    assert not window.in_slow_start(math.inf, window.rate_bytes_s()), "it is as large as it gets"


def test_a_transfer_starts_slowly() -> None:
    window, left, trips = NetworkPath((RTT_S,)).first_window_bytes, 1_000_000.0, 0
    while left > min(window, LINE_BYTES_S * RTT_S):
        left -= min(window, LINE_BYTES_S * RTT_S)
        window *= 2
        trips += 1
    least_s = 2 * RTT_S + trips * RTT_S
    found_s = alone(NetworkPath((RTT_S,)))
    assert least_s < found_s < least_s + RTT_S
    assert alone(None) == pytest.approx(0.1)
    # Where nothing is slow but the path, a byte takes two round trips.
    assert alone(NetworkPath((RTT_S,)), 1) == pytest.approx(2 * RTT_S, abs=1e-3)


@given(
    st.floats(1e-3, 0.5),
    st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 5), st.floats(0, 0.2)), max_size=30),
)
def test_a_window_stays_within_its_bounds(
    rtt_s: float, steps: list[tuple[float, float, float]]
) -> None:
    network = NetworkPath((rtt_s,))
    window, now = CongestionWindow(network, rtt_s), 0.0
    for rate, idle_s, queue_s in steps:
        before = window.window_bytes
        window.grow(rate, queue_s)
        grown = window.window_bytes
        assert before <= grown <= network.largest_window_bytes
        assert grown == before or rate >= 0.5 * before / (rtt_s + queue_s) * (1 - 1e-9)
        window.rest(now)
        assert window.is_idle
        now += idle_s
        window.resume(now)
        assert network.first_window_bytes <= window.window_bytes <= grown
        if idle_s < network.least_timeout_s:
            assert window.window_bytes == grown


def test_a_long_pause_makes_a_window_small_again() -> None:
    network = NetworkPath((RTT_S,))
    window = CongestionWindow(network, RTT_S)
    for _ in range(5):
        window.grow(math.inf)
    window.rest(1.0)
    window.rest(9.0)
    window.resume(10.0)
    assert window.window_bytes == network.first_window_bytes


def test_clients_have_their_own_round_trips_and_one_queue() -> None:
    network = NetworkPath((0.01, RTT_S), queue_bytes=1_000)
    assert [network.rtt_of(client) for client in range(3)] == [0.01, RTT_S, 0.01]
    assert network.queue_s(5_000, 10_000) == network.queue_s(1_000, 10_000) == 0.1
    assert NetworkPath((0.01,)).queue_s(5_000, 10_000) == 0.0


@pytest.mark.parametrize("policy", ["ps", "fair"])
def test_a_longer_path_makes_nobody_faster(policy: str) -> None:
    visitors = tuple(
        Visitor(f"c{n}", n / 4, 1e6, (File(f"f{n}", 100_000 * (1 + n % 9)),)) for n in range(40)
    )
    workload = Workload("path", 0, visitors, 1_000_000.0)
    means = []
    for rtt_s in (None, 0.02, 0.1, 0.3):
        network = None if rtt_s is None else NetworkPath((rtt_s,))
        scenario = Scenario(policy, network=network, tells_bandwidth=False)
        ended = columns(scenario.simulate(workload).downloads, DOWNLOAD_FIELDS)
        means.append(sum(ended["ended_s"]) - sum(ended["asked_s"]))
    assert means == sorted(means)
    assert means[-1] > 1.05 * means[0]


def test_no_more_stands_before_the_line_than_windows_let_go() -> None:
    """The queue filled at once, which held all windows back: a sixth of a wide line was lost."""
    visitors = tuple(
        Visitor(f"c{n}", 0.0, math.inf, (File(f"f{n}", 4_000_000 * (1 + n % 7)),))
        for n in range(12)
    )
    workload, means = Workload("wide", 0, visitors, 32e6), []
    for queue_bytes in (0, 1_000_000):
        network = NetworkPath((0.02,), queue_bytes, largest_window_bytes=64 * 1024)
        tally = Scenario("ps", network=network).simulate(workload)
        means.append(statistics.fmean(columns(tally.downloads, DOWNLOAD_FIELDS)["ended_s"]))
    assert means[1] <= 1.02 * means[0]


@pytest.mark.parametrize("queue_bytes", [0, 240_000])
def test_a_full_queue_loses_packets_and_sockets_do_not(
    queue_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[float] = []

    class Watched(Bottleneck):
        def observe(self, *seen: Any) -> LineOrders:
            lost.append(sum(sample.lossy for sample in seen[-1]) / max(1, len(seen[-1])))
            return super().observe(*seen)

    monkeypatch.setattr(sight, "Bottleneck", Watched)
    visitors = tuple(Visitor(f"c{n}", n / 60, 1e6, (File(f"f{n}", 1_000_000),)) for n in range(60))
    network = NetworkPath((0.02,), queue_bytes)
    Scenario("fair", network=network, tells_bandwidth=False).simulate(
        Workload("burst", 0, visitors, 4e6)
    )
    assert (max(lost) >= 0.5) is bool(queue_bytes)
    assert lost[-1] == 0.0


@pytest.mark.usefixtures("few_clients")
def test_the_command_takes_a_path() -> None:
    words = ["run", "--policy", "ps", "--workload", "exp2", "--seeds", "1", "--json"]
    near = CliRunner().invoke(simulate, words)
    far = CliRunner().invoke(simulate, [*words, "--rtt", "20ms,200ms", "--router-queue", "20kB"])
    assert (near.exit_code, far.exit_code) == (0, 0)
    assert near.output != far.output
    for wrong in (["--rtt", "0s"], ["--rtt", "soon"], ["--router-queue", "1kB"]):
        assert CliRunner().invoke(simulate, [*words, *wrong]).exit_code == 2
