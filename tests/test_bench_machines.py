"""When a machine led itself, as the faults at random read it from the machine's log."""

from __future__ import annotations

import math

from tests.machine_faults import alone_by

_ALONE = "Nobody leads: this node goes on with a queue of its own."
_BACK = "A leader is there: this node gives its queue back."


def _at(second: int, text: str) -> str:
    return f"1970-01-01T00:00:{second:02}+0000 [server.cluster.node#info] {text}\n"


def test_bodies_of_a_leader_that_is_back_are_not_those_of_a_node_alone() -> None:
    log = _at(10, _ALONE) + _at(14, _BACK) + _at(40, _ALONE)
    assert list(alone_by(log, 0.0)) == [(10.0, 14.0, 15.0), (40.0, math.inf, math.inf)]


def test_a_node_that_was_killed_surely_led_itself_until_the_last_line_before() -> None:
    killed = "tidegate: node-0 was ended by signal 9; it is started again.\n"
    log = _at(10, _ALONE) + _at(12, "The walk is over.") + killed
    assert list(alone_by(log + _at(30, "This machine leads."), 0.0)) == [(10.0, 12.0, 31.0)]
    assert list(alone_by(log, 5.0)) == [(5.0, 7.0, math.inf)]
