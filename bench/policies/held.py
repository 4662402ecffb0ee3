"""Do programs that must wait live on? Real tools beside a crowd on a line that is full. Needs root.

    python -m bench.policies.held                       400 downloads, 12 small ones a second
    python -m bench.policies.held --agent curl/8.5.0    the crowd looks like curl

On a line of 20 Mbit/s between two namespaces, 400 downloads of 10 MB begin; for a minute then 12 of
300 kB come each second, and tools with short time-outs after 5, 20 and 45 s. Then the crowd leaves,
and the tools may finish. What the large downloads get meanwhile is counted: their turns, and what
keeps them alive.

Debian packages: iproute2, curl, wget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.policies.crowd import ClientOutcome
from bench.policies.lab import PREFIX, SERVER, line, serving
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import inside

_LARGE_BYTES = 10_000_000
_PER_S, _SMALL_BYTES = 12, 300_000
#: So much later the crowd leaves.
_AFTER_S = 10.0
_TOOL_BYTES, _TOOLS_AT_S, _TOOL_MOST_S = 3_000_000, (5.0, 20.0, 45.0), 150.0
_URL = f"http://{SERVER}:8080/"
#: A client whose socket may be silent for so long, as requests has it.
_READER = "import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout={}).read()"
TOOLS = {
    "curl --speed-limit 1000 --speed-time 15": [
        *("curl", "-sS", "-o", "/dev/null", "--speed-limit", "1000", "--speed-time", "15"),
    ],
    "curl --speed-limit 1000 --speed-time 30": [
        *("curl", "-sS", "-o", "/dev/null", "--speed-limit", "1000", "--speed-time", "30"),
    ],
    "wget --read-timeout=15": ["wget", "-q", "-t", "1", "--read-timeout=15", "-O", "/dev/null"],
    "read time-out of 10 s": [sys.executable, "-c", _READER.format(10)],
    "read time-out of 15 s (pip)": [sys.executable, "-c", _READER.format(15)],
}


@dataclass
class HeldCrowd:
    """One run, inside the namespace of the clients."""

    agent: str
    clients: int
    seconds: float
    began_s: float = 0.0
    seen: list[ClientOutcome] = field(default_factory=list)

    def now(self) -> float:
        """Seconds from the start."""
        return time.monotonic() - self.began_s

    def _middle(self, now: float) -> bool:
        return 5.0 + self.seconds / 2 <= now < 5.0 + self.seconds

    async def run(self) -> None:
        """All of them."""
        self.began_s = time.monotonic()
        crowd = [self._client(f"large{n}", n, 4.0 * n / self.clients) for n in range(self.clients)]
        small = range(int(_PER_S * self.seconds))
        crowd += [self._client("small", self.clients + n, 5.0 + n / _PER_S) for n in small]
        tasks = [asyncio.create_task(one) for one in crowd]
        tools = [
            asyncio.create_task(self._tool(name, number, at))
            for number, (name, at) in enumerate((n, a) for a in _TOOLS_AT_S for n in TOOLS)
            if at < self.seconds
        ]
        await asyncio.sleep(self.seconds + _AFTER_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *tools, return_exceptions=True)

    async def _client(self, file: str, number: int, at_s: float) -> None:
        seen = ClientOutcome(file.rstrip("0123456789"), at_s)
        self.seen.append(seen)
        await asyncio.sleep(at_s)
        host = f"10.91.{1 + number // 200}.{1 + number % 200}"
        reader, writer = await asyncio.open_connection(SERVER, 8080, local_addr=(host, 0))
        try:
            agent = f"User-Agent: {self.agent}\r\n" if self.agent else ""
            request = f"GET /{file}.bin HTTP/1.1\r\nHost: lab\r\n{agent}Connection: close\r\n\r\n"
            writer.write(request.encode())
            head, last = b"", self.now()
            while block := await reader.read(65536):
                now = self.now()
                if seen.first_s is None:
                    head += block
                    _, ends, block = head.partition(b"\r\n\r\n")
                    if ends:
                        seen.first_s = now
                elif now - last > seen.silence_s:
                    seen.silence_s = now - last
                last = now
                if seen.first_s is not None:
                    seen.middle_bytes += len(block) if self._middle(now) else 0
            seen.done_s = self.now()
        except OSError as fault:
            seen.fault = str(fault)
        finally:
            if seen.done_s is None and seen.first_s is not None:
                seen.silence_s = max(seen.silence_s, self.now() - last)
            writer.close()

    async def _tool(self, name: str, number: int, at_s: float) -> None:
        seen = ClientOutcome(name, at_s)
        self.seen.append(seen)
        await asyncio.sleep(at_s)
        host = f"10.91.100.{1 + number}"
        command = list(TOOLS[name])
        if command[0] == "curl":
            command += ["--interface", host]
        elif command[0] == "wget":
            command += ["--bind-address", host]
        tool = await asyncio.create_subprocess_exec(
            *command, f"{_URL}tool{number}.bin", stderr=asyncio.subprocess.PIPE
        )
        try:
            _, text = await asyncio.wait_for(tool.communicate(), _TOOL_MOST_S)
        except TimeoutError:
            tool.kill()
            text = b"not done in time"
        seen.done_s = self.now()
        seen.fault = "" if tool.returncode == 0 else text.decode().strip()[-90:] or "failed"


def report(rows: list[ClientOutcome], line_bytes_s: float, seconds: float) -> str:
    """What came of it, in lines."""
    small = [row for row in rows if row.client == "small"]
    large = [row for row in rows if row.client == "large"]
    times = [row.done_s - row.came_s for row in small if row.done_s is not None]
    end_s = seconds + _AFTER_S
    # Those that were not done have been here until the crowd left.
    all_s = [min(end_s, end_s if r.done_s is None else r.done_s) - r.came_s for r in small]
    part = sum(row.middle_bytes for row in large) / (seconds / 2 * line_bytes_s)
    begun = [row for row in large if row.first_s is not None]
    silence_s = max((row.silence_s for row in rows if row.first_s is not None), default=0.0)
    lines = [
        f"small: {len(times)} of {len(small)} done, mean {statistics.fmean(times or [0.0]):.2f} s; "
        f"of all, until the crowd left, {statistics.fmean(all_s):.2f} s",
        f"large: {len(begun)} of {len(large)} had bytes; {100 * part:.1f} % of the line in the "
        f"second half of the time; longest silence of who had any {silence_s:.1f} s",
    ]
    for row in rows:
        if row.client in TOOLS:
            done_s = (row.done_s or 0.0) - row.came_s
            what = f"failed: {row.fault}" if row.fault else "done"
            lines.append(f"{row.client}, after {row.came_s:.0f} s: {what} ({done_s:.1f} s)")
    return "\n".join(lines)


def main() -> int:
    """Run and print; 1 if a tool failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--agent", default="", help="what the crowd calls itself; nothing")
    parser.add_argument("--rate", type=float, default=20.0, help="of the line, Mbit/s")
    parser.add_argument("--policy", default="fair")
    parser.add_argument("--clients", type=int, default=400, help="that want a large file")
    parser.add_argument("--seconds", type=float, default=60.0, help="in which small ones come")
    parser.add_argument("--prefix", default=PREFIX, help="of the namespaces")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        trial = HeldCrowd(given.agent, given.clients, given.seconds)
        asyncio.run(trial.run())
        sys.stdout.write(json.dumps([asdict(row) for row in trial.seen]))
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-held-") as name,
        line(given.rate, given.prefix),
    ):
        folder = Path(name)
        files = folder / "files"
        files.mkdir()
        sizes = {f"large{n}": _LARGE_BYTES for n in range(given.clients)} | {"small": _SMALL_BYTES}
        sizes |= {f"tool{n}": _TOOL_BYTES for n in range(len(TOOLS) * len(_TOOLS_AT_S))}
        for file, size in sizes.items():
            with (files / f"{file}.bin").open("wb") as out:
                out.truncate(size)
        with serving(folder, given.policy, None, prefix=given.prefix):
            command = inside(f"{given.prefix}-c", sys.executable, "-m", "bench.policies.held")
            done = subprocess.run(
                [
                    *(*command, "--inside", "--agent", given.agent),
                    *("--clients", str(given.clients), "--seconds", str(given.seconds)),
                ],
                capture_output=True,
                text=True,
                timeout=400,
                check=True,
            )
    rows = [ClientOutcome(**row) for row in json.loads(done.stdout)]
    sys.stdout.write(report(rows, given.rate * 1e6 / 8, given.seconds) + "\n")
    return 1 if any(row.fault for row in rows if row.client in TOOLS) else 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
