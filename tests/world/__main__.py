"""`python -m tests.world`: search seeds for broken promises, or tell the story of one."""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from pathlib import Path

from twisted.logger import globalLogBeginner

from .past import bring_back


def say(text: object) -> None:
    """A line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """The command."""
    words = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    words.add_argument("--seed", type=int, help="run one world")
    words.add_argument(
        "--story", action="store_true", help="tell what happens in it, or in one that fails"
    )
    words.add_argument("--first", type=int, help="the first seed of a search; else a fresh one")
    words.add_argument("--seeds", type=int, default=1_000_000, help="search so many worlds")
    words.add_argument("--minutes", type=float, default=math.inf, help="search for this time")
    words.add_argument("--cpu-minutes", type=float, default=math.inf, help="the same of the CPU's")
    words.add_argument("--keep-going", action="store_true", help="do not end at the first failure")
    words.add_argument("--sure", action="store_true", help="fail for promises without excuses only")
    words.add_argument("--shrink", action="store_true", help="make a failing world smaller")
    words.add_argument("--plan", type=Path, help="run the world of this file")
    words.add_argument("--keep", type=Path, help="write its plan into this file")
    words.add_argument("--svg", type=Path, help="draw its timeline into this file")
    words.add_argument("--past", help="bring this fault of the past back")
    asked = words.parse_args()
    # Each world hears its log itself. What ends its processes goes through Deferreds: a log that
    # has not begun would print that.
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    if asked.past is not None:
        bring_back(asked.past)

    from .oracles import ORACLES
    from .plan import draw_plan, read_plan
    from .story import picture, shrunk, told
    from .world import run_plan

    if asked.seed is not None or asked.plan is not None:
        plan = draw_plan(asked.seed) if asked.plan is None else read_plan(asked.plan.read_text())
        world = shrunk(plan) if asked.shrink else run_plan(plan, story=True)
        if asked.keep is not None:
            asked.keep.write_text(world.plan.as_text(), "utf-8")
        if asked.svg is not None:
            asked.svg.write_text(picture(world), "utf-8")
        if asked.story or asked.shrink:
            say(told(world))
        else:
            say(f"seed {plan.seed}: history {world.digest()[:16]}")
            for one in world.broken_promises:
                say(one)
        return bool(world.broken_promises)
    first = asked.first if asked.first is not None else random.SystemRandom().randrange(1 << 32)
    say(f"first seed {first}")
    began, cpu = time.monotonic(), time.process_time()
    failed = run = 0
    virtual_s = 0.0
    bounds: dict[str, list[int]] = {}
    sure = {one.__name__ for one in ORACLES if one.sure}
    for seed in range(first, first + asked.seeds):
        if time.monotonic() - began > 60 * asked.minutes:
            break
        if time.process_time() - cpu > 60 * asked.cpu_minutes:
            break
        world = run_plan(draw_plan(seed))
        run += 1
        virtual_s += world.schedule.now
        for name, kept, judged in world.told():
            sums = bounds.setdefault(name, [0, 0])
            sums[0] += kept
            sums[1] += judged
        if world.broken_promises:
            failed += not asked.sure or world.broken_promises[0].promise in sure
            say(f"seed {seed}: {world.broken_promises[0]}")
            if asked.story:
                say(told(run_plan(world.plan, story=True)))
                say(f"Repeat it: python -m tests.world --seed {seed} --story")
            if failed and not asked.keep_going:
                break
    spent = time.process_time() - cpu
    say(
        f"{run} worlds, {failed} failed, {virtual_s:.0f} virtual s in {spent:.1f} s of CPU "
        f"({virtual_s / max(spent, 1e-9):.0f} a second)"
    )
    for name, (kept, judged) in bounds.items():
        say(f"{name}: {kept} of {judged} bounds ({kept / max(1, judged):.1%})")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
