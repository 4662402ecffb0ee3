"""Workloads and profiles by name: ours, and those in a file."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..policies.settings import SMALL_BELOW_BYTES
from .trace import from_trace
from .workloads import WORKLOADS, File, Workload, make_workload

_HERE = Path(__file__).parent


# --- Workloads -------------------------------------------------------------------------------


def find_workload(name: str, seed: int) -> Workload:
    """The population of that name: ours, FILE.jsonl or FILE.py[:FUNCTION].

    A function takes the seed and returns a `Workload`. Raises ValueError or OSError.
    """
    if name in WORKLOADS:
        return make_workload(name, seed)
    if Path(name).suffix != ".py" and Path(name).is_file():
        try:
            with Path(name).open(encoding="utf-8") as lines:
                found = replace(from_trace(lines), name=Path(name).stem)
        except UnicodeDecodeError:
            raise ValueError(
                f"{name} is no text with one JSON object a line; `tidegate admin arrivals` prints "
                "the arrivals that a server has recorded so"
            ) from None
    else:
        found = _workload_function(name)(seed)
    if not isinstance(found, Workload) or not found.visitors:
        raise ValueError(f"{name} has no visitors: a trace without arrivals, or no Workload")
    return found


def _workload_function(name: str) -> Callable[[int], Workload]:
    path, _, wanted = name.partition(":")
    if path.endswith(".py"):
        made: Callable[[int], Workload] | None = runpy.run_path(path).get(wanted or "workload")
        if made is None:
            raise ValueError(f"{path} defines no function {wanted or 'workload'}(seed)")
        return made
    known = ", ".join(WORKLOADS)
    raise ValueError(f"no workload {name!r}; there are {known}, FILE.jsonl and FILE.py[:FUNCTION]")


def on_release(workload: Workload, files: Sequence[File]) -> Workload:
    """The same crowd for another release.

    A file that the release lacks becomes the file of the nearest size. Raises ValueError where
    there are no files.
    """
    there = {file.name: file for file in files}
    if not files:
        raise ValueError("the release has no files")

    def nearest(wanted: File) -> File:
        size = math.log(max(1, wanted.size_bytes))
        return min(files, key=lambda file: abs(math.log(max(1, file.size_bytes)) - size))

    chosen: dict[File, File] = {}
    for visitor in workload.visitors:
        for file in visitor.files:
            if file not in chosen:
                chosen[file] = there.get(file.name) or nearest(file)
    visitors = tuple(
        replace(visitor, files=tuple(chosen[file] for file in visitor.files))
        for visitor in workload.visitors
    )
    return replace(workload, visitors=visitors, small_below_bytes=SMALL_BELOW_BYTES)


# --- Profiles --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Profile:
    """A locustfile, and Locust's options for it (`conf`), if there are any."""

    name: str
    locustfile: Path
    conf: Path | None = None

    @property
    def settings(self) -> Mapping[str, str]:
        """The options in `conf`."""
        return read_profile(self.conf) if self.conf is not None else {}


def profile_names() -> list[str]:
    """Our profiles."""
    return sorted(path.stem for path in _HERE.glob("*.conf"))


def find_profile(name: str) -> Profile:
    """The profile of that name: ours, FILE.conf or FILE.py. Raises ValueError."""
    path = Path(name)
    if path.suffix == ".py" and path.is_file():
        return Profile(path.stem, path)
    conf = path if path.suffix == ".conf" else _HERE / f"{name}.conf"
    if conf.is_file():
        locustfile = read_profile(conf).get("locustfile", "loadtest/release_day.py")
        for folder in (Path(), conf.parent, _HERE.parent):
            if (folder / locustfile).is_file():
                return Profile(conf.stem, folder / locustfile, conf)
        raise ValueError(f"{conf}: there is no locustfile {locustfile}")
    known = ", ".join(profile_names())
    raise ValueError(f"no profile {name!r}; there are {known}, FILE.conf and FILE.py")


def read_profile(conf: Path) -> Mapping[str, str]:
    """The options of a `.conf`: NAME = VALUE lines, # comments."""
    lines = [line.partition("=") for line in conf.read_text("utf-8").splitlines()]
    return {
        name.strip(): value.strip()
        for name, equals, value in lines
        if equals and not name.startswith("#")
    }
