"""Which mirrors a download asks, and which stand by.

All in virtual time: what is decided depends on no clock of this machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from faulty_mirrors import Behaviour, Script
from test_client_download import DATA, RATE, SHA
from virtual_network import VirtualRun

from tidegate.client.fetch.metalink import Metalink

KNOWN = Metalink("out.bin", len(DATA), SHA, None, ())


#: The mirror that is known to be fast, and the one that is known to be slow.
FAST = (9e6, 0.001)
SLOW = (1e4, 0.3)


@pytest.fixture
def virtual(tmp_path: Path) -> VirtualRun:
    return VirtualRun(tmp_path)


def remember(run: VirtualRun, *rates: tuple[float, float]) -> None:
    """Rate and round trip that an earlier download saw of the n-th mirror."""
    data = run.folder / "data"
    data.mkdir()
    table = {f"127.0.0.1:{number}": rate for number, rate in enumerate(rates, 1)}
    (data / "rates.json").write_text(json.dumps(table))


def test_a_mirror_that_would_not_help_is_not_even_connected(virtual: VirtualRun) -> None:
    remember(virtual, FAST, SLOW)
    near, far = Script(Behaviour(DATA, rate=9e6)), Script(Behaviour(DATA))
    result = virtual.get(near, far, metalink=KNOWN)
    assert far.connections == 0
    assert any("standing by: http://127.0.0.1:2/" in line for line in result.forecast)
    assert virtual.right(DATA)


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
def test_rates_that_somebody_else_wrote_are_no_reason_to_fail(
    virtual: VirtualRun, table: str
) -> None:
    (virtual.folder / "data").mkdir()
    text = table.replace('"HOST"', '"127.0.0.1:1"').replace("}", ', "127.0.0.1:2": [1e6, 1]}', 1)
    (virtual.folder / "data" / "rates.json").write_text(text)
    virtual.get(*(Script(Behaviour(DATA, rate=RATE)) for _ in range(2)))
    assert virtual.path.read_bytes() == DATA


def test_one_that_stands_by_is_called_when_the_others_fail(virtual: VirtualRun) -> None:
    remember(virtual, FAST, SLOW)
    near = Script(Behaviour(DATA, rate=9e6, stall_after=500_000))
    far = Script(Behaviour(DATA, rate=RATE))
    result = virtual.get(near, far, metalink=KNOWN)
    assert far.connections > 0
    assert result.sources[1].bytes > 0
    assert virtual.right(DATA)


@pytest.mark.parametrize("rate", [2e5, 9e6])
def test_one_that_stands_by_is_called_when_it_takes_longer_than_planned(
    virtual: VirtualRun, rate: float
) -> None:
    remember(virtual, FAST, SLOW)
    near, far = Script(Behaviour(DATA, rate=rate)), Script(Behaviour(DATA, rate=RATE))
    virtual.get(near, far, metalink=KNOWN)
    assert (far.connections > 0) == (rate < 1e6)
    assert virtual.right(DATA)


def test_strangers_are_all_asked(virtual: VirtualRun) -> None:
    remember(virtual, FAST)
    near, far = Script(Behaviour(DATA, rate=RATE)), Script(Behaviour(DATA, rate=RATE))
    virtual.get(near, far, metalink=KNOWN)
    assert far.connections > 0
    assert virtual.right(DATA)


def test_a_mirror_learnt_of_that_would_not_help_stands_by(virtual: VirtualRun) -> None:
    remember(virtual, FAST, SLOW)
    told = (("Link", "<http://127.0.0.1:2/file.bin>; rel=duplicate; pri=1"),)
    near, far = Script(Behaviour(DATA, rate=9e6, headers=told)), Script(Behaviour(DATA))
    result = virtual.get(near, unnamed=[far])
    assert far.connections == 0
    assert any("stands by" in line for line in result.forecast)
    assert virtual.right(DATA)


def test_a_mirror_gets_one_connection_or_as_many_as_the_caller_says(virtual: VirtualRun) -> None:
    mirror = Script(Behaviour(DATA, rate=5e5))
    virtual.get(mirror)
    assert mirror.connections == 1
    assert virtual.right(DATA)
    mirror = Script(Behaviour(DATA, rate=5e5))
    virtual.get(mirror, connections=3)
    assert mirror.connections >= 3
    assert virtual.right(DATA)


@pytest.mark.parametrize(
    "kind", [{"ranges": False}, {"chunked": True}, {"no_length": True}], ids=str
)
def test_a_server_that_sends_only_the_whole_file_is_asked_once(
    virtual: VirtualRun, kind: dict[str, bool]
) -> None:
    """Even one that claims to serve parts."""
    whole = Script(Behaviour(DATA, rate=2e6, **kind))  # type: ignore[arg-type]
    result = virtual.get(whole)
    assert virtual.path.read_bytes() == DATA
    assert result.wasted_bytes < 100_000
