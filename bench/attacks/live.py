"""Attackers on a real server, over a line between two network namespaces. Needs root.

People with addresses in networks of their own fetch one file each over a line that they overload.
The attacker is there before the first and until the last of them is done. Its cost is the people's
mean session time against that of days without an attacker. A day counts only if the attack took
place, see `require_landed`.

`python -m bench.attacks.live people N …|attack …` is the part in the clients' namespace.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from bench.attacks.simulated import SHARE, Attacker
from bench.shared import namespaces
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import inside, run, shape
from bench.shared.processes import process, wait_for
from bench.shared.subject import NothingMeasured, Suppressed, require
from tidegate.loadtest.workloads import File, Visitor, Workload
from tidegate.server.http.proxies import prefixes_of

Manner = Literal["ghost", "idle", "half", "real", "small", "short"]


@dataclass(frozen=True, slots=True)
class LiveNetwork:
    """Two network namespaces, and the line between them."""

    server: str = "tga-s"
    clients: str = "tga-c"
    port: int = 8080
    host: str = namespaces.SERVER
    host6: str = "fd5a::1"
    line_mbit: float = 24.0

    @property
    def line_bytes_s(self) -> float:
        """What the server is told, a little less than the line carries of files."""
        return 0.98 * namespaces.payload_bytes_s(self.line_mbit)


NETWORK = LiveNetwork()


@dataclass(frozen=True, slots=True)
class LiveDay:
    """A crowd of people, and the attacker beside it."""

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


DAY = LiveDay()

#: Sizes that the manners `small` and `short` fetch: just below and just above `small_below_bytes`.
_FETCHED_BYTES: dict[Manner, int] = {"small": 250_000, "short": 300_000}
#: A day on which every other person has the same address.
BEHIND_ONE = f"{DAY.people // 2} honest people behind one address"
_BROKEN = Suppressed("people's requests", OSError, asyncio.IncompleteReadError, TimeoutError)
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


def virtual_day() -> Workload:
    """The same people in virtual time. The attacker is there before them."""
    people = (
        Visitor(
            f"p{number}",
            DAY.ahead_s + number * DAY.every_s,
            NETWORK.line_mbit / 8 * 1e6,
            (File(f"file{number % 4}.bin", DAY.file_bytes),),
            network=prefixes_of(f"10.{20 + number}.4.1"),
        )
        for number in range(DAY.people)
    )
    return Workload("live", 1, tuple(people), NETWORK.line_bytes_s, small_below_bytes=256_000)


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
        await asyncio.get_running_loop().sock_connect(
            sock, (NETWORK.host6 if six else NETWORK.host, NETWORK.port)
        )
    except BaseException:
        sock.close()
        raise
    return sock


async def _fetch(number: int, source: str, name: str) -> float:
    """Download as a person with curl does, repeated while the server says to wait. In seconds."""
    begun = time.monotonic()
    request = f"GET /file{number % 4}.bin HTTP/1.1\r\nHost: x\r\n{name}\r\n"
    while time.monotonic() < begun + DAY.longest_s:
        with _BROKEN:
            async with asyncio.timeout(begun + DAY.longest_s - time.monotonic()):
                sock = await _connected(source, small=False)
                reader, writer = await asyncio.open_connection(sock=sock)
                try:
                    writer.write(f"{request}Connection: close\r\n\r\n".encode())
                    head = await reader.readuntil(b"\r\n\r\n")
                    size = 0
                    while data := await reader.read(1 << 16):
                        size += len(data)
                finally:
                    writer.close()
                if head.startswith(b"HTTP/1.1 200") and size == DAY.file_bytes:
                    return time.monotonic() - begun
        await asyncio.sleep(0.5)
    return DAY.longest_s


async def _people(count: int, behind_one: bool) -> list[float]:
    """The session times of all people in the order of their arrivals.

    `behind_one`: every other person has one address. Then all of them send an id of their own.
    """

    async def person(number: int) -> float:
        await asyncio.sleep(number * DAY.every_s)
        own = f"10.{20 + number}.4.1"
        if not behind_one:
            return await _fetch(number, own, "User-Agent: curl/8")
        source = own if number % 2 else DAY.one_address
        return await _fetch(number // 2, source, f"Tidegate-Client: p{number}")

    return await asyncio.gather(*map(person, range(count)))


async def _strike(attacker: Attacker, number: int, manner: Manner, strikes: Strikes) -> None:
    """One connection of the attacker, until it ends."""
    name = number % attacker.names
    source = attacker.address(name)
    # Each address requests all four files.
    file = number // 3 % 4
    downloads = manner == "real" or manner in _FETCHED_BYTES
    path = f"{manner}{file}.bin" if manner in _FETCHED_BYTES else f"big{file}.iso"
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
    """Build the two namespaces. All of 10/8, 203.0.113/24 and one /48 are clients' addresses."""
    try:
        namespaces.make((NETWORK.server, NETWORK.clients))
        namespaces.connect(NETWORK.server, NETWORK.clients)
        namespaces.crowd(NETWORK.server, NETWORK.clients, "10.0.0.0/8", "203.0.113.0/24")
        for name, address in ((NETWORK.server, NETWORK.host6), (NETWORK.clients, "fd5a::2")):
            run("ip", "-n", name, *f"addr add {address}/64 dev eth0 nodad".split())
        # IPv4 addresses of a local route can be bound; IPv6 ones only with this setting.
        run(*inside(NETWORK.clients, "sysctl", "-qw", "net.ipv6.ip_nonlocal_bind=1"))
        block = "2001:db8:bad::/48"
        run("ip", "-n", NETWORK.clients, *f"-6 route add local {block} dev lo".split())
        run("ip", "-n", NETWORK.server, *f"-6 route add {block} via fd5a::2".split())
        shape(NETWORK.server, "eth0", NETWORK.line_mbit, "burst 32k latency 60ms")
        yield
    finally:
        namespaces.remove((NETWORK.server, NETWORK.clients))


@contextmanager
def _serving(policy: str) -> Iterator[None]:
    """Run a fresh server with its line's bandwidth as its only setting."""
    with tempfile.TemporaryDirectory(prefix="tidegate-attack-") as folder:
        release = Path(folder, "release")
        release.mkdir()
        for number in range(4):
            (release / f"file{number}.bin").write_bytes(bytes(DAY.file_bytes))
            for manner, size_bytes in _FETCHED_BYTES.items():
                (release / f"{manner}{number}.bin").write_bytes(bytes(size_bytes))
            with (release / f"big{number}.iso").open("wb") as big:
                big.truncate(2_000_000_000)
        command = [sys.executable, "-m", "tidegate", "serve", str(release), "--admin", "off"]
        command += ["--state", f"{folder}/state", "--policy", policy]
        for host in (NETWORK.host, f"[{NETWORK.host6}]"):
            command += ["--listen", f"{host}:{NETWORK.port}"]
        command += ["--bandwidth", f"{NETWORK.line_bytes_s * 8e-6:.2f}Mbit"]
        log, environ = Path(folder, "log"), {**os.environ, "TIDEGATE_DRAIN_S": "0"}
        with process(inside(NETWORK.server, *command), log, env=environ) as server:
            wait_for("The server", log, "ready ", server)
            yield
            require(server.poll() is None, "The server ended while it was attacked.")


def _client(*words: str) -> list[str]:
    return inside(NETWORK.clients, sys.executable, "-m", "bench.attacks.live", *words)


def _sessions_s(people: int, *words: str) -> list[float]:
    command = _client("people", f"{people}", *words)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [float(one) for one in json.loads(done.stdout)]


def day(policy: str, title: str = "", manner: Manner = "idle", people: int = DAY.people) -> float:
    """The people's mean session time on a fresh server beside the attacker of this title.

    Raises NothingMeasured if the attack did not take place, or without an attacker if one of the
    people was not done.
    """
    with _serving(policy):
        if not title:
            return statistics.fmean(_all_done_s(_sessions_s(people)))
        attack = subprocess.Popen(
            _client("attack", title, manner), stdout=subprocess.PIPE, text=True
        )
        try:
            time.sleep(DAY.ahead_s)
            found_s = statistics.fmean(_sessions_s(people))
            attack.terminate()
            output, _ = attack.communicate(timeout=10)
        finally:
            attack.kill()
            attack.wait()
    require_landed(title, manner, _strikes_of(title, manner, output))
    return found_s


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


def behind_one(policy: str) -> tuple[float, float]:
    """The mean session times of the people behind one address and of the others.

    The server is fresh, and there is no attacker.
    """
    with _serving(policy):
        found_s = _all_done_s(_sessions_s(DAY.people, "behind-one"))
    return statistics.fmean(found_s[::2]), statistics.fmean(found_s[1::2])


def main() -> None:
    """Run the part in the clients' namespace."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    match sys.argv[1:]:
        case ["people", count, *words]:
            print(json.dumps(asyncio.run(_people(int(count), "behind-one" in words))))
        case ["attack", title, ("ghost" | "idle" | "half" | "real" | "small" | "short") as manner]:
            print(json.dumps(asdict(asyncio.run(_attack(ATTACKERS[title], manner)))))
        case _:
            sys.exit(f"unknown: {sys.argv[1:]}")


if __name__ == "__main__":
    end_cleanly()
    main()
