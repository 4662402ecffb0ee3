"""A crowd of downloads replayed against a server: each client on an address and a line of its own.

    python -m bench.policies.crowd URL TRACE [--poll] [--persist N]

Reads a trace (JSON lines as `loadtest.trace` writes them), prints one JSON object a client: when it
came, when its first byte came, when it was done, the longest silence at its socket since the first
byte, how often it asked, and what went wrong. Clients wait inside their request (as curl), or poll
with their ticket as they are told. A client's own speed is the pace at which it reads. Of a client
a line may have the `address`, and the header `fields` instead of its program's. Those that
`--persist` ask again after a fault, for N seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_BLOCK = 64 * 1024
_WINDOW_BYTES = 128 * 1024
#: What the kernel takes of a client before it reads; Linux doubles what it is asked for.
READER_BYTES = 2 * _WINDOW_BYTES

#: A socket that is silent for this long is dead: the end of a connection may be lost, too.
_DEAD_S = 60.0


@dataclass
class ClientOutcome:
    """What one client has had; times are seconds from the start of the run."""

    client: str
    came_s: float
    size_bytes: int
    first_s: float | None = None
    done_s: float | None = None
    silence_s: float = 0.0
    asked: int = 0
    fault: str = ""


class TraceReplay:
    """Replays a trace."""

    def __init__(self, url: str, poll: bool, bind: str, persist_s: float = 0.0) -> None:
        parts = urlsplit(url)
        self.server = parts.hostname or "", parts.port or 80
        self.agent = "tidegate/lab" if poll else "curl/8.5.0"
        self.bind = bind
        self.persist_s = persist_s
        self.began_s = 0.0

    def now(self) -> float:
        """Seconds from the start."""
        return time.monotonic() - self.began_s

    async def run(self, rows: list[dict[str, Any]]) -> list[ClientOutcome]:
        """All clients, each at its time."""
        self.began_s = time.monotonic()
        return list(await asyncio.gather(*(self.client(n, row) for n, row in enumerate(rows))))

    def address(self, number: int) -> str:
        """The source address of a client, each in a /16 of its own.

        The server gives all new clients of one /24 or /16 a share together.
        """
        first, _, _, _ = self.bind.split(".")
        return f"{first}.{number % 256}.{1 + number // 256}.{1 + number % 200}"

    async def client(self, number: int, row: dict[str, Any]) -> ClientOutcome:
        """One download from its arrival to its end."""
        outcome = ClientOutcome(row["client"], row["t_s"], row["size_bytes"])
        await asyncio.sleep(max(0.0, outcome.came_s - self.now()))
        own = {"address": self.address(number), "fields": f"User-Agent: {self.agent}", **row}
        ticket, until_s = "", outcome.came_s + (self.persist_s or 600.0)
        while outcome.done_s is None and self.now() < until_s:
            outcome.asked += 1
            try:
                async with asyncio.timeout(until_s - self.now()):
                    wait_s, ticket = await self.ask(outcome, own, ticket)
            except (OSError, ValueError) as fault:
                outcome.fault, wait_s = f"{type(fault).__name__}: {fault}", 0.5
                if not self.persist_s:
                    break
            await asyncio.sleep(wait_s)
        return outcome

    async def ask(
        self, outcome: ClientOutcome, own: dict[str, Any], ticket: str
    ) -> tuple[float, str]:
        """One request; returns when to ask again and with which ticket."""
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            if own["rate_bytes_s"] is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW_BYTES)
            sock.bind((own["address"], 0))
            await loop.sock_connect(sock, self.server)
            request = f"GET /{own['file']} HTTP/1.1\r\nHost: lab\r\n{own['fields']}\r\n"
            if ticket:
                request += f"Tidegate-Ticket: {ticket}\r\n"
            await loop.sock_sendall(sock, f"{request}Connection: close\r\n\r\n".encode())
            async with asyncio.timeout(_DEAD_S) as limit:
                head = b""
                while b"\r\n\r\n" not in head:
                    block = await loop.sock_recv(sock, _BLOCK)
                    if not block:
                        raise ValueError("no answer")
                    limit.reschedule(loop.time() + _DEAD_S)
                    head += block
                text, _, body = head.partition(b"\r\n\r\n")
                lines = text.decode("latin-1").split("\r\n")
                fields = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines[1:])
                }
                if lines[0].split()[1] != "200":
                    again = float(fields.get("retry-after", "5"))
                    return again, fields.get("tidegate-ticket", ticket)
                await self.read(outcome, sock, len(body), own["rate_bytes_s"], limit)
                return 0.0, ticket

    async def read(
        self,
        outcome: ClientOutcome,
        sock: socket.socket,
        got: int,
        rate: float | None,
        limit: asyncio.Timeout,
    ) -> None:
        """The body, no faster than the client's own line."""
        loop = asyncio.get_running_loop()
        began = last = self.now()
        outcome.first_s = began
        block = _BLOCK if rate is None else max(2048, min(_BLOCK, int(rate / 20)))
        allowed_from = began
        while got < outcome.size_bytes:
            limit.reschedule(loop.time() + _DEAD_S)
            data = await loop.sock_recv(sock, block)
            now = self.now()
            outcome.silence_s = max(outcome.silence_s, now - last)
            last = now
            if not data:
                raise ValueError(f"cut after {got} of {outcome.size_bytes} bytes")
            got += len(data)
            if rate is not None:
                # What it did not take while nothing came is gone, but for a window's worth.
                allowed_from = max(allowed_from + len(data) / rate, now - _WINDOW_BYTES / rate / 2)
                if allowed_from > now + 0.005:
                    await asyncio.sleep(allowed_from - now)
                    last = self.now()
        outcome.done_s = self.now()


def main() -> int:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("url")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--poll", action="store_true")
    parser.add_argument("--persist", type=float, default=0.0, metavar="N")
    parser.add_argument("--bind", default="127.0.0.0", help="an IPv4 /8: the clients are in it")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.trace.read_text("utf-8").splitlines() if line]
    replay = TraceReplay(given.url, given.poll, given.bind, given.persist)
    for outcome in asyncio.run(replay.run(rows)):
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
