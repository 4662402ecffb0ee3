"""No client, and no number of clients, fills the operator's log."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import Logger, formatEvent

from tidegate.server.app.log_bound import BOUNDS, BoundedLines


class Written:
    """A log that goes through the bound, at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.texts: list[str] = []
        self.log = Logger(namespace="room", observer=BoundedLines(self._write, lambda: self.now))

    def _write(self, event: Any) -> None:
        self.texts.append(formatEvent(event))

    def said(self, start: str) -> list[str]:
        return [text for text in self.texts if text.startswith(start)]


@pytest.fixture
def written() -> Written:
    return Written()


def test_one_client_has_few_lines_and_the_others_theirs(written: Written) -> None:
    for number in range(1000):
        written.log.error("bad {path}", path=number, client=f"192.0.2.{number % 256}")
    written.log.error("bad {path}", path="other", client="198.51.100.1")
    assert len(written.said("bad ")) == BOUNDS.of_network + 1
    assert written.texts[-1] == "bad other"
    assert written.said("More") == [
        "More lines like this one are left out for a minute: bad {path}"
    ]


def test_many_clients_have_a_bound_in_all(written: Written) -> None:
    for number in range(5000):
        client = f"2001:db8:{number:x}::1"
        try:
            raise ValueError(number)
        except ValueError:
            written.log.failure("a request failed", client=client)
    assert len(written.said("a request failed")) == BOUNDS.of_kind
    assert len(written.texts) == BOUNDS.of_kind + 1


def test_other_kinds_and_mere_words_pass(written: Written) -> None:
    for _ in range(BOUNDS.of_kind + 5):
        written.log.warn("often")
        written.log.info("told")
    written.log.warn("rare")
    assert len(written.said("often")) == BOUNDS.of_kind
    assert len(written.said("told")) == BOUNDS.of_kind + 5
    assert written.texts[-1] == "rare"


def test_the_next_minute_tells_how_many_there_were(written: Written) -> None:
    for _ in range(BOUNDS.of_kind + 7):
        written.log.warn("often {x}", x=1)
    written.now = BOUNDS.window_s
    written.log.warn("often {x}", x=2)
    assert written.texts[-2:] == [
        "Lines like this one that were left out: 7 (often {x})",
        "often 2",
    ]
    written.now = 2 * BOUNDS.window_s
    written.log.warn("often {x}", x=3)
    assert written.texts[-1] == "often 3"
    assert len(written.said("Lines like")) == 1


def test_the_memory_it_takes_is_bounded(written: Written) -> None:
    """A million networks leave no more keys than lines."""
    bound = BoundedLines(lambda event: None, lambda: 0.0)
    log = Logger(namespace="room", observer=bound)
    for number in range(3000):
        log.warn("x", client=f"10.{number // 256}.{number % 256}.1")
    assert len(bound._by_network) <= BOUNDS.of_kind + 1
