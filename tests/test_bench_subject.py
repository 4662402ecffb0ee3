"""Each bench, lab, load test and chaos run fails when its subject is taken away."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import http_peers, mirror, staging
from bench.attacks import live, simulated, table
from bench.parallel import lab as parallel
from bench.policies import lab as policies
from bench.policies.crowd import TraceReplay
from bench.shared.subject import NothingMeasured, Suppressed, require
from tests import machine_faults
from tests import test_e2e_chaos as chaos
from tests.crowd_history import CrowdHistory
from tests.installed import PYTHON

HTTP = {row.name: row for row in http_peers.ROWS}
SITUATIONS = {one.name: one for one in parallel.SCENARIOS}
RUN = parallel.LabRun(1.0, 1.0, 0.0, True, 0, (9, 9), True)
CROWD = policies.begun(policies.mixed(1), 0.02)
SERVED = [{"came_s": 0.0, "done_s": 9.0, "size_bytes": 9.0} for _ in CROWD.visitors]
LATE = [one | {"done_s": None} for one in SERVED]
AT_ONCE = [one | {"size_bytes": 1e9} for one in SERVED]
WRK = "0 requests in 1.00s, 0.00B read"
STRUCK = live.Strikes(tried=90, connected=90, answered=90, admitted=9, read_bytes=9_000_000)
MIRRORED = {"rsync": "identical"}
GIVEN = {"ticket numbers": 3, "whole files": 2}


def engine(requests: int, starts: int, taken_bytes: float) -> simulated.Attacked:
    """An engine that has played an attack with these results."""
    played = simulated.Attacked.__new__(simulated.Attacked)
    played.attacker_requests, played.attacker_starts = requests, starts
    played.attacker_bytes = taken_bytes
    return played


def refused_attack(monkeypatch: pytest.MonkeyPatch) -> live.Strikes:
    """What an attacker reports whose every connection fails at its bind."""

    async def refused(source: str, *, small: bool) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

    async def attack() -> live.Strikes:
        asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGTERM)
        return await live._attack(live.ATTACKERS["one /48"], "idle")

    monkeypatch.setattr(live, "_connected", refused)
    return asyncio.run(attack())


#: What is taken away: how the bench is told of it, and a part of the sentence that it says.
TAKEN_AWAY: dict[str, tuple[Callable[[], object], str]] = {
    "attacks live: no file": (
        lambda: live.require_landed("one /48", "real", replace(STRUCK, admitted=0)),
        "was given a file",
    ),
    "attacks live: no bytes": (
        lambda: live.require_landed("one /48", "small", replace(STRUCK, read_bytes=9)),
        "9 bytes were read",
    ),
    "attacks live: people not done": (
        lambda: live._all_done_s([3.0, live.DAY.longest_s]),
        "1 of 2 people",
    ),
    "attacks live: attacker ended early": (
        lambda: live._strikes_of("one /48", "real", ""),
        "ended early",
    ),
    "attacks simulated: no request": (
        lambda: simulated.require_landed(engine(0, 0, 0.0), "one /48", "ghost"),
        "made no request",
    ),
    "attacks simulated: never let in": (
        lambda: simulated.require_landed(engine(9, 0, 0.0), "one /48", "idle"),
        "of the attacker started",
    ),
    "attacks simulated: no file": (
        lambda: simulated.require_landed(engine(9, 9, 0.0), "one /48", "real"),
        "downloaded no file",
    ),
    "http_peers: wrong status": (
        lambda: http_peers.require_status("nginx", HTTP["Varied: 404"], 200),
        "wants 404",
    ),
    "http_peers: no range": (
        lambda: http_peers.require_status("nginx", HTTP["1 MiB ranges"], 200),
        "wants 206",
    ),
    "http_peers: nothing served": (
        lambda: http_peers.served("nginx", HTTP["Varied: 404"], WRK),
        "served nothing",
    ),
    "http_peers: no report": (
        lambda: http_peers.served("nginx", HTTP["Varied: 404"], ""),
        "refused",
    ),
    "mirror: wrong tree": (
        lambda: mirror.require_mirrored(MIRRORED | {"tidegate mirror": "WRONG"}),
        "tidegate mirror did not make",
    ),
    "parallel: program absent": (
        lambda: parallel.require_run(SITUATIONS["static"], "axel", replace(RUN, status=127)),
        "not installed",
    ),
    "parallel: no bytes": (
        lambda: parallel.require_run(SITUATIONS["static"], "axel", replace(RUN, received=(0,))),
        "no byte",
    ),
    "parallel: exit 0 without the file": (
        lambda: parallel.require_run(SITUATIONS["static"], "axel", replace(RUN, right=False)),
        "without the file",
    ),
    "parallel: no event": (
        lambda: parallel.require_run(SITUATIONS["stall"], "axel", replace(RUN, happened=False)),
        "before anything happened",
    ),
    "parallel: bad mirror not asked": (
        lambda: parallel.require_run(
            SITUATIONS["503 for ever"], "tidegate", replace(RUN, received=(9, 0))
        ),
        "misbehaves",
    ),
    "policies lab: clients missing": (
        lambda: policies.require_crowd("fair", SERVED[1:], CROWD),
        "clients came",
    ),
    "policies lab: nobody done": (
        lambda: policies.require_crowd("fair", LATE, CROWD),
        "was done",
    ),
    "policies lab: nginx not done": (
        lambda: policies.require_crowd("nginx", [*SERVED[1:], *LATE[:1]], CROWD),
        "nginx: ",
    ),
    "policies lab: no limit": (
        lambda: policies.require_crowd("fair", AT_ONCE, CROWD),
        "has no limit",
    ),
    "chaos: faults hit nothing": (
        lambda: chaos.require_subject(
            ["database_is_lost"], Counter({"database_is_lost": 1}), GIVEN
        ),
        "No fault hit",
    ),
    "chaos: no clients": (
        lambda: chaos.require_subject(["killed"], Counter(), GIVEN | {"whole files": 0}),
        "no whole files",
    ),
}


@pytest.mark.parametrize("case", TAKEN_AWAY)
def test_a_measurement_without_its_subject_fails(
    case: str,
) -> None:
    without, sentence = TAKEN_AWAY[case]
    with pytest.raises(NothingMeasured, match=sentence) as failed:
        without()
    assert failed.value.code, "its exit status is not 0"


def test_an_attacker_that_cannot_connect_fails_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    struck = refused_attack(monkeypatch)
    assert struck.tried > 0
    with pytest.raises(NothingMeasured, match=r"0 of \d+ connections.*EADDRNOTAVAIL"):
        live.require_landed("one /48", "idle", struck)
    # They belong to this test alone, so nothing is printed at the end.
    live._REFUSED.counts.clear()


def test_a_cell_without_its_attacker_stays_empty_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def day(policy: str, title: str, manner: live.Manner, people: int) -> float:
        if title:
            live.require_landed(title, manner, live.Strikes(tried=9, suppressed="9 OSError"))
        return 3.0

    monkeypatch.setattr(live, "day", day)
    monkeypatch.setattr(live, "line", contextlib.nullcontext)
    options = ["--policy", "fair", "--days", "1", "--no-simulated", "--attacker"]
    assert table.main([*options, "one /48"]) == 1
    said = capsys.readouterr().out
    assert "| `fair` | no attacker: 3.0 s |" in said
    assert f"| one /48 |{' – |' * len(table._NAMES)}\n" in said
    assert said.count("0 of 9 connections") == len(table._NAMES)


def test_an_attacker_that_costs_more_than_its_share_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    days_s = {"": 3.0, simulated.SHARE.title: 5.0, "one IPv4": 9.0}
    monkeypatch.setattr(live, "day", lambda policy, title, *_: days_s[title])
    monkeypatch.setattr(live, "line", contextlib.nullcontext)
    options = ["--policy", "fair", "--days", "2", "--no-simulated"]
    for title in list(days_s)[1:]:
        options += ["--attacker", title]
    kept = ["--results", str(tmp_path / "kept.jsonl")]
    assert table.main([*options, *kept]) == 1
    said = capsys.readouterr().out
    assert "one IPv4, real: costs more than its shares give it" in said
    assert "one IPv4, idle: +200.0 %" in said
    # The next run goes on from what this one measured.
    monkeypatch.setattr(live, "day", None)
    assert table.main([*options, *kept]) == 1
    assert capsys.readouterr().out == said


def test_a_load_on_a_server_that_has_ended_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextlib.contextmanager
    def ended(*_: object, **__: object) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(["true"]) as process:
            process.wait()
            yield process

    monkeypatch.setattr(staging, "process", ended)
    monkeypatch.setattr(staging, "wait_for", lambda *_: "ready http://127.0.0.1:1/")
    with (
        pytest.raises(NothingMeasured, match="origin ended before"),
        staging.server("origin", tmp_path),
    ):
        pass


def test_a_measurement_with_its_subject_goes_on() -> None:
    live.require_landed("one /48", "small", STRUCK)
    simulated.require_landed(engine(9, 0, 0.0), "one /48", "ghost")
    simulated.require_landed(engine(9, 9, 9.0), "one /48", "real")
    http_peers.require_status("nginx", HTTP["Varied: 404"], 404)
    assert http_peers.served("nginx", HTTP["1 KiB"], "5 requests in 1.00s, 2.00KB read") == (
        5,
        2048.0,
    )
    long = "0 requests in 1.00s, 2.00MB read"
    assert http_peers.served("nginx", HTTP["256 MiB"], long) == (0, 2.0 * (1 << 20))
    mirror.require_mirrored(MIRRORED)
    parallel.require_run(SITUATIONS["503 for ever"], "tidegate", RUN)
    # A peer that fails is a result of the table.
    parallel.require_run(SITUATIONS["stall"], "curl", replace(RUN, right=False, status=124))
    policies.require_crowd("nginx", SERVED, CROWD)
    chaos.require_subject(["killed"], Counter(), GIVEN)


def test_faults_of_machines_that_hit_nothing_break_a_promise() -> None:
    history = CrowdHistory(whole=9)
    written = machine_faults.Written(1, 0, 0, 0, frozenset())
    harm = machine_faults.Harm([], None, None, None, None)  # type: ignore[arg-type]
    harm.fleet = [None]  # type: ignore[list-item]
    assert machine_faults.judge(history, written, harm, 6, 6, "") == ["no fault hit anything"]
    harm.done["leader killed"] += 1
    assert machine_faults.judge(history, written, harm, 6, 6, "") == []


#: In a process of its own: Locust changes sockets and threads for all that run beside it.
_PROFILE = """
import json, sys
import tidegate.loadtest.{profile}
from tidegate.loadtest.recorder import verdict_on
print(json.dumps([verdict_on([], json.loads(text)) for text in sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("profile", "counters"),
    [
        ("hot_object", ["multicast_bytes"]),
        ("mirror_fanout", ["part_downloads"]),
    ],
)
def test_a_profile_without_its_subject_misses(profile: str, counters: list[str]) -> None:
    whole = {"finished": 3.0, **dict.fromkeys(counters, 1.0)}
    runs = [whole, *({**whole, counter: 0.0} for counter in counters)]
    done = subprocess.run(
        [PYTHON, "-c", _PROFILE.format(profile=profile), *map(json.dumps, runs)],
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
    )
    kept, *missed = json.loads(done.stdout.splitlines()[-1])
    assert kept == []
    assert [len(one) for one in missed] == [1] * len(counters)


def test_suppressed_errors_are_counted_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    refused = Suppressed("connections", OSError)
    for _ in range(2):
        with refused:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    with pytest.raises(ValueError, match="not of this kind"), refused:
        raise ValueError("not of this kind")
    refused.tell()
    atexit.unregister(refused.tell)
    assert capsys.readouterr().err == "Suppressed, connections: 2 OSError EADDRNOTAVAIL\n"


def test_what_took_place_is_not_told() -> None:
    require(1, "never said")


def test_no_clients_of_the_lab_of_policies_are_of_one_network() -> None:
    replay = TraceReplay("http://192.0.2.1", False, "10.0.0.0")
    addresses = [replay.address(number) for number in range(250)]
    # All new clients of a /16 have a share together.
    assert len({address.rsplit(".", 2)[0] for address in addresses}) == 250
