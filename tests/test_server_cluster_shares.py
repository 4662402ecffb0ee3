"""The division of one cap among processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cluster.shares import Demand, divide

CAP = 1e6
demands = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(Demand, st.floats(0, 5e6), st.booleans(), st.integers(0, 500)),
    min_size=1,
)


@given(demands)
def test_the_parts_add_up_to_the_cap_and_nobody_has_nothing(nodes: dict[str, Demand]) -> None:
    parts = divide(CAP, nodes)
    assert parts.keys() == nodes.keys()
    assert sum(parts.values()) == pytest.approx(CAP)
    assert min(parts.values()) > 0


@given(demands)
def test_who_is_not_held_back_keeps_what_it_sends_while_there_is_room(
    nodes: dict[str, Demand],
) -> None:
    parts = divide(CAP, nodes)
    quiet = {name: one for name, one in nodes.items() if not one.held_back}
    wanted = sum(one.goodput_bytes_s for one in quiet.values()) * 1.25 + CAP * 0.1
    if wanted < CAP:
        for name, one in quiet.items():
            assert parts[name] >= one.goodput_bytes_s * 0.999


def test_downloads_of_all_nodes_share_as_those_of_one_would() -> None:
    parts = divide(CAP, {"a": Demand(5e5, True, 1), "b": Demand(5e5, True, 9)})
    assert parts["b"] / parts["a"] > 5
    again = divide(CAP, {"a": Demand(9e5, True, 2), "b": Demand(1e5, True, 2)})
    assert again["a"] == pytest.approx(again["b"])


def test_a_node_that_begins_to_send_is_given_its_part_in_steps() -> None:
    sent = {"a": 1e6, "b": 0.0}
    parts = divide(CAP, {"a": Demand(1e6, True, 10), "b": Demand(0.0, False, 0)})
    for _ in range(3):
        sent = {name: parts[name] for name in sent}
        parts = divide(CAP, {name: Demand(sent[name], True, 10) for name in sent})
    assert parts["a"] == pytest.approx(parts["b"])


def test_without_nodes_there_are_no_parts() -> None:
    assert divide(CAP, {}) == {}
