"""Draws the load of each profile: `python -m tests.profile_pictures [DIR]`.

One SVG for each profile shows the arrivals of clients, and the bytes that they want beside the
population's full bandwidth. The data come from the profile's `.conf` and its population, by the
code that replays it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from tidegate.loadtest.registry import read_profile
from tidegate.loadtest.workloads import Workload, make_workload, scaled, with_rude

ROOT = Path(__file__).resolve().parents[1]
_BINS = 60


def population_of(settings: Mapping[str, str]) -> Workload:
    """The population of a profile."""
    workload = make_workload(settings["workload"], int(settings.get("seed", "1")))
    if "rude-fraction" in settings:
        workload = with_rude(workload, float(settings["rude-fraction"]))
    return scaled(
        workload,
        time_scale=float(settings.get("time-scale", "1")),
        thin=float(settings.get("thin", "1")),
    )


def draw(name: str, workload: Workload, target: Path) -> None:
    """Draw two charts over the time of the run."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 9}
    )
    from matplotlib import pyplot

    end_s = max(visitor.arrival_s for visitor in workload.visitors)
    step_s = end_s / _BINS
    arrivals = {False: [0] * _BINS, True: [0] * _BINS}
    wanted = [0.0] * _BINS
    for visitor in workload.visitors:
        place = min(_BINS - 1, int(visitor.arrival_s / step_s))
        arrivals[visitor.rude][place] += 1
        wanted[place] += visitor.total_bytes / step_s
    middles = [(index + 0.5) * step_s for index in range(_BINS)]
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(7.2, 2.9), layout="constrained"
    )
    above.bar(middles, arrivals[False], step_s * 0.85, color="#2f6f8f", label="polite")
    if any(arrivals[True]):
        above.bar(
            middles, arrivals[True], step_s * 0.85, arrivals[False], color="#c4572e", label="rude"
        )
        above.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    above.set_ylabel(f"clients\nin {step_s:.2g} s")
    below.fill_between(middles, [rate / 1e6 for rate in wanted], step="mid", color="#9fc3d4")
    below.axhline(workload.bandwidth_bytes_s / 1e6, color="#c4572e", linewidth=1.2)
    below.set_ylabel("wanted, MB/s")
    below.set_xlabel("seconds; the line is 100 % bandwidth of this population")
    for chart in (above, below):
        chart.set_ylim(bottom=0)
        chart.set_xlim(0, end_s)
        chart.spines[["top", "right"]].set_visible(False)
    above.set_title(
        f"{name}: {len(workload.visitors):,} clients, {workload.files:,} downloads", loc="left"
    )
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


def main() -> int:
    """Draw all profiles into DIR (docs/pictures)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    pictures = ROOT / "docs" / "pictures"
    parser.add_argument("folder", nargs="?", type=Path, default=pictures, metavar="DIR")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for conf in sorted((ROOT / "loadtest").glob("*.conf")):
        workload = population_of(read_profile(conf))
        draw(conf.stem, workload, folder / f"profile-{conf.stem}.svg")
        sys.stdout.write(f"{conf.stem}: {len(workload.visitors)} clients\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
