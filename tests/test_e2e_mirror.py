"""Publisher, origin and mirrors as real processes, joined by HTTP on the loopback."""

from __future__ import annotations

import contextlib
import json
import random
import select
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from mirror_site import described, edit, fill

from tests.installed import TIDEGATE
from tidegate.commands import cli

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parent.parent


def run(*words: object) -> Result:
    """A publisher's command, in this process: a new one would take longer to start than to work."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        return CliRunner().invoke(cli, list(map(str, words)), prog_name="tidegate")
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def must(*words: object) -> str:
    done = run(*words)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def eventually(holds: Callable[[], object], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it never came true"
        select.select([], [], [], 0.05)


@contextmanager
def serving(directory: Path, state: Path, *words: object) -> Iterator[str]:
    """`tidegate serve` on a port of the kernel's choice; its URL."""
    command = [TIDEGATE, "serve", directory, "--listen", "127.0.0.1:0", "--admin", "off"]
    server = subprocess.Popen(
        [*map(str, command), "--state", str(state), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if line.startswith("ready "):
                yield line.split()[1].rstrip("/")
                return
        raise AssertionError("".join(lines))
    finally:
        server.terminate()
        server.communicate(timeout=20)


@contextmanager
def following(*words: object) -> Iterator[subprocess.Popen[str]]:
    follower = subprocess.Popen([TIDEGATE, "mirror", "follow", *map(str, words)], text=True)
    try:
        yield follower
    finally:
        follower.terminate()
        follower.wait(timeout=20)


def answer_of(url: str) -> tuple[bytes, dict[str, str]]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read(), {k.lower(): v for k, v in answer.headers.items()}


def test_a_mirror_follows_serves_is_listed_and_taken_off_the_list(tmp_path: Path) -> None:
    www, mirror = tmp_path / "www", tmp_path / "mirror"
    tree, publish, keys = www / "pub", www / "updates", tmp_path / "keys"
    tree.mkdir(parents=True)
    fill(tree)
    must("mirror", "init", publish, "--keys", keys)
    publishing = ("mirror", "publish", tree, "--channel", "main", "--to", publish, "--keys", keys)
    must(*publishing)
    origin_words = ("--mirror-publish", publish, "--mirror-channel", "main")
    with serving(www, tmp_path / "s1", *origin_words, "--mirror-prefix", "/pub/") as origin:
        updates = f"{origin}/updates/"
        first = ("--channel", "main", "--root", publish / "metadata" / "1.root.json", "--once")
        must("mirror", "follow", updates, mirror, *first)
        with serving(mirror, tmp_path / "s2") as own_url:
            secret = tmp_path / "secret"
            secret.write_text(must("mirror", "admit", publish, "one", own_url))
            report = ("--report-as", "one", "--report-key", secret, "--own-url", own_url)
            with following(updates, mirror, "--channel", "main", *report):
                a_py = f"{origin}/pub/pkg/a.py"
                eventually(lambda: f"<{own_url}/pkg/a.py>" in answer_of(a_py)[1]["link"])
                metalink, _ = answer_of(a_py + ".meta4")
                assert f"{own_url}/pkg/a.py".encode() in metalink
                edit(tree)
                must(*publishing)
                # The mirror's own server shows the new tree, whole, after the switch.
                eventually(lambda: b"more" in answer_of(f"{own_url}/pkg/a.py")[0])
                assert answer_of(f"{own_url}/latest/new")[0] == b"new"
                assert described(mirror) == described(tree)
                eventually(lambda: "duplicate" in answer_of(a_py)[1]["link"])
                shown = json.loads(must("mirror", "status", origin, "--json"))
                (row,) = shown["mirrors"]
                assert (row["name"], row["condition"], row["version"]) == ("one", "current", 2)
                assert row["free"] is True
            must("mirror", "admit", publish, "one", "--remove")
            eventually(lambda: "duplicate" not in answer_of(a_py)[1]["link"])
    own = json.loads(must("mirror", "status", mirror, "--json"))
    assert (own["version"], own["previous"]) == (2, [1])


def test_troubles_end_with_a_name_and_a_status(tmp_path: Path) -> None:
    tree, publish, keys = tmp_path / "tree", tmp_path / "updates", tmp_path / "keys"
    tree.mkdir()
    fill(tree)
    early = run("mirror", "publish", tree, "--channel", "main", "--to", publish, "--keys", keys)
    assert early.exit_code == 1
    assert "mirror init" in early.stderr
    must("mirror", "init", publish, "--keys", keys)
    root = publish / "metadata" / "1.root.json"
    dead = run(
        "mirror",
        "follow",
        "http://127.0.0.1:1/",
        tmp_path / "m",
        "--channel",
        "main",
        "--root",
        root,
        "--once",
    )
    assert (dead.exit_code, dead.stderr.split(":")[0]) == (5, "unreachable")
    # Even as a service: no later round would know whom to trust.
    bare = run("mirror", "follow", "http://127.0.0.1:1/", tmp_path / "n", "--channel", "main")
    assert (bare.exit_code, bare.stderr.split(":")[0]) == (6, "no-root")
    with serving(publish, tmp_path / "s1") as origin:
        follow = ("mirror", "follow", origin, tmp_path / "m", "--once", "--channel")
        nothing = run(*follow, "main")
        assert (nothing.exit_code, nothing.stderr.split(":")[0]) == (6, "no-channel")
        # Not otherwise for a mirror that reports.
        secret = tmp_path / "secret"
        secret.write_text("0" * 64)
        reports = run(*follow, "main", "--report-as", "one", "--report-key", secret)
        assert (reports.exit_code, reports.stderr.split(":")[0]) == (6, "no-channel")
        must("mirror", "publish", tree, "--channel", "main", "--to", publish, "--keys", keys)
        must(*follow, "main")
        must("mirror", "init", publish, "--keys", keys)
        assert "nothing new" in must(*follow, "main")
        assert "Traceback" not in nothing.stderr + dead.stderr + early.stderr


class Counted:
    """Passes connections on to a server and counts what comes back."""

    def __init__(self, url: str) -> None:
        self._aim = ("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self.bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._aim)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(*pair, client), daemon=True).start()

    def _pump(self, source: socket.socket, aim: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError), source:
            while data := source.recv(1 << 16):
                self.bytes += len(data) if aim is client else 0
                aim.sendall(data)
            aim.shutdown(socket.SHUT_WR)


def test_mirrors_fetch_from_mirrors_and_a_liar_among_them_does_no_harm(tmp_path: Path) -> None:
    tree, publish, keys = tmp_path / "tree", tmp_path / "updates", tmp_path / "keys"
    fill(tree)
    must("mirror", "init", publish, "--keys", keys)
    publishing = ("mirror", "publish", tree, "--channel", "main", "--to", publish, "--keys", keys)
    must(*publishing)
    relay, secret = tmp_path / "relay", tmp_path / "secret"
    relay.mkdir()
    words = ("--mirror-publish", publish, "--mirror-channel", "main", "--mirror-prefix", "/none/")
    with (
        # So slow that a second source is worth asking, however busy this machine is.
        serving(publish, tmp_path / "s1", *words, "--bandwidth", "4Mbit") as origin,
        serving(relay, tmp_path / "s2") as relaying,
    ):
        counted = Counted(relaying)
        secret.write_text(
            must("mirror", "admit", publish, "one", relaying, "--relay-url", counted.url)
        )
        pinned = ("--channel", "main", "--root", publish / "metadata" / "1.root.json")
        first, *followers = [tmp_path / f"mirror-{number}" for number in range(3)]
        with_all_of_them([first, *followers], origin, *pinned)
        (tree / "release.bin").write_bytes(random.Random(8).randbytes(3_000_000))
        must(*publishing)
        report = ("--report-as", "one", "--report-key", secret, "--relay", relay)
        must("mirror", "follow", origin, first, "--channel", "main", *report, "--once")
        (update,) = (relay / "targets" / "main").glob("*.1-2.update")
        offered = f"{origin}/targets/main/{update.name}"
        eventually(lambda: counted.url in answer_of(offered)[1].get("link", ""))
        with_all_of_them(followers[:1], origin, *pinned)
        assert counted.bytes > 300_000
        lie = bytearray(update.read_bytes())
        lie[1000::1000] = bytes(len(lie[1000::1000]))
        update.write_bytes(lie)
        with_all_of_them(followers[1:], origin, *pinned)
        counted.close()
    assert described(followers[0]) == described(tree)
    assert described(followers[1]) == described(tree)


def with_all_of_them(mirrors: Sequence[Path], origin: str, *words: object) -> None:
    """One round of several followers at once."""
    command = [TIDEGATE, "mirror", "follow", origin]
    running = [
        subprocess.Popen([*command, str(mirror), *map(str, words), "--once"]) for mirror in mirrors
    ]
    assert [process.wait(60) for process in running] == [0] * len(mirrors)


def test_a_publish_on_the_schedule_is_sent_once_to_all(tmp_path: Path) -> None:
    tree, publish, keys = tmp_path / "tree", tmp_path / "updates", tmp_path / "keys"
    fill(tree)
    must("mirror", "init", publish, "--keys", keys)
    publishing = ("mirror", "publish", tree, "--channel", "main", "--to", publish, "--keys", keys)
    must(*publishing)
    state = tmp_path / "s1"
    origin_words = ("--mirror-publish", publish, "--mirror-channel", "main")
    multicast = ("--multicast", "--multicast-interface", "127.0.0.1")
    mirrors = [tmp_path / f"mirror-{number}" for number in range(2)]
    with contextlib.ExitStack() as running:
        origin = running.enter_context(serving(publish, state, *origin_words, *multicast))
        pinned = ("--channel", "main", "--root", publish / "metadata" / "1.root.json")
        for mirror in mirrors:
            running.enter_context(following(origin, mirror, *pinned, *multicast))
        eventually(lambda: all((mirror / "pkg").exists() for mirror in mirrors))
        (tree / "release.bin").write_bytes(random.Random(8).randbytes(2_000_000))
        said = must(*publishing, "--multicast-state", state, "--multicast-in", "4s")
        assert "multicast in 4 s" in said
        eventually(lambda: all((mirror / "release.bin").exists() for mirror in mirrors), 40.0)
    for mirror in mirrors:
        assert described(mirror) == described(tree)
