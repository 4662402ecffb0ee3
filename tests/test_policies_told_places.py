"""The place that a client is shown under Fair: the order of told starts, which never rises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.loadtest.sim.chronology import Chronicle
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import File, Visitor, Workload
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.estimate.told_places import ToldPlaces
from tidegate.policies.queue.table import TicketTable

MB = 1_000_000


class ShownPlaces(Chronicle):
    """Looks at the place of each waiting ticket every second."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        super().__init__()
        self._policy = policy
        self._looked_s = 0.0
        self.shown: dict[int, list[int]] = {}

    def flow(self, now: float, goodput_bytes_s: float) -> None:
        """Time has passed."""
        if now < self._looked_s + 1.0:
            return
        self._looked_s = now
        for row in self._policy.tickets():
            place = self._policy.place(row.number)
            if place is not None:
                self.shown.setdefault(row.number, []).append(place)


def test_a_shown_place_never_rises_though_shorter_downloads_come_later() -> None:
    """With the order of turn it rose from 1 to 29 while the told time fell."""
    visitors = tuple(
        Visitor(f"c{number}", 0.5 * number, 1.0 * MB, (File(f"f{number}", size * MB // 25),))
        for number, size in enumerate(range(150, 0, -1))
    )
    workload = Workload("shorter and shorter", 1, visitors, 1.0 * MB)
    scenario = Scenario("fair", 200, 6)
    policy = scenario.make_policy(workload, 1)
    chronicle = ShownPlaces(policy)
    Engine(workload, policy, scenario.conditions(workload), 1, chronicle).run()
    assert len(chronicle.shown) > 10
    for places in chronicle.shown.values():
        assert places == sorted(places, reverse=True)
        assert places[-1] >= 1
    # Those that come last and are told to start before others are not shown to be the last.
    firsts = [places[0] for places in chronicle.shown.values()]
    assert firsts != sorted(firsts)


@given(st.lists(st.tuples(st.sampled_from(("told", "over", "look")), st.integers(1, 20))))
def test_a_place_counts_those_told_to_start_sooner(steps: list[tuple[str, int]]) -> None:
    table = TicketTable()
    places = ToldPlaces(table)
    rows: dict[int, int] = {}
    shown: dict[int, int] = {}
    for what, which in steps:
        number = len(rows) + 1 if what == "told" else which
        if what == "told":
            row = rows[number] = table.add(number, "c", "f", 9, 9, 1.0, 0.0, 0.0)
            assert places.place(row) is None
            table.raw[row] = table.expected[row] = float(which)
            places.told(row)
            places.told(row)
        elif number not in rows:
            continue
        elif what == "over":
            places.over(rows.pop(number))
            shown.pop(number, None)
            rows[number] = -1
        starts = {one: (table.expected[row], one) for one, row in rows.items() if row >= 0}
        for one, start in starts.items():
            sooner = sum(other < start for other in starts.values())
            shown[one] = min(shown.get(one, sooner + 1), sooner + 1)
            assert places.place(rows[one]) == shown[one]
