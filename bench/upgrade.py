"""Machines of an older version and of this one in one cluster, upgraded one by one under clients.

    python -m bench.upgrade
    python -m bench.upgrade --old REVISION --back
    python -m bench.upgrade --old REVISION --mixed 60

The older program is a commit of this repository (or a FOLDER that has one), which is run as it is.
Its machines start with an empty queue; then one after the other ends in order and begins again as
this version, the leader's first or last, while clients download, wait, and break off. `--back`
puts all of them back afterwards. `--mixed` lets both versions stay together for so many minutes,
the older one leading first and this one then, while the shared keys and certificates are renewed
and an older machine is drained and removed; only then come the last ones. What the clients saw is
judged as in `bench.machines faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import click
from sqlalchemy import text

from bench.cluster import LEASE_IDLE_S
from bench.history import CrowdHistory, TicketClient
from bench.machines import BenchMachine, leading, machines, newcomers
from bench.postgres import Postgres
from bench.shared.ending import end_cleanly
from tidegate.policies.contract import ELSEWHERE
from tidegate.server.store.cluster import read_nodes, read_seat
from tidegate.server.store.database import Database

#: The last commit whose cluster speaks version 1 of the messages.
OLD = "bdf7561^"
_THIS = Path(__file__).resolve().parent.parent
_GATHER_S, _FINISH_S = 180.0, 200.0
#: In the mixed run secrets are made this much older, which is more than a certificate settles and
#: more than keys_rotate_s is.
_AGE_S = 3700.0
_ROTATIONS = 6


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
        #: Where clients ask.
        self.urls = [one.url for one in fleet]
        self.at_s: list[float] = []

    async def give(self, program: Path) -> None:
        """Let each machine end in order and begin again as this program."""
        leader = await asyncio.to_thread(leading, self._database, self._fleet)
        followers = [one for one in self._fleet if one is not leader]
        of_leader = [one for one in self._fleet if one is leader]
        order = of_leader + followers if self._leader_first else followers + of_leader
        for one in order:
            await self._give_one(one, program)

    async def _give_one(self, one: BenchMachine, program: Path) -> None:
        self.at_s.append(time.monotonic())
        await asyncio.to_thread(one.stop)
        one.program = program
        await asyncio.to_thread(one.start)
        await asyncio.to_thread(self.gather)
        await asyncio.sleep(self._pause_s)

    async def mixed(self, program: Path, minutes: float, say: Callable[[str], None]) -> None:
        """Let both versions stay together for so long, then give this program to all.

        The first third an older machine leads, then one of this program.
        """
        began_s = time.monotonic()
        first = await asyncio.to_thread(leading, self._database, self._fleet)
        assert first is not None
        followers = [one for one in self._fleet if one is not first]
        new, removed, *old = followers

        async def until(part: float, rotations: int) -> None:
            """Renew what all share so often until this part of the time is over."""
            end_s = began_s + part * minutes * 60.0
            step_s = (end_s - time.monotonic()) / (rotations + 1)
            for _ in range(rotations):
                await asyncio.sleep(max(0.0, step_s))
                await self._rotate(say)
            await asyncio.sleep(max(0.0, end_s - time.monotonic()))

        say(f"an older program leads ({first.name}); {new.name} becomes this one")
        await self._give_one(new, program)
        await until(0.2, 1)
        say(f"{removed.name} (older) is drained and removed")
        await self._remove(removed)
        await until(1 / 3, 1)
        say(f"{first.name} hands over and becomes this program")
        # An older one of those that are left would rather not: its election is held for a moment.
        held = [one.leader_pid() for one in old]
        for pid in held:
            os.kill(pid, signal.SIGSTOP)
        self.at_s.append(time.monotonic())
        await asyncio.to_thread(first.stop)
        await asyncio.sleep(0.5)
        for pid in held:
            os.kill(pid, signal.SIGCONT)
        first.program = program
        await asyncio.to_thread(first.start)
        await asyncio.to_thread(self.gather)
        leader = await asyncio.to_thread(leading, self._database, self._fleet)
        now_leads = "nobody" if leader is None else leader.name
        say(f"{now_leads} leads, {'an older' if leader in old else 'this'} program")
        await until(1.0, _ROTATIONS - 2)
        for one in old:
            say(f"{one.name} (older, the last) becomes this program")
            await self._give_one(one, program)

    async def _rotate(self, say: Callable[[str], None]) -> None:
        """Let time pass for keys and certificates: what was newest is shown, a new one is made."""
        age = text("UPDATE cluster_secrets SET made_s = made_s - :age")
        with self._database.begin() as session:
            session.execute(age, {"age": _AGE_S})
        for one in self._fleet:
            assert one.process is not None
            one.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(2.0)
        with self._database.begin() as session:
            rows = session.execute(text("SELECT kind, count(*) FROM cluster_secrets GROUP BY kind"))
            say(f"renewed: {dict(sorted((kind, count) for kind, count in rows))} secrets")

    async def _remove(self, one: BenchMachine) -> None:
        self.at_s.append(time.monotonic())
        self.urls.remove(one.url)
        await asyncio.to_thread(one.stop)
        self._fleet.remove(one)
        await asyncio.to_thread(self.gather)

    def gather(self) -> None:
        """Wait until all machines are connected with a leader, and no other is. Raises
        ClickException."""
        names = {one.name for one in self._fleet}
        end_s = time.monotonic() + _GATHER_S
        while time.monotonic() < end_s:
            with self._database.begin() as session:
                found = set(read_nodes(session).values())
            if found == names:
                return
            time.sleep(0.1)
        logs = "\n".join(f"-- {one.name}\n{one.log[-2000:]}" for one in self._fleet)
        raise click.ClickException(
            f"not all machines have come together again: {found} instead of {names}\n{logs}"
        )


async def _crowded(
    harm: Callable[[], Awaitable[None]],
    urls: list[str],
    body: bytes,
    clients: int,
    seed: int,
    own_slots: int,
) -> tuple[CrowdHistory, int]:
    history = CrowdHistory()
    # All together ask some thirty times a second.
    poll_s = (max(0.2, clients / 60), max(0.6, clients / 20))
    crowd = [
        TicketClient(urls, f"u{n}", body, history, random.Random(f"{seed} {n}"), poll_s)
        for n in range(clients)
    ]
    # They begin no more once it is over.
    stop = asyncio.Event()
    tasks = [asyncio.create_task(_again_and_again(one, stop)) for one in crowd]
    try:
        await harm()
    finally:
        stop.set()
    await asyncio.gather(*tasks)
    await asyncio.sleep(LEASE_IDLE_S + 1.0)
    return history, await newcomers(urls[0], own_slots * len(urls) + 1)


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
@click.option("--mixed", default=0.0, help="Minutes for which both versions stay together.")
@click.option("--seed", default=1, show_default=True)
@click.option("--keep-log", type=click.Path(path_type=Path), help="Where the servers' log goes.")
def main(
    old: str,
    program: Path | None,
    count: int,
    clients: int,
    slots: int,
    pause: float,
    leader_first: bool,
    back: bool,
    mixed: float,
    seed: int,
    keep_log: Path | None,
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
        urls = rollout.urls
        began_s = time.monotonic()

        def say(what: str) -> None:
            click.echo(f"{(time.monotonic() - began_s) / 60.0:5.1f} min: {what}", err=True)

        async def give_all() -> None:
            for one in [_THIS, before] if back else [_THIS]:
                await rollout.give(one)

        all_of_them = list(fleet)
        harm = partial(rollout.mixed, _THIS, mixed, say) if mixed else give_all
        history, began = asyncio.run(_crowded(harm, urls, body, clients, seed, slots // count))
        slots = slots // count * len(urls)
        with database.begin() as session:
            numbers = frozenset(session.scalars(text("SELECT number FROM tickets")))
            epochs = read_seat(session).epoch
        logs = "\n".join(f"-- {one.name}\n{one.log}" for one in all_of_them)
        took_s = time.monotonic() - began_s
    click.echo(f"{took_s / 60.0:.0f} minutes, epochs {epochs}")
    click.echo(
        f"restarts {len(rollout.at_s)}; downloads {history.whole}, wrong {history.wrong}; broken "
        f"off {history.broken}, resumed {history.resumed}, unfinished {history.unfinished}; told "
        f"to wait {history.waits}, at most after {history.longest_s:.1f} s; refused "
        f"{history.refused}; tickets {len(history.owners)}, with two owners {history.two_owners}, "
        f"changed {history.changed}, exchanged for an older one {history.exchanged}; places that "
        f"grew {len(history.grew)}, at most by "
        f"{max((one for one, _, _ in history.grew), default=0)}; {began} newcomers start at "
        f"{slots} slots"
    )
    if keep_log is not None:
        lost = {n for n in history.owners if n < ELSEWHERE} - numbers
        notes = [f"{history.owners[n]}: ticket {n}; {history.told[n]}" for n in sorted(lost)]
        keep_log.write_text("\n".join([logs, *notes, *history.notes, *history.by_server(), ""]))
    broken = judge(history, numbers, rollout.at_s, slots, began)
    if logs.count("Traceback"):
        broken.append(f"{logs.count('Traceback')} faults of ours stand in the log")
    if broken:
        click.echo(logs[-5000:], err=True)
        click.echo("; ".join(broken), err=True)
        sys.exit(1)


if __name__ == "__main__":
    end_cleanly()
    main()
