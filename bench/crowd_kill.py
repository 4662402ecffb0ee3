"""Kill a server under clients that wait inside their request and try again: how many lose out.

    python -m bench.crowd_kill [--clients 10000] [--kills 1]

They behave as `curl --retry 20 --retry-all-errors` does, each from an address of its own. Prints
what their connections met, and by how many tries they had their file.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.shared.ending import end_cleanly
from tests.running import RunningServer, make_release

_FILE, _SIZE_BYTES = "big.bin", 250_000
_TRIES, _LONGEST_PAUSE_S, _END_S = 21, 600.0, 300.0
_REQUEST = f"GET /{_FILE} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: curl/8.5.0\r\n\r\n".encode()
_CONFIG = """policy = "ticket"
bandwidth = "{bandwidth}"
[admission]
slots = 20
reserve_small = 1
small_below_bytes = 1000
[holding]
most = 100000
"""


class RetryingClients:
    """Clients of one file; `waiting` are those whose answer has begun."""

    def __init__(self, port: int, body: bytes) -> None:
        self._port, self._body = port, body
        self.waiting: set[int] = set()
        self.tries: Counter[int] = Counter()
        self.served: set[int] = set()
        self.broken: Counter[str] = Counter()

    async def fetch(self, number: int) -> None:
        """Try until the file is there, with pauses as curl makes them."""
        pause_s = 1.0
        for _ in range(_TRIES):
            self.tries[number] += 1
            try:
                await self._once(number)
            except (OSError, asyncio.IncompleteReadError) as fault:
                self.broken[type(fault).__name__] += 1
            else:
                self.served.add(number)
                return
            finally:
                self.waiting.discard(number)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _once(self, number: int) -> None:
        own = f"127.{10 + number // 60_000}.{number // 250 % 240}.{number % 250 + 1}"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(own, 0), limit=1 << 20
        )
        try:
            writer.write(_REQUEST)
            status = await reader.readuntil(b"\r\n")
            self.waiting.add(number)
            length = 0
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            got = await reader.readexactly(length)
            if status.split()[1] != b"200":
                raise ConnectionError(status.decode("latin-1"))
            if got != self._body:
                raise SystemExit(f"client {number} got other bytes")
        finally:
            writer.close()


async def run(folder: Path, clients: int, kills: int) -> None:
    """Let them come, kill the server, start it again, and wait until all are served."""
    make_release(folder / "release", big_bin=_SIZE_BYTES)
    config = folder / "tidegate.toml"
    config.write_text(_CONFIG.format(bandwidth="1Mbit"))
    server = RunningServer(folder / "release", folder / "state", "--config", str(config))
    try:
        port = int(server.url.rpartition(":")[2])
        crowd = RetryingClients(port, (folder / "release" / _FILE).read_bytes())
        tasks = []
        for number in range(clients):
            tasks.append(asyncio.create_task(crowd.fetch(number)))
            if number % 50 == 49:
                await asyncio.sleep(0.03)
        end_s = time.monotonic() + _END_S
        for life in range(kills):
            while len(crowd.waiting) < 0.98 * clients and time.monotonic() < end_s:
                await asyncio.sleep(0.2)
            sys.stdout.write(f"{len(crowd.waiting)} wait, {len(crowd.served)} are served: killed\n")
            server.kill()
            begun_s = time.monotonic()
            last = life == kills - 1
            config.write_text(_CONFIG.format(bandwidth="2Gbit" if last else "1Mbit"))
            arguments = ("--config", str(config), "--listen", f"127.0.0.1:{port}")
            server = await asyncio.to_thread(
                RunningServer, folder / "release", folder / "state", *arguments
            )
            sys.stdout.write(f"{time.monotonic() - begun_s:.1f} s later it is back\n")
        await asyncio.wait(tasks, timeout=max(1.0, end_s - time.monotonic()))
        tries = Counter(crowd.tries[number] for number in crowd.served)
        by_tries = ", ".join(f"{tries[one]} by {one}" for one in sorted(tries))
        sys.stdout.write(
            f"{len(crowd.served)} of {clients} have their file: {by_tries} tries\n"
            f"broken on the way: {dict(crowd.broken)}\n"
        )
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=1)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.clients + 200 > hard:
        raise SystemExit(f"The system allows {hard} open files: ulimit -Hn, or fewer --clients.")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder), given.clients, given.kills))


if __name__ == "__main__":
    end_cleanly()
    main()
