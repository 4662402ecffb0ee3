"""The account of all networks of strangers: bounded, and charged only by those that return."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.policies import crowd_debt
from tidegate.policies.crowd_debt import CROWD_DEBT, CrowdDebt

MEAN = 1_000_000.0
NETWORKS = [f"10.{number}.0.0/24" for number in range(5)] + ["2001:db8:1::/48", "2001:db8:2::/48"]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.sampled_from(NETWORKS)),
        st.tuples(st.just("took"), st.sampled_from(NETWORKS), st.integers(1, 10**8)),
        st.tuples(st.just("earn"), st.floats(0.0, 1e7), st.floats(0.0, 1_000.0)),
    )
)


@given(EVENTS)
def test_no_network_is_behind_by_more_than_the_account(events: list[tuple[object, ...]]) -> None:
    """Whatever networks do: no rank is lower than its bytes, and none is higher without bound."""
    debt, now = CrowdDebt(), 0.0
    asked = dict.fromkeys(NETWORKS, 0)
    taken = earned = 0.0
    for kind, *values in events:
        if kind == "note":
            debt.note(str(values[0]))
            asked[str(values[0])] += 1
        elif kind == "took":
            debt.took(str(values[0]), int(str(values[1])), MEAN)
            taken += float(str(values[1]))
        else:
            now += float(str(values[1]))
            debt.earn(float(str(values[0])), MEAN, now)
            earned += float(str(values[0]))
        for network, count in asked.items():
            behind = debt.behind_bytes(network)
            assert 0.0 <= behind <= min(taken, CROWD_DEBT.most_means * MEAN)
            if count < 2 and not network.startswith("2001"):
                assert behind == 0.0, "its first download counts for nothing"
        assert 0.0 < debt.concentration <= 1.0


@settings(max_examples=25)
@given(st.integers(2, 40), st.floats(0.05, 1.0))
def test_networks_with_their_part_of_the_line_have_no_debt(networks: int, wanted: float) -> None:
    """They have one exactly if they take more than they earn together."""
    debt, now, line = CrowdDebt(), 0.0, MEAN
    names = [f"10.{number}.0.0/24" for number in range(networks)]
    for second in range(600):
        for name in names:
            debt.note(name)
            debt.took(name, int(wanted * line / networks), MEAN)
        now = float(second + 1)
        debt.earn(line, MEAN, now)
    spread = (CROWD_DEBT.part_alone - CROWD_DEBT.part) * debt.concentration
    earned = CROWD_DEBT.part + spread
    assert debt.concentration == pytest.approx(1.0 / networks, rel=1e-3)
    if wanted < earned:
        assert debt.behind_bytes(names[0]) == 0.0
    elif wanted > 1.2 * earned:
        assert debt.behind_bytes(names[0]) > 20.0 * MEAN


@pytest.mark.parametrize(
    ("networks", "present", "part"),
    [
        (5, [1] * 70 + [6] * 5, 0.45),
        (5, [1] * 30 + [14] * 5, 0.35),
        (5, [1] + [20] * 5, 0.25),
        (20, [1] * 60 + [2] * 20, 0.35),
        (200, [1] * 70 + [6] * 5, 0.26),
        (5, [1] * 600 + [2] * 200, 0.26),
        (5, [], 0.45),
        (5, [1] * 70 + [30], 0.45),
    ],
)
def test_few_networks_earn_as_much_as_people_where_they_are_no_more_than_half(
    networks: int, present: list[int], part: float
) -> None:
    """An attacker with hundreds of connections, or of networks, earns what it earned before."""
    debt = CrowdDebt()
    for number in range(networks):
        name = f"10.{number}.0.0/24"
        debt.note(name)
        debt.note(name)
        debt.took(name, int(MEAN), MEAN)
    owners = [(count, 1) for count in present]
    assert debt.part_beside(owners) == pytest.approx(part, rel=1e-3)


def test_an_owner_with_a_network_for_each_download_earns_no_more() -> None:
    """A /16 with 250 addresses cost +147 instead of +117 %."""
    debt = CrowdDebt()
    assert debt.part_beside([(40, 8), *[(1, 1)] * 60]) == CROWD_DEBT.part_of_people
    assert debt.part_beside([(40, 40), *[(1, 1)] * 60]) == CROWD_DEBT.part


def test_each_download_of_a_network_counts_more_than_the_one_before() -> None:
    debt = CrowdDebt()
    for _ in range(100):
        debt.note(NETWORKS[0])
    debt.took(NETWORKS[0], 10**9, MEAN)
    parts = []
    for _ in range(10):
        debt.note(NETWORKS[1])
        parts.append(debt.behind_bytes(NETWORKS[1]) / (CROWD_DEBT.most_means * MEAN))
    assert parts == pytest.approx([1.0 - 1.0 / count for count in range(1, 11)])


def test_a_network_that_stays_away_is_a_first_visitor_again() -> None:
    debt = CrowdDebt()
    for _ in range(4):
        debt.note(NETWORKS[0])
    debt.took(NETWORKS[0], 10**9, MEAN)
    assert debt.behind_bytes(NETWORKS[0]) > 0.0
    debt.earn(0.0, MEAN, 2.0 * CROWD_DEBT.half_life_s)
    assert debt.behind_bytes(NETWORKS[0]) == 0.0


@pytest.mark.parametrize(("count", "part"), [(9, 0.0), (100, 0.7), (900, 0.9)])
def test_the_networks_of_a_wide_one_count_together(count: int, part: float) -> None:
    """The owner of a /32 has 65 536 networks; a few visitors of one provider come once each."""
    debt = CrowdDebt()
    for _ in range(1_000):
        debt.note(NETWORKS[0])
        debt.took(NETWORKS[0], int(MEAN), MEAN)
    for number in range(count):
        debt.note(f"2001:db8:{number:x}::/48")
    behind_bytes = debt.behind_bytes("2001:db8:1::/48")
    assert behind_bytes == pytest.approx(part * CROWD_DEBT.most_means * MEAN, abs=1.0)


def test_networks_of_a_wide_one_share_the_part_of_many() -> None:
    """They have no part of the line as one network alone has it."""
    debt = CrowdDebt()
    for number in range(100):
        network = f"2001:db8:{number:x}::/48"
        debt.note(network)
        debt.note(network)
        debt.took(network, int(MEAN), MEAN)
    assert debt.concentration == pytest.approx(0.01, rel=0.1)


def test_a_network_that_is_forgotten_meanwhile_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its download goes on while thousands of others ask."""
    monkeypatch.setattr(crowd_debt, "REMEMBERED", 30)
    debt = CrowdDebt()
    for number in range(100):
        debt.note(f"2001:db8:{number:x}::/48")
    debt.took("2001:db8:0::/48", 10**9, MEAN)
    assert debt.behind_bytes("2001:db8:0::/48") > 0.0


def test_only_so_many_networks_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has two prefixes. The one without a download for longest is a first visitor again."""
    monkeypatch.setattr(crowd_debt, "REMEMBERED", 100)
    debt = CrowdDebt()
    for _ in range(4):
        debt.note(NETWORKS[0])
    debt.took(NETWORKS[0], 10**9, MEAN)
    for number in range(49):
        debt.note(f"172.{number}.0.0/24")
    behind_bytes = [debt.behind_bytes(NETWORKS[0])]
    debt.note("172.49.0.0/24")
    behind_bytes.append(debt.behind_bytes(NETWORKS[0]))
    assert behind_bytes == [pytest.approx(0.75 * CROWD_DEBT.most_means * MEAN), 0.0]
