"""What keeps paused downloads alive, and what that costs."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from policies.contract import Job
from policies.leases import LeasePool
from policies.preemption import PROBE_S, Preemption
from policies.upkeep import TRICKLE_S, most_paused, trickle_bytes


@given(st.floats(1e3, 1e11))
def test_all_that_may_be_paused_together_take_a_small_part_of_the_line(rate: float) -> None:
    together = most_paused(rate) * trickle_bytes(rate) / TRICKLE_S
    assert math.isclose(together, 0.015 * rate)


def test_a_usual_line_satisfies_a_speed_limit_of_a_thousand_bytes_a_second() -> None:
    for rate in (2.5e6, 1e9, math.inf):
        assert trickle_bytes(rate) / TRICKLE_S > 1_000.0
    assert trickle_bytes(1e5) > 0


def test_a_probe_lasts_until_the_speed_has_been_seen_but_not_for_ever() -> None:
    pool, preemption = LeasePool(), Preemption()
    seen, unseen = (pool.open(Job(name, "f", 9, 9), 0.0, None, True) for name in ("a", "b"))
    preemption.probe(seen, 0.0)
    preemption.probe(unseen, 0.0)
    seen.cap_bytes_s = 5.0

    def paused(now: float) -> tuple[int, ...]:
        return preemption.choose((seen, unseen), 0.0, 1.0, 1.0, now)[0]

    assert paused(0.9 * PROBE_S) == ()
    assert preemption.next_s(0.9 * PROBE_S) == PROBE_S
    assert paused(PROBE_S) == (seen.id,)
    assert paused(2.0 * PROBE_S) == ()
    assert paused(60.0) == (unseen.id,)
    assert preemption.count == 2
    assert preemption.next_s(60.0) is None
