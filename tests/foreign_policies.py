"""Policies of others that break every promise of a hook, used for a while: a fault is an exception.

As a program it uses whatever `policies` its interpreter finds, and prints what came of each.
"""

from __future__ import annotations

import math
import random
import sys
from typing import Any

from policies.admission import HookedAdmission
from policies.contract import Job
from policies.hooks import Policy
from policies.settings import PolicySettings

#: What no hook may answer, and some may.
WRONG: tuple[Any, ...] = (
    None,
    "text",
    b"bytes",
    -1,
    1 << 80,
    math.nan,
    -math.inf,
    True,
    (),
    ((), ()),
    ((None,), False),
    ((10**30,), True),
    [1, 2],
    object(),
    Policy,
)
FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
HOOKS = tuple(
    name
    for name, hook in vars(Policy).items()
    if not name.startswith("_") and callable(hook) and name != "build"
)


def use(policy: HookedAdmission) -> None:
    """Offers, ends, progress and the passing of time, as a server brings them."""
    now, leases = 1_000.0, set[int]()
    rng = random.Random(1)
    for number in range(60):
        now += rng.random()
        size = rng.choice((500, 5_000_000, 900_000_000))
        client = f"c{number % 11}"
        job = Job(client, f"f{number % 3}", size, size, present=number % 2 == 0)
        answer = policy.offer(job, now)
        lease = getattr(answer, "lease", None)
        if lease is not None:
            leases.add(lease)
            policy.progress(lease, now, size // 2, 1e5)
        policy.observe(1e6, True, now)
        for called in policy.advance(now).call:
            policy.absent(called, now)
        if number % 7 == 6 and leases:
            policy.release(leases.pop(), now, True)
        policy.snapshot(now)
        list(policy.tickets())
        policy.changes()


def main() -> None:
    """Every hook with every wrong answer; then wrong jobs and times."""
    settings = PolicySettings(slots=3, reserve_small=1, bandwidth_bytes_s=1e6)
    for hook in HOOKS:
        for wrong in WRONG:

            def answer(self: Any, *words: Any, _wrong: Any = wrong, **more: Any) -> Any:
                return _wrong

            kind = type("Foreign", (Policy,), {"name": "foreign", "summary": "s", hook: answer})
            try:
                use(HookedAdmission(kind, settings, random.Random(5)))
                found = "used"
            except FAULTS as fault:
                found = f"{type(fault).__name__}: {fault}"
            sys.stdout.write(f"{hook} {wrong!r:.40} -> {found}\n")
    job = Job("c", "f", 1, 1)
    for wrong in WRONG:
        policy = HookedAdmission(Policy, settings, random.Random(5))
        for words in ((wrong, 1.0), (job, wrong), (job, 1.0, wrong)):
            try:
                policy.offer(*words)
            except FAULTS as fault:
                sys.stdout.write(f"offer{words!r:.50} -> {type(fault).__name__}\n")
    sys.stdout.write("whole\n")


if __name__ == "__main__":
    main()
