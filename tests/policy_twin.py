"""One policy that does what it is told, line by line: the other half of a comparison.

As a program it answers on standard output, with whatever `policies` its interpreter finds.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from policies.admission import HookedAdmission
from policies.contract import Job, LineSeen
from policies.registry import make_policy
from policies.settings import PolicySettings
from policies.testing import SETTINGS


class PolicyTwin:
    """A policy, and all that can be seen of it after each thing it was told."""

    policy: HookedAdmission

    def tell(self, now: float, what: str, *words: Any) -> str:
        """Call what is named, let time pass, and show the answer and the state."""
        try:
            answer = getattr(self, f"_{what}", None)
            told = answer(now, *words) if answer else getattr(self.policy, what)(*words)
        except (KeyError, ValueError) as fault:
            told = type(fault).__name__
        policy = self.policy
        rows = list(policy.tickets())
        times = [policy.estimate(row.number, now) for row in rows]
        return repr((told, policy.changes(), rows, times, policy.leases(), policy.snapshot(now)))

    def _start(self, now: float, name: str) -> None:
        built = make_policy(name, PolicySettings(**SETTINGS), random.Random(5))
        assert isinstance(built, HookedAdmission)
        self.policy = built

    def _switch(self, now: float, name: str) -> None:
        built = make_policy(name, PolicySettings(**SETTINGS), random.Random(5), self.policy)
        assert isinstance(built, HookedAdmission)
        self.policy = built

    def _offer(self, now: float, job: dict[str, Any], ticket: int | None) -> object:
        return self.policy.offer(Job(**{**job, "network": tuple(job["network"])}), now, ticket)

    def _lines(self, now: float, seen: dict[str, list[Any]]) -> None:
        lines = {name: LineSeen(*line) for name, line in seen.items()}
        goodput = sum([line.goodput_bytes_s for line in lines.values()], 0.0)
        self.policy.observe(goodput, True, now, None, lines)


def main() -> None:
    """A list on each line of standard input, an answer on each line of standard output."""
    twin = PolicyTwin()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(twin.tell(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
