"""Makes a page of a staging run: `python -m bench.staging_page DIR [FILE]`.

DIR is the folder of `python -m bench.staging` with the run's figures (`figures.json`) and the
origin's memory and CPU time (`origin.csv`). FILE is `DIR/summary.html` by default.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from tidegate.loadtest.verdict import verdict_page

Sample = tuple[float, float, float]


def samples_of(text: str) -> list[Sample]:
    """Seconds, resident bytes and CPU seconds. Truncated lines are left out."""
    found: list[Sample] = []
    for row in csv.DictReader(StringIO(text)):
        try:
            found.append((float(row["t_s"]), float(row["rss_bytes"]), float(row["cpu_s"])))
        except (TypeError, ValueError):
            continue
    return found


def drawing(samples: Sequence[Sample]) -> str:
    """The origin's memory and CPU time over the run, as SVG text."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "summary", "font.size": 9})
    from matplotlib import pyplot

    times = [at for at, _, _ in samples]
    cores = [0.0]
    for before, after in itertools.pairwise(samples):
        cores.append(100 * (after[2] - before[2]) / max(1e-9, after[0] - before[0]))
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 3.4), layout="constrained"
    )
    above.plot(times, [memory / 1e6 for _, memory, _ in samples], color="#2f6f8f")
    above.set_ylabel("origin's\nmemory, MB")
    below.plot(times, cores, color="#9fc3d4", linewidth=0.9)
    below.set_ylabel("origin's share\nof a core, %")
    below.set_xlabel("seconds")
    for chart in (above, below):
        chart.set_ylim(bottom=0)
        chart.spines[["top", "right"]].set_visible(False)
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return out.getvalue()


def main() -> int:
    """Write the page and its picture."""
    if len(sys.argv) not in (2, 3):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    folder = Path(sys.argv[1])
    target = Path(sys.argv[2]) if len(sys.argv) == 3 else folder / "summary.html"
    try:
        run = json.loads((folder / "figures.json").read_text("utf-8"))
        samples = samples_of((folder / "origin.csv").read_text("utf-8"))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"No finished run lies in {folder}: {error}\n")
        return 1
    drawn = drawing(samples)
    picture = f"<figure>{drawn[drawn.index('<svg') :]}</figure>"
    target.write_text(verdict_page(run, None, picture), encoding="utf-8")
    target.with_suffix(".svg").write_text(drawn, encoding="utf-8")
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
