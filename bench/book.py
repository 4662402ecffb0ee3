"""A million waiting tickets: how long an offer takes, and what a ticket costs.

    python -m bench.book [--tickets 1000000] [--running 900] [--policy fair] [--restart] [--json]

Fills a policy's book with one ticket per client, then measures, while tickets come, go and start
as on a busy day, each offer (decision, place and estimate in one answer), each end of a download,
and each passing of time: four times a second with the line observed and those that run measured,
as a server does, and when the policy asks for it. Prints
the quantiles in microseconds, the resident memory per ticket (client keys included), and what the
fast path for small files costs. Bars: an offer's p99 below 100 us, below 400 bytes a ticket.

`floor_*` is what the same clock says of a fixed piece of work, done in turn with the offers: how
far p99 lies above p50 there is the machine's doing and not the book's.

`--restart` measures instead what a start pays for the tickets that waited: processor time to read
them from a journal (SQLite) and to take them up, medians of five. Bar: half a second for 100 000.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from tidegate.policies.contract import Admit, Advance, Job, TicketRow, TicketState, Wait
from tidegate.policies.registry import POLICIES, make_policy
from tidegate.policies.settings import PolicySettings
from tidegate.server.store.database import Database
from tidegate.server.store.journal import read_journal, write_tickets

Answer = TypeVar("Answer")


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def address(number: int) -> str:
    """A client key of the usual form and length."""
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}#{number % 8}"


def fixed_work() -> int:
    """Some tens of microseconds that touch no memory worth the name."""
    total = 0
    for number in range(600):
        total += number * number
    return total


def quantiles(name: str, times_s: list[float]) -> dict[str, float]:
    """Of some processor times, in microseconds."""
    times_s.sort()
    many = len(times_s)
    at = {"p50": many // 2, "p99": many * 99 // 100, "p999": many * 999 // 1000, "max": many - 1}
    return {f"{name}_{word}_us": round(times_s[place] * 1e6, 1) for word, place in at.items()}


def run(tickets: int, running: int, name: str) -> dict[str, float]:
    """All figures for one policy; so many downloads run while the tickets wait."""
    rng = random.Random(1)
    slots = running + 100
    settings = PolicySettings(
        slots=slots, slots_max=slots, reserve_small=100, bandwidth_bytes_s=125e6
    )
    policy = make_policy(name, settings, rng)
    policy.changes()
    now = 1_800_000_000.0
    gc.collect()
    before = resident_bytes()
    started = time.perf_counter()
    for number in range(tickets + running):
        if number == 0:
            # While nobody knows what the line carries, all start that have a slot.
            policy.observe(125e6, False, now, math.inf)
        elif number == running:
            policy.observe(125e6, True, now, 125e6)
            policy.advance(now)
        size = 1_000_000 + number % 50_000
        policy.offer(Job(address(number), "/release/image.iso", size, size), now)
        if number % 1_000 == 0:
            policy.changes()
    filled = time.perf_counter() - started
    policy.changes()
    wake_s = policy.advance(now).wake_at
    gc.collect()
    per_ticket = (resident_bytes() - before) / tickets

    weights = [1.0] * 8 + [2.0, 4.0]
    spent: dict[str, list[float]] = {"offer": [], "end": [], "tick": [], "floor": []}

    def timed(what: str, call: Callable[[], Answer]) -> Answer:
        # Time on the processor: what other processes take from it says nothing about the book.
        began = time.thread_time()
        answer = call()
        spent[what].append(time.thread_time() - began)
        return answer

    def pass_time(now: float) -> Advance:
        policy.observe(125e6, True, now, 125e6)
        return policy.advance(now)

    leases = [view.lease for view in policy.leases()]
    left = {view.lease: view.remaining_bytes for view in policy.leases()}
    for step in range(20_000):
        now += 0.005
        if step % 10 == 0 and leases:
            lease = leases.pop(rng.randrange(len(leases)))
            left.pop(lease, None)
            timed("end", partial(policy.release, lease, now, True))
        known = step % 2
        number = rng.randrange(tickets) if known else tickets + 10_000 + step
        size = 1_000_000 + number % 50_000
        client = address(number) if known else f"new{number}"
        job = Job(client, "/release/image.iso", size, size, rng.choice(weights))
        answer = timed("offer", partial(policy.offer, job, now))
        timed("floor", fixed_work)
        if isinstance(answer, Admit) and not answer.joined:
            leases.append(answer.lease)
            left[answer.lease] = size
        elif isinstance(answer, Wait) and answer.ticket is not None and step % 7 == 0:
            policy.withdraw(answer.ticket, now)
        if step % 50 == 0:
            policy.changes()
            for lease, bytes_left in left.items():
                left[lease] = max(1, bytes_left - 1_000)
                policy.progress(lease, now, left[lease], 1.25e8 / slots)
            wake_s = timed("tick", partial(pass_time, now)).wake_at
        while wake_s is not None and now >= wake_s:
            wake_s = timed("tick", partial(policy.advance, now)).wake_at

    rounds = 200_000
    idle = make_policy(name, settings, rng)
    admit_small = idle.admit_small
    began = time.perf_counter()
    for _ in range(rounds):
        admit_small(now)
    small = (time.perf_counter() - began) / rounds
    return {
        "tickets": tickets,
        "bytes_per_ticket": round(per_ticket, 1),
        **quantiles("offer", spent["offer"]),
        **quantiles("end", spent["end"]),
        **quantiles("tick", spent["tick"]),
        **quantiles("floor", spent["floor"]),
        "issue_mean_us": round(filled / (tickets + running) * 1e6, 1),
        "admit_small_us": round(small * 1e6, 3),
    }


def journal_rows(tickets: int) -> Iterator[TicketRow]:
    """What a server that was killed leaves behind: the first 20 could have started."""
    size = 1_000_000_000
    for number in range(1, tickets + 1):
        state = TicketState.READY if number <= 20 else TicketState.WAITING
        came_s = 1_800_000_000.0 + number / 1_000
        client = address(number)
        yield TicketRow(
            *(number, client, "/release/image.iso", size, size, 1.0, came_s, state, came_s), polls=1
        )


def restart(tickets: int, name: str) -> dict[str, float]:
    """What reading and taking up the tickets of an earlier run costs."""
    settings = PolicySettings(slots=20, reserve_small=4, bandwidth_bytes_s=125e6)
    now = 1_800_010_000.0
    read: list[float] = []
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/book.db")
        database.migrate()
        with database.begin() as session:
            write_tickets(session, journal_rows(tickets))
        for _ in range(5):
            with database.begin() as session:
                began = time.process_time()
                journal = read_journal(session)
                read.append(time.process_time() - began)
            policy = make_policy(name, settings, random.Random(1))
            policy.changes()
            began = time.process_time()
            policy.restore(journal.live, now, journal.next_number)
            policy.advance(now)
            taken.append(time.process_time() - began)
        database.close()
    return {
        "tickets": tickets,
        "read_s": round(statistics.median(read), 3),
        "taken_up_s": round(statistics.median(taken), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tickets", type=int, default=1_000_000)
    parser.add_argument("--running", type=int, default=900)
    parser.add_argument(
        "--policy",
        default="ticket",
        choices=sorted(name for name, kind in POLICIES.items() if kind.gives_tickets),
    )
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.restart:
        figures = restart(options.tickets, options.policy)
    else:
        figures = run(options.tickets, options.running, options.policy)
    if options.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name:20} {value:>12,}\n")


if __name__ == "__main__":
    main()
