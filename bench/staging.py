"""Starts the services of docker-compose.yml on this machine, without Docker.

    python -m bench.staging DIR [--workload NAME] [--profile FILE]

It makes the workload's files below DIR/release, starts an origin with two mirrors, and prints their
addresses. Then it runs one Locust profile against them, and ends with its exit code, or waits for
Ctrl-C. All its processes end with it. All services listen on 127.0.0.1 at free ports.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tidegate
from bench.shared.ending import end_cleanly
from bench.shared.ports import free_port
from bench.shared.processes import NotStarted, cpu_s, process, wait_for
from bench.shared.subject import require

#: Profiles name their files relative to this folder.
PACKAGE = Path(tidegate.__file__).parent


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


@contextlib.contextmanager
def server(name: str, folder: Path, *options: str) -> Iterator[str]:
    """Run a Tidegate server; yields its URL."""
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    state = folder / f"state-{name}"
    command = [sys.executable, "-m", "tidegate", "serve", str(folder / "release")]
    command += ["--listen", "127.0.0.1:0", "--state", str(state), *options]
    with process(command, log, cwd="/") as running:
        url = wait_for(f"The server {name}", log, "ready http", running).split()[-1].rstrip("/")
        yield url
        require(running.poll() is None, f"The server {name} ended before its load did.")
        status = Path(f"/proc/{running.pid}/status").read_text().partition("VmRSS:")[2].split()[0]
        print(
            f"{name}: {int(status) / 1e3:.0f} MB, {cpu_s(running.pid):.1f} s of a core", flush=True
        )


def arguments() -> argparse.Namespace:
    """The command line. Arguments after `--` are for `tidegate serve` of the origin."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", default="exp2")
    parser.add_argument("--profile", help="a .conf of loadtest to run; then stop")
    parser.add_argument(
        "--locust", action="append", default=[], help="a further option for Locust, as --locust=-x"
    )
    own, _, theirs = "\0".join(sys.argv[1:]).partition("\0--\0")
    given = parser.parse_args(own.split("\0"))
    given.serve = theirs.split("\0") if theirs else []
    return given


def main() -> int:
    given = arguments()
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    release = folder / "release"
    # A shell lets background processes ignore Ctrl-C; this one must end.
    end_cleanly()
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
        origin = stack.enter_context(server("origin", folder, *options))
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


if __name__ == "__main__":
    sys.exit(main())
