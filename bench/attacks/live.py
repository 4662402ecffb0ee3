"""Attackers at a running default server on 127.0.0.1: what the honest lose, in seconds.

Two dozen people, each at an address of its own, fetch a file each over a line that they fill.
Beside them attackers, from addresses of 127/8 that the server takes for other networks, open
connections for the largest file: to read as little as keeps them (`idle`), to send half a request
(`half`), or to really download (`real`).
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from bench.cluster import serving

Manner = Literal["idle", "half", "real"]
_PEOPLE, _FILE_BYTES, _EVERY_S = 24, 1_500_000, 0.5
_LINE = "24Mbit"
_REQUEST = b"GET %s HTTP/1.1\r\nHost: x\r\nUser-Agent: curl/8\r\nConnection: close\r\n\r\n"
#: What is compared with is the mean of so many days without attackers.
_CALM_DAYS = 3
#: Between two attackers' connections, seconds.
_PAUSE_S = 0.005
#: An idle reader takes so much a second, a little above the least rate.
_SIP_BYTES = 250


@dataclass(frozen=True, slots=True)
class Attack:
    """So many connections from each of these addresses."""

    title: str
    addresses: tuple[str, ...]
    connections: int
    manner: Manner


def _addresses(count: int) -> tuple[str, ...]:
    return tuple(f"127.{100 + number % 100}.{number // 100}.1" for number in range(count))


ATTACKS = tuple(
    Attack(title, _addresses(count), connections, manner)
    for title, count, connections in (
        ("one IPv4", 1, 300),
        ("ten addresses", 10, 100),
        ("a botnet of 1 000", 1000, 1),
    )
    for manner in ("idle", "half", "real")
)


async def _fetch(port: int, path: str, source: str) -> float:
    """Download like a person does, again as long as told to wait; the time it took."""
    begun = time.monotonic()
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        try:
            writer.write(_REQUEST % path.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            size = 0
            while data := await reader.read(1 << 16):
                size += len(data)
            if head.startswith(b"HTTP/1.1 200") and size == _FILE_BYTES:
                return time.monotonic() - begun
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
        await asyncio.sleep(1.0)


async def _socket(port: int, source: str, *, small: bool) -> socket.socket:
    """A connection; with a `small` window what an idle reader is sent stays small, too."""
    sock = socket.socket()
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    sock.bind((source, 0))
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock


async def _attack(port: int, source: str, number: int, manner: Manner) -> None:
    """One connection after the other, for as long as the crowd is there."""
    request = f"GET /big.iso HTTP/1.1\r\nHost: x\r\nTidegate-Client: a{number}\r\n\r\n".encode()
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(
                sock=await _socket(port, source, small=manner != "real"), limit=1024
            )
            try:
                writer.write(request[: len(request) // 2 if manner == "half" else None])
                most, pause_s = (1 << 16, 0.0) if manner == "real" else (_SIP_BYTES, 1.0)
                while await reader.read(most):
                    await asyncio.sleep(pause_s)
            finally:
                writer.close()
        await asyncio.sleep(1.0)


async def _crowd(port: int) -> float:
    """Their mean session time."""

    async def person(number: int) -> float:
        await asyncio.sleep(number * _EVERY_S)
        return await _fetch(port, f"/file{number % 4}.bin", f"127.20.{number}.1")

    return statistics.fmean(await asyncio.gather(*map(person, range(_PEOPLE))))


async def _attacked(port: int, attack: Attack | None) -> float:
    tasks = []
    if attack is not None:
        for number in range(attack.connections):
            for source in attack.addresses:
                tasks.append(asyncio.create_task(_attack(port, source, number, attack.manner)))
                await asyncio.sleep(_PAUSE_S)
    try:
        return await _crowd(port)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _day(attack: Attack | None) -> float:
    """A fresh server and the crowd; the mean session time."""
    with tempfile.TemporaryDirectory(prefix="tidegate-attack-") as folder:
        root = Path(folder)
        (root / "release").mkdir()
        for number in range(4):
            (root / "release" / f"file{number}.bin").write_bytes(bytes(_FILE_BYTES))
        with (root / "release" / "big.iso").open("wb") as big:
            big.truncate(2_000_000_000)
        limits = {"TIDEGATE_CLIENTS_PER_ADDRESS": "1000"}
        with serving(root, "--bandwidth", _LINE, **limits) as (_, url):
            port = urlsplit(url).port
            assert port is not None
            return asyncio.run(_attacked(port, attack))


def run() -> Iterator[tuple[Attack, float]]:
    """Play each attack; what the honest lost by it, as a fraction of their calm time."""
    calm_s = statistics.fmean(_day(None) for _ in range(_CALM_DAYS))
    for attack in ATTACKS:
        yield attack, _day(attack) / calm_s - 1.0
