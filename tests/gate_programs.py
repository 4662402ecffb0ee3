"""Real programs through a gate and each mover to a full line; a table of what came of it.

usage: unshare -n python -m tests.gate_programs [--programs curl,axel] [MOVER...]

`unshare -n` gives a network of its own, as root: its loopback is slowed down for the mover's port,
and its sockets have small buffers, so that bodies take as long as on a line. The last row is
`tidegate serve` with the same queue and no mover.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from bench.shared import markdown
from bench.shared.ports import free_port
from tests import real_clients as clients
from tests.gate_site import (
    MOVERS,
    S3_KEYS,
    GateProcess,
    Nginx,
    Sampler,
    bucket,
    gate_and_nginx,
)
from tests.installed import enter, install
from tests.running import make_release, wait_for

SLOTS = 2
LINE_BYTES_S = 800_000
#: How long the slots are taken when the programs come.
FULL_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """What came of all programs at once. Bytes were on their way to `most` of them at once."""

    missed: dict[str, str]
    most: int
    looks: int
    judged: int
    kept: int
    lost: int

    def row(self, name: str, tools: int) -> str:
        whole = f"{tools - len(self.missed)} of {tools}"
        most = f"{self.most} of {SLOTS}, {self.looks} looks"
        return markdown.row(name, whole, most, f"{self.kept} of {self.judged}", self.lost)


class Port(Nginx):
    """A port that something serves; what it sends now is told by its sockets."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def sending(self, folder: Path) -> set[str]:
        """The programs that are sent something: one may have several connections for a download."""
        ends = f"( sport = :{self.port} or dport = :{self.port} )"
        command = ("ss", "-tnpHO", "state", "established", ends)
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = re.findall(r"(?m)^\d+ +(\d+) +\S+:(\d+) +\S+:(\d+)(?:.*?pid=(\d+))?", told)
        owners = {end: pid for _, end, _, pid in rows}
        rows = [row for row in rows if row[1] == str(self.port)]
        # Less is a line of a header to a client that waits.
        served = {peer for queued, _, peer, _ in rows if int(queued) > 4096}
        # The clients that take the slots are threads of this process.
        own = str(os.getpid())
        return {one if owners.get(one) == own else owners.get(one, "") for one in served}


#: An nginx that fetches the release from a bucket, with URLs that the gate signs.
BUCKET = "bucket"


@contextmanager
def serving(folder: Path, mover: str) -> Iterator[tuple[GateProcess, Nginx]]:
    """A gate and this mover; or `tidegate serve` with the same queue, if `mover` is empty."""
    words = ["--slots", str(SLOTS), "--reserve-small", "0"]
    if mover == BUCKET:
        keys = folder / "keys"
        keys.write_text(
            "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n".format(*S3_KEYS)
        )
        (folder / "empty" / "release").mkdir(parents=True)
        with bucket(folder) as url:
            words += ["--origin", url, "--sign", "s3:us-east-1", "--sign-file", str(keys)]
            snippet = ("--origin", url, "--if-absent", "closed")
            with gate_and_nginx(folder / "empty", *words, snippet=snippet) as both:
                yield both
    elif mover:
        with gate_and_nginx(folder, *words, mover=mover) as both:
            yield both
    else:
        port = free_port()
        words += ["--policy", "ticket", "--listen", f"127.0.0.1:{port}", "--state", "state"]
        with GateProcess(folder, line=f"tidegate serve {folder}/release {' '.join(words)}") as gate:
            yield gate, Port(port)


def slow_down(port: int) -> None:
    """Give what leaves this port a line of its own on the loopback of this network."""
    tc = "tc {} add dev lo {}"
    rate = f"{8 * LINE_BYTES_S}bit"
    for words in (
        tc.format("qdisc", "root handle 1: htb"),
        tc.format("class", f"parent 1: classid 1:1 htb rate {rate} burst 16k"),
        tc.format("filter", f"parent 1: protocol ip u32 match ip sport {port} 0xffff flowid 1:1"),
    ):
        subprocess.run(words.split(), check=True)


@contextmanager
def taken(port: int) -> Iterator[None]:
    """All slots are taken, by clients that read a little now and then."""
    over = threading.Event()

    def read(name: str) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/big.iso", headers={"User-Agent": name})
        answer = connection.getresponse()
        began.release()
        while not over.wait(0.2):
            answer.read(20_000)
        connection.sock.close()
        answer.close()

    began = threading.Semaphore(0)
    readers = [threading.Thread(target=read, args=(f"first{one}/1",)) for one in range(SLOTS)]
    for reader in readers:
        reader.start()
        began.acquire()
    try:
        yield
    finally:
        over.set()
        for reader in readers:
            reader.join()


def through(mover: str, tools: Sequence[str]) -> Outcome:
    """Send all programs at once to a gate behind this mover; empty: to a server without a mover."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        # Apache reads it as a user of its own.
        folder = Path(scratch)
        folder.chmod(0o755)
        (folder / "release").mkdir()
        clients.lay_out(folder / "release", tools)
        make_release(folder / "release", big_iso=20_000_000)
        gate, site = stack.enter_context(serving(folder, mover))
        slow_down(site.port)
        work = folder / "work"
        work.mkdir(mode=0o755)
        said: dict[str, tuple[int, str]] = {}

        def fetch() -> None:
            said.update(clients.all_at_once(site.url, tools, work, 240))

        sampler = Sampler(Port(site.port), folder)
        with taken(site.port):
            fetching = threading.Thread(target=fetch)
            fetching.start()
            time.sleep(FULL_S)
        fetching.join()
        sampler.stop()
        wait_for(lambda: gate.figures().get("moved_bodies", 0) == 0)
        seen = gate.figures()
        missed = {}
        for tool in tools:
            code, text = said[tool]
            got = {out.read_bytes() for out in (work / clients.place_of(tool)).glob("out*")}
            if not clients.got_it(tool, code, len(clients.PAYLOAD)) or got - {clients.PAYLOAD}:
                missed[tool] = text
        return Outcome(
            missed,
            sampler.most,
            sampler.looks,
            int(seen["ends_judged_total"]),
            int(seen["ends_kept_total"]),
            int(seen.get("mover_reports_lost_total", 0)),
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default=",".join(clients.there()))
    parser.add_argument("movers", nargs="*", default=[*sorted(MOVERS), BUCKET, ""])
    given = parser.parse_args()
    tools = given.programs.split(",")
    install()
    enter(os.environ)
    for name in ("tcp_wmem", "tcp_rmem"):
        Path(f"/proc/sys/net/ipv4/{name}").write_text("4096 16384 65536")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    say = sys.stdout.write
    titles = ("in front", "whole", "programs served at once", "told ends kept", "reports lost")
    say(markdown.head(*titles) + "\n")
    for mover in given.movers:
        outcome = through(mover, tools)
        say(outcome.row(mover or "(`tidegate serve`)", len(tools)) + "\n")
        sys.stdout.flush()
        for tool, text in outcome.missed.items():
            sys.stderr.write(f"{mover}: {tool}: {text}\n")
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)


if __name__ == "__main__":
    main()
