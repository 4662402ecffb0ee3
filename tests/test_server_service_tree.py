"""The service tree: what begins, in which order, and what ends when one part cannot begin."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from tidegate.server.app.parts import InOrder, Part


class Log:
    """What happened, and parts that write it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def part(self, name: str, *, ends: Any = None, begins: Any = None) -> Part:
        def begin() -> None:
            if begins is not None:
                raise begins
            self.said.append(f"+{name}")

        def end() -> Any:
            self.said.append(f"-{name}")
            if isinstance(ends, Exception):
                raise ends
            return ends

        return Part(name, begin, end)


def test_parts_begin_in_order_and_end_in_reverse_each_when_the_next_has_ended() -> None:
    log, slow = Log(), Deferred[None]()
    # Two listeners have the same name.
    tree = InOrder([log.part("a"), log.part("b", ends=slow), log.part("b")])
    tree.startService()
    assert log.said == ["+a", "+b", "+b"]
    done = tree.stopService()
    assert log.said[3:] == ["-b", "-b"]
    assert not done.called
    slow.callback(None)
    assert log.said[5:] == ["-a"]
    assert done.called


def test_what_did_not_begin_is_not_ended() -> None:
    log = Log()
    tree = InOrder([log.part("a"), log.part("b", begins=OSError("taken")), log.part("c")])
    with pytest.raises(OSError, match="taken"):
        tree.startService()
    assert tree.stopService().called
    assert log.said == ["+a", "-a"]


def test_a_part_that_fails_at_its_end_keeps_no_other_from_ending() -> None:
    log = Log()
    tree = InOrder([log.part("a"), log.part("b", ends=ValueError("broken"))])
    tree.startService()
    with capturedLogs() as events:
        assert tree.stopService().called
    assert log.said[2:] == ["-b", "-a"]
    assert "b did not stop in order" in (formatEvent(events[0]) or "")
