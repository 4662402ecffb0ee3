"""Machines of an older version and of this one in one cluster, upgraded one by one under clients.

    python -m bench.upgrade
    python -m bench.upgrade --old REVISION --back

The older program is a commit of this repository (or a FOLDER that has one), which is run as it is.
Its machines start with an empty queue; then one after the other ends in order and begins again as
this version, the leader's first or last, while clients download, wait, and break off. `--back` puts
all of them back afterwards. What the clients saw is judged as in `bench.machines faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from bench.cluster import LEASE_IDLE_S
from bench.history import CrowdHistory, TicketClient
from bench.machines import BenchMachine, leading, machines, newcomers
from bench.postgres import Postgres
from policies.contract import ELSEWHERE
from server.store.cluster import read_nodes
from server.store.database import Database
from server.store.journal import read_journal

#: The last commit whose cluster speaks version 1 of the messages.
OLD = "bdf7561^"
_THIS = Path(__file__).resolve().parent.parent
_GATHER_S, _FINISH_S = 60.0, 200.0


def export(revision: str, folder: Path) -> None:
    """Put the program of a commit into an empty folder. Raises CalledProcessError."""
    archive = subprocess.run(
        ["git", "archive", revision], cwd=_THIS, check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


class Rollout:
    """Machines that are given another program one by one; `at_s` are the times of it."""

    def __init__(
        self, fleet: list[BenchMachine], database: Database, pause_s: float, leader_first: bool
    ) -> None:
        self._fleet = fleet
        self._database = database
        self._pause_s = pause_s
        self._leader_first = leader_first
        self.at_s: list[float] = []

    async def give(self, program: Path) -> None:
        """Let each machine end in order and begin again as this program."""
        leader = await asyncio.to_thread(leading, self._database, self._fleet)
        followers = [one for one in self._fleet if one is not leader]
        of_leader = [one for one in self._fleet if one is leader]
        order = of_leader + followers if self._leader_first else followers + of_leader
        for one in order:
            self.at_s.append(time.monotonic())
            await asyncio.to_thread(one.stop)
            one.program = program
            await asyncio.to_thread(one.start)
            await asyncio.to_thread(self.gather)
            await asyncio.sleep(self._pause_s)

    def gather(self) -> None:
        """Wait until all machines are connected with a leader. Raises ClickException."""
        names = {one.name for one in self._fleet}
        end_s = time.monotonic() + _GATHER_S
        while time.monotonic() < end_s:
            with self._database.begin() as session:
                if set(read_nodes(session).values()) == names:
                    return
            time.sleep(0.1)
        raise click.ClickException("not all machines have come together again")


async def _crowded(
    rollout: Rollout,
    programs: Sequence[Path],
    urls: list[str],
    body: bytes,
    clients: int,
    seed: int,
    slots: int,
) -> tuple[CrowdHistory, int]:
    history = CrowdHistory()
    poll_s = (max(0.2, clients / 200), max(0.6, clients / 60))
    crowd = [
        TicketClient(urls, f"u{n}", body, history, random.Random(f"{seed} {n}"), poll_s)
        for n in range(clients)
    ]
    # They begin no more once it is over.
    stop = asyncio.Event()
    tasks = [asyncio.create_task(_again_and_again(one, stop)) for one in crowd]
    try:
        for program in programs:
            await rollout.give(program)
    finally:
        stop.set()
    await asyncio.gather(*tasks)
    await asyncio.sleep(LEASE_IDLE_S + 1.0)
    return history, await newcomers(urls[0], slots + 1)


async def _again_and_again(one: TicketClient, stop: asyncio.Event) -> None:
    while not stop.is_set():
        now = time.monotonic()
        await one.run(now + 0.1, now + _FINISH_S)


def judge(
    history: CrowdHistory, numbers: frozenset[int], at_s: list[float], slots: int, began: int
) -> list[str]:
    """What was broken of the promises."""
    given = {number for number in history.owners if number < ELSEWHERE}
    back_s = LEASE_IDLE_S + 5.0
    counts = {
        "{} files were wrong": history.wrong,
        "{} tickets had two owners": history.two_owners,
        "{} tickets changed their number": history.changed,
        "{} tickets that were told are not in the journal": len(given - numbers),
        "{} places grew by more than all who can have broken off": sum(
            grown > slots * (1 + sum(told_s - back_s <= one <= now for one in at_s))
            for grown, told_s, now in history.grew
        ),
        "{} clients were sent away for good": sum(history.refused.values()),
        "{} clients did not finish": history.unfinished,
        "{} of the slots are lost": max(0, slots - began),
        "{} newcomers more than there are slots": max(0, began - slots),
    }
    found = [sentence.format(count) for sentence, count in counts.items() if count]
    if not history.whole:
        found.append("nobody got a file")
    return found


@click.command()
@click.option("--old", default=OLD, show_default=True, help="The commit of the older program.")
@click.option("--program", type=click.Path(path_type=Path, exists=True), help="Or its folder.")
@click.option("--count", default=3, show_default=True, help="Machines.")
@click.option("--clients", default=60, show_default=True)
@click.option("--slots", default=6, show_default=True, help="Of all machines together.")
@click.option("--pause", default=4.0, show_default=True, help="After each machine, seconds.")
@click.option("--leader-first/--leader-last", default=False, show_default=True)
@click.option("--back", is_flag=True, help="Put the older program back afterwards.")
@click.option("--seed", default=1, show_default=True)
def main(
    old: str,
    program: Path | None,
    count: int,
    clients: int,
    slots: int,
    pause: float,
    leader_first: bool,
    back: bool,
    seed: int,
) -> None:
    """Upgrade machines one by one under CLIENTS; exit status 1 if a promise was broken."""
    if slots % count:
        raise click.BadParameter(f"{slots} slots are no whole number for each machine")
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        before = program.resolve() if program is not None else root / "old"
        if program is None:
            before.mkdir()
            export(old, before)
        postgres = Postgres()
        stack.callback(postgres.remove)
        postgres.start()
        (root / "release").mkdir()
        body = random.Random(seed).randbytes(400_000)
        (root / "release" / "big.bin").write_bytes(body)
        (root / "release" / "long.bin").write_bytes(bytes(100_000_000))
        database = Database(postgres.url)
        stack.callback(database.close)
        args = ("--slots", str(slots // count), "--reserve-small", "0", "--bandwidth", "1MB")
        fleet = stack.enter_context(
            machines(root, count, postgres.url, *args, "--policy", "ticket", program=before)
        )
        rollout = Rollout(fleet, database, pause, leader_first)
        rollout.gather()
        urls = [one.url for one in fleet]
        programs = [_THIS, before] if back else [_THIS]
        history, began = asyncio.run(_crowded(rollout, programs, urls, body, clients, seed, slots))
        with database.begin() as session:
            journal = read_journal(session)
        numbers = frozenset({row.number for row in journal.live} | {*journal.over})
        logs = "\n".join(one.log for one in fleet)
    click.echo(
        f"restarts {len(rollout.at_s)}; downloads {history.whole}, wrong {history.wrong}; broken "
        f"off {history.broken}, resumed {history.resumed}, unfinished {history.unfinished}; told "
        f"to wait {history.waits}, at most after {history.longest_s:.1f} s; refused "
        f"{history.refused}; tickets {len(history.owners)}, with two owners {history.two_owners}, "
        f"changed {history.changed}; places that grew {len(history.grew)}, at most by "
        f"{max((one for one, _, _ in history.grew), default=0)}; {began} of {slots + 1} newcomers "
        "start"
    )
    broken = judge(history, numbers, rollout.at_s, slots, began)
    if logs.count("Traceback"):
        broken.append(f"{logs.count('Traceback')} faults of ours stand in the log")
    if broken:
        click.echo(logs[-5000:], err=True)
        click.echo("; ".join(broken), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
