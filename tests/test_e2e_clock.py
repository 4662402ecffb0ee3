"""A machine's clock that is set, or a machine that sleeps, neither stops nor expires anything."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running import RunningServer, make_release, serving, sha256, wait_for

pytestmark = pytest.mark.e2e

HOUR = 3600


class Machine:
    """A server whose clocks are libfaketime's, and what is set here."""

    def __init__(self, folder: Path, server: RunningServer) -> None:
        self.folder = folder
        self.server = server

    def fetch(self, name: str, agent: str) -> subprocess.Popen[bytes]:
        """curl at work, parked if it must wait."""
        to = self.folder / f"got-{agent}"
        return subprocess.Popen(["curl", "-sSf", "-A", f"curl/{agent}", "-o", to, self.url(name)])

    def url(self, name: str) -> str:
        return f"{self.server.url}/{name}"


def faketime_library() -> str:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert found, "libfaketime is missing: tools/need-debian"
    return str(found[0])


def set_clock(folder: Path, ahead_s: int) -> None:
    """The clock of `faked_time` is so far ahead of the true one from now on."""
    fresh = folder / "clock.new"
    fresh.write_text(f"{ahead_s:+d}\n")
    os.replace(fresh, folder / "clock")


def faked_time(folder: Path, *, sleeps: bool) -> dict[str, str]:
    """The environment of a process whose clock is set by `set_clock`."""
    set_clock(folder, 0)
    return {
        "LD_PRELOAD": faketime_library(),
        "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "0" if sleeps else "1",
        "DONT_FAKE_MONOTONIC": "0" if sleeps else "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


@contextmanager
def machine(tmp_path: Path, *, sleeps: bool) -> Iterator[Machine]:
    """A server with one large slot of 1 MB/s. `sleeps`: its monotonic clock leaps as well.

    To a process that was stopped for an hour both clocks have leapt when it goes on.
    """
    options = ("--policy", "ticket", "--slots", "2", "--reserve-small", "1")
    with serving(
        tmp_path / "release",
        tmp_path / "state",
        *(*options, "--bandwidth", "8Mbit"),
        **faked_time(tmp_path, sleeps=sleeps),
    ) as server:
        yield Machine(tmp_path, server)


def ask(url: str, token: str | None = None) -> tuple[int, dict[str, str]]:
    headers = {"User-Agent": "tidegate/1", "Accept": "application/json"}
    if token is not None:
        headers["Tidegate-Ticket"] = token
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=20
        ) as got:
            return got.status, {k.lower(): v for k, v in got.headers.items()}
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, {k.lower(): v for k, v in error.headers.items()}


@pytest.mark.parametrize(
    ("sleeps", "ahead_s"),
    [(False, -HOUR), (False, HOUR), (True, HOUR)],
    ids=["set back", "set on", "asleep"],
)
def test_downloads_places_and_parked_requests_live_through_it(
    tmp_path: Path, sleeps: bool, ahead_s: int
) -> None:
    digests = make_release(tmp_path / "release", a_bin=3_000_000, b_bin=1_500_000, c_bin=300_000)
    with machine(tmp_path, sleeps=sleeps) as one:
        running = one.fetch("a.bin", "1")
        wait_for(lambda: (tmp_path / "got-1").exists())
        # The first in the queue: a ready ticket, which expires if nobody comes for a minute.
        status, told = ask(one.url("c.bin"))
        assert (status, told["tidegate-status"]) == (503, "ready")
        parked = one.fetch("b.bin", "2")
        set_clock(tmp_path, ahead_s)
        # Three seconds of the cap are left for the first, then it is the turn of the second.
        assert running.wait(20) == 0
        assert parked.wait(20) == 0
        assert sha256(tmp_path / "got-1") == digests["a.bin"]
        assert sha256(tmp_path / "got-2") == digests["b.bin"]
        answers: list[int] = []

        def knock() -> bool:
            answers.append(ask(one.url("c.bin"), told["tidegate-ticket"])[0])
            return answers[-1] != 503

        wait_for(knock, 40)
        assert answers[-1] == 200, "its place was kept"
        # A newcomer is told a time that is no hour away, and a client's own date is the wall's.
        status, fields = ask(one.url("c.bin"))
        assert status == 200 or int(fields["retry-after"]) < 300
        assert one.server.errors == []
