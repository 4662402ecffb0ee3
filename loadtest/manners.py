"""Does rudeness pay, and who pays for it? `python -m loadtest.manners`.

The same clients come three times to a real server: all polite; then a tenth of them asks every
second; then a hoarder, a ghost and a forger come as well. Rudeness must not pay: those who are rude
must not do better, against their own waits when they were polite, than those who stay polite. And
these must wait little longer than without any rudeness.
"""

from __future__ import annotations

import argparse
import sys

from loadtest.compare import PAPER, figures_of, scaled_settings

#: What polite clients may lose by the rude: a fraction of their mean wait.
MOST_LOST = 0.05


def main() -> int:
    """Run both, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--time-scale", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="ticket", choices=sorted(PAPER))
    parser.add_argument("--rude-fraction", type=float, default=0.1)
    given = parser.parse_args()
    settings = scaled_settings(given.time_scale)
    marked = ("--rude-fraction", str(given.rude_fraction))
    runs = {
        "all polite": (*marked, "--reformed"),
        "a tenth polls every second": marked,
        "hoarder, ghost and forger, too": (*marked, "--locustfile", "loadtest/rude.py"),
    }
    found: list[tuple[str, float, float, float]] = []
    sys.stdout.write("| | polite wait, s | rude wait, s | failed |\n|---|---|---|---|\n")
    for title, load in runs.items():
        figures = figures_of(given.policy, given.seed, given.time_scale, settings, *load)
        polite = figures["mean_wait_large_polite"] * given.time_scale
        rude = figures["mean_wait_large_rude"] * given.time_scale
        failed = figures["failed_fraction"]
        found.append((title, polite, rude, failed))
        sys.stdout.write(f"| {title} | {polite:.0f} | {rude:.0f} | {100 * failed:.1f} % |\n")
        sys.stdout.flush()
    calm = found[0]
    faults = []
    for title, polite, rude, _ in found[1:]:
        if rude / calm[2] < polite / calm[1]:
            faults.append(f"{title}: rudeness pays")
        if polite / calm[1] - 1.0 > MOST_LOST:
            faults.append(f"{title}: the polite lose {100 * (polite / calm[1] - 1.0):.0f} %")
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
