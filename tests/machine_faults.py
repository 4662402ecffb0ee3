"""Several machines with one queue, on one PostgreSQL: what faults do to the queue.

    python -m tests.machine_faults

It kills, stops and restarts leaders, nodes, whole machines and the database at random under clients
that write down what they saw, and judges the history beside what the database was written. As root
each machine is a network namespace and is cut off, too: from the others, from the database, from
both, from everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from sqlalchemy import text

from bench.shared.ending import end_cleanly
from bench.shared.namespaces import run
from bench.shared.subject import Suppressed
from tests.crowd_history import (
    ClientAnswer,
    CrowdHistory,
    TicketClient,
    fetch,
    longest_above,
    most_at_once,
    outside,
    too_many,
)
from tests.postgres import Postgres
from tidegate.policies.contract import ELSEWHERE
from tidegate.server.cluster.leader import GATHER_S
from tidegate.server.store.cluster import read_seat
from tidegate.server.store.database import Database, StoreUnavailable

#: What a lease may idle before its slot is another's.
LEASE_IDLE_S = 2.0
ENVIRON = {
    "TIDEGATE_DRAIN_S": "1",
    "TIDEGATE_CLIENTS_PER_ADDRESS": "65536",
    "TIDEGATE_LEASE_IDLE_S": f"{LEASE_IDLE_S}",
    "TIDEGATE_TICKET_TTL_S": "60",
    "TIDEGATE_EARLY_PENALTY_S": "0",
    "TIDEGATE_KEYS_ROTATE_S": "3600",
}
_LEASE_S = 1.5
_GONE = Suppressed("processes that had ended before a signal", ProcessLookupError)
_UNKNOWN = Suppressed("times when the database did not name a leader", StoreUnavailable)
_BROKEN = Suppressed(
    "requests that broke off", OSError, EOFError, asyncio.IncompleteReadError, TimeoutError
)


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    except OSError:
        return []
    return [int(word) for word in text.split()]


@dataclass(slots=True)
class BenchMachine:
    """One server of the cluster; its port stays its own over restarts.

    `within` is the command that runs another one at its place, `host` where it listens.
    """

    folder: Path
    args: list[str]
    process: subprocess.Popen[str] | None = None
    url: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    host: str = "127.0.0.1"

    def start(self) -> None:
        """Start it and wait until it serves."""
        listen = self.url.partition("//")[2] or f"{self.host}:0"
        release = self.folder.parent / f"{self.folder.name}-release"
        if not release.exists():
            shutil.copytree(self.folder.parent / "release", release)
        command = [
            *self.within,
            sys.executable,
            "-m",
            "tests.machine_server",
            "serve",
            str(release),
        ]
        command += ["--listen", listen, "--admin", "off", "--state", str(self.folder), *self.args]
        with self.log_file.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    **ENVIRON,
                    **self.environ,
                    "PGAPPNAME": self.folder.name,
                },
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready "):
                self.url = line.split()[1]
                return
        raise click.ClickException(self.log[-3000:])

    @property
    def log_file(self) -> Path:
        """Where its processes log."""
        return self.folder.parent / f"{self.folder.name}.log"

    @property
    def log(self) -> str:
        """What they have logged."""
        return self.log_file.read_text("utf-8")

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
            with _GONE:
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
    root: Path,
    count: int,
    url: str,
    *args: str,
    spaces: Spaces | None = None,
) -> Iterator[list[BenchMachine]]:
    """`count` servers with one queue."""
    found = []
    try:
        for index in range(count):
            one = BenchMachine(root / f"m{index}", ["--cluster", url, *args])
            if spaces is not None:
                one.within, one.host = spaces.within(index), spaces.address(index)
            one.environ["TIDEGATE_CLUSTER_LEASE_S"] = f"{_LEASE_S}"
            found.append(one)
            one.start()
        yield found
    finally:
        for one in found:
            one.stop()


class Spaces:
    """A network namespace for each machine, on one bridge with us and the database.

    We are in a namespace of our own already, see `enter`. Needs root.
    """

    DATABASE = "10.79.0.254"

    def __init__(self, count: int, prefix: str) -> None:
        self._count = count
        self._prefix = prefix

    @staticmethod
    def enter() -> bool:
        """Go on in a namespace of our own; False where that may not be."""
        if os.environ.get("TIDEGATE_BENCH_SPACE"):
            return True
        if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "true"], check=False).returncode:
            return False
        os.environ["TIDEGATE_BENCH_SPACE"] = "1"
        again = ["unshare", "-n", sys.executable, "-m", "tests.machine_faults", *sys.argv[1:]]
        os.execvp("unshare", again)

    def name(self, index: int) -> str:
        """A machine's namespace."""
        return f"{self._prefix}-m{index}"

    @staticmethod
    def address(index: int) -> str:
        """Its address."""
        return f"10.79.0.{index + 1}"

    def within(self, index: int) -> tuple[str, ...]:
        """What runs a command there."""
        return ("ip", "netns", "exec", self.name(index))

    def __enter__(self) -> Spaces:
        self.__exit__()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "addr", "add", f"{self.DATABASE}/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        for index in range(self._count):
            name = self.name(index)
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"p{index}", "type", "veth", "peer", "eth0", "netns", name)
            run("ip", "link", "set", f"p{index}", "master", "br0", "up")
            for words in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"{self.address(index)}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
            ):
                run("ip", "-n", name, *words)

    def __exit__(self, *_: object) -> None:
        for index in range(self._count):
            run("ip", "netns", "del", self.name(index), check=False)

    def cut(self, index: int, what: str) -> None:
        """Let nothing pass between this machine and `what`: peers, database, both, everything."""
        rules = []
        for hook, way, port in (("input", "saddr", "sport"), ("output", "daddr", "dport")):
            rules.append(f"add chain ip cut {hook} {{ type filter hook {hook} priority 0; }}")
            match = []
            if what in ("peers", "both"):
                match.append(f"ip {way} != {{ {self.DATABASE}, {self.address(index)} }}")
            if what in ("database", "both"):
                match.append(f"tcp {port} 5432")
            if what == "everything":
                match.append(f"{'iif' if hook == 'input' else 'oif'} eth0")
            rules += [f"add rule ip cut {hook} {one} drop" for one in match]
        run(*self.within(index), "nft", "add table ip cut; " + "; ".join(rules))

    def heal(self, index: int) -> None:
        """Let all pass again."""
        run(*self.within(index), "nft", "delete", "table", "ip", "cut", check=False)


def leading(database: Database, all_of_them: list[BenchMachine]) -> BenchMachine | None:
    """Who leads by what the database says."""
    with database.begin() as session:
        holder = read_seat(session).holder
    return next((one for one in all_of_them if one.process and one.name == holder), None)


# -- faults -------------------------------------------------------------------------------------

#: Each statement that writes tickets leaves a row: which machine, and who leads by then.
_AUDIT = (
    "CREATE TABLE audit (seq bigserial, epoch bigint, holder text, machine text)",
    "CREATE FUNCTION audit_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO audit (epoch, holder, machine) "
    "SELECT epoch, holder, current_setting('application_name') FROM cluster_lease; "
    "RETURN NULL; END $$",
    "CREATE TRIGGER audit AFTER INSERT OR UPDATE ON tickets "
    "FOR EACH STATEMENT EXECUTE FUNCTION audit_write()",
)
#: A cut-off machine's bodies are its own affair until it is back for so long.
_BACK_S = LEASE_IDLE_S + _LEASE_S + GATHER_S
_FINISH_S = 400.0
_TRIES = 5


@dataclass(slots=True)
class Harm:
    """What is done to a fleet, at random; `apart` are the times in which machines were cut off."""

    fleet: list[BenchMachine]
    postgres: Postgres
    database: Database
    spaces: Spaces | None
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    apart: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    async def go_on(self, until_s: float) -> None:
        """Do harm, one thing after the other."""
        kinds: list[Callable[[BenchMachine, str], Awaitable[None]]] = [
            *(self._kill, self._kill, self._stop, self._node, self._stop_node),
            *(self._machine, self._database_killed, self._database_stopped),
            *([self._cut] * 4 if self.spaces is not None else []),
        ]
        while time.monotonic() < until_s:
            await asyncio.sleep(self.rng.uniform(0.5, 3.0))
            leader = None
            with _UNKNOWN:
                leader = await asyncio.to_thread(leading, self.database, self.fleet)
            others = [one for one in self.fleet if one is not leader] or self.fleet
            at_leader = leader is not None and self.rng.random() < 0.5
            victim = leader if leader is not None and at_leader else self.rng.choice(others)
            with _GONE:
                await self.rng.choice(kinds)(victim, "leader" if victim is leader else "follower")

    def times_between(self, since_s: float, until_s: float) -> int:
        """How often harm was done between these times."""
        return sum(since_s <= at_s <= until_s for at_s in self.at_s)

    def _note(self, what: str, victim: BenchMachine) -> None:
        self.done[what] += 1
        self.at_s.append(time.monotonic())
        at = time.strftime("%H:%M:%S", time.gmtime())
        self.notes.append(f"{at} {what} ({victim.name})")

    async def _kill(self, victim: BenchMachine, role: str) -> None:
        os.kill(victim.leader_pid(), signal.SIGKILL)
        self._note(f"{role} killed", victim)

    async def _stop(self, victim: BenchMachine, role: str) -> None:
        await self._pause([victim.leader_pid()], 5.0, f"{role} stopped", victim)

    async def _node(self, victim: BenchMachine, role: str) -> None:
        os.kill(self.rng.choice(self._nodes(victim)), signal.SIGKILL)
        self._note("node killed", victim)

    async def _stop_node(self, victim: BenchMachine, role: str) -> None:
        began_s = time.monotonic()
        await self._pause([self.rng.choice(self._nodes(victim))], 5.0, "node stopped", victim)
        self._was_apart(victim, began_s)

    async def _machine(self, victim: BenchMachine, role: str) -> None:
        if not victim.pids():
            raise ProcessLookupError
        victim.lose()
        self._note(f"{role}'s machine lost", victim)
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        await asyncio.to_thread(victim.start)

    async def _database_killed(self, victim: BenchMachine, role: str) -> None:
        if not self.postgres.processes():
            raise ProcessLookupError
        self.postgres.kill()
        self._note("database killed", victim)
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        await asyncio.to_thread(self.postgres.start)

    async def _database_stopped(self, victim: BenchMachine, role: str) -> None:
        await self._pause(self.postgres.processes(), 4.0, "database stopped", victim)

    async def _cut(self, victim: BenchMachine, role: str) -> None:
        assert self.spaces is not None
        index = self.fleet.index(victim)
        what = self.rng.choice(("peers", "database", "both", "everything"))
        began_s = time.monotonic()
        await asyncio.to_thread(self.spaces.cut, index, what)
        self._note(f"{role} cut off from {what}", victim)
        await asyncio.sleep(self.rng.uniform(0.5, 12.0))
        await asyncio.to_thread(self.spaces.heal, index)
        if what != "database":
            # The former leader has left all the others behind, too.
            for one in self.fleet if role == "leader" else [victim]:
                self._was_apart(one, began_s)

    def _was_apart(self, victim: BenchMachine, began_s: float) -> None:
        spans = self.apart.setdefault(self.fleet.index(victim), [])
        if spans and spans[-1][1] >= began_s:
            began_s = spans.pop()[0]
        spans.append((began_s, time.monotonic() + _BACK_S))

    def _nodes(self, victim: BenchMachine) -> list[int]:
        found = [pid for pid in victim.pids()[1:] if pid != victim.leader_pid()]
        if not found:
            raise ProcessLookupError
        return found

    async def _pause(self, pids: list[int], most_s: float, what: str, victim: BenchMachine) -> None:
        """Raises ProcessLookupError if none of these processes is there to be stopped."""
        stopped = []
        for pid in pids:
            with _GONE:
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
        if not stopped:
            raise ProcessLookupError
        self._note(what, victim)
        await asyncio.sleep(self.rng.uniform(0.2, most_s))
        for pid in stopped:
            with _GONE:
                os.kill(pid, signal.SIGCONT)


async def _torment(
    harm: Harm, body: bytes, seconds: float, clients: int, seed: int, slots: int
) -> tuple[CrowdHistory, int]:
    """What the clients saw, and how many newcomers of `slots` + 1 started at once at the end."""
    history = CrowdHistory()
    until_s = time.monotonic() + seconds
    urls = [one.url for one in harm.fleet]
    # All together ask a hundred times a second or so.
    poll_s = (max(0.2, clients / 200), max(0.6, clients / 60))
    crowd = [
        TicketClient(urls, f"c{n}", body, history, random.Random(f"{seed} {n}"), poll_s)
        for n in range(clients)
    ]
    tasks = [asyncio.create_task(one.run(until_s, until_s + _FINISH_S)) for one in crowd]
    await harm.go_on(until_s)
    await asyncio.gather(*tasks)
    await asyncio.sleep(LEASE_IDLE_S + 1.0)
    return history, await newcomers(urls[0], slots + 1)


async def newcomers(url: str, count: int) -> int:
    """How many of so many newcomers start a long download at once.

    One more come than there are slots. Where fewer start they come again once their leases have
    idled out: a slot that is lost stays lost, and answers of a busy machine are only late.
    """
    for _ in range(_TRIES):
        found = await _newcomers(url, count)
        if found >= count - 1:
            break
        await asyncio.sleep(LEASE_IDLE_S + 1.0)
    return found


async def _newcomers(url: str, count: int) -> int:
    began: list[ClientAnswer] = []

    async def one(index: int) -> None:
        fields = {"Tidegate-Wait": "ticket", "Tidegate-Client": f"newcomer-{index}"}
        with _BROKEN:
            await fetch(url, "/long.bin", fields, limit_s=3.0, begun=began.append)

    await asyncio.gather(*(one(index) for index in range(count)))
    return sum(answer.status == 200 for answer in began)


@dataclass(frozen=True, slots=True)
class Written:
    """What the database says of the run: who wrote in which epoch, and all numbers."""

    epochs: int
    two_writers: int
    foreign: int
    back: int
    numbers: frozenset[int]


def _written(database: Database, names: dict[str, str]) -> Written:
    with database.begin() as session:
        rows = session.execute(text("SELECT epoch, holder, machine FROM audit ORDER BY seq")).all()
        numbers = frozenset(session.scalars(text("SELECT number FROM tickets")))
        epochs = read_seat(session).epoch
    writers: dict[int, set[str]] = {}
    for epoch, _, machine in rows:
        writers.setdefault(epoch, set()).add(machine)
    foreign = sum(bool(holder) and names.get(machine) != holder for _, holder, machine in rows)
    back = sum(after[0] < before[0] for before, after in itertools.pairwise(rows))
    two = sum(len(found) > 1 for found in writers.values())
    return Written(epochs, two, foreign, back, numbers)


def _lost(history: CrowdHistory, written: Written) -> set[int]:
    """Tickets that a leader told and the journal has not; those of others are in none."""
    return {n for n in history.owners if n < ELSEWHERE} - written.numbers


def _taken_up(history: CrowdHistory, told_s: float, until_s: float) -> int:
    """Tickets issued without a leader, for which a place was told first in this time.

    Each has a place by its time of issue once a leader knows it: before others, maybe.
    """
    until_s += _BACK_S
    return sum(n >= ELSEWHERE and told_s < at_s < until_s for n, at_s in history.placed.items())


def judge(
    history: CrowdHistory, written: Written, harm: Harm, slots: int, newcomers: int, log: str
) -> list[str]:
    """What was broken of the promises."""
    together = outside(history.bodies, harm.apart)
    above_s = longest_above(together, slots)
    lost = _lost(history, written)
    counts = {
        "{} files were wrong": history.wrong,
        "{} tickets had two owners": history.two_owners,
        "{} tickets changed their number": history.changed,
        "{} tickets that were told are not in the journal": len(lost),
        "{} places grew by more than all who can have broken off": sum(
            grown
            > slots * (1 + harm.times_between(told_s - _BACK_S, now))
            + _taken_up(history, told_s, now)
            for grown, told_s, now in history.grew
        ),
        "{} places grew for no stated cause": history.unexplained,
        "{} clients were sent away for good": sum(history.refused.values()),
        "{} clients did not finish": history.unfinished,
        "{} epochs had two writers": written.two_writers,
        "{} writes of a machine that did not lead": written.foreign,
        "{} writes of an earlier epoch after a later one": written.back,
        "{} of the slots are lost": 0 if history.unfinished else max(0, slots - newcomers),
        "{} newcomers more than there are slots": max(0, newcomers - slots),
        "{} faults of ours stand in the log": log.count("Traceback"),
    }
    found = [sentence.format(count) for sentence, count in counts.items() if count]
    if above_s > _BACK_S:
        found.append(f"more bodies than slots for {above_s:.1f} s")
    if not history.whole:
        found.append("nobody got a file")
    if not harm.done:
        found.append("no fault hit anything")
    return found


@click.command()
@click.option("--count", default=3, show_default=True, help="Machines.")
@click.option("--clients", default=300, show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--slots", default=6, show_default=True, help="Of all machines together.")
@click.option("--policy", default="ticket", show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--prefix", default="tgf", show_default=True, help="Of the namespaces' names.")
@click.option("--keep-log", type=click.Path(path_type=Path), help="Where the servers' log goes.")
def main(
    count: int,
    clients: int,
    seconds: float,
    slots: int,
    policy: str,
    seed: int,
    prefix: str,
    keep_log: Path | None,
) -> None:
    """Kill, stop and cut off at random under CLIENTS; exit status 1 if a promise was broken."""
    with contextlib.ExitStack() as stack:
        spaces = stack.enter_context(Spaces(count, prefix)) if Spaces.enter() else None
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        postgres = Postgres(address=Spaces.DATABASE if spaces is not None else "")
        stack.callback(postgres.remove)
        postgres.start()
        root = Path(folder)
        (root / "release").mkdir()
        body = random.Random(seed).randbytes(400_000)
        (root / "release" / "big.bin").write_bytes(body)
        (root / "release" / "long.bin").write_bytes(bytes(100_000_000))
        if slots % count:
            raise click.BadParameter(f"{slots} slots are no whole number for each machine")
        own = str(slots // count)
        args = ("--slots", own, "--reserve-small", "0", "--bandwidth", "4MB")
        database = Database(postgres.url)
        stack.callback(database.close)
        fleet = stack.enter_context(
            machines(root, count, postgres.url, *args, "--policy", policy, spaces=spaces)
        )
        with database.begin() as session:
            for statement in _AUDIT:
                session.execute(text(statement))
        harm = Harm(fleet, postgres, database, spaces, random.Random(seed))
        history, newcomers = asyncio.run(_torment(harm, body, seconds, clients, seed, slots))
        written = _written(database, {one.folder.name: one.name for one in fleet})
        logs = [one.log for one in fleet]
        log = "\n".join(
            f"-- {one.folder.name}\n{text}" for one, text in zip(fleet, logs, strict=True)
        )
    if keep_log is not None:
        for number in _lost(history, written):
            who, told = history.owners[number], history.told[number]
            history.say(f"{who}: ticket {number} is not in the journal; {told}")
        for one in too_many(outside(history.bodies, harm.apart), slots):
            history.say(f"too many: {one}")
        notes = "\n".join(sorted([*harm.notes, *history.notes, *history.by_server()]))
        keep_log.write_text(f"{log}\n{notes}\n", "utf-8")
    together = outside(history.bodies, harm.apart)
    click.echo(f"harm: {dict(sorted(harm.done.items()))}; epochs {written.epochs}")
    click.echo(
        f"downloads {history.whole}, wrong {history.wrong}; broken off {history.broken}, resumed "
        f"{history.resumed}, begun anew {history.begun_anew}, unfinished {history.unfinished}; "
        f"resumed too late {history.late}; told to wait {history.waits}, at most after "
        f"{history.longest_s:.1f} s; refused {history.refused}"
    )
    click.echo(
        f"tickets {len(history.owners)}, not in the journal "
        f"{len(_lost(history, written))}, given by nodes without a leader "
        f"{sum(n >= ELSEWHERE for n in history.owners)}, with two owners {history.two_owners}, "
        f"changed {history.changed}, exchanged for an older one {history.exchanged}; places that "
        f"grew {len(history.grew)}, at most by "
        f"{max((one for one, _, _ in history.grew), default=0)}, for no stated cause "
        f"{history.unexplained}: {dict(history.causes)}; told a later start than the bound before "
        f"{history.past_bound}; starts by the first told bound {dict(history.starts)}"
    )
    click.echo(
        f"bodies at once {most_at_once(together)} of {slots} at machines that were not cut off, "
        f"more than {slots} for {longest_above(together, slots):.1f} s at most; {newcomers} of "
        f"{slots + 1} newcomers start; epochs with two writers {written.two_writers}"
    )
    broken = judge(history, written, harm, slots, newcomers, log)
    if broken:
        click.echo(log[-5000:], err=True)
        click.echo("; ".join(broken), err=True)
        sys.exit(1)


if __name__ == "__main__":
    end_cleanly()
    main()
