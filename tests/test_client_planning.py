from __future__ import annotations

import json
from pathlib import Path

import pytest
from faulty_mirrors import Behaviour, Mirror, Script, running
from test_client_download import DATA, RATE, SHA, Run, one
from virtual_network import VirtualRun

from tidegate.client.fetch.metalink import Metalink
from tidegate.client.schedule.trials import Trials

__all__ = ["one"]
KNOWN = Metalink("out.bin", len(DATA), SHA, None, ())


def remember(folder: Path, *rows: tuple[Mirror, float, float]) -> None:
    data = folder / "data"
    data.mkdir()
    table = {f"127.0.0.1:{mirror.port}": [rate, rtt_s] for mirror, rate, rtt_s in rows}
    (data / "rates.json").write_text(json.dumps(table))


def test_a_mirror_that_would_not_help_is_not_even_connected(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine is no reason to call it.
    monkeypatch.setattr("tidegate.client.fetch.planning._LATE_S", 60.0)
    with running(Behaviour(DATA, rate=9e6), Behaviour(DATA)) as (near, far):
        remember(one.folder, (near, 9e6, 0.001), (far, 1e4, 0.3))
        result = one.get(near.url, far.url, metalink=KNOWN)
        assert far.connections == 0
    assert any(f"standing by: {far.url}" in line for line in result.forecast)
    assert one.right()


@pytest.mark.parametrize(
    "table",
    [
        "[1]",
        "null",
        "[" * 100_000,
        '{"HOST": [1e308, 1e308]}',
        '{"HOST": [Infinity, 1]}',
        '{"HOST": [5, Infinity]}',
        '{"HOST": [NaN, NaN]}',
        '{"HOST": {}}',
        '{"HOST": []}',
    ],
    ids=lambda table: table[:20],
)
def test_rates_that_somebody_else_wrote_are_no_reason_to_fail(tmp_path: Path, table: str) -> None:
    virtual = VirtualRun(tmp_path)
    (virtual.folder / "data").mkdir()
    text = table.replace('"HOST"', '"127.0.0.1:1"').replace("}", ', "127.0.0.1:2": [1e6, 1]}', 1)
    (virtual.folder / "data" / "rates.json").write_text(text)
    virtual.get(*(Script(Behaviour(DATA, rate=RATE)) for _ in range(2)))
    assert virtual.path.read_bytes() == DATA


def test_one_that_stands_by_is_called_when_the_others_fail(one: Run) -> None:
    broken = Behaviour(DATA, rate=9e6, stall_after=500_000)
    with running(broken, Behaviour(DATA, rate=RATE)) as (near, far):
        remember(one.folder, (near, 9e6, 0.001), (far, 1e4, 0.3))
        result = one.get(near.url, far.url, metalink=KNOWN)
        assert far.connections > 0
    assert result.sources[1].bytes > 0
    assert one.right()


@pytest.mark.parametrize("rate", [2e5, 9e6])
def test_one_that_stands_by_is_called_when_it_takes_longer_than_planned(
    one: Run, rate: float
) -> None:
    with running(Behaviour(DATA, rate=rate), Behaviour(DATA, rate=RATE)) as (near, far):
        remember(one.folder, (near, 9e6, 0.001), (far, 1e4, 0.3))
        one.get(near.url, far.url, metalink=KNOWN)
        assert (far.connections > 0) == (rate < 1e6)
    assert one.right()


def test_strangers_are_all_asked(one: Run) -> None:
    with running(Behaviour(DATA, rate=RATE), Behaviour(DATA, rate=RATE)) as (near, far):
        remember(one.folder, (near, 9e6, 0.001))
        one.get(near.url, far.url, metalink=KNOWN)
        assert far.connections > 0
    assert one.right()


def test_a_mirror_learnt_of_that_would_not_help_stands_by(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.client.fetch.planning._LATE_S", 60.0)
    with running(Behaviour(DATA)) as (far,):
        told = (("Link", f"<{far.url}>; rel=duplicate; pri=1"),)
        with running(Behaviour(DATA, rate=9e6, headers=told)) as (near,):
            remember(one.folder, (near, 9e6, 0.001), (far, 1e4, 0.3))
            result = one.get(near.url)
            assert far.connections == 0
    assert any("stands by" in line for line in result.forecast)
    assert one.right()


def test_connections_are_added_where_each_is_limited(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror's threads each sleep for their own connection."""
    for name, seconds in {"settle_s": 0.2, "warm_s": 0.1, "measure_s": 0.3, "worth_s": 1.0}.items():
        monkeypatch.setattr(Trials, name, seconds)
    with running(Behaviour(DATA, rate=5e5)) as (mirror,):
        result = one.get(mirror.url)
        assert mirror.connections >= 3
    assert any("try 1 more" in line for line in result.forecast)
    assert one.right()


def test_one_connection_stays_one_where_the_caller_says_so(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trials, "settle_s", 0.1)
    monkeypatch.setattr(Trials, "worth_s", 0.1)
    with running(Behaviour(DATA, rate=2e6)) as (mirror,):
        one.get(mirror.url, connections=1)
        assert mirror.connections == 1
    assert one.right()


def test_a_server_that_gives_one_connection_only_is_not_disturbed(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"settle_s": 0.2, "warm_s": 0.1, "measure_s": 0.3, "worth_s": 0.5}.items():
        monkeypatch.setattr(Trials, name, seconds)
    lease = (("Tidegate-Ticket", "lease-9"), ("Tidegate-Lease-Connections", "1"))
    with running(Behaviour(DATA, rate=1e6, headers=lease)) as (mirror,):
        one.get(mirror.url)
        assert mirror.connections == 1
    with running(Behaviour(DATA, rate=1e6, most_connections=1)) as (mirror,):
        result = one.get(mirror.url)
        assert mirror.connections > 1
    assert result.sources[0].retries == 0
    assert one.right()


@pytest.mark.parametrize(
    "kind", [{"ranges": False}, {"chunked": True}, {"no_length": True}], ids=str
)
def test_a_server_that_sends_only_the_whole_file_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, bool]
) -> None:
    """Even one that claims to serve parts."""
    for name, seconds in {"settle_s": 0.2, "warm_s": 0.1, "measure_s": 0.2, "worth_s": 0.2}.items():
        monkeypatch.setattr(Trials, name, seconds)
    virtual = VirtualRun(tmp_path)
    whole = Script(Behaviour(DATA, rate=2e6, **kind))  # type: ignore[arg-type]
    result = virtual.get(whole)
    assert virtual.path.read_bytes() == DATA
    assert result.wasted_bytes < 100_000
