"""Beside a TCP flow a session takes about half of the bottleneck, and alone all of it."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest

from client.multicast.delay import DelayWatch
from protocol.session_report import ReceiverReport
from server.multicast.fair_rate import FairRate, loss_rate_at, tcp_datagrams_s
from server.multicast.rate import RateControl

PACKET = 1500


def test_the_equation_is_that_of_rfc_5348() -> None:
    # Where losses are rare, the square-root law: 1.22 / sqrt(p) a round trip.
    assert tcp_datagrams_s(1e-6, 0.1) == pytest.approx(1.2247 / 1e-3 / 0.1, rel=0.001)
    assert tcp_datagrams_s(0.01, 0.1) == pytest.approx(112.4, rel=0.01)
    assert tcp_datagrams_s(0.0, 0.1) == float("inf")
    for rate in (3.0, 100.0, 40_000.0):
        assert tcp_datagrams_s(loss_rate_at(rate, 0.05), 0.05) == pytest.approx(rate, rel=0.01)


def test_loss_without_a_queue_is_no_reason_to_yield() -> None:
    fair = FairRate()
    for _ in range(100):
        fair.report(300, 15, 0.2, 0, 0.03)
    assert fair.datagrams_s == float("inf")


def test_a_busy_host_that_sees_a_queue_now_and_then_does_not_make_a_radio_look_congested() -> None:
    """Eight receivers that lost 5 % at random on a busy machine sent a session to its floor."""
    yielded = 0
    for seed in range(100):
        rng = random.Random(seed)
        fair = FairRate()
        for _ in range(40):
            sent = rng.randrange(200, 900)
            lost = sum(rng.random() < 0.05 for _ in range(sent))
            queue_ms = rng.choice((*[0] * 25, 1, 2, 5, 13, 150))
            fair.report(sent, lost, 0.2, queue_ms, 0.03)
        yielded += fair.datagrams_s < float("inf")
    assert yielded <= 3


def test_a_queue_that_stands_makes_any_loss_congestion() -> None:
    fair = FairRate()
    for _ in range(4):
        fair.report(300, 15, 0.2, 0, 0.03)
    for _ in range(8):
        fair.report(300, 15, 0.2, 40, 0.03)
    assert fair.datagrams_s < 300 / 0.2


@dataclass
class Reno:
    """A TCP flow that always has something to send: additive increase, halved once a round trip."""

    window: float = 10.0
    threshold: float = 1e9
    flying: int = 0
    next_number: int = 0
    recover: int = -1

    def acked(self) -> None:
        self.flying -= 1
        self.window += 1 if self.window < self.threshold else 1 / self.window

    def lost(self, number: int) -> None:
        self.flying -= 1
        if number > self.recover:
            self.recover = self.next_number
            self.threshold = self.window = max(2.0, self.window / 2)


@dataclass
class Line:
    """A bottleneck with one tail-drop queue for a session and TCP flows."""

    bytes_s: float
    queue_s: float = 0.05
    way_s: float = 0.002
    tcp_from_s: float = 0.0
    tcp_until_s: float = float("inf")
    flows: int = 1
    radio: float = 0.0
    #: Datagrams and TCP packets that came, by second.
    multicast: list[int] = field(default_factory=list)
    tcp: list[int] = field(default_factory=list)

    def run(self, control: RateControl, seconds: float) -> None:
        rng = random.Random(1)
        events: list[tuple[float, int, str, int]] = []
        count = iter(range(1 << 60))
        free_at = sequence_at = credit = 0.0
        sequence = received = last = 0
        flows = [Reno() for _ in range(self.flows)]
        delays, sent_at = DelayWatch(), []
        self.multicast, self.tcp = ([0] * (int(seconds) + 1) for _ in range(2))

        def at(when: float, what: str, who: int = 0) -> None:
            heapq.heappush(events, (when, next(count), what, who))

        def enters(now: float) -> float | None:
            """When a packet leaves the queue; None if it is dropped."""
            nonlocal free_at
            if free_at - now > self.queue_s:
                return None
            free_at = max(now, free_at) + PACKET / self.bytes_s
            return free_at

        def fill(now: float) -> None:
            for who, flow in enumerate(flows):
                while self.tcp_from_s <= now < self.tcp_until_s and flow.flying < flow.window:
                    number, flow.next_number = flow.next_number, flow.next_number + 1
                    flow.flying += 1
                    left = enters(now)
                    if left is None:
                        at(now + 2 * self.way_s + self.queue_s, f"lost {number}", who)
                    else:
                        at(left + 2 * self.way_s, "acked", who)

        at(0.0, "send")
        at(0.2, "report")
        at(self.tcp_from_s, "fill")
        while events:
            now, _, what, who = heapq.heappop(events)
            if now >= seconds:
                break
            if what == "send":
                # As the transmitter does: what is due since the last time, at no exact moment.
                credit += (now - sequence_at) * control.rate_bytes_s(float("inf")) / PACKET
                sequence_at = now
                for _ in range(int(credit)):
                    left = enters(now)
                    sent_at.append(now)
                    if left is not None and rng.random() >= self.radio:
                        at(left + self.way_s, "arrived", sequence)
                    sequence += 1
                credit %= 1
                at(now + 0.002 * (1 + rng.random()), "send")
            elif what == "arrived":
                received += 1
                last = who
                self.multicast[int(now)] += 1
                delays.add(int((now - sent_at[who]) * 1e6), now)
            elif what == "report":
                queue_ms = delays.standing_us() // 1000
                report = ReceiverReport(
                    "m", "receiving", 0, last, last + 1, received, queue_ms=queue_ms
                )
                control.report(report, now + self.way_s, now + self.way_s - sent_at[last])
                at(now + 0.2, "report")
            elif what == "fill":
                fill(now)
            else:
                if what == "acked":
                    self.tcp[int(now)] += 1
                    flows[who].acked()
                else:
                    flows[who].lost(int(what.split()[1]))
                fill(now)

    def share(self, first_s: int, end_s: int) -> float:
        """What TCP got of what was carried."""
        tcp = sum(self.tcp[first_s:end_s])
        return tcp / (tcp + sum(self.multicast[first_s:end_s]))


LINE = 20e6 / 8


@pytest.mark.parametrize("way_s", [0.002, 0.02, 0.05])
def test_a_tcp_flow_beside_a_session_gets_about_half_and_steadily(way_s: float) -> None:
    line = Line(LINE, way_s=way_s)
    line.run(RateControl(0.95 * LINE), 40)
    assert 0.4 <= line.share(5, 40) <= 0.63
    for second in range(8, 40, 4):
        assert 0.25 <= line.share(second, second + 4) <= 0.75
    carried = sum(line.tcp[5:40]) + sum(line.multicast[5:40])
    assert carried * PACKET >= 0.9 * 35 * LINE


def test_once_the_download_is_over_the_session_has_the_line_again() -> None:
    line = Line(LINE, tcp_from_s=5, tcp_until_s=15)
    line.run(RateControl(0.95 * LINE), 40)
    assert sum(line.multicast[1:5]) * PACKET >= 0.94 * 4 * LINE
    assert 0.3 <= line.share(8, 15) <= 0.7
    assert sum(line.multicast[30:40]) * PACKET >= 0.9 * 10 * LINE


def test_a_radio_link_does_not_slow_it_down() -> None:
    line = Line(LINE, tcp_from_s=1e9, radio=0.05)
    line.run(RateControl(0.95 * LINE), 20)
    assert sum(line.multicast[2:20]) * PACKET >= 0.95 * 0.94 * 18 * LINE
