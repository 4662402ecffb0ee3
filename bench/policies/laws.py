"""What each law of Fair brings: every cell with one law switched off, in virtual time.

    python -m bench.policies.laws [--law TEXT …] [--cell TEXT …] [--write]

The first table has each cell with all laws. The second says of each law which cells change without
it: the mean session time; then, in points, how many more clients are later than under processor
sharing by more than 5 % and 5 s, how many more start within the bound that they were told, and how
many more give up. Takes about five minutes on one core. `--write` puts both into docs/policies.md.

A law is switched off by replacing what a method of it answers; no product code knows of this.
A law that changes no cell by 0.25 % or a point, and no cell with an attacker by 5 %, should go.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.policies import cells
from bench.policies.cells import CELLS, CellFigures
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.subject import require
from tidegate.policies import admission, capacity, fair, preemption
from tidegate.policies.crowd_debt import CrowdDebt
from tidegate.policies.estimate.shorter_load import ShorterLoad
from tidegate.policies.fair import FairPolicy
from tidegate.policies.first_bytes import FirstBytes
from tidegate.policies.leases import Lease, LeasePool
from tidegate.policies.network_order import DownloadSizes, NetworkOrder
from tidegate.policies.preemption import Preemption
from tidegate.policies.running import Running
from tidegate.policies.virtual_sharing import VirtualSharing

Patch = tuple[Any, str, Any]


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


_wait_s = ShorterLoad.wait_s


def _wait_alone(
    _: ShorterLoad, before: float, remaining: int, line: float, now: float
) -> tuple[float, float]:
    return before / line, before / line


_look = DownloadSizes.look


def _look_at_the_mean(sizes: DownloadSizes) -> None:
    _look(sizes)
    sizes.median_bytes = sizes.mean_bytes


def _until_all_are_done(running: Running, _: str, key: float, line: float) -> float:
    return running.left_before(key) / line


#: What replaces what, for each law.
LAWS: Mapping[str, Sequence[Patch]] = {
    "the guard: slack to virtual processor sharing": (
        (VirtualSharing, "left_s", _always(math.inf)),
    ),
    "clients at their full speed first": ((VirtualSharing, "level_bytes_s", 0.0),),
    "three quarters of the slack": ((fair, "FAIR", replace(fair.FAIR, sure_part=1.0)),),
    "guessed speeds make less slack": ((fair, "FAIR", replace(fair.FAIR, guessed_part=1.0)),),
    "background": (
        (preemption, "PREEMPTION", replace(preemption.PREEMPTION, beyond=0.0)),
        (LeasePool, "set_background", _always(None)),
    ),
    "turns of paused downloads": (
        (preemption, "PREEMPTION", replace(preemption.PREEMPTION, longest_pause_s=math.inf)),
    ),
    "a first run (probe)": ((Preemption, "probe", _always(None)),),
    "the guard of those who wait": ((FairPolicy, "_slack_s", _always(math.inf)),),
    "unseen clients count as slow": ((fair, "FAIR", replace(fair.FAIR, unseen_part=1.0)),),
    "pollers wait for a turn that is near": (
        (admission, "ADMISSION", replace(admission.ADMISSION, near_s=-1.0)),
    ),
    "pollers leave their turn to those due": (
        (admission, "ADMISSION", replace(admission.ADMISSION, kept_part=0.0)),
    ),
    "a start as the line has room": ((Running, "room_in_s", _until_all_are_done),),
    "shorter load": ((ShorterLoad, "wait_s", _wait_alone),),
    "first bytes": ((FirstBytes, "wants", _always(None)),),
    "network order": ((NetworkOrder, "_least_bytes", _always(0.0)),),
    "one account of networks that return": ((CrowdDebt, "behind_bytes", _always(0.0)),),
    "networks in debt stay behind": ((Lease, "yields", property(_always(False), _always(None))),),
    "a burst by the median": ((DownloadSizes, "look", _look_at_the_mean),),
    "demand boost": ((capacity, "_boosted", _always(1.0)),),
    "a held-back client may be faster": (
        (capacity, "CAPACITY", replace(capacity.CAPACITY, may_be_faster=1.0)),
    ),
    "slower is believed slowly": (
        (capacity, "CAPACITY", replace(capacity.CAPACITY, slower_part=1.0)),
    ),
    "idle clients are believed idle": (
        (capacity, "CAPACITY", replace(capacity.CAPACITY, idle_part=0.0)),
    ),
}


def without(law: str, cell: str) -> CellFigures:
    """The figures of a cell with this law switched off."""
    with ExitStack() as off:
        for owner, name, instead in LAWS[law]:
            off.enter_context(patch.object(owner, name, instead))
        return cells.figures(cell)


def change(usual: CellFigures, off: CellFigures) -> str:
    """What a law changes in a cell; empty below 1 % or a point, which decides nothing."""
    parts = []
    mean = off.mean_s / usual.mean_s - 1.0
    if abs(mean) >= 0.01:
        parts.append(f"{100.0 * mean:+.1f} %")
    for title, part, least in (
        ("later", off.later - usual.later, 0.01),
        # Told starts are few: in some cells thirty.
        ("kept", off.within - usual.within, 0.03),
        ("gave up", off.gave_up - usual.gave_up, 0.01),
    ):
        if abs(part) >= least:
            parts.append(f"{title} {100.0 * part:+.1f}")
    return " ".join(parts)


def figures_of(usual: CellFigures) -> list[str]:
    """A cell with all laws."""
    parts = usual.later, usual.within, usual.end_within, usual.end_error, usual.gave_up
    texts = ["–" if math.isnan(one) else f"{100.0 * one:.1f} %" for one in parts]
    return [f"{usual.mean_s:.1f} s", *texts]


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--law", action="append", default=[], help="laws with this in them")
    parser.add_argument("--cell", action="append", default=[], help="cells with this in them")
    parser.add_argument("--write", action="store_true", help="put the table into docs/policies.md")
    options = parser.parse_args()
    laws = [one for one in LAWS if not options.law or any(text in one for text in options.law)]
    names = [one for one in CELLS if not options.cell or any(text in one for text in options.cell)]
    require(laws and names, f"No law or no cell has {options.law + options.cell} in its name.")
    cells.prepare(names)
    usual = {name: cells.figures(name) for name in names}
    titles = "with all laws", "mean", "later", "starts kept", "ends kept", "ends off", "gave up"
    cells_table = markdown.table(titles, [[name, *figures_of(usual[name])] for name in names])
    columns = "without", "what changes"
    print(cells_table, "", markdown.head(*columns), sep="\n", flush=True)
    rows = []
    for law in laws:
        changes = {name: change(usual[name], without(law, name)) for name in names}
        rows.append([law, "; ".join(f"*{name}* {text}" for name, text in changes.items() if text)])
        print(markdown.row(*rows[-1]), flush=True)
    if options.write:
        page = Path(__file__).parents[2] / "docs" / "policies.md"
        laws_table = markdown.table(columns, rows)
        markdown.put_between_marks(page, "make laws", f"{cells_table}\n\n{laws_table}")
    return 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
