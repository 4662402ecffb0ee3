"""`python -m tests.world`: search seeds for broken promises, or tell the story of one."""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time


def _fixed_hashes() -> None:
    """Sets are walked in the same order in each run only if Python hashes text alike."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]], environ)


def say(text: object) -> None:
    """A line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """The command."""
    _fixed_hashes()
    words = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    words.add_argument("--seed", type=int, help="run one world")
    words.add_argument("--story", action="store_true", help="tell what happens in it")
    words.add_argument("--first", type=int, help="the first seed of a search; else a fresh one")
    words.add_argument("--seeds", type=int, default=1_000_000, help="search so many worlds")
    words.add_argument("--minutes", type=float, default=math.inf, help="search for this time")
    words.add_argument("--keep-going", action="store_true", help="do not end at the first failure")
    asked = words.parse_args()

    from .plan import draw_plan
    from .world import run_plan

    if asked.seed is not None:
        world = run_plan(draw_plan(asked.seed), story=asked.story)
        if asked.story:
            say("\n".join(world.history))
        say(f"seed {asked.seed}: history {world.digest()[:16]}")
        for one in world.broken_promises:
            say(one)
        return bool(world.broken_promises)
    first = asked.first if asked.first is not None else random.SystemRandom().randrange(1 << 32)
    say(f"first seed {first}")
    began, cpu = time.monotonic(), time.process_time()
    failed = run = 0
    virtual_s = 0.0
    for seed in range(first, first + asked.seeds):
        if time.monotonic() - began > 60 * asked.minutes:
            break
        world = run_plan(draw_plan(seed))
        run += 1
        virtual_s += world.schedule.now
        if world.broken_promises:
            failed += 1
            say(f"seed {seed}: {world.broken_promises[0]}")
            if not asked.keep_going:
                break
    spent = time.process_time() - cpu
    say(
        f"{run} worlds, {failed} failed, {virtual_s:.0f} virtual s in {spent:.1f} s of CPU "
        f"({virtual_s / max(spent, 1e-9):.0f} a second)"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
