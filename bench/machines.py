"""Several machines with one queue, on one PostgreSQL: fail-over, and what faults do to the queue.

    python -m bench.machines failover
    python -m bench.machines faults

`failover` puts tickets into the journal, lets the leader answer for some of them, kills it (its
process, or all of its machine) and takes the time until another one answers for them with their
places. `faults` kills, stops and restarts leaders, nodes, whole machines and the database's
connections at random under clients that write down what they saw, and judges the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import click
from sqlalchemy import text

from bench.cluster import LEASE_IDLE_S, Client, History, children, most_at_once
from bench.postgres import postgres_running
from policies.contract import TicketRow, TicketState
from server.store.cluster import read_seat
from server.store.database import Database
from server.store.journal import reserve_numbers, write_tickets

ENVIRON = {
    "TIDEGATE_DRAIN_S": "1",
    "TIDEGATE_CLIENTS_PER_ADDRESS": "65536",
    "TIDEGATE_LEASE_IDLE_S": f"{LEASE_IDLE_S}",
    "TIDEGATE_TICKET_TTL_S": "60",
    "TIDEGATE_EARLY_PENALTY_S": "0",
}
_START_S = 60.0


@dataclass(slots=True)
class Machine:
    """One server of the cluster; its port stays its own over restarts."""

    folder: Path
    args: list[str]
    process: subprocess.Popen[str] | None = None
    url: str = ""
    environ: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start it and wait until it serves."""
        listen = self.url.partition("//")[2] or "127.0.0.1:0"
        command = [sys.executable, "-m", "tidegate", "serve", str(self.folder.parent / "release")]
        command += ["--listen", listen, "--admin", "off", "--state", str(self.folder), *self.args]
        with (self.folder.parent / "log").open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **ENVIRON, **self.environ, "PYTHONPATH": os.getcwd()},
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready "):
                self.url = line.split()[1]
                return
        raise click.ClickException((self.folder.parent / "log").read_text("utf-8")[-3000:])

    @property
    def name(self) -> str:
        """As the database has it."""
        return (self.folder / "machine").read_text("ascii").strip()

    def pids(self) -> list[int]:
        """All of its processes."""
        if self.process is None:
            return []
        return [self.process.pid, *children(self.process.pid)]

    def leader_pid(self) -> int:
        """The process that leads, or would."""
        return int((self.folder / "lock").read_text("ascii"))

    def lose(self) -> None:
        """Kill all of it."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._ended()

    def stop(self) -> None:
        """Let it end in order."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.lose()
            else:
                self._ended()

    def _ended(self) -> None:
        if self.process is not None:
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None


@contextlib.contextmanager
def machines(
    root: Path, count: int, url: str, *args: str, lease_s: float
) -> Iterator[list[Machine]]:
    """`count` servers with one queue."""
    found = []
    try:
        for index in range(count):
            one = Machine(root / f"m{index}", ["--cluster", url, *args])
            one.environ["TIDEGATE_CLUSTER_LEASE_S"] = f"{lease_s}"
            found.append(one)
            one.start()
        yield found
    finally:
        for one in found:
            one.stop()


def leading(database: Database, all_of_them: list[Machine]) -> Machine | None:
    """Who leads by what the database says."""
    with database.begin() as session:
        holder = read_seat(session).holder
    return next((one for one in all_of_them if one.process and one.name == holder), None)


# -- fail-over ----------------------------------------------------------------------------------


async def _places(url: str, clients: list[str]) -> dict[str, int]:
    """The places that clients are told, 0 for a start; who is told neither is left out."""
    parts = urlsplit(url)
    found = {}
    for client in clients:
        with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(
                b"GET /big.bin HTTP/1.1\r\nHost: x\r\nTidegate-Wait: ticket\r\n"
                b"Tidegate-Client: %s\r\n\r\n" % client.encode()
            )
            async with asyncio.timeout(_START_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            writer.transport.abort()
            place = re.search(r"tidegate-place: (\d+)", head)
            if place is not None or " 200 " in head.partition("\r")[0]:
                found[client] = int(place[1]) if place is not None else 0
    return found


def _fill(database: Database, tickets: int) -> None:
    now = time.time()
    rows = [
        TicketRow(n, f"old-{n}", "/big.bin", 10**7, 10**7, 1.0, now, TicketState.WAITING, now)
        for n in range(1, tickets + 1)
    ]
    database.migrate()
    with database.begin() as session:
        session.execute(text("SET LOCAL statement_timeout = 0"))
        write_tickets(session, rows)
        reserve_numbers(session, tickets + 1)


@click.group()
def main() -> None:
    """Several machines with one queue: how fast another one leads, and how they bear faults."""


@main.command()
@click.option("--tickets", default=100_000, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Of each way to lose the leader.")
@click.option("--lease", default=1.5, show_default=True, help="cluster_lease_s.")
def failover(tickets: int, rounds: int, lease: float) -> None:
    """The time from the loss of the leader to the first answer of the next."""
    times: dict[str, list[float]] = {"process": [], "machine": []}
    kept = asked = 0
    with tempfile.TemporaryDirectory() as folder, postgres_running(durable=True) as url:
        root = Path(folder)
        (root / "release").mkdir()
        (root / "release" / "big.bin").write_bytes(b"x" * 10**7)
        database = Database(url)
        _fill(database, tickets)
        args = ("--slots", "2", "--reserve-small", "0", "--policy", "ticket", "--bandwidth", "10KB")
        with machines(root, 3, url, *args, lease_s=lease) as fleet:
            clients = [f"probe-{n}" for n in range(20)]
            for turn in range(2 * rounds):
                what = ("process", "machine")[turn % 2]
                leader = leading(database, fleet)
                end_s = time.monotonic() + _START_S
                while leader is None and time.monotonic() < end_s:
                    time.sleep(0.05)
                    leader = leading(database, fleet)
                assert leader is not None
                other = next(one for one in fleet if one is not leader)
                before = asyncio.run(_places(other.url, clients))
                began = time.monotonic()
                if what == "process":
                    os.kill(leader.leader_pid(), signal.SIGKILL)
                else:
                    leader.lose()
                while not (first := asyncio.run(_places(other.url, clients[:1]))):
                    time.sleep(0.01)
                times[what].append(time.monotonic() - began)
                click.echo(f"{what}: {times[what][-1]:.2f} s", err=True)
                after = first | asyncio.run(_places(other.url, clients[1:]))
                asked += len(before)
                kept += sum(after.get(client, 10**9) <= place for client, place in before.items())
                if what == "machine":
                    leader.start()
                time.sleep(1.0)
        database.close()
    click.echo(
        f"| lost ({tickets} tickets) | first answer after, s: median | worst |\n|---|---|---|"
    )
    for what, found in times.items():
        click.echo(f"| {what} | {statistics.median(found):.2f} | {max(found):.2f} |")
    click.echo(f"{kept} of {asked} places were kept.")


# -- faults -------------------------------------------------------------------------------------


def _backends(database: Database) -> list[int]:
    """The database's ends of all connections but ours."""
    with database.begin() as session:
        found = session.execute(
            text(
                "SELECT pid FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        )
        return [row[0] for row in found]


async def _pause(pids: list[int], seconds: float) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def _torment(
    fleet: list[Machine], database: Database, until_s: float, rng: random.Random
) -> dict[str, int]:
    """Do harm at random; how often what."""
    done: dict[str, int] = {}
    while time.monotonic() < until_s:
        await asyncio.sleep(rng.uniform(0.5, 3.0))
        leader = await asyncio.to_thread(leading, database, fleet)
        others = [one for one in fleet if one is not leader] or fleet
        victim = leader if leader is not None and rng.random() < 0.5 else rng.choice(others)
        role = "leader" if victim is leader else "follower"
        nodes = [pid for pid in victim.pids()[1:] if pid != victim.leader_pid()]
        what = rng.choice(("kill", "kill", "stop", "node", "machine", "database"))
        with contextlib.suppress(ProcessLookupError):
            if what == "kill":
                os.kill(victim.leader_pid(), signal.SIGKILL)
            elif what == "stop":
                await _pause([victim.leader_pid()], rng.uniform(0.2, 5.0))
            elif what == "node" and nodes:
                os.kill(rng.choice(nodes), signal.SIGKILL)
                role = "any"
            elif what == "machine":
                victim.lose()
                await asyncio.sleep(rng.uniform(0.0, 3.0))
                await asyncio.to_thread(victim.start)
            elif what == "database":
                await _pause(await asyncio.to_thread(_backends, database), rng.uniform(0.2, 4.0))
                role = "any"
        done[f"{what} {role}"] = done.get(f"{what} {role}", 0) + 1
    return done


async def _run(
    fleet: list[Machine],
    database: Database,
    digest: str,
    seconds: float,
    clients: int,
    seed: int,
) -> tuple[History, dict[str, int]]:
    history, rng = History(), random.Random(seed)
    until_s = time.monotonic() + seconds
    crowd = [
        Client(fleet[n % len(fleet)].url, f"c{n}", digest, history, random.Random(f"{seed} {n}"))
        for n in range(clients)
    ]
    tasks = [asyncio.create_task(one.run(until_s + 15.0)) for one in crowd]
    done = await _torment(fleet, database, until_s, rng)
    await asyncio.gather(*tasks)
    return history, done


def judge(history: History, log: str) -> list[str]:
    """What was broken of the promises."""
    found = []
    if history.wrong:
        found.append(f"{history.wrong} files were wrong")
    if history.two_owners:
        found.append(f"{history.two_owners} tickets had two owners")
    if not history.whole:
        found.append("nobody got a file")
    if "Traceback" in log:
        found.append("a fault of ours stands in the log")
    return found


@main.command()
@click.option("--count", default=3, show_default=True, help="Machines.")
@click.option("--clients", default=100, show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--slots", default=6, show_default=True)
@click.option("--policy", default="ticket", show_default=True)
@click.option("--seed", default=1, show_default=True)
def faults(count: int, clients: int, seconds: float, slots: int, policy: str, seed: int) -> None:
    """Kill and stop at random under CLIENTS; exit status 1 if a promise was broken."""
    with tempfile.TemporaryDirectory() as folder, postgres_running() as url:
        root = Path(folder)
        (root / "release").mkdir()
        body = random.Random(seed).randbytes(400_000)
        (root / "release" / "big.bin").write_bytes(body)
        args = ("--slots", str(slots), "--reserve-small", "0", "--bandwidth", "4MB")
        database = Database(url)
        with machines(root, count, url, *args, "--policy", policy, lease_s=1.5) as fleet:
            digest = hashlib.sha256(body).hexdigest()
            history, done = asyncio.run(_run(fleet, database, digest, seconds, clients, seed))
            with database.begin() as session:
                epochs = read_seat(session).epoch
        database.close()
        log = (root / "log").read_text("utf-8")
    click.echo(f"faults: {done}; epochs {epochs}")
    click.echo(
        f"downloads {history.whole}, wrong {history.wrong}; broken off {history.broken}; told to "
        f"wait {history.waits}, at most after {history.longest_s:.1f} s; refused {history.refused}"
    )
    click.echo(
        f"tickets {len(history.owners)}, with two owners {history.two_owners}, changed under way "
        f"{history.changed}; places that grew {len(history.grew)}, at most by "
        f"{max(history.grew, default=0)}; bodies at once {most_at_once(history.bodies)} of {slots}"
    )
    broken = judge(history, log)
    if broken:
        click.echo(log[-5000:], err=True)
        click.echo("; ".join(broken), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
