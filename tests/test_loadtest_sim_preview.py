"""The administration's preview: what it says of pauses, and that it plays what it is given."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import termios
from typing import Any

import pytest

from tests.installed import PYTHON
from tests.running import wait_for
from tidegate.loadtest.sim import preview
from tidegate.loadtest.sim.chronology import Doing, Lifeline
from tidegate.policies.settings import PolicySettings


def test_pauses_are_summed_to_the_end_of_the_visit() -> None:
    states = [
        (0.0, Doing.WAITING),
        (2.0, Doing.CONNECTED),
        (3.0, Doing.PAUSED),
        (7.0, Doing.CONNECTED),
        (8.0, Doing.PAUSED),
    ]
    assert Lifeline(0.0, 10.0, states).paused_s(99.0) == 6.0
    assert Lifeline(0.0, None, states).paused_s(99.0) == 95.0
    assert Lifeline(0.0, 10.0, states[:2]).paused_s(99.0) == 0.0


@pytest.mark.parametrize("can_pause", [True, False])
def test_both_sides_are_played_and_only_fair_pauses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], can_pause: bool
) -> None:
    told = None if can_pause else 1e6
    settings = PolicySettings(slots=4, reserve_small=1, bandwidth_bytes_s=told).model_dump()
    rows: list[list[Any]] = [[0.1 * n, f"c{n}", "/big.iso", 3_000_000, 1e6] for n in range(12)]
    rows += [[0.5, "s", "/small.txt", 500, 1e6]]
    request = {
        "workload": "recorded",
        "arrivals": rows,
        "capacity_bytes_s": 1e6,
        "can_pause": can_pause,
        "sides": [{"policy": name, "settings": settings} for name in ("ticket", "fair")],
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    monkeypatch.setenv("TIDEGATE_NICE", "0")
    preview.main()
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == 13
    ticket, fair = found["sides"]
    # Only the trials that find the line hold somebody back.
    assert ticket["paused_large_mean_s"] < 0.3
    assert (fair["paused_large_mean_s"] > 1.0) == can_pause
    # Twelve of 3 s each, one after another, end after 19.5 s in the mean; all at once after 36.
    assert fair["session_mean_s"] < 12 / 13 * 28
    assert all(side["abandoned"] == 0 and "<svg" in side["picture_svg"] for side in (ticket, fair))


SERVER = f"""
import subprocess, time
preview = subprocess.Popen([{PYTHON!r}, "-P", "-m", "tidegate.loadtest.sim.preview"])
print(preview.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_a_server_that_is_killed() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([PYTHON, "-c", SERVER], stdin=pipe, stdout=pipe) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        os.write(server.stdin.fileno(), b"[")

        def unread_bytes() -> int:
            left = fcntl.ioctl(server.stdin, termios.FIONREAD, bytes(4))  # type: ignore[arg-type]
            return int.from_bytes(left, "little")

        # It waits for the rest of its request, which nobody will send.
        wait_for(lambda: not unread_bytes())
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"))
        assert not os.path.exists(f"/proc/{pid}")
