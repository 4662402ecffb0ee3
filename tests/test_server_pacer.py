"""The cap holds, is shared max-min, and slow takers leave the rest to the others."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from tidegate.policies.keep_alive import KEEP_ALIVE
from tidegate.server.files.pacer import PACING, Pacer, Share, TransferState


class Taker:
    """Takes up to `rate_bytes_s`; a full one asks for turns again when it has room."""

    def __init__(
        self, pacer: Pacer, clock: Clock, rate_bytes_s: float, share: Share | None = None
    ) -> None:
        self.pacer = pacer
        self.share = share or Share()
        self.sent_at_s = clock.seconds()
        self.trickles: list[float] = []
        self.bursts: list[float] = []
        self.clock = clock
        self.rate_bytes_s = rate_bytes_s
        self.sent = self.sent_bytes = 0
        self.state, self.state_since_s = TransferState.HELD_UP, clock.seconds()
        self.stands_in: Share | None = None
        self.pause_number, self.burst_at_s = 0, clock.seconds()
        self.run_from_bytes = 0
        pacer.add(self)
        #: It sends so much at least, as TLS does that was stopped in a larger turn.
        self.least_bytes = 0
        #: What of it has not arrived.
        self.flying = 0
        self.lifted = False

    def room(self) -> int:
        return int(self.rate_bytes_s * self.clock.seconds()) - self.sent

    def push(self, most_bytes: int) -> int:
        count = max(0, min(max(most_bytes, self.least_bytes), self.room()))
        self.sent = self.sent_bytes = self.sent + count
        if count:
            self.sent_at_s = self.clock.seconds()
        if count < most_bytes:
            self.pacer.move(self, TransferState.SOCKET)
        return count

    def flying_bytes(self) -> int:
        return self.flying

    def watch_socket(self, *, watches: bool) -> None:
        """`poll` looks at all of them."""

    def trickle(self, most_bytes: int) -> int:
        self.sent += most_bytes
        self.sent_bytes = self.sent
        self.sent_at_s = self.clock.seconds()
        self.trickles.append(self.sent_at_s)
        if most_bytes >= KEEP_ALIVE.burst_bytes:
            self.bursts.append(self.sent_at_s)
        return most_bytes

    def uncapped(self) -> None:
        self.lifted = True

    def poll(self) -> None:
        if self.state is TransferState.SOCKET and self.room() >= 2048:
            self.ready()

    def ready(self) -> None:
        self.pacer.move(self, TransferState.RING)

    def pause(self) -> None:
        self.pacer.move(self, TransferState.PAUSED)


def run(clock: Clock, takers: list[Taker], seconds: float) -> None:
    for _ in range(int(seconds * 100)):
        clock.advance(0.01)
        for taker in takers:
            taker.poll()


@given(
    st.lists(st.sampled_from([20_000.0, 100_000.0, 10_000_000.0]), min_size=1, max_size=5),
    st.sampled_from([50_000.0, 400_000.0, 3_000_000.0]),
)
@settings(max_examples=25)
def test_rates_are_max_min_fair_under_the_cap(rates: list[float], cap: float) -> None:
    clock = Clock()
    pacer = Pacer(clock, cap)
    takers = [Taker(pacer, clock, rate) for rate in rates]
    for taker in takers:
        taker.ready()
    run(clock, takers, 8)
    left, fair = cap, {}
    for position, index in enumerate(sorted(range(len(rates)), key=lambda i: rates[i])):
        fair[index] = min(rates[index], left / (len(rates) - position))
        left -= fair[index]
    total = sum(taker.sent for taker in takers)
    assert total <= cap * 8 + cap * 0.06 + 2 * 16384
    for index, taker in enumerate(takers):
        assert taker.sent == pytest.approx(fair[index] * 8, rel=0.12, abs=40_000)


@given(
    st.lists(st.sampled_from([20_000.0, 100_000.0, 10_000_000.0]), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from([50_000.0, 400_000.0, 3_000_000.0]),
)
@example([10_000_000.0], 3, 400_000.0)
@settings(max_examples=25)
def test_the_background_has_what_is_left_and_is_never_silent(
    rates: list[float], behind: int, cap: float
) -> None:
    clock = Clock()
    pacer = Pacer(clock, cap)
    front = [Taker(pacer, clock, rate) for rate in rates]
    back = [Taker(pacer, clock, 10_000_000.0) for _ in range(behind)]
    for taker in back:
        taker.share.background = True
    for taker in (*back, *front):
        taker.ready()
    run(clock, [*front, *back], 8)
    assert sum(taker.sent for taker in (*front, *back)) == pytest.approx(8 * cap, rel=0.1)
    wanted = sum(min(rate, cap) for rate in rates)
    if wanted < 0.8 * cap:
        for taker in front:
            assert taker.sent == pytest.approx(8 * taker.rate_bytes_s, rel=0.12, abs=40_000)
    else:
        # Where those in front want all, each in the background has an eighth of a share.
        assert sum(taker.sent for taker in front) >= 0.65 * 8 * min(wanted, cap) - 40_000
    assert all(taker.sent > 0 for taker in back)


def test_a_share_comes_to_the_front_with_its_next_turn_and_goes_on_when_the_cap_is_lifted() -> None:
    clock = Clock()
    pacer = Pacer(clock, 400_000.0)
    first, second = Taker(pacer, clock, 1e9), Taker(pacer, clock, 1e9)
    second.share.background = True
    for taker in (first, second):
        taker.ready()
    run(clock, [first, second], 4)
    assert 0 < second.sent < 0.2 * first.sent
    second.share.background = False
    before = first.sent, second.sent
    run(clock, [first, second], 4)
    assert second.sent - before[1] == pytest.approx(first.sent - before[0], rel=0.15)
    second.share.background = True
    run(clock, [first, second], 0.5)
    pacer.set_bandwidth(None)
    assert first.lifted
    assert second.lifted
    assert not pacer.link_busy


@pytest.mark.parametrize("cap", [1_200_000.0, 5_000_000.0])
@pytest.mark.parametrize("busy", [2, 10, 40])
@pytest.mark.parametrize("in_turn", [1, 6, 200])
def test_a_short_run_in_the_background_brings_a_burst_while_the_line_bears_it(
    cap: float, busy: int, in_turn: int
) -> None:
    """Most runs of 0.25 s ended before the background ring came round to them."""
    clock = Clock()
    pacer = Pacer(clock, cap)
    front = [Taker(pacer, clock, 1e9) for _ in range(busy)]
    back = [Taker(pacer, clock, 1e9) for _ in range(in_turn)]
    for taker in back:
        taker.share.background = True
        taker.pause()
    for taker in front:
        taker.ready()
    run(clock, front, 9.5)
    before = [taker.sent for taker in back], sum(taker.sent for taker in front)
    for taker in back:
        taker.ready()
    run(clock, [], 0.25)
    took = [taker.sent - sent for taker, sent in zip(back, before[0], strict=True)]
    for taker in back:
        taker.pause()
    run(clock, front, 9.5)
    bears = KEEP_ALIVE.bucket_s * KEEP_ALIVE.line_part * cap // KEEP_ALIVE.burst_bytes
    assert sum(count >= KEEP_ALIVE.burst_bytes for count in took) >= min(in_turn, bears)
    assert sum(taker.sent for taker in front) - before[1] >= 0.9 * 9.75 * cap


def test_bytes_that_left_without_asking_are_paid_for_later() -> None:
    clock = Clock()
    pacer = Pacer(clock, 100_000)
    taker = Taker(pacer, clock, 1e9)
    taker.ready()
    pacer.charge(50_000)
    run(clock, [taker], 1)
    assert taker.sent < 70_000
    assert pacer.link_busy


def test_what_was_given_back_is_taken_once_and_nothing_else_is() -> None:
    clock, cap = Clock(), 100_000.0
    pacer = Pacer(clock, cap)
    taker = Taker(pacer, clock, 10_000_000.0)
    taker.ready()
    run(clock, [taker], 2)
    pacer.give_back(-1_000_000)
    run(clock, [taker], 2)
    assert taker.sent == pytest.approx(4 * cap, rel=0.12)
    pacer.give_back(20_000)
    run(clock, [taker], 2)
    assert taker.sent == pytest.approx(6 * cap + 20_000, abs=0.06 * cap)
    pacer.give_back(-1_000_000)
    run(clock, [taker], 2)
    assert taker.sent == pytest.approx(8 * cap, abs=0.12 * cap)


@given(st.lists(st.floats(40_000.0, 300_000.0), min_size=20, max_size=40), st.floats(1.5, 4.0))
@settings(max_examples=20)
def test_a_cap_far_above_what_all_take_holds_nobody_back(rates: list[float], times: float) -> None:
    clock = Clock()
    pacer = Pacer(clock, times * sum(rates))
    takers = [Taker(pacer, clock, rate) for rate in rates]
    for taker in takers:
        taker.ready()
    run(clock, takers, 1)
    held = 0
    for _ in range(200):
        # Looked at between two ticks, when some sockets have taken up again.
        clock.advance(0.005)
        for taker in takers:
            taker.poll()
        held += pacer.link_busy
        clock.advance(0.005)
    assert held <= 10


def test_lifting_the_cap_frees_those_who_stood_in_line() -> None:
    clock = Clock()
    pacer = Pacer(clock, 1000)
    taker = Taker(pacer, clock, 1e9)
    taker.ready()
    assert pacer.capped
    pacer.set_bandwidth(None)
    assert taker.lifted
    assert not pacer.link_busy
    assert not pacer.capped


def test_goodput_is_what_left_lately() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    for _ in range(30):
        pacer.charge(10_000)
        clock.advance(0.1)
        goodput = pacer.goodput_bytes_s()
    assert goodput == pytest.approx(100_000, rel=0.1)
    for _ in range(30):
        clock.advance(0.1)
        goodput = pacer.goodput_bytes_s()
    assert goodput == 0.0


def test_many_connections_of_one_download_get_what_one_gets() -> None:
    clock = Clock()
    pacer = Pacer(clock, 400_000)
    one = Taker(pacer, clock, 1e9)
    share = Share()
    many = [Taker(pacer, clock, 1e9, share) for _ in range(8)]
    for taker in (one, *many):
        taker.ready()
    run(clock, [one, *many], 10)
    together = sum(taker.sent for taker in many)
    assert one.sent == pytest.approx(together, rel=0.02)
    assert together + one.sent == pytest.approx(4_000_000, rel=0.02)
    for taker in many:
        assert taker.sent == pytest.approx(together / 8, rel=0.3)


def test_a_connection_that_takes_no_more_leaves_its_part_to_the_others_of_its_download() -> None:
    clock = Clock()
    pacer = Pacer(clock, 400_000)
    one = Taker(pacer, clock, 1e9)
    share = Share()
    slow, fast = Taker(pacer, clock, 10_000, share), Taker(pacer, clock, 1e9, share)
    for taker in (one, slow, fast):
        taker.ready()
    run(clock, [one, slow, fast], 10)
    assert slow.sent == pytest.approx(100_000, rel=0.1)
    assert slow.sent + fast.sent == pytest.approx(one.sent, rel=0.03)


def test_who_has_to_send_more_than_its_turn_keeps_its_place() -> None:
    clock = Clock()
    pacer = Pacer(clock, 400_000)
    one = Taker(pacer, clock, 1e9)
    share = Share()
    slow, fast = Taker(pacer, clock, 100_000, share), Taker(pacer, clock, 1e9, share)
    slow.least_bytes = fast.least_bytes = 15_000
    for taker in (one, slow, fast):
        taker.ready()
    run(clock, [one, slow, fast], 10)
    assert slow.sent + fast.sent == pytest.approx(one.sent, rel=0.5)
    assert slow.sent + fast.sent + one.sent == pytest.approx(4_000_000, rel=0.05)


@pytest.mark.parametrize("cap", [2_500_000.0, None])
def test_a_paused_sender_is_never_silent_for_long(cap: float | None) -> None:
    clock = Clock()
    pacer = Pacer(clock, cap)
    busy = [Taker(pacer, clock, 1e9) for _ in range(100)]
    paused = [Taker(pacer, clock, 1e9) for _ in range(400)]
    for taker in busy:
        if cap is not None:
            taker.ready()
    began = {}
    for number, taker in enumerate(paused):
        clock.advance(0.007 * (number % 3))
        began[taker] = clock.seconds()
        taker.pause()
    run(clock, busy, 30)
    for taker in paused:
        times = [0.0, *taker.trickles, clock.seconds()]
        assert max(b - a for a, b in pairwise(times)) < KEEP_ALIVE.interval_s + 3.0
        assert len(taker.trickles) >= 30 / (KEEP_ALIVE.interval_s + 0.2)
        # Its first bytes came at once.
        assert taker.trickles[0] < began[taker] + 0.2
    # Small files never wait for all of them.
    assert max(Counter(at for taker in paused for at in taker.trickles).values()) <= 50
    if cap is not None:
        # What trickles is paid for by the others.
        total = sum(taker.sent for taker in (*busy, *paused))
        assert total <= cap * clock.seconds() * 1.02
        assert sum(taker.sent for taker in paused) <= KEEP_ALIVE.line_part * cap * (
            clock.seconds() + 2.0
        )


def test_a_paused_sender_whose_program_counts_bytes_has_a_burst_within_10_s() -> None:
    """A burst that was due after 12 s came after 16 s, and curl's limit is 15 s."""
    clock = Clock()
    pacer = Pacer(clock, 2_500_000.0)
    busy = Taker(pacer, clock, 1e9)
    busy.ready()
    paused = [Taker(pacer, clock, 1e9, Share(counts_body=True)) for _ in range(30)]
    for taker in paused:
        clock.advance(0.13)
        taker.pause()
    run(clock, [busy], 60)
    for taker in paused:
        times = [*taker.bursts, clock.seconds()]
        assert max(b - a for a, b in pairwise(times)) < 10.0


@pytest.mark.parametrize("ran_bytes", [KEEP_ALIVE.burst_bytes - 1, KEEP_ALIVE.burst_bytes])
def test_a_run_that_brought_less_than_a_burst_is_none(ran_bytes: int) -> None:
    """A turn on a crowded line brought less, and a program that counts bytes gave up."""
    clock = Clock()
    pacer = Pacer(clock, 1e9)
    taker = Taker(pacer, clock, 1e9)
    taker.sent_bytes = KEEP_ALIVE.burst_bytes
    for _ in range(2):
        pacer.move(taker, TransferState.PAUSED)
        run(clock, [], 10)
        pacer.move(taker, TransferState.SOCKET)
        taker.sent_bytes += ran_bytes
        taker.sent_at_s = clock.seconds()
    ran_s = clock.seconds()
    pacer.move(taker, TransferState.PAUSED)
    assert (taker.burst_at_s == ran_s) == (ran_bytes == KEEP_ALIVE.burst_bytes)


def test_who_resumed_trickles_no_more_and_who_was_served_lately_is_not_due() -> None:
    clock = Clock()
    pacer = Pacer(clock, None)
    taker = Taker(pacer, clock, 1e9)
    taker.sent_bytes = KEEP_ALIVE.burst_bytes
    taker.pause()
    run(clock, [], 3)
    taker.sent_at_s = clock.seconds()
    run(clock, [], 3)
    assert not taker.trickles
    run(clock, [], 2)
    assert len(taker.trickles) == 1
    assert taker.sent == KEEP_ALIVE.small_bytes
    pacer.move(taker, TransferState.SOCKET)
    run(clock, [], 20)
    assert len(taker.trickles) == 1
    assert not clock.getDelayedCalls()


def test_a_round_of_a_long_ring_takes_about_a_second() -> None:
    clock = Clock()
    pacer = Pacer(clock, 2_500_000)
    takers = [Taker(pacer, clock, 1e9) for _ in range(600)]
    for taker in takers:
        taker.ready()
    run(clock, takers, 1.2)
    assert all(taker.sent for taker in takers)


class Flood:
    """Requests of some addresses, again and again, each answered with `size_bytes` at once."""

    def __init__(self, pacer: Pacer, clock: Clock, addresses: list[str], size_bytes: int) -> None:
        self.pacer = pacer
        self.clock = clock
        self.addresses = addresses
        self.size_bytes = size_bytes
        self.sent = 0
        self.waiting: set[str] = set()

    def ask(self, times: int = 20) -> None:
        """Each address asks so many times, or until it has to wait."""
        for address in self.addresses:
            for _ in range(times):
                if address in self.waiting:
                    break
                requests = self.pacer.requests
                if not requests.busy or requests.passes(address):
                    self.answer(address)
                else:
                    self.waiting.add(address)
                    requests.wait(
                        address,
                        address,
                        self.clock.seconds(),
                        lambda address=address: self.answer(address),  # type: ignore[misc]
                        lambda until_s, address=address: self.waiting.discard(address),  # type: ignore[misc]
                    )

    def answer(self, address: str) -> None:
        self.waiting.discard(address)
        self.sent += self.size_bytes
        self.pacer.charge_answers(self.size_bytes)
        if self.pacer.requests.busy:
            self.pacer.requests.charge(address, self.size_bytes)


def flood_beside(
    downloads: int, addresses: list[str], size_bytes: int, wanted: int = 0, cap: float = 2_500_000.0
) -> tuple[int, int, Clock, Pacer, list[Taker]]:
    """What large downloads and a flood get in 20 s; and the world to go on with."""
    clock = Clock()
    pacer = Pacer(clock, cap)
    pacer.waiting_networks = wanted
    large = [Taker(pacer, clock, 1e9) for _ in range(downloads)]
    for taker in large:
        taker.ready()
    flood = Flood(pacer, clock, addresses, size_bytes)
    for _ in range(2000):
        flood.ask()
        run(clock, large, 0.01)
    return sum(taker.sent for taker in large), flood.sent, clock, pacer, large


@given(
    st.integers(1, 8),
    st.integers(1, 60),
    st.sampled_from([300, 10_000, 100_000, 250_000]),
)
@settings(max_examples=10, deadline=None)
def test_a_flood_of_small_answers_leaves_half_of_the_line_to_large_downloads(
    downloads: int, networks: int, size_bytes: int
) -> None:
    addresses = [f"10.{number}.0.1" for number in range(networks)]
    large, small, *_ = flood_beside(downloads, addresses, size_bytes)
    bursts = 2 * networks * 512 * 1024
    ahead = PACING.ahead_s * 2_500_000
    assert large >= 0.5 * (20 * 2_500_000 - bursts) - ahead - 1_000_000
    assert large + small <= 1.02 * 20 * 2_500_000 + 2 * 250_000 + 250_000


def test_one_network_has_one_share_of_all_who_want_the_line() -> None:
    large, small, *_ = flood_beside(1, ["192.0.2.1", "192.0.2.2"], 100_000, wanted=20)
    assert small <= (20 * 2_500_000) / 21 * 1.2 + 512 * 1024
    assert large >= 0.9 * 20 * 2_500_000


def test_large_downloads_of_one_network_leave_its_small_ones_a_share() -> None:
    # Sixty people behind one address, and nobody else.
    large, small, *_ = flood_beside(60, ["192.0.2.1", "192.0.2.2"], 100_000, wanted=1)
    assert small >= 0.4 * 20 * 2_500_000
    assert large >= 0.4 * 20 * 2_500_000


class Visitors:
    """So many small bodies are always fetched, by so many networks in turn."""

    def __init__(self, pacer: Pacer, clock: Clock, bodies: int, networks: int = 50_000) -> None:
        self.pacer, self.clock, self.networks = pacer, clock, networks
        self.come = self.sent = 0
        self.takers = [self.visitor() for _ in range(bodies)]

    def visitor(self) -> Taker:
        number, self.come = self.come % self.networks, self.come + 1
        address = f"10.{number % 250}.{number // 250}.1"
        taker = Taker(self.pacer, self.clock, 1e9, Share(address=address))
        taker.ready()
        return taker

    def look(self) -> None:
        for place, taker in enumerate(self.takers):
            if taker.sent >= 200_000:
                self.pacer.move(taker, TransferState.OVER)
                self.sent += taker.sent
                self.takers[place] = self.visitor()

    def taken(self) -> int:
        return self.sent + sum(taker.sent for taker in self.takers)


@given(st.integers(1, 4), st.integers(1, 200))
@settings(max_examples=10, deadline=None)
def test_small_downloads_of_many_networks_leave_half_of_the_line(large: int, small: int) -> None:
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    takers = [Taker(pacer, clock, 1e9) for _ in range(large)]
    for taker in takers:
        taker.ready()
    visitors = Visitors(pacer, clock, small)
    for _ in range(1000):
        run(clock, takers, 0.01)
        visitors.look()
    assert pacer.misplaced() == 0
    got = sum(taker.sent for taker in takers)
    assert got >= (0.48 * 10 - PACING.ahead_s) * cap
    # Newcomers have the other half.
    assert visitors.taken() >= 0.45 * 10 * cap
    assert got + visitors.taken() <= 10.3 * cap


def test_small_downloads_of_a_burst_go_before_large_ones() -> None:
    """Beside large ones they had half of the line, and took twice as long."""
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    large = Taker(pacer, clock, 1e9)
    large.ready()
    visitors = Visitors(pacer, clock, 10)
    first = list(visitors.takers)
    for _ in range(90):
        run(clock, [large], 0.01)
    assert sum(taker.sent for taker in first) >= 0.95 * 0.9 * cap
    large_sent = large.sent
    for _ in range(500):
        visitors.look()
        run(clock, [large], 0.01)
    assert large.sent - large_sent >= (0.48 * 5 - PACING.ahead_s) * cap


def test_ten_networks_that_come_again_and_again_leave_three_quarters_of_the_line() -> None:
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    large = Taker(pacer, clock, 1e9)
    large.ready()
    visitors = Visitors(pacer, clock, 30, networks=10)
    for second in range(40):
        if second == 10:
            before = large.sent
        for _ in range(100):
            run(clock, [large], 0.01)
            visitors.look()
    assert large.sent - before >= 0.76 * 30 * cap
    assert visitors.taken() >= 0.15 * 30 * cap


class Queued(Taker):
    """What it sends stands before the line until `arrive`."""

    def push(self, most_bytes: int) -> int:
        count = super().push(most_bytes)
        self.flying += count
        return count


@pytest.mark.parametrize("networks", [1, 200])
def test_small_ones_have_little_under_way_while_the_sockets_of_large_ones_are_full(
    networks: int,
) -> None:
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    large = Taker(pacer, clock, cap / 8)
    large.ready()
    run(clock, [large], 2.0)
    small = [
        Queued(pacer, clock, 1e9, Share(address=f"10.{number}.0.1")) for number in range(networks)
    ]
    for taker in small:
        # Else they use up their part first.
        pacer.requests.charge_body(taker.share.address, 10_000_000)
        taker.ready()
    run(clock, [large], 0.2)
    before = sum(taker.flying for taker in small)
    # What stands there for longer counts no more.
    assert before <= 2 * 0.01 * cap + 2 * 16_384
    # The line takes them: they go on.
    for taker in small:
        taker.flying = 0
    run(clock, [large], 0.05)
    assert sum(taker.sent for taker in small) > before
    # No large one is there any more: the line is theirs.
    pacer.move(large, TransferState.OVER)
    run(clock, [], 2.0)
    assert sum(taker.sent for taker in small) >= 1.5 * cap


def test_a_slow_large_download_takes_nothing_from_small_ones() -> None:
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    slow = Taker(pacer, clock, cap / 50)
    small = [Queued(pacer, clock, 1e9, Share(address=f"10.{n}.0.1")) for n in range(20)]
    for taker in (slow, *small):
        taker.ready()
    run(clock, [slow], 4.0)
    assert sum(taker.sent for taker in small) >= 0.9 * 4.0 * cap


def test_slow_readers_beyond_their_share_leave_the_others_a_tenth() -> None:
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    large = Taker(pacer, clock, cap / 8)
    stuck = Queued(pacer, clock, 100_000, Share(address="10.1.0.1"))
    other = Taker(pacer, clock, 1e9, Share(address="10.2.0.1"))
    for taker in (stuck, other):
        pacer.requests.charge_body(taker.share.address, 10_000_000)
    for taker in (large, stuck, other):
        taker.ready()
    run(clock, [large, stuck], 4.0)
    assert stuck.flying > 0.01 * cap
    assert other.sent >= 0.1 * 4.0 * cap


def test_small_downloads_of_one_network_are_done_one_after_the_other() -> None:
    clock = Clock()
    pacer = Pacer(clock, 1_000_000)
    address = "192.0.2.1"
    small = [Taker(pacer, clock, 1e9, Share(address=address)) for _ in range(4)]
    for taker in small:
        taker.ready()
    run(clock, [], 0.1)
    assert [taker.sent > 0 for taker in small] == [True, False, False, False]


def test_one_late_tick_makes_no_burst_and_a_busy_machine_has_its_line() -> None:
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    taker = Taker(pacer, clock, 1e9)
    taker.ready()
    clock.advance(0.01)
    assert taker.sent <= 0.03 * cap, "an idle line is not flooded either"
    run(clock, [], 1.0)
    before = taker.sent
    clock.advance(0.25)
    assert taker.sent - before <= 0.06 * cap
    for _ in range(20):
        clock.advance(0.08)
    before = taker.sent
    for _ in range(20):
        clock.advance(0.08)
    assert taker.sent - before == pytest.approx(20 * 0.08 * cap, rel=0.02)


def test_a_flood_of_requests_and_small_bodies_leave_each_other_a_part() -> None:
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    large = Taker(pacer, clock, 1e9)
    large.ready()
    flood = Flood(pacer, clock, [f"10.{number}.0.1" for number in range(200)], 10_000)
    visitors = Visitors(pacer, clock, 1)
    for _ in range(1000):
        flood.ask()
        run(clock, [large], 0.01)
        visitors.look()
    assert visitors.taken() >= 0.2 * 10 * cap
    assert flood.sent >= 0.2 * 10 * cap
    assert large.sent >= (0.45 * 10 - PACING.ahead_s) * cap


def test_requests_do_not_wait_until_bytes_that_stood_in_sockets_are_paid_for() -> None:
    clock, cap = Clock(), 2_500_000.0
    pacer = Pacer(clock, cap)
    large = [Taker(pacer, clock, 1e9)]
    large[0].ready()
    # One request of each network, every 0.1 s.
    addresses = [f"10.{number}.0.1" for number in range(40)]
    floods = [Flood(pacer, clock, [address], 1_000) for address in addresses]
    waited_s = 0.0
    for tick in range(400):
        if tick % 25 == 0:
            # Four looks a second: sockets keep 0.5 MB, and at the next look it leaves after all.
            pacer.give_back(500_000 if tick % 50 else -500_000)
        floods[tick % 40].ask(1)
        run(clock, large, 0.01)
        waited_s += 0.01 * sum(len(flood.waiting) for flood in floods)
    answers = sum(flood.sent for flood in floods) / 1_000
    assert answers > 350
    assert waited_s / answers < 0.005
    assert large[0].sent <= 1.02 * 4.0 * cap + 600_000


def test_downloads_have_all_of_the_line_once_a_flood_is_over() -> None:
    *_, clock, pacer, large = flood_beside(8, [f"10.{n}.0.1" for n in range(40)], 250_000)
    pacer.requests.let_all_go()
    run(clock, large, 2.0)
    before = sum(taker.sent for taker in large)
    run(clock, large, 4.0)
    assert sum(taker.sent for taker in large) - before == pytest.approx(10_000_000, rel=0.02)


@given(st.lists(st.integers(5_000, 2_000_000), min_size=1, max_size=5))
@settings(max_examples=10, deadline=None)
def test_a_flood_alone_has_the_line_and_no_more(sizes: list[int]) -> None:
    size = max(sizes)
    _, small, *_ = flood_beside(0, [f"10.{n}.0.1" for n in range(len(sizes))], size)
    most = 20 * 2_500_000
    assert small <= 1.02 * most + 2 * size + 64 * 1024
    if size < 250_000:
        assert small >= 0.9 * most


def test_small_downloads_of_one_network_take_turns_in_one_share() -> None:
    clock = Clock()
    pacer = Pacer(clock, 400_000)
    pacer.waiting_networks = 9
    large = Taker(pacer, clock, 1e9)
    small = [Taker(pacer, clock, 1e9, Share(address=f"192.0.2.{n}")) for n in range(50)]
    for taker in (large, *small):
        taker.ready()
    run(clock, [large, *small], 20)
    assert large.sent >= 0.75 * 20 * 400_000
    assert sum(taker.sent for taker in small) > 0.05 * 20 * 400_000
    quiet = Taker(pacer, clock, 1e9, Share(address="198.51.100.1"))
    quiet.ready()
    # Its burst goes first.
    run(clock, [large, quiet, *small], 1)
    assert quiet.sent >= 256 * 1024
    before, burst = sum(taker.sent for taker in small), quiet.sent
    run(clock, [large, quiet, *small], 5)
    others = sum(taker.sent for taker in small) - before
    assert quiet.sent - burst == pytest.approx(others, rel=0.3)
