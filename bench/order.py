"""Who starts when at one node and at several: the same crowd, live, with the same total line.

    python -m bench.order [--clients 2000] [--nodes 3] [--balancer fewest]

Clients come one after the other, each from a network of its own, to a node drawn by chance or to
the one with the fewest connections, as a balancer in front does, and wait inside their request.
Prints how far starts are from the order of tickets, the mean session,
and how long a slot that a body has left stands idle until the next one begins.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from bench.history import number_of
from bench.machines import machines
from bench.postgres import postgres_running
from bench.shared import markdown
from bench.shared.ending import end_cleanly

_SIZE_BYTES = 400_000
_LIMIT_S = 200.0


@dataclass(frozen=True, slots=True)
class TimedStart:
    """One client: its ticket's number, when its body began and ended, and all its seconds."""

    number: int
    began_s: float
    ended_s: float
    took_s: float


async def _session(url: str, index: int) -> TimedStart:
    parts = urlsplit(url)
    own = f"127.{10 + index // 250}.{index % 250}.1"
    asked_s = time.monotonic()
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port, local_addr=(own, 0), limit=1 << 20
    )
    try:
        writer.write(b"GET /big.bin HTTP/1.1\r\nHost: x\r\nUser-Agent: curl/8.5.0\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        began_s = time.monotonic()
        if head[0].split()[1] != "200":
            raise click.ClickException(head[0])
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}
        await reader.readexactly(_SIZE_BYTES)
        number = number_of(fields["tidegate-ticket"]) if "tidegate-ticket" in fields else 0
        ended_s = time.monotonic()
        return TimedStart(number, began_s, ended_s, ended_s - asked_s)
    finally:
        writer.transport.abort()


async def _crowd(
    urls: list[str], clients: int, rate: float, seed: int, *, fewest: bool
) -> list[TimedStart]:
    rng, began_s = random.Random(seed), time.monotonic()
    tasks = []
    here = dict.fromkeys(urls, 0)

    async def come(url: str, index: int) -> TimedStart:
        try:
            return await _session(url, index)
        finally:
            here[url] -= 1

    for index in range(clients):
        await asyncio.sleep(began_s + index / rate - time.monotonic())
        least = min(here.values())
        url = rng.choice([one for one in urls if not fewest or here[one] == least])
        here[url] += 1
        tasks.append(asyncio.create_task(come(url, index)))
    async with asyncio.timeout(_LIMIT_S):
        return await asyncio.gather(*tasks)


def idle_s(sessions: list[TimedStart], slots: int) -> float:
    """How long a slot stood idle between two bodies, in the mean: while all were wanted, seconds.

    That is from the first start of one who had to wait to the last.
    """
    waited = [one.began_s for one in sessions if one.number]
    if not waited:
        return 0.0
    first_s, last_s = min(waited), max(waited)
    busy_s = sum(max(0.0, min(one.ended_s, last_s) - max(one.began_s, first_s)) for one in sessions)
    return (slots * (last_s - first_s) - busy_s) / len(waited)


def displaced(sessions: list[TimedStart]) -> list[int]:
    """By how many starts each who had a ticket began before or after its turn."""
    waited = [one for one in sessions if one.number]
    turns = {one.number: turn for turn, one in enumerate(sorted(waited, key=lambda x: x.number))}
    began = sorted(waited, key=lambda one: one.began_s)
    return [abs(turns[one.number] - at) for at, one in enumerate(began)]


@click.command()
@click.option("--clients", default=2000, show_default=True)
@click.option("--nodes", default=3, show_default=True)
@click.option("--rate", default=100.0, show_default=True, help="Clients a second.")
@click.option("--line", default=24, show_default=True, help="Of all nodes together, MB/s.")
@click.option("--slots", default=30, show_default=True, help="Of all nodes together.")
@click.option("--balancer", type=click.Choice(["chance", "fewest"]), default="chance")
@click.option("--seed", default=1, show_default=True)
def main(
    clients: int, nodes: int, rate: float, line: int, slots: int, balancer: str, seed: int
) -> None:
    """The same CLIENTS at one node and at NODES with the same total line."""
    columns = (
        "nodes",
        "had tickets",
        "out of turn",
        "by at most",
        "mean session, s",
        "slot idle, ms",
    )
    click.echo(markdown.head(*columns))
    for count in sorted({1, nodes}):
        with tempfile.TemporaryDirectory() as folder, postgres_running(durable=True) as url:
            root = Path(folder)
            (root / "release").mkdir()
            (root / "release" / "big.bin").write_bytes(random.Random(seed).randbytes(_SIZE_BYTES))
            args = ("--slots", str(slots // count), "--reserve-small", "0", "--policy", "ticket")
            each = f"{line * 1000 // count}KB"
            with machines(root, count, url, *args, "--bandwidth", each) as fleet:
                sessions = asyncio.run(
                    _crowd(
                        [one.url for one in fleet], clients, rate, seed, fewest=balancer == "fewest"
                    )
                )
        moved = displaced(sessions)
        mean_s = statistics.fmean(one.took_s for one in sessions)
        out = sum(by > 0 for by in moved)
        idle = f"{1000 * idle_s(sessions, slots // count * count):.0f}"
        cells = str(len(moved)), str(out), str(max(moved, default=0)), f"{mean_s:.2f}", idle
        click.echo(markdown.row(str(count), *cells))


if __name__ == "__main__":
    end_cleanly()
    main()
