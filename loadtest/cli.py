"""`tidegate loadtest`: send a server the crowd, and say what became of it."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ..policies.registry import POLICIES
from ..protocol.units import format_duration, format_size
from .content import MOST_FILES, files_of, write
from .probe import ServerProbe
from .registry import Profile, find_profile, find_workload, on_release, profile_names
from .sim.arguments import DURATION, RATE, read_weights
from .sim.conditions import Starved
from .sim.plan import draw_visitors, files_below, make_crowd
from .trace import to_trace
from .verdict import Simulated, simulate, verdict, verdict_page
from .workloads import File, Workload, scaled

_PROFILE = "release_day"


@dataclass(frozen=True, slots=True)
class OwnCrowd:
    """What the operator said about the crowd, instead of a profile's population."""

    workload: str | None
    trace: Path | None
    release: Path | None
    visitors: int | None
    within_s: float
    weights: tuple[str, ...]

    def population(self) -> tuple[str, Workload] | None:
        """Its description and its clients; None where nothing was said. Raises ValueError."""
        name = str(self.trace) if self.trace is not None else self.workload
        if self.visitors is not None:
            if self.release is None or name is not None:
                raise ValueError(
                    "--visitors needs --release DIR, and neither --trace nor --workload"
                )
            files = files_below(self.release)
            crowd = make_crowd(files, self.visitors, self.within_s, read_weights(self.weights))
            found = draw_visitors(crowd, self.visitors)
            return f"{self.visitors} visitors within {format_duration(self.within_s)}", found
        if name is None:
            if self.release is not None:
                raise ValueError("--release needs --visitors N, --trace FILE or --workload")
            return None
        found = find_workload(name, 1)
        if self.release is not None:
            return Path(name).name, on_release(found, files_below(self.release))
        return (Path(name).name, found) if self.trace is not None else None


def _no_server(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Say where the URL of a server belongs: as a profile it would only be unknown."""
    if "://" in value:
        raise click.UsageError(f"Name the server by --host: tidegate loadtest --host {value}")
    return value


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog=f"Profiles: {', '.join(profile_names())}; or your own FILE.conf, FILE.py.",
)
@click.argument("profile", default=_PROFILE, metavar="[PROFILE]", callback=_no_server)
@click.argument("locust", nargs=-1, type=click.UNPROCESSED, metavar="[-- LOCUST OPTIONS]")
@click.option("--host", required=True, help="The server, such as http://staging:8080.")
@click.option(
    "--workload",
    metavar="NAME",
    help="Another population: a name, FILE.jsonl or FILE.py[:FUNCTION].",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A recorded crowd: what tidegate admin arrivals prints.",
)
@click.option(
    "--release",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The files that the server serves: the crowd comes for these.",
)
@click.option("--visitors", type=click.IntRange(1), help="How many come for --release.")
@click.option(
    "--within", "within_s", type=DURATION, default="1h", help="How long they take to arrive."
)
@click.option(
    "--weight",
    "weights",
    multiple=True,
    metavar="PATTERN=N",
    help="Files that match are requested N times as often as others; 0: never. Repeatable.",
)
@click.option(
    "--lay-out",
    type=click.Path(file_okay=False, path_type=Path),
    help="First write the files that the population wants into this folder, which the server "
    "serves.",
)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Certificates (PEM) to trust besides the system's.",
)
@click.option(
    "--bandwidth",
    type=RATE,
    help="What the server's line carries: then it is simulated, too.",
)
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
    lay_out: Path | None,
    ca: str | None,
    bandwidth: float | None,
    policy: str,
    report: Path | None,
    **crowd: Any,
) -> None:
    """Send a server the crowd of PROFILE (release_day), and say in one page what became of it.

    Your own crowd: --release DIR --visitors N --within T, or --trace crowd.jsonl. Options of Locust
    and of the profiles follow after --, such as -- --thin 10 --time-scale 4.
    """
    if importlib.util.find_spec("locust") is None:
        raise click.ClickException(
            "Load tests need Locust: pipx install 'tidegate[loadtest]', or pip install locust "
            "into the environment of this command."
        )
    if profile.startswith("-"):
        # No profile was named: this follows the --.
        profile, locust = _PROFILE, (profile, *locust)
    try:
        found = find_profile(profile)
        own = OwnCrowd(**crowd).population()
        name = crowd["workload"] or found.settings.get("workload", "release-artefacts")
        described, population = own or (name, find_workload(name, 1))
        if lay_out is not None:
            write(population, lay_out)
        fault = what_is_missing(ServerProbe(host, ca), files_of(population))
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if fault is not None:
        raise click.ClickException(
            f"{fault} Write them with --lay-out into the folder that it serves, let the crowd come "
            "for what it has with --release, or name another --workload."
        )
    target = report or Path(f"loadtest-{found.name}.html")
    with tempfile.TemporaryDirectory(prefix="tidegate-loadtest-") as folder:
        figures = Path(folder) / "figures.json"
        more = list(locust)
        if own is not None:
            trace = Path(folder) / "crowd.jsonl"
            trace.write_text("\n".join(to_trace(population)), "utf-8")
            name, more = str(trace), [*_as_it_comes(population), *locust]
        if ca is not None:
            more = ["--ca", ca, *more]
        status = _run(found, host.rstrip("/"), name, figures, more)
        if not figures.exists():
            sys.exit(status or 1)
        run = json.loads(figures.read_text("utf-8"))
    if own is None:
        population = find_workload(name, run["seed"])
    run["workload"] = described
    simulated = None
    if bandwidth is not None:
        click.echo("Simulating the same clients …", err=True)
        simulated = _simulated(run, population, policy, bandwidth)
    try:
        target.write_text(verdict_page(run, simulated), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {target}: {error.strerror}") from error
    click.echo(f"{verdict(run, simulated)}\n{target}")
    sys.exit(status)


def _as_it_comes(population: Workload) -> list[str]:
    """Locust's options by which all of a crowd comes at its own pace, whatever the profile says."""
    # A run with a crowd of one's own ends this long after the last arrival at the latest.
    ends_s = math.ceil(population.visitors[-1].arrival_s) + 3_600
    # Clients that are under way at once when the crowd is the operator's own; `-- -u N` for more.
    users = min(4_000, len(population.visitors))
    return ["--thin", "1", "--time-scale", "1", "--run-time", f"{ends_s}s", "-u", str(users)]


def _run(profile: Profile, host: str, workload: str, figures: Path, more: Sequence[str]) -> int:
    """Locust, as a process of its own; its exit code."""
    command = [sys.executable, "-m", "locust", "-f", str(profile.locustfile)]
    command += ["--headless", "--only-summary"]
    if profile.conf is not None:
        command += ["--config", str(profile.conf)]
    command += ["--host", host, "--workload", workload, "--progress"]
    command += ["--figures-json", str(figures), "--loglevel", "WARNING", *more]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        try:
            return running.wait()
        except KeyboardInterrupt:
            # The whole group heard it: Locust ends by itself and still says what it has seen.
            return running.wait()


def _simulated(
    run: Mapping[str, Any], population: Workload, policy: str, line: float
) -> Simulated | None:
    workload = scaled(population, time_scale=run["time_scale"], thin=run["thin"])
    try:
        return simulate(workload, policy, line, 60.0 / run["time_scale"])
    except Starved as error:
        click.echo(f"The simulator has no answer: {error}", err=True)
        return None


def what_is_missing(probe: ServerProbe, files: Sequence[File]) -> str | None:
    """What the server lacks of these files, in a sentence. Raises OSError if it is not there."""
    if len(files) > MOST_FILES:
        return f"This population wants {len(files)} different files, which no server has."
    lacks = []
    for file in files:
        found = probe.size_of(f"/{quote(file.name)}")
        if found is None:
            lacks.append(file.name)
        elif found not in (-1, file.size_bytes):
            lacks.append(f"{file.name} ({format_size(found)}, not {format_size(file.size_bytes)})")
    if not lacks:
        return None
    named = ", ".join([*lacks[:5], *(["…"] if len(lacks) > 5 else [])])
    return (
        f"{probe.place} lacks {len(lacks)} of the {len(files)} files that are asked for: {named}."
    )
