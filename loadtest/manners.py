"""Does rudeness pay, and who pays for it? `python -m loadtest.manners`.

The same clients come twice to a real server: all polite, then with a tenth of them asking every
second and with a hoarder, a ghost and a forger beside them. Rude clients must wait no shorter than
polite ones, and polite ones little longer than without any rudeness.
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
    parser.add_argument("--time-scale", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="ticket", choices=sorted(PAPER))
    parser.add_argument("--rude-fraction", type=float, default=0.1)
    given = parser.parse_args()
    settings = scaled_settings(given.time_scale)
    run = (given.policy, given.seed, given.time_scale, settings)
    calm = figures_of(*run)["mean_wait_large"] * given.time_scale
    rude = ("--rude-fraction", str(given.rude_fraction), "--locustfile", "loadtest/rude.py")
    found = figures_of(*run, *rude)
    polite = found["mean_wait_large_polite"] * given.time_scale
    pushy = found["mean_wait_large_rude"] * given.time_scale
    lost = polite / calm - 1.0
    sys.stdout.write(
        "| mean wait of large downloads, the paper's seconds | |\n|---|---|\n"
        f"| all polite | {calm:.0f} |\n| polite ones among the rude | {polite:.0f} |\n"
        f"| rude ones | {pushy:.0f} |\n| failed | {100 * found['failed_fraction']:.1f} % |\n"
    )
    faults = []
    if pushy < polite:
        faults.append(f"rudeness pays: {pushy:.0f} s instead of {polite:.0f} s")
    if lost > MOST_LOST:
        faults.append(f"the polite lose {100 * lost:.0f} % by the rude")
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
