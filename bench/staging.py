"""Starts the services of docker-compose.yml on this machine, without Docker.

    python -m bench.staging DIR [--workload NAME] [--database sqlite|postgres] [--profile FILE]

It makes the workload's files below DIR/release, starts an origin with two mirrors (and PostgreSQL
if wanted), and prints their addresses. Then it runs one Locust profile against them, and ends with
its exit code, or waits for Ctrl-C. All its processes end with it. The origin's memory and CPU time
are sampled once a second into DIR/origin.csv and summed up at the end. All services listen on
127.0.0.1 at free ports.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import glob
import os
import pwd
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tidegate
from bench.shared.ending import end_cleanly
from bench.shared.ports import free_port
from bench.shared.processes import cpu_s
from bench.shared.subject import require

#: Profiles name their files relative to this folder.
PACKAGE = Path(tidegate.__file__).parent
START_S = 60.0


class NotStarted(Exception):
    """A service did not start; the message says which and why."""


@contextlib.contextmanager
def process(command: list[str], log: Path, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with its output in `log`; at the end SIGTERM, then SIGKILL."""
    with log.open("ab") as out:
        started = subprocess.Popen(  # type: ignore[call-overload]
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, **options
        )
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(40)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def wait_for(name: str, log: Path, text: str, running: subprocess.Popen[bytes]) -> str:
    """Wait for a line of `log` with `text`. Raises NotStarted with the log's end."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and running.poll() is None:
        for line in log.read_text("utf-8", "replace").splitlines():
            if text in line:
                return line
        time.sleep(0.05)
    tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-5:])
    raise NotStarted(f"{name} did not start; its last words:\n{tail}")


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server on a unix socket; yields its URL."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    where = shutil.which("initdb") or (found[-1] if found else None)
    if where is None:
        raise NotStarted("PostgreSQL is not installed. Try: apt-get install postgresql")
    data, programs = folder / "postgres", Path(where).parent
    data.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {}
    if os.getuid() == 0:
        # The server refuses to run as root.
        user = pwd.getpwnam("postgres")
        os.chown(data, user.pw_uid, user.pw_gid)
        options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        for parent in (folder, *folder.parents):
            if parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
    if not (data / "PG_VERSION").exists():
        subprocess.run(
            [where, "-D", data, "-U", "tidegate", "--auth=trust", "-N"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            **options,
        )
    log = folder / "postgres.log"
    command = [str(programs / "postgres"), "-D", str(data), "-k", str(data), "-h", ""]
    with process(command, log, cwd="/", **options) as running:
        wait_for("PostgreSQL", log, "ready to accept connections", running)
        yield f"postgresql+psycopg://tidegate@/postgres?host={data}"


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Allow one run in a folder at a time: another would overwrite its files and logs."""
    with (folder / ".staging").open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotStarted(
                f"Another bench.staging runs in {folder}; name another folder"
            ) from None
        yield


def profile_of(name: str | None) -> Path | None:
    """The profile's file, relative to this folder or to the project's."""
    if name is None:
        return None
    for candidate in (Path.cwd() / name, PACKAGE / name):
        if candidate.is_file():
            return candidate
    raise NotStarted(f"There is no profile {name}; they are in {PACKAGE / 'loadtest'}")


class ProcessMeter(threading.Thread):
    """Samples a process once a second (seconds, resident bytes, processor seconds)."""

    def __init__(self, pid: int, table: Path) -> None:
        super().__init__(daemon=True)
        self._pid, self._table = pid, table
        self._ended = threading.Event()
        self.rows: list[tuple[float, int, float]] = []

    def run(self) -> None:
        """Sample until `end`, or until the process ends."""
        begun = time.monotonic()
        page = os.sysconf("SC_PAGE_SIZE")
        with self._table.open("w", encoding="ascii", buffering=1) as out:
            out.write("t_s,rss_bytes,cpu_s\n")
            while not self._ended.wait(1.0):
                try:
                    memory = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * page
                    used_s = cpu_s(self._pid)
                except OSError:
                    return
                row = (time.monotonic() - begun, memory, used_s)
                self.rows.append(row)
                out.write(f"{row[0]:.1f},{row[1]},{row[2]:.2f}\n")

    def end(self) -> str:
        """Stop. Returns a summary in one line; the first third is warm-up."""
        self._ended.set()
        self.join()
        if len(self.rows) < 6:
            return "origin: too short a run to say what it took"
        warm = [memory for _, memory, _ in self.rows[len(self.rows) // 3 :]]
        typical = statistics.median(warm)
        span_s = self.rows[-1][0] - self.rows[0][0]
        cpu = (self.rows[-1][2] - self.rows[0][2]) / span_s
        return (
            f"origin: {typical / 1e6:.0f} MB of memory after warm-up ("
            f"{min(warm) / typical - 1:+.1%} to {max(warm) / typical - 1:+.1%}), "
            f"{cpu:.0%} of a core, over {span_s:.0f} s"
        )


@contextlib.contextmanager
def server(name: str, folder: Path, *options: str, metered: bool = False) -> Iterator[str]:
    """Run a Tidegate server; yields its URL."""
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    state = folder / f"state-{name}"
    command = [sys.executable, "-m", "tidegate", "serve", str(folder / "release")]
    command += ["--listen", "127.0.0.1:0", "--state", str(state), *options]
    with process(command, log, cwd="/") as running:
        url = wait_for(f"The server {name}", log, "ready http", running).split()[-1].rstrip("/")
        if metered:
            meter = ProcessMeter(running.pid, folder / f"{name}.csv")
            meter.start()
        try:
            yield url
        finally:
            if metered:
                print(meter.end(), flush=True)
        require(running.poll() is None, f"The server {name} ended before its load did.")


def arguments() -> argparse.Namespace:
    """The command line. Arguments after `--` are for `tidegate serve` of the origin."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", default="exp2")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--profile", help="a .conf of loadtest to run; then stop")
    parser.add_argument(
        "--locust", action="append", default=[], help="a further option for Locust, as --locust=-x"
    )
    own, _, theirs = "\0".join(sys.argv[1:]).partition("\0--\0")
    given = parser.parse_args(own.split("\0"))
    given.serve = theirs.split("\0") if theirs else []
    return given


def main() -> int:
    """Start all, run the profile or wait, end all."""
    given = arguments()
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    release = folder / "release"
    # A shell lets background processes ignore Ctrl-C; this one must end.
    end_cleanly()
    try:
        with contextlib.ExitStack() as stack:
            profile = profile_of(given.profile)
            stack.enter_context(alone_in(folder))
            command = [
                sys.executable,
                "-m",
                "tidegate.loadtest.content",
                given.workload,
                str(release),
            ]
            subprocess.run(command, cwd="/", check=True)
            mirrors = [
                stack.enter_context(server(f"mirror-{letter}", folder, "--admin", "off"))
                for letter in "ab"
            ]
            options = [f"--mirror={url}/" for url in mirrors]
            options += ["--admin", "127.0.0.1:0", "--trusted-proxy", "127.0.0.0/8", *given.serve]
            if given.database == "postgres":
                os.environ["TIDEGATE_DATABASE"] = stack.enter_context(postgres(folder))
            origin = stack.enter_context(server("origin", folder, *options, metered=True))
            print(f"origin {origin}", *(f"mirror {url}" for url in mirrors), sep="\n", flush=True)
            if profile is None:
                signal.pause()
                return 0
            locust = [sys.executable, "-m", "locust", "--config", str(profile)]
            locust += ["--figures-json", str(folder / "figures.json")]
            if any(option.startswith("--processes") for option in given.locust):
                # Locust's own port for its workers may be in use by another run.
                port = str(free_port())
                locust += ["--master-bind-port", port, "--master-port", port]
            with subprocess.Popen([*locust, "--host", origin, *given.locust], cwd=PACKAGE) as load:
                try:
                    return load.wait()
                finally:
                    load.terminate()
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
