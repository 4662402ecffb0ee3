"""Who is too bad a receiver for a session: judged over enough datagrams and enough time."""

from __future__ import annotations

from protocol.session_report import Report
from server.multicast.receivers import Members
from server.multicast.schedule_steps import CarouselSettings

#: Datagrams a second of a 19 Mb/s session, and how often receivers report.
RATE, EVERY_S = 1583, 0.2


class Receiver:
    """One member that reports what came of a steady stream."""

    def __init__(self, settings: CarouselSettings | None = None, rate: int = RATE) -> None:
        self.members = Members(settings or CarouselSettings(), 0.0)
        self.members.join("m", 0.0, float("inf"))
        self.rate = rate
        self.now = self.expected = self.received = 0.0

    def run(self, seconds: float, loss: float) -> str:
        """The answer to its last report: it hears no other than "continue" and goes on."""
        answer = "continue"
        for _ in range(round(seconds / EVERY_S)):
            self.now += EVERY_S
            self.expected += self.rate * EVERY_S
            self.received += self.rate * EVERY_S * (1 - loss)
            counts = int(self.expected), int(self.received)
            answer = self.members.report(Report("m", "receiving", 0, 0, *counts), self.now)
            if answer != "continue":
                break
        return answer


def test_a_download_that_starts_beside_it_sends_nobody_to_unicast() -> None:
    receiver = Receiver()
    assert receiver.run(0.6, 0.75) == "continue"
    assert receiver.run(5, 0.3) == "continue"
    # Another one later: the loss of half a second is not that of the link.
    assert receiver.run(0.6, 0.75) == "continue"
    assert receiver.run(5, 0.3) == "continue"
    assert len(receiver.members) == 1


def test_a_link_that_loses_most_is_for_unicast_soon() -> None:
    receiver = Receiver()
    assert receiver.run(3, 0.75) == "unicast"
    assert len(receiver.members) == 0
    assert receiver.now <= 2


def test_a_link_that_turns_bad_late_is_judged_by_what_it_loses_now() -> None:
    receiver = Receiver()
    assert receiver.run(60, 0.01) == "continue"
    assert receiver.run(4, 0.75) == "unicast"


def test_a_few_datagrams_are_not_enough_however_long_they_take() -> None:
    receiver = Receiver(rate=50)
    assert receiver.run(19, 0.9) == "continue"
    assert receiver.run(3, 0.9) == "unicast"
