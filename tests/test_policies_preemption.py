"""When the next probe is over, however many are overdue."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from policies.leases import Lease
from policies.preemption import PROBE_S, Preemption


class Walked:
    """A lease that stands for itself."""


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 0.4)), max_size=30), st.floats(0, 9))
def test_the_next_probe_to_end_is_the_soonest_of_all(
    probes: list[tuple[int, float]], later_s: float
) -> None:
    leases = [cast(Lease, Walked()) for _ in range(6)]
    preemption = Preemption()
    now = 0.0
    began: dict[int, float] = {}
    for number, gap_s in probes:
        now += gap_s
        preemption.probe(leases[number], now)
        began[number] = now
    now += later_s
    ends = [since_s + PROBE_S for since_s in began.values()]
    expected = min((end if end > now else now + PROBE_S for end in ends), default=None)
    assert preemption.next_s(now) == expected
