"""Measures CPU, throughput and memory beside nginx.

`make bench` runs it. Both servers run at once and are measured in turn, round by round, so that
noise of the machine affects both. The table shows medians; ratios have their range over the
rounds. CPU is user plus system time of a server's processes from /proc, without the load generator
(wrk). Tidegate is the `tidegate serve` command with admission on. "Varied" rows repeat no request:
each has another User-Agent, cookie, query, name or condition, as in a crowd. The first row plays
`bench.mix`.

Needs the Debian packages nginx, wrk and openssl. Options: --rounds N, --seconds S, --only ROW (a
part of its name, repeatable), --warm-up S (each server, before the first row), --docs FILE (put the
table between the marks of a document).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import mix
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.ports import free_port
from bench.shared.processes import process, wait_for
from bench.shared.subject import Suppressed, require

_ENDED = Suppressed("threads that ended while their time was read", OSError)


@dataclass
class BenchedServer:
    """One running server."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    #: The number of the next request of a varied row.
    numbered: int = 0

    def pids(self) -> list[int]:
        """The server's process and all its descendants."""
        found, parents = [self.process.pid], [self.process.pid]
        while parents:
            try:
                text = Path(f"/proc/{parents[0]}/task/{parents[0]}/children").read_text()
            except OSError:
                text = ""
            children = [int(pid) for pid in text.split()]
            found += children
            parents = parents[1:] + children
        return found

    def cpu_s(self) -> float:
        """User and system time so far, by the scheduler's count in ns.

        The clock's ticks are too coarse: a second of large files costs nginx six of them.
        """
        total_ns = 0
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").iterdir():
                with _ENDED:
                    total_ns += int((task / "schedstat").read_text().split()[0])
        return total_ns / 1e9


def _write_settings(scratch: Path, root: Path, ports: Mapping[str, int]) -> tuple[Path, Path]:
    """The settings of nginx and of Tidegate."""
    nginx, tidegate = scratch / "nginx.conf", scratch / "tidegate.toml"
    nginx.write_text(f"""
worker_processes 1; worker_rlimit_nofile 20000; daemon off; pid {scratch}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 2000; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
  default_type application/octet-stream; send_timeout 600s;
  open_file_cache max=10000 inactive=60s; open_file_cache_valid 30s;
  client_body_temp_path {scratch}/b; proxy_temp_path {scratch}/p; fastcgi_temp_path {scratch}/f;
  uwsgi_temp_path {scratch}/u; scgi_temp_path {scratch}/s;
  ssl_certificate {scratch}/cert.pem; ssl_certificate_key {scratch}/key.pem;
  ssl_protocols TLSv1.2 TLSv1.3;
  server {{
    listen 127.0.0.1:{ports["nginx"]} backlog=4096;
    listen 127.0.0.1:{ports["nginx-tls"]} ssl backlog=4096;
    root {root};
  }}
}}
""")
    # All clients have one address here.
    tidegate.write_text("""
clients_per_address = 65536
[limits]
max_connections = 2000
max_connections_per_address = 2000
[admission]
slots = 4096
slots_max = 4096
connections_per_lease = 1024
""")
    return nginx, tidegate


#: Tidegate logs this when all files are hashed.
WALKED = "The walk over the served directory is over."


#: Of one server: CPU cost, rate, and the 99th percentile of the time in ms.
Figures = tuple[float, float, float]
#: nginx's and Tidegate's.
Round = tuple[Figures, Figures]
#: nginx and Tidegate, by whether they are asked by TLS.
Peers = dict[bool, list[BenchedServer]]


@contextlib.contextmanager
def all_running(root: Path, scratch: Path, tls: bool) -> Iterator[Peers]:
    """All servers, once each accepts connections and has hashed its files.

    `tls`: a second Tidegate with TLS.
    """
    key, certificate = scratch / "key.pem", scratch / "cert.pem"
    # P-256, as the documentation advises; handshakes with an RSA key cost more.
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:P-256", "-subj", "/CN=bench", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    ports = {name: free_port() for name in ("nginx", "nginx-tls", "tidegate", "tidegate-tls")}
    nginx, config = _write_settings(scratch, root, ports)
    with contextlib.ExitStack() as stack:
        peers: Peers = {}

        def start(name: str, *words: str) -> subprocess.Popen[bytes]:
            log = scratch / f"{name}.log"
            return stack.enter_context(process(words, log, cwd=scratch))

        master = start("nginx", "nginx", "-c", str(nginx))
        for secure in (False, True)[: 1 + tls]:
            end, scheme = ("-tls", "https") if secure else ("", "http")
            words = ["-m", "tidegate", "serve", str(root), "--admin", "off", "--config"]
            words += [str(config), "--listen", f"127.0.0.1:{ports[f'tidegate{end}']}"]
            words += ["--state", str(scratch / f"tidegate{end}")]
            words += ["--tls-cert", str(certificate), "--tls-key", str(key)] if secure else []
            ours = start(f"tidegate{end}", sys.executable, *words)
            peers[secure] = [
                BenchedServer(name, f"{scheme}://127.0.0.1:{ports[name + end]}", running)
                for name, running in (("nginx", master), ("tidegate", ours))
            ]
        wait_for("nginx", scratch / "nginx.log", "start worker process ", master)
        for secure, (_, server) in peers.items():
            # Tidegate hashes each file once; the rows measure serving alone.
            log = scratch / f"tidegate{'-tls' * secure}.log"
            for text in ("ready ", WALKED):
                wait_for("Tidegate", log, text, server.process, most_s=300.0)
        yield peers


def _varied_script(first: int, request: str) -> str:
    """A script for wrk: no two requests are alike. `n` counts them over all rounds."""
    return f"""
local n = {first}
math.randomseed(n)
local function ask(path, fields, version)
  return "GET " .. path .. " HTTP/" .. (version or "1.1") .. "\\r\\nHost: bench\\r\\n"
    .. (fields or "") .. "\\r\\n"
end
local function agent(number) return "User-Agent: agent/" .. number .. "\\r\\n" end
request = function()
  n = n + 1
  return {request}
end
"""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    `rare`: the expected status is not 200. `varied` is a Lua expression for a whole request, see
    `_varied_script`; `{etag}` and `{modified}` in it are those of `path`.
    """

    name: str
    path: str
    connections: int = 64
    fields: tuple[str, ...] = ()
    tls: bool = False
    by_bytes: bool = False
    rare: bool = False
    nginx_path: str = ""
    varied: str = ""
    mixed: bool = False


_MIB = ("Range: bytes=52428800-53477375",)
ROWS = (
    Row("A crowd's mix", "/mix/none", rare=True, mixed=True),
    Row("1 KiB", "/1k.bin"),
    Row("30 kB", "/30k.bin"),
    Row("100 kB", "/100k.bin"),
    Row("1 MiB ranges", "/256m.bin", 16, _MIB, by_bytes=True),
    Row("256 MiB", "/256m.bin", 4, by_bytes=True),
    Row("SHA256SUMS of 30 files", "/thirty/SHA256SUMS", nginx_path="/2k.bin"),
    Row("HTTPS 1 KiB", "/1k.bin", tls=True),
    Row("HTTPS 1 KiB, new connection each", "/1k.bin", fields=("Connection: close",), tls=True),
    Row("HTTPS 256 MiB", "/256m.bin", 4, by_bytes=True, tls=True),
    Row("Varied: User-Agent", "/1k.bin", varied='ask("/1k.bin", agent(n))'),
    # wrk waits for the body that a HEAD request has none of, unless the file is empty.
    Row(
        "Varied: HEAD",
        "/empty.bin",
        varied='(ask("/empty.bin", agent(n)):gsub("^GET", "HEAD"))',
    ),
    Row("Varied: query", "/1k.bin", varied='ask("/1k.bin?v=" .. n)'),
    Row(
        "Varied: 5 000 files, 200 User-Agents",
        "/many/0.bin",
        varied='ask("/many/" .. math.random(0, 4999) .. ".bin", agent(math.random(200)))',
    ),
    Row(
        "Varied: 300 files of 30 kB, 200 User-Agents",
        "/middle/0.bin",
        varied='ask("/middle/" .. math.random(0, 299) .. ".bin", agent(math.random(200)))',
    ),
    Row(
        "Varied: first request of each of 100 000 files",
        "/cold/0.bin",
        varied='ask("/cold/" .. n % 100000 .. ".bin", agent(n % 200))',
    ),
    Row("Varied: 404", "/nothing.bin", rare=True, varied='ask("/none-" .. n, agent(n % 200))'),
    Row(
        "Varied: If-None-Match, another tag each",
        "/1k.bin",
        varied='ask("/1k.bin", "If-None-Match: \\"" .. n .. "\\"\\r\\n")',
    ),
    Row(
        "Varied: 304 by tag",
        "/1k.bin",
        varied="ask(\"/1k.bin\", agent(n) .. 'If-None-Match: {etag}\\r\\n')",
    ),
    Row(
        "Varied: 304 by date",
        "/1k.bin",
        varied='ask("/1k.bin", agent(n) .. "If-Modified-Since: {modified}\\r\\n")',
    ),
    Row("Varied: pipelined by 8", "/1k.bin", varied='ask("/1k.bin", agent(n)):rep(8)'),
    Row(
        "Varied: HTTP/1.0",
        "/1k.bin",
        varied='ask("/1k.bin", agent(n) .. "Connection: keep-alive\\r\\n", "1.0")',
    ),
    Row(
        "Varied: new connection each",
        "/1k.bin",
        varied='ask("/1k.bin", agent(n) .. "Connection: close\\r\\n")',
    ),
    Row(
        "Varied: 64 KiB ranges",
        "/256m.bin",
        16,
        varied='(function() local at = math.random(0, 268000000); return ask("/256m.bin", '
        'agent(n) .. "Range: bytes=" .. at .. "-" .. at + 65535 .. "\\r\\n") end)()',
    ),
    Row("Varied: HTTPS, User-Agent", "/1k.bin", tls=True, varied='ask("/1k.bin", agent(n))'),
)


def load(peer: BenchedServer, row: Row, seconds: int, scratch: Path) -> Figures:
    """Run wrk. Returns CPU µs a request and requests a second, or s/GB and GB/s (`by_bytes`).

    The third is the 99th percentile of a request's time in ms.
    """
    path = row.nginx_path if row.nginx_path and peer.name == "nginx" else row.path
    url = f"{peer.url}{path}"
    command = ["wrk", "-t1", f"-c{row.connections}", f"-d{seconds}s", "--latency"]
    command += ["--timeout", "30s"]
    for one in row.fields:
        command += ["-H", one]
    require_status(peer.name, row, asked(url, "GET", row.fields)[0])
    if row.varied or row.mixed:
        text = mix.script(peer.numbered) if row.mixed else _varied_script(peer.numbered, row.varied)
        if "{" in row.varied:
            seen = asked(url, "HEAD")[1]
            text = text.replace("{etag}", seen["ETag"]).replace("{modified}", seen["Last-Modified"])
        script = scratch / "wrk.lua"
        script.write_text(text)
        command += ["-s", str(script)]
    before = peer.cpu_s()
    done = subprocess.run([*command, url], check=True, capture_output=True, text=True)
    cpu_s = peer.cpu_s() - before
    requests, count_bytes = served(peer.name, row, done.stdout)
    found = re.search(r"99%\s+([0-9.]+)(us|ms|s|m)\s", done.stdout)
    times_ms = {"us": 0.001, "ms": 1.0, "s": 1e3, "m": 60e3}
    p99_ms = float(found[1]) * times_ms[found[2]] if found and requests else math.nan
    peer.numbered += requests if row.varied or row.mixed else 0
    if row.by_bytes:
        return cpu_s / count_bytes * 1e9, count_bytes / 1e9 / seconds, p99_ms
    return cpu_s / requests * 1e6, requests / seconds, p99_ms


def asked(url: str, method: str, fields: Sequence[str] = ()) -> tuple[int, Mapping[str, str]]:
    """The status and the header fields of the answer to one request with these header lines."""
    headers = dict(one.split(": ", 1) for one in fields)
    request = urllib.request.Request(url, headers=headers, method=method)
    context = ssl._create_unverified_context() if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            return int(answer.status), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers)


def require_status(name: str, row: Row, status: int) -> None:
    """Raise NothingMeasured unless the status is the one that the row expects."""
    ranged = any(one.startswith("Range:") for one in row.fields)
    wanted = 404 if row.rare else 206 if ranged else 200
    require(status == wanted, f"{name} answers {status} to '{row.name}', which wants {wanted}.")


def served(name: str, row: Row, report: str) -> tuple[int, float]:
    """Requests and bytes that wrk's report counts. Raises NothingMeasured if there are none."""
    match = re.search(r"([0-9]+) requests in [0-9.]+\w+, ([0-9.]+)([KMGT]?)B read", report)
    refused = "Non-2xx or 3xx responses: " in report and not row.rare
    require(match and not refused, f"{name} refused requests for '{row.name}':\n{report}")
    assert match is not None
    requests, count_bytes = int(match[1]), float(match[2]) * 1024.0 ** " KMGT".index(match[3])
    # A large body may take longer than the row.
    some = count_bytes and (requests or row.by_bytes)
    require(some, f"{name} served nothing for '{row.name}':\n{report}")
    return requests, count_bytes


def ratio_of(rounds: Sequence[Round]) -> float:
    """Tidegate's CPU over nginx's, the median: noise affects both in a round."""
    return statistics.median(ours[0] / nginx[0] for nginx, ours in rounds)


def worst(results: Mapping[str, Sequence[Round]]) -> str:
    """The row that costs most beside nginx, in a sentence."""
    ratio, name = max((ratio_of(rounds), name) for name, rounds in results.items())
    return f"Worst row beside nginx: {name}, {ratio:.2f} times its CPU."


def table(rows: Sequence[Row], results: Mapping[str, Sequence[Round]]) -> str:
    """The medians as a Markdown table: CPU, throughput, the ratio to nginx's CPU, and p99."""
    titles = ["work", "nginx", "Tidegate", "CPU ratio", "p99 of both, ms"]
    lines = []
    for row in rows:
        rounds = results[row.name]
        cells, p99s = [row.name], []
        for of_server in zip(*rounds, strict=True):
            cost, rate, p99_ms = map(statistics.median, zip(*of_server, strict=True))
            by_bytes = f"{cost:.3f} s/GB, {rate:.2f} GB/s"
            cells.append(by_bytes if row.by_bytes else f"{cost:.1f} µs, {rate:,.0f}/s")
            p99s.append(f"{p99_ms:.1f}")
        ratios = [ours[0] / nginx[0] for nginx, ours in rounds]
        spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
        lines.append([*cells, f"{ratio_of(rounds):.2f}{spread}", ", ".join(p99s)])
    return markdown.table(titles, lines)


def fill(root: Path, rows: Sequence[Row]) -> None:
    """Make the files that `rows` need."""
    asked = {path.split("/")[1] for row in rows for path in (row.path, row.nginx_path) if path}
    asked.add("1k.bin")
    sizes = {"empty.bin": 0, "1k.bin": 1 << 10, "2k.bin": 2 << 10}
    sizes |= {"30k.bin": 30_000, "100k.bin": 100_000, "256m.bin": 256 << 20}
    for name in asked & sizes.keys():
        with (root / name).open("wb") as file:
            for begin in range(0, sizes[name], 1 << 20):
                file.write(os.urandom(min(1 << 20, sizes[name] - begin)))
    if "mix" in asked:
        mix.fill(root / "mix")
    for folder, count, size in (
        ("many", 5000, 4096),
        ("thirty", 30, 2000),
        ("middle", 300, 30_000),
        ("cold", 100_000, 1000),
    ):
        if folder not in asked:
            continue
        (root / folder).mkdir()
        for number in range(count):
            (root / folder / f"{number}.bin").write_bytes(os.urandom(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], metavar="ROW")
    parser.add_argument("--warm-up", type=int, default=1, metavar="S")
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin"
    for tool, package in (("nginx", "nginx"), ("wrk", "wrk"), ("openssl", "openssl")):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is missing; install the Debian package {package}.")
    wanted = options.only or [""]
    rows = [row for row in ROWS if any(part in row.name for part in wanted)]
    require(rows, f"No row here has {options.only} in its name.")
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        results = measure(Path(folder), rows, options)
    text = f"{table(rows, results)}\n\n{worst(results)}"
    print(text)
    if options.docs is not None:
        markdown.put_between_marks(options.docs, "bench.http_peers", text)


def measure(
    scratch: Path, rows: Sequence[Row], options: argparse.Namespace
) -> dict[str, list[Round]]:
    """Start all servers, measure row by row and round by round, stop all servers."""
    root = scratch / "root"
    root.mkdir()
    for path in (scratch, root):
        path.chmod(0o755)
    fill(root, rows)
    results: dict[str, list[Round]] = {}
    with all_running(root, scratch, any(row.tls for row in rows)) as peers:
        # Warm caches and known digests: the state of a release server.
        for peer in peers[False] if options.warm_up else ():
            for row in ROWS:
                if row.name in ("1 KiB", "256 MiB") and (root / row.path[1:]).exists():
                    load(peer, row, options.warm_up, scratch)
        for row in rows:
            rounds = results[row.name] = []
            nginx, ours = peers[row.tls]
            for number in range(options.rounds):
                turns = (nginx, ours) if number % 2 == 0 else (ours, nginx)
                found = {one.name: load(one, row, options.seconds, scratch) for one in turns}
                rounds.append((found[nginx.name], found[ours.name]))
            print(f"{row.name}: done", file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    end_cleanly()
    main()
