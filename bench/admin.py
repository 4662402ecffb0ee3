"""Measures the administration on a real server: switches of policy under load, pages over a queue.

python -m bench.admin switches     100 changes of policy while clients wait and download
python -m bench.admin pages        page times with 100 000 tickets and 1 000 000 samples
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from bench.shared.ending import end_cleanly
from tests.admin_browser import AdminVisit, From
from tests.running import RunningServer
from tidegate.policies.registry import POLICIES
from tidegate.server.control.series import SERIES

PAGES = (
    *("/", "/queue", "/queue?tab=tickets", "/queue?tab=tickets&offset=90000"),
    *("/queue?tab=tickets&q=203.0.113.77", "/policy", "/policy/revisions", "/files", "/passes"),
    *(
        "/log",
        "/network",
        "/?span=24h",
        "/?span=7d",
        "/api/v1/history?span_s=3600&points={points}",
        "/api/v1/history?span_s=86400&points={points}",
        "/api/v1/history?span_s=604800&points={points}",
        "/metrics",
        "/api/v1/state",
    ),
)


@dataclass
class Guest:
    """One client: the tickets and places it was told, and what it got."""

    address: str
    tickets: list[int] = field(default_factory=list)
    attempts: int = 0
    digest: str = ""
    faults: list[str] = field(default_factory=list)

    def come(self, url: str, over: threading.Event) -> None:
        """Wait politely, then download; remember everything."""
        session = requests.Session()
        session.mount("http://", From(self.address))
        headers = {"Tidegate-Wait": "ticket"}
        while not over.is_set():
            self.attempts += 1
            try:
                with session.get(url, headers=headers, stream=True, timeout=120) as answer:
                    token = answer.headers.get("Tidegate-Ticket")
                    if token:
                        headers["Tidegate-Ticket"] = token
                    if answer.status_code == 200:
                        body = hashlib.sha256()
                        for piece in answer.iter_content(65536):
                            body.update(piece)
                        self.digest = body.hexdigest()
                        return
                    if answer.status_code != 503:
                        self.faults.append(f"{answer.status_code} {answer.text[:200]}")
                        return
                    number = answer.json().get("ticket")
                    if number is not None:
                        self.tickets.append(number)
                    pause = float(answer.headers["Retry-After"])
            except requests.RequestException as fault:
                self.faults.append(repr(fault))
                return
            over.wait(min(pause, 2.0))


def switches(turns: int, guests: int) -> dict[str, Any]:
    """Change the policy `turns` times while `guests` want a file each."""
    policies = sorted(POLICIES)
    with tempfile.TemporaryDirectory() as folder:
        release = Path(folder) / "release"
        release.mkdir()
        body = random.Random(1).randbytes(1_000_000)
        (release / "big.iso").write_bytes(body)
        options = ["--admin", "127.0.0.1:0", "--policy", "ticket", "--slots", "6"]
        options += ["--reserve-small", "1", "--bandwidth", "16Mbit"]
        server = RunningServer(release, Path(folder) / "state", *options)
        over = threading.Event()
        try:
            visit = AdminVisit(server)
            url = visit.url + "/api/v1/settings"
            headers = {"Authorization": f"Bearer {visit.api_token()}", "If-Match": "*"}
            crowd = [Guest(f"127.0.{6 + n // 200}.{1 + n % 200}") for n in range(guests)]
            took = []
            with ThreadPoolExecutor(guests) as pool:
                for guest in crowd:
                    pool.submit(guest.come, f"{server.url}/big.iso", over)
                time.sleep(1)
                for turn in range(turns):
                    change = {"policy": policies[(turn + 1) % len(policies)]}
                    began = time.perf_counter()
                    answer = requests.patch(url, json=change, headers=headers, timeout=30)
                    took.append(time.perf_counter() - began)
                    assert answer.status_code == 200, answer.text
                    time.sleep(0.1)
                last = {"policy": "ticket"}
                requests.patch(url, json=last, headers=headers, timeout=30).raise_for_status()
                pool.shutdown(wait=True)
            events = visit.get("/api/v1/state").json()["totals"]
        finally:
            over.set()
            server.stop()
    wanted = hashlib.sha256(body).hexdigest()
    return {
        "switches": turns,
        "guests": guests,
        "whole": sum(guest.digest == wanted for guest in crowd),
        "faults": [fault for guest in crowd for fault in guest.faults],
        "guests_with_two_tickets": sum(len(set(guest.tickets)) > 1 for guest in crowd),
        "second_tickets": [sorted(set(g.tickets)) for g in crowd if len(set(g.tickets)) > 1],
        "attempts": sum(guest.attempts for guest in crowd),
        "switch_ms_median": round(1000 * statistics.median(took), 1),
        "switch_ms_worst": round(1000 * max(took), 1),
        "totals": events,
    }


def fill(database: Path, tickets: int, samples: int) -> None:
    """A queue, and as long a history as the server keeps, straight into its tables."""
    now = time.time()
    link = sqlite3.connect(database)
    columns = "number, client, file, size_bytes, remaining_bytes, weight, issued_s, state, "
    columns += "changed_s, polls, early_polls"
    rows = (
        (
            n,
            f"203.0.{n % 250}.{n // 250 % 250}#{n % 8}",
            "/big.iso",
            10**9,
            10**9,
            1.0,
            now - 900,
            "waiting",
            now - 60,
            n % 5,
            0,
        )
        for n in range(1, tickets + 1)
    )
    with link:
        marks = ", ".join("?" * 11)
        link.executemany(f"insert into tickets ({columns}) values ({marks})", rows)
        series = [*SERIES, *(f"other_{n}" for n in range(200))]
        left = samples
        for name in series:
            for resolution, count in ((0, 720), (60, 10_080), (3600, 8_760)):
                step = resolution or 5
                end = now - now % step
                some = min(left, count)
                points = (
                    (resolution, name, end - step * i, i % 97, i % 97) for i in range(1, some)
                )
                link.executemany("insert into history values (?, ?, ?, ?, ?)", points)
                left -= some
    link.close()


def pages(tickets: int, samples: int, times: int) -> dict[str, Any]:
    """How long each page takes, from request to last byte, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        release, state = Path(folder) / "release", Path(folder) / "state"
        release.mkdir()
        for n in range(200):
            (release / f"file-{n}.bin").write_bytes(b"x" * 30_000)
        options = ("--admin", "127.0.0.1:0", "--policy", "ticket", "--slots", "36")
        server = RunningServer(release, state, *options)
        AdminVisit(server)
        server.stop()
        fill(state / "tidegate.db", tickets, samples)
        server = RunningServer(release, state, *options)
        try:
            visit = AdminVisit(server)
            found: dict[str, Any] = {}
            for page in PAGES:
                # Charts are kept for a while: a number of points that nobody asked for is new.
                visit.get(page.format(points=100))
                took = []
                for turn in range(times):
                    time.sleep(0.02)
                    began = time.perf_counter()
                    answer = visit.get(page.format(points=240 + turn))
                    took.append(1000 * (time.perf_counter() - began))
                    assert answer.status_code == 200, (page, answer.status_code)
                took.sort()
                found[page] = {
                    "median_ms": round(statistics.median(took), 1),
                    "worst_ms": round(took[-1], 1),
                }
            state_now = visit.get("/api/v1/state").json()
            found["tickets"] = state_now["waiting"] + state_now["ready"]
        finally:
            server.stop()
        rows = sqlite3.connect(state / "tidegate.db").execute("select count(*) from history")
        found["history_rows"] = rows.fetchone()[0]
        return found


def main() -> None:
    """Run one measurement and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["switches", "pages"])
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--guests", type=int, default=60)
    parser.add_argument("--tickets", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20)
    chosen = parser.parse_args()
    run: Callable[[], dict[str, Any]] = {
        "switches": lambda: switches(chosen.turns, chosen.guests),
        "pages": lambda: pages(chosen.tickets, chosen.samples, chosen.times),
    }[chosen.what]
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")


if __name__ == "__main__":
    end_cleanly()
    main()
