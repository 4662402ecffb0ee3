"""Shares of networks: what each was given beyond its own, bounded in memory and by construction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policies import network_shares
from tidegate.policies.network_order import ORDER, DownloadSizes, NetworkOrder
from tidegate.policies.network_shares import WIDE_SHARES, NetworkShares, enclosing

PATHS = [
    ("192.0.2.1", *enclosing("192.0.2.0/24")),
    ("192.0.2.2", *enclosing("192.0.2.0/24")),
    ("192.0.3.1", *enclosing("192.0.3.0/24")),
    ("2001:db8:1::/64", *enclosing("2001:db8:1::/48")),
    ("2001:db8:2::/64", *enclosing("2001:db8:2::/48")),
    ("local",),
]


def test_networks_are_enclosed_by_what_an_owner_may_hold() -> None:
    assert enclosing("192.0.2.0/24") == ("192.0.2.0/24", "192.0.0.0/16")
    assert enclosing("2001:db8:1::/48") == ("2001:db8:1::/48", "2001:db8::/40", "2001:db8::/32")
    assert enclosing("local") == ("local",)
    assert enclosing("10.0.0.0/8") == ("10.0.0.0/8",)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(PATHS), st.integers(1, 10_000)),
            st.floats(0, 5_000),
        )
    )
)
def test_the_excess_is_what_a_prefix_was_given_beyond_what_a_share_earned(
    events: list[tuple[tuple[str, ...], int] | float],
) -> None:
    shares = NetworkShares()
    model: dict[str, float] = {}
    for event in events:
        if isinstance(event, float):
            shares.earn(event)
            model = {key: left - event for key, left in model.items() if left > event}
        else:
            path, count = event
            shares.charge(path, count)
            for key in path:
                model[key] = model.get(key, 0.0) + count / WIDE_SHARES.get(key[-3:], 1.0)
    for path in PATHS:
        expected = max((model.get(key, 0.0) for key in path), default=0.0)
        assert shares.excess_bytes(path) == pytest.approx(expected, abs=1e-6)
    assert len(shares) >= len(model)
    shares.earn(1e9)
    assert len(shares) == 0


def test_only_so_many_networks_are_remembered_and_the_least_excess_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_shares, "REMEMBERED", 100)
    shares = NetworkShares()
    shares.charge(("greedy",), 1_000_000)
    for number in range(1000):
        shares.charge((f"n{number}",), 1)
    assert len(shares) <= 100
    assert shares.excess_bytes(("greedy",)) == 1_000_000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10**9)), min_size=1))
def test_in_the_mean_download_each_network_counts_once(asked: list[tuple[str, int]]) -> None:
    found = DownloadSizes()
    of: dict[str, list[int]] = {}
    for network, size in asked:
        found.note(network, size)
        of.setdefault(network, []).append(size)
    each = [sum(sizes) / len(sizes) for sizes in of.values()]
    found.look()
    assert found.median_bytes in [pytest.approx(one) for one in each]
    counted = [min(one, ORDER.most_medians * found.median_bytes) for one in each]
    assert found.mean_bytes == pytest.approx(sum(counted) / len(counted), rel=1e-6)


def crowd() -> NetworkOrder:
    order = NetworkOrder()
    for number in range(10):
        order.note(f"10.{number}.0.0/24", "", 1_000_000)
    order.earn(0.0, 10, [], 16, 0.0)
    return order


def test_a_network_within_its_share_counts_as_it_is() -> None:
    order = crowd()
    order.took("10.1.0.0/24", 1_000_000)
    assert order.handicap("10.1.0.0/24").least_bytes == 0.0
    assert order.handicap("").least_bytes == 0.0


def test_short_downloads_of_a_network_beyond_its_share_count_as_long_ones() -> None:
    order = crowd()
    for _ in range(1000):
        order.took("10.1.0.0/24", 100_000)
    assert order.handicap("10.1.0.0/24").least_bytes == ORDER.least_means * 1_000_000
    assert order.handicap("10.2.0.0/24").least_bytes == 0.0


def test_among_short_downloads_of_such_a_network_the_shortest_goes_first() -> None:
    """Else 500 people behind one address were 4 % later (mean of twelve days)."""
    order = crowd()
    order.took("10.1.0.0/24", 100_000_000)
    handicap = order.handicap("10.1.0.0/24")
    counted = [handicap.counted(left) for left in range(100_000, 1_300_000, 100_000)]
    assert counted == sorted(set(counted))
    assert counted[0] > ORDER.least_means * 1_000_000


def test_one_huge_file_does_not_move_what_downloads_of_others_count_as() -> None:
    """The image of a release, which one visitor wanted, doubled it."""
    order = crowd()
    order.took("10.1.0.0/24", 100_000_000)
    before = order.handicap("10.1.0.0/24").least_bytes
    order.note("10.99.0.0/24", "", 1_000_000_000)
    order.earn(0.0, 10, [], 16, 0.0)
    assert order.handicap("10.1.0.0/24").least_bytes < 3.0 * before


def test_ten_networks_have_one_burst_together() -> None:
    order = crowd()
    networks = [f"10.{number}.0.0/24" for number in range(10)]
    for network in networks:
        order.took(network, 4_000_000)
    order.earn(0.0, 10, [], 16, 1.0)
    assert all(
        order.handicap(network).least_bytes == ORDER.least_means * 1_000_000 for network in networks
    )
    alone = crowd()
    alone.took(networks[0], 4_000_000)
    alone.earn(0.0, 10, [], 16, 1.0)
    assert alone.handicap(networks[0]).least_bytes == 0.0, "half of its burst"


@pytest.mark.parametrize(("shares", "least_s"), [(16, 25), (4, 80), (160, 10)])
def test_a_network_that_takes_no_more_is_within_its_share_again(shares: int, least_s: int) -> None:
    order = crowd()
    order.took("10.1.0.0/24", 20_000_000)
    now = 0.0
    while order.handicap("10.1.0.0/24").least_bytes:
        now += 1.0
        order.earn(1_000_000, 10, [], shares, now)
        assert now < 100
    # 8 MB beyond its burst, and with 16 shares it earns 4 of 14 parts of 1 MB/s.
    assert least_s <= now <= 1.2 * least_s


def test_many_short_downloads_of_one_network_do_not_move_the_mean() -> None:
    order = crowd()
    for _ in range(10_000):
        order.note("10.200.0.0/24", "", 1)
        order.took("10.200.0.0/24", 10_000)
    assert order.handicap("10.200.0.0/24").least_bytes > 1_100_000


def test_requests_for_a_huge_file_do_not_move_what_a_network_may_take_at_once() -> None:
    """One network that asked for 2 GB raised the burst of all to 180 downloads of 8 MB."""
    order = crowd()
    for _ in range(100):
        order.note("10.200.0.0/24", "", 2_000_000_000)
    order.earn(0.0, 10, [], 16, 1.0)
    order.took("10.1.0.0/24", 10_000_000)
    assert order.handicap("10.1.0.0/24").least_bytes >= 2_000_000


def test_what_was_taken_while_nobody_else_came_is_forgotten_some_day() -> None:
    order = crowd()
    order.took("10.1.0.0/24", 10**15)
    now = 0.0
    while order.handicap("10.1.0.0/24").least_bytes:
        now += 1.0
        order.earn(1_000_000, 10, [], 16, now)
        assert now < 100
