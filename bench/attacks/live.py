"""Attackers on a real server, over a line between two network namespaces. Needs root.

People with addresses in networks of their own fetch one file each over a line that they overload.
The attacker is there before the first and until the last of them is done. Its cost is the people's
mean session time against that of days without an attacker. A day counts only if the attack took
place, see `require_landed`.

`python -m bench.attacks.live TITLE MANNER` is the attacker, in the clients' namespace.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from bench.attacks.simulated import SHARE, Attacker
from bench.policies import lab
from bench.shared import namespaces
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import SERVER, inside, run
from bench.shared.subject import NothingMeasured, Suppressed, require
from tidegate.loadtest.trace import to_trace
from tidegate.loadtest.workloads import File, Visitor, Workload
from tidegate.server.http.proxies import prefixes_of

Manner = Literal["ghost", "idle", "half", "real", "small", "short"]


#: Of the two network namespaces, and the server's IPv6 address.
_PREFIX = "tga"
_SERVER6 = "fd5a::1"


@dataclass(frozen=True, slots=True)
class LiveDay:
    """A crowd of people, and the attacker beside it."""

    line_mbit: float = 24.0
    #: People on a day.
    people: int = 40
    file_bytes: int = 900_000
    #: The interval between their arrivals: 1.5 times the load of the line.
    every_s: float = 0.2
    one_address: str = "203.0.113.7"
    #: A person leaves after this time, so that a day takes at most a minute.
    longest_s: float = 45.0
    #: The attacker comes before the people by this time.
    ahead_s: float = 3.0
    #: What an idle reader reads in a second, a little above the least rate.
    idle_bytes: int = 250
    #: How long a ghost waits for an answer.
    ghost_s: float = 0.45

    @property
    def line_bytes_s(self) -> float:
        """What the server is told, a little less than the line carries of files."""
        return 0.98 * namespaces.payload_bytes_s(self.line_mbit)


DAY = LiveDay()

#: Sizes that the manners `small` and `short` fetch: just below and just above `small_below_bytes`.
_FETCHED_BYTES: dict[Manner, int] = {"small": 250_000, "short": 300_000}
#: A day on which every other person has the same address.
BEHIND_ONE = f"{DAY.people // 2} honest people behind one address"
_REFUSED = Suppressed("the attacker's requests", OSError, asyncio.IncompleteReadError)
_SILENT = Suppressed("ghosts that were told nothing", TimeoutError)


ATTACKERS = {
    attacker.title: attacker
    for attacker in (
        # The bound: honest people, as many as a network of new clients has shares.
        replace(SHARE, per_s=20.0),
        Attacker("one IPv4", lambda n: DAY.one_address, 1_000, 20.0, 100),
        Attacker("one /48", lambda n: f"2001:db8:bad:{n:x}::1", 65_536, 60.0, 300),
        Attacker("ten addresses", lambda n: f"10.{210 + n % 10}.1.1", 10_000, 60.0, 300),
        Attacker("a botnet", lambda n: f"10.{n % 200}.3.1", 200_000, 100.0, 400),
    )
}


@dataclass(slots=True)
class Strikes:
    """An attacker's connections: tried, made, answered, answered with a file; bytes read."""

    tried: int = 0
    connected: int = 0
    answered: int = 0
    admitted: int = 0
    read_bytes: int = 0
    suppressed: str = "none"


def require_landed(title: str, manner: Manner, strikes: Strikes) -> None:
    """Raise NothingMeasured unless this attack took place."""
    connected, tried = strikes.connected, strikes.tried
    enough = max(1.0, ATTACKERS[title].per_s, tried / 2)
    require(
        connected >= enough,
        f"{title}, {manner}: {connected} of {tried} connections were made "
        f"(suppressed: {strikes.suppressed}), so nothing attacked.",
    )
    if manner == "half":
        return
    require(strikes.admitted, f"{title}, {manner}: no request of {connected} was given a file.")
    leasts = {"idle": 10 * DAY.idle_bytes, "real": DAY.file_bytes, **_FETCHED_BYTES}
    least = leasts.get(manner, 0)
    require(
        strikes.read_bytes >= least,
        f"{title}, {manner}: {strikes.read_bytes} bytes were read, fewer than {least}.",
    )


def virtual_day(people: int = DAY.people) -> Workload:
    """The same people in virtual time. The attacker is there before them."""
    visitors = (
        Visitor(
            f"p{number}",
            DAY.ahead_s + number * DAY.every_s,
            DAY.line_mbit / 8 * 1e6,
            (File(f"file{number % 4}.bin", DAY.file_bytes),),
            network=prefixes_of(f"10.{20 + number}.4.1"),
        )
        for number in range(people)
    )
    return Workload("live", 1, tuple(visitors), DAY.line_bytes_s, small_below_bytes=256_000)


# -- in the clients' namespace --------------------------------------------------------------------


async def _connected(source: str, *, small: bool) -> socket.socket:
    """Connect from this address. `small`: a small receive window, for idle readers."""
    six = ":" in source
    sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    try:
        sock.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(sock, (_SERVER6 if six else SERVER, 8080))
    except BaseException:
        sock.close()
        raise
    return sock


async def _strike(attacker: Attacker, number: int, manner: Manner, strikes: Strikes) -> None:
    """One connection of the attacker, until it ends."""
    name = number % attacker.names
    source = attacker.address(name)
    # Each address requests all four files.
    file = number // 3 % 4
    downloads = manner == "real" or manner in _FETCHED_BYTES
    path = f"{manner if manner in _FETCHED_BYTES else 'big'}{file}.bin"
    head = f"GET /{path} HTTP/1.1\r\nHost: x\r\nTidegate-Client: a{name}\r\n"
    end = "close" if manner in _FETCHED_BYTES else "keep-alive"
    request = f"{head}Connection: {end}\r\n\r\n".encode()
    strikes.tried += 1
    sock = await _connected(source, small=not downloads)
    strikes.connected += 1
    # The reader's own buffer counts as read: it must be small for idle readers.
    limit = 1 << 16 if downloads else 1024
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    try:
        writer.write(request[: len(request) // 2 if manner == "half" else None])
        most, pause_s = (1 << 16, 0.0) if downloads else (DAY.idle_bytes, 1.0)
        data = b""
        with _SILENT:
            async with asyncio.timeout(DAY.ghost_s if manner == "ghost" else None):
                data = await reader.read(most)
                strikes.answered += bool(data)
                strikes.admitted += data.startswith(b"HTTP/1.1 200")
        while data and manner != "ghost":
            strikes.read_bytes += len(data)
            await asyncio.sleep(pause_s)
            data = await reader.read(most)
    finally:
        writer.transport.abort()


async def _attack(attacker: Attacker, manner: Manner) -> Strikes:
    """Open connections until SIGTERM. Returns what became of them."""
    tasks: set[asyncio.Task[None]] = set()
    strikes, over = Strikes(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    print("ready", flush=True)

    async def one(number: int) -> None:
        with _REFUSED:
            await _strike(attacker, number, manner, strikes)

    number = 0
    while not over.is_set():
        if len(tasks) < attacker.most:
            task = asyncio.create_task(one(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.sleep(1.0 / attacker.per_s)
    strikes.suppressed = str(_REFUSED)
    return strikes


# -- outside --------------------------------------------------------------------------------------


@contextmanager
def line() -> Iterator[None]:
    """The line of the lab, with 203.0.113/24 and one /48 more as clients' addresses."""
    server, clients = f"{_PREFIX}-s", f"{_PREFIX}-c"
    with lab.line(DAY.line_mbit, _PREFIX, (), "203.0.113.0/24"):
        for name, address in ((server, _SERVER6), (clients, "fd5a::2")):
            run("ip", "-n", name, *f"addr add {address}/64 dev eth0 nodad".split())
        # IPv4 addresses of a local route can be bound; IPv6 ones only with this setting.
        run(*inside(clients, "sysctl", "-qw", "net.ipv6.ip_nonlocal_bind=1"))
        block = "2001:db8:bad::/48"
        run("ip", "-n", clients, *f"-6 route add local {block} dev lo".split())
        run("ip", "-n", server, *f"-6 route add {block} via fd5a::2".split())
        yield


def _sessions_s(
    policy: str, people: int, title: str = "", manner: Manner = "idle", *, behind_one: bool = False
) -> list[float]:
    """The people's session times on a fresh server, in the order of their arrivals.

    Beside the attacker of this title, if there is one. `behind_one`: every other person has one
    address, and all send an id of their own.
    """
    trace = []
    for number, row in enumerate(map(json.loads, to_trace(virtual_day(people)))):
        own = {"address": f"10.{20 + number}.4.1"}
        if behind_one:
            own = own if number % 2 else {"address": DAY.one_address}
            own["fields"] = f"Tidegate-Client: p{number}"
            row["file"] = f"file{number // 2 % 4}.bin"
        trace.append(json.dumps({**row, **own, "rate_bytes_s": None}))
    with tempfile.TemporaryDirectory(prefix="tidegate-attack-") as name:
        folder = Path(name)
        lab.lay_out(folder, virtual_day(4))
        sizes: dict[str, int] = {"big": 2_000_000_000, **dict(_FETCHED_BYTES.items())}
        for kind, number in itertools.product(sizes, range(4)):
            with (folder / "files" / f"{kind}{number}.bin").open("wb") as out:
                out.truncate(sizes[kind])
        more = ("--listen", f"[{_SERVER6}]:8080")
        with lab.serving(folder, policy, DAY.line_bytes_s, _PREFIX, *more):
            with _attacking(title, manner):
                found = lab.replay(folder, trace, _PREFIX, "--persist", f"{DAY.longest_s}")
    return [
        DAY.longest_s if one["done_s"] is None else one["done_s"] - one["came_s"] for one in found
    ]


@contextmanager
def _attacking(title: str, manner: Manner) -> Iterator[None]:
    """The attacker from now on. Raises NothingMeasured if the attack did not take place."""
    if not title:
        yield
        return
    command = inside(f"{_PREFIX}-c", sys.executable, "-m", "bench.attacks.live", title, manner)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack:
        try:
            assert attack.stdout is not None
            attack.stdout.readline()
            yield
            attack.terminate()
            output, _ = attack.communicate(timeout=10)
        finally:
            attack.kill()
    require_landed(title, manner, _strikes_of(title, manner, output))


def _strikes_of(title: str, manner: Manner, output: str) -> Strikes:
    """Read an attacking process's output. Raises NothingMeasured if it is not complete."""
    try:
        return Strikes(**json.loads(output))
    except ValueError:
        raise NothingMeasured(f"{title}, {manner}: the attacking process ended early.") from None


def _all_done_s(found_s: list[float]) -> list[float]:
    done = sum(one < DAY.longest_s for one in found_s)
    require(
        found_s and done == len(found_s),
        f"Without an attacker {done} of {len(found_s)} people were done "
        f"within {DAY.longest_s:.0f} s.",
    )
    return found_s


def day(policy: str, title: str = "", manner: Manner = "idle", people: int = DAY.people) -> float:
    """The people's mean session time on a fresh server beside the attacker of this title.

    Raises NothingMeasured if the attack did not take place, or without an attacker if one of the
    people was not done.
    """
    found_s = _sessions_s(policy, people, title, manner)
    return statistics.fmean(found_s if title else _all_done_s(found_s))


def behind_one(policy: str) -> tuple[float, float]:
    """The mean session times of the people behind one address and of the others.

    There is no attacker.
    """
    found_s = _all_done_s(_sessions_s(policy, DAY.people, behind_one=True))
    return statistics.fmean(found_s[::2]), statistics.fmean(found_s[1::2])


def main() -> None:
    """Attack until SIGTERM."""
    title, given = sys.argv[1:]
    manner: Manner = next(one for one in get_args(Manner) if one == given)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    print(json.dumps(asdict(asyncio.run(_attack(ATTACKERS[title], manner)))))


if __name__ == "__main__":
    end_cleanly()
    main()
