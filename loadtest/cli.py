"""`tidegate loadtest`: send a server the crowd, and say what became of it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ..policies.registry import POLICIES
from ..protocol.units import format_size
from .content import MOST_FILES, files_of, write
from .population import scaled
from .sim.arguments import read_rate
from .sim.conditions import Starved
from .verdict import Simulated, simulate, verdict, verdict_page
from .workloads import WORKLOADS, File, make_workload

_HERE = Path(__file__).parent
_TIMEOUT_S = 30.0
_MOST_NAMED = 5


def profiles() -> dict[str, Mapping[str, str]]:
    """The settings of each profile, by its name."""
    return {path.stem: read_profile(path) for path in sorted(_HERE.glob("*.conf"))}


def read_profile(path: Path) -> Mapping[str, str]:
    """NAME = VALUE lines."""
    lines = [line.partition("=") for line in path.read_text("utf-8").splitlines()]
    return {
        name.strip(): value.strip()
        for name, equals, value in lines
        if equals and not name.startswith("#")
    }


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog=f"Profiles: {', '.join(profiles())}.",
)
@click.argument("profile", type=click.Choice(list(profiles())), metavar="PROFILE")
@click.argument("locust", nargs=-1, type=click.UNPROCESSED, metavar="[-- LOCUST OPTIONS]")
@click.option("--host", required=True, help="The server, such as http://staging:8080.")
@click.option("--workload", type=click.Choice(list(WORKLOADS)), help="Another population.")
@click.option(
    "--lay-out",
    type=click.Path(file_okay=False, path_type=Path),
    help="First write the files that the population wants into this folder, which the server "
    "serves.",
)
@click.option("--bandwidth", help="What the server's line carries: then it is simulated, too.")
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    default="fair",
    show_default=True,
    help="The server's policy, for the simulator.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="The page  [default: loadtest-PROFILE.html].",
)
def loadtest(
    profile: str,
    locust: tuple[str, ...],
    host: str,
    workload: str | None,
    lay_out: Path | None,
    bandwidth: str | None,
    policy: str,
    report: Path | None,
) -> None:
    """Send a server the crowd of PROFILE, and say in one page what became of it.

    Options of Locust and of the profiles follow after --, such as -- --thin 10 --time-scale 4.
    """
    if importlib.util.find_spec("locust") is None:
        raise click.ClickException(
            "Load tests need Locust: pipx install 'tidegate[loadtest]', or pip install locust "
            "into the environment of this command."
        )
    line = read_rate(bandwidth) if bandwidth is not None else None
    host = host.rstrip("/")
    name = workload or profiles()[profile].get("workload", "release-artefacts")
    try:
        if lay_out is not None:
            write(make_workload(name, 1), lay_out)
        fault = what_is_missing(host, files_of(make_workload(name, 1)))
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if fault is not None:
        raise click.ClickException(
            f"{fault} Write them with --lay-out into the folder that it serves, or name another "
            "--workload."
        )
    target = report or Path(f"loadtest-{profile}.html")
    with tempfile.TemporaryDirectory(prefix="tidegate-loadtest-") as folder:
        figures = Path(folder) / "figures.json"
        status = _run(profile, host, name, figures, locust)
        if not figures.exists():
            sys.exit(status or 1)
        run = json.loads(figures.read_text("utf-8"))
    simulated = None
    if line is not None:
        click.echo("Simulating the same clients …", err=True)
        simulated = _simulated(run, policy, line)
    try:
        target.write_text(verdict_page(run, simulated), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {target}: {error.strerror}") from error
    click.echo(f"{verdict(run, simulated)}\n{target}")
    sys.exit(status)


def _run(profile: str, host: str, workload: str, figures: Path, more: Sequence[str]) -> int:
    """Locust, as a process of its own; its exit code."""
    file = _HERE.parent / profiles()[profile]["locustfile"]
    command = [sys.executable, "-m", "locust", "--config", str(_HERE / f"{profile}.conf")]
    command += ["-f", str(file), "--host", host, "--workload", workload, "--progress"]
    command += ["--figures-json", str(figures), "--loglevel", "WARNING", *more]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        try:
            return running.wait()
        except KeyboardInterrupt:
            # The whole group heard it: Locust ends by itself and still says what it has seen.
            return running.wait()


def _simulated(run: Mapping[str, Any], policy: str, line: float) -> Simulated | None:
    workload = scaled(
        make_workload(run["workload"], run["seed"]), time_scale=run["time_scale"], thin=run["thin"]
    )
    try:
        return simulate(workload, policy, line, 60.0 / run["time_scale"])
    except Starved as error:
        click.echo(f"The simulator has no answer: {error}", err=True)
        return None


def what_is_missing(host: str, files: Sequence[File]) -> str | None:
    """What the server lacks of these files, in a sentence. Raises OSError if it is not there."""
    if len(files) > MOST_FILES:
        return f"This population wants {len(files)} different files, which no server has."
    lacks = []
    for file in files:
        found = _size_at(f"{host}/{quote(file.name)}")
        if found is None:
            lacks.append(file.name)
        elif found not in (-1, file.size_bytes):
            lacks.append(f"{file.name} ({format_size(found)}, not {format_size(file.size_bytes)})")
    if not lacks:
        return None
    named = ", ".join(lacks[:_MOST_NAMED]) + (", …" if len(lacks) > _MOST_NAMED else "")
    return f"{host} lacks {len(lacks)} of the {len(files)} files that are asked for: {named}."


def _size_at(url: str) -> int | None:
    """The size of a file there; -1 where nobody says, None where there is none."""
    asked = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:
            return int(answer.headers.get("Content-Length", -1))
    except urllib.error.HTTPError as error:
        error.close()
        return -1 if error.code == 503 else None
    except urllib.error.URLError as error:
        raise OSError(f"{url} does not answer: {error.reason}") from error
