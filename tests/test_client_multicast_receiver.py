"""The receiver by itself: what it accepts, what it asks for, when it gives up."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.multicast_link import KEY, MARKS, HeapSpace, PacketHeader, make_offer, pack_header, seal
from tests.virtual_network import VirtualNetwork
from tidegate.client.multicast.blocks import ReceiverCounters
from tidegate.client.multicast.receiver import MulticastReceiver
from tidegate.client.multicast.reception import Reception, ReceptionOutcome
from tidegate.protocol.fec import FecParameters, scheme_for
from tidegate.protocol.marks import MarkSigner
from tidegate.protocol.packet import PacketFlag, PacketType
from tidegate.protocol.session import ReceiverReport, ReportAnswer, decode_report

DATA = random.Random(3).randbytes(25_000)
SIZE = 100


class Desk:
    """A receiver with the sender's hands beside it."""

    def __init__(
        self, scheme: str = "raptorq", group: int = 0, have=lambda block: False, **more
    ) -> None:
        fec = FecParameters(scheme, SIZE - SIZE % 8, 100, group)
        self.size = fec.symbol_bytes
        self.offer = make_offer(DATA, fec, report_window_s=0.0)
        self.layout = self.offer.layout()
        self.scheme = scheme_for(fec)
        self.output = bytearray(len(DATA))
        self.sequence = 0
        self.receiver = MulticastReceiver(
            *(self.offer, self.offer.hashes, self.write, random.Random(1), 0.0, HeapSpace(), have),
            **more,
        )

    def write(self, offset: int, data: memoryview) -> None:
        self.output[offset : offset + len(data)] = data

    def source(self, block: int) -> bytes:
        start = self.layout.offset(block)
        piece = DATA[start : start + self.layout.length(block)]
        return piece.ljust(self.layout.k(block) * self.size, b"\0")

    def datagram(
        self,
        block: int,
        symbol: int,
        pass_number: int = 0,
        flags: int = 0,
        told_k: int | None = None,
    ) -> bytes:
        k = self.layout.k(block)
        source = self.source(block)
        if symbol < k:
            payload = source[symbol * self.size : (symbol + 1) * self.size]
        else:
            payload = self.scheme.repair(source, k, self.size, symbol - k + 1)[-1]
        self.sequence += 1
        header = PacketHeader(
            PacketType.SYMBOL, flags, self.offer.session, 0, pass_number, told_k or k, block,
            symbol, self.sequence, 0,
        )  # fmt: skip
        return seal(KEY, header, payload)

    def take(self, *args, now: float = 1.0, **more) -> None:
        self.receiver.take_all((memoryview(self.datagram(*args, **more)),), now)

    def mark(
        self, pass_number: int, flags: int = PacketFlag.LAST_IN_PASS, now: float = 1.0
    ) -> None:
        header = PacketHeader(
            PacketType.MARK, flags, self.offer.session, 0, pass_number, 0, 0, 0, self.sequence, 0
        )
        self.sequence += 1
        signature = MARKS.signature(pack_header(header))
        self.receiver.take_all((memoryview(seal(KEY, header, signature)),), now)


@pytest.mark.parametrize(("limit_bytes_s", "leaves"), [(1000.0, True), (2000.0, False)])
def test_a_session_that_is_faster_than_the_limit_is_left(limit_bytes_s, leaves):
    desk = Desk(limit_bytes_s=limit_bytes_s)
    # 1 920 bytes a second, and the first second's were read late.
    for number in range(100):
        now = max(1.0, 0.05 * number)
        desk.take(number // 50, number % 50, now=now)
        desk.receiver.due(now)
        assert desk.receiver.given_up is None
    desk.receiver.due(5.1)
    assert (desk.receiver.given_up is not None) is leaves
    assert not leaves or "faster" in desk.receiver.given_up


def test_the_first_report_says_joined_when_the_offer_asks_for_it():
    assert Desk().receiver.due(0.0).state == "joined"


def test_at_the_end_of_a_pass_everything_missing_is_wanted():
    desk = Desk()
    for symbol in range(90):
        desk.take(0, symbol)
    desk.mark(0)
    desk.take(0, 100, pass_number=1)
    report = desk.receiver.due(1.0)
    layout = desk.layout
    assert report.sequence == 92
    assert report.counts == {0: 9, **{b: layout.k(b) for b in range(1, layout.blocks)}}


def test_during_a_pass_only_blocks_that_are_over_are_wanted():
    desk = Desk("none")
    desk.receiver.due(0.0)
    desk.take(0, 0, now=0.5)
    assert desk.receiver.due(0.75) is None
    desk.take(1, 5, now=0.8)
    report = desk.receiver.due(1.0)
    assert report.symbols == {0: (1 << 100) - 2}
    assert report.sequence == 2


def test_a_pass_ends_for_who_missed_its_mark_when_the_next_begins():
    desk = Desk("none")
    desk.take(0, 0)
    assert desk.receiver.due(1.0).state == "joined"
    desk.take(1, 5, pass_number=1)
    desk.mark(1, 0)
    report = desk.receiver.due(1.0)
    assert len(report.symbols) == desk.layout.blocks
    assert report.symbols[0] == (1 << 100) - 2
    assert report.symbols[1] == (1 << 100) - 1 - (1 << 5)


def test_counters_name_what_was_thrown_away():
    desk = Desk()
    good = desk.datagram(0, 0)
    for bad in (good[:40], b"XX" + good[2:], good[:-1] + b"\xff", good[:40] + b"\0" + good[41:]):
        desk.receiver.take_all((memoryview(bad),), 1.0)
    told = desk.receiver.counters.words()
    assert told == "0 datagrams, 2 forged, 1 malformed, 1 of other senders"
    assert not desk.receiver.has_received


@given(st.data())
@settings(max_examples=60)
def test_one_changed_bit_anywhere_is_noticed(data):
    desk = Desk("none")
    bad = bytearray(desk.datagram(0, 0))
    bit = data.draw(st.integers(0, len(bad) * 8 - 1))
    bad[bit // 8] ^= 1 << bit % 8
    desk.receiver.take_all((memoryview(bad),), 1.0)
    assert desk.receiver.counters.foreign + desk.receiver.counters.forged == 1
    assert not desk.receiver.has_received


@given(st.binary(max_size=120))
@settings(max_examples=60)
def test_noise_is_thrown_away(noise):
    desk = Desk("none")
    for datagram in (noise, b"TG\x10" + noise):
        desk.receiver.take_all((memoryview(datagram),), 1.0)
    assert not desk.receiver.has_received


@pytest.mark.parametrize("change", [{"block": 99}, {"k": 7}, {"symbol": 5_000_000, "block": 98}])
def test_a_sealed_datagram_that_does_not_fit_the_layout_is_malformed(change):
    desk = Desk()
    fields = {"k": 100, "block": 0, "symbol": 0, **change}
    header = PacketHeader(
        PacketType.SYMBOL, 0, desk.offer.session, 0, 0, sequence=1, send_time_us=0, **fields
    )
    desk.receiver.take_all((memoryview(seal(KEY, header, bytes(desk.size))),), 1.0)
    assert desk.receiver.counters.malformed == 1


def test_blocks_already_held_are_neither_wanted_nor_written():
    desk = Desk(have=lambda block: block != 1)
    assert list(desk.receiver.missing_blocks()) == [1]
    desk.take(0, 0)
    for symbol in range(100):
        desk.take(1, symbol)
    assert desk.receiver.finished
    start = desk.layout.offset(1)
    end = start + desk.layout.length(1)
    assert bytes(desk.output[start:end]) == DATA[start:end]
    assert not any(desk.output[:start])


@pytest.mark.parametrize(("scheme", "group"), [("raptorq", 0), ("xor", 10), ("none", 0)])
def test_repair_ranges_and_patch_make_the_file_whole(scheme, group):
    desk = Desk(scheme, group)
    rng = random.Random(2)
    for block in range(desk.layout.blocks - 1):
        k = desk.layout.k(block)
        for symbol in range(k + min(10, desk.scheme.max_repair(k))):
            if rng.random() > 0.2:
                desk.take(block, symbol)
    ranges = desk.receiver.repair_ranges()
    whole = sum(map(desk.layout.length, desk.receiver.missing_blocks()))
    assert sum(end - first for first, end in ranges) < whole / 2
    for first, end in ranges:
        desk.receiver.patch(first, DATA[first:end], 1.0)
    assert desk.receiver.finished
    assert bytes(desk.output) == DATA


def test_silence_before_and_after_the_first_datagram_is_told_apart():
    desk = Desk()
    desk.receiver.due(0.0)
    desk.receiver.due(desk.receiver.wake_at)
    assert desk.receiver.given_up == "datagrams never came for 2 s"
    desk = Desk()
    desk.take(0, 0, now=1.0)
    desk.receiver.due(0.0)
    desk.receiver.due(3.0)
    assert desk.receiver.given_up == "datagrams stopped for 2 s"


def test_one_that_has_all_waits_for_no_datagram():
    """While its last report had no answer, it looked for silence without a pause."""
    desk = Desk()
    for block in range(desk.layout.blocks):
        for symbol in range(desk.layout.k(block)):
            desk.take(block, symbol)
    report = desk.receiver.due(2.0)
    assert report is not None
    assert report.state == "done"
    assert desk.receiver.wake_at == float("inf")


def test_the_senders_close_and_its_advice_end_the_reception():
    desk = Desk()
    desk.mark(0, PacketFlag.CLOSE_SESSION)
    assert desk.receiver.given_up == "the sender closed the session"
    desk = Desk()
    desk.receiver.answered(ReportAnswer("unicast"))
    assert desk.receiver.given_up == "the sender asked this receiver to use unicast"
    assert desk.receiver.leave(1.0).state == "left"


def test_in_a_large_cohort_a_running_pass_silences_late_reports():
    desk = Desk()
    desk.receiver.due(0.0)
    desk.receiver.answered(ReportAnswer("continue", 5.0))
    desk.take(0, 0)
    desk.mark(0)
    desk.mark(1, 0)
    assert desk.receiver.due(desk.receiver._report_at) is None
    desk.mark(1)
    assert desk.receiver.due(desk.receiver._report_at).pass_number == 1


def forged_mark(desk: Desk, pass_number: int, flags: int, sequence: int, payload: bytes) -> None:
    """A mark as a member can make it, who has the key of the tags and not the origin's."""
    header = PacketHeader(
        PacketType.MARK, flags, desk.offer.session, 0, pass_number, 0, 0, 0, sequence, 0
    )
    desk.receiver.take_all((memoryview(seal(KEY, header, payload)),), 1.0)


FORGED = {
    "unsigned": b"",
    "signed with another key": MarkSigner(b"x" * 32).signature(b"?" * 32),
    "a signature of another mark": MARKS.signature(b"?" * 32),
    "too long": bytes(65),
}


@pytest.mark.parametrize("payload", FORGED.values(), ids=FORGED)
def test_a_member_cannot_end_the_session_or_a_pass_for_the_others(payload):
    """One datagram sealed with the shared key used to send every receiver to unicast."""
    desk = Desk()
    desk.take(0, 0)
    desk.receiver.due(1.0)
    forged_mark(desk, 0, PacketFlag.CLOSE_SESSION, 5, payload)
    forged_mark(desk, 0, PacketFlag.LAST_IN_PASS, 6, payload)
    forged_mark(desk, 100, 0, 7, payload)
    desk.take(0, 1, flags=PacketFlag.CLOSE_SESSION | PacketFlag.LAST_IN_PASS)
    desk.take(0, 2, pass_number=100)
    assert desk.receiver.given_up is None
    assert not desk.receiver.report_pending
    assert desk.receiver.counters.forged == 3
    desk.mark(0)
    assert desk.receiver.report_pending


def test_a_mark_counts_once():
    desk = Desk()
    header = PacketHeader(PacketType.MARK, 0, desk.offer.session, 0, 0, 0, 0, 0, 9, 0)
    datagram = seal(KEY, header, MARKS.signature(pack_header(header)))
    for _ in range(3):
        desk.receiver.take_all((memoryview(datagram),), 1.0)
    assert (desk.receiver.counters.datagrams, desk.receiver.counters.forged) == (1, 2)


def test_forged_sequence_numbers_make_no_loss():
    """One datagram with a number far ahead used to look like a loss of nearly everything."""
    desk = Desk()
    desk.mark(0, 0)
    for symbol in range(50):
        desk.take(0, symbol)
    desk.sequence, before = 1 << 30, desk.sequence
    desk.take(0, 50)
    desk.sequence = before + 1
    desk.mark(0)
    report = desk.receiver.due(1.0)
    assert (report.expected, report.received, report.loss) == (53, 53, 0.0)


def test_other_members_cannot_keep_a_receiver_waiting_for_a_sender_that_is_gone():
    desk = Desk()
    now = 0.0
    while desk.receiver.given_up is None and now < 60.0:
        desk.take(0, 0, now=now)
        desk.receiver.due(now)
        now += 0.5
    assert now < 8.0


@pytest.mark.parametrize("told_k", [1, 99, 101, 65535])
def test_a_symbol_with_another_number_of_source_symbols_is_counted_and_not_taken(told_k):
    """A member's good tag is no reason to believe its numbers, for an open block either."""
    desk = Desk("none")
    layout = desk.layout
    desk.take(0, 0)
    for symbol in range(1, layout.k(0)):
        desk.take(0, symbol, told_k=told_k)
    assert desk.receiver.counters.malformed == layout.k(0) - 1
    assert 0 in desk.receiver.missing_blocks()
    for symbol in range(1, layout.k(0)):
        desk.take(0, symbol)
    assert 0 not in desk.receiver.missing_blocks()
    assert desk.output[: layout.length(0)] == DATA[: layout.length(0)]


class Reports:
    """A server that answers a report when the test says so, and a group without datagrams."""

    room_datagrams = 100

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.sequences: list[int] = []

    def ask(self, path: str, done: Any, body: bytes = b"") -> None:
        self.open.append(done)
        self.sequences.append(decode_report(body, 1000).sequence)

    def read(self) -> list[bytes]:
        return []

    def arrived_us(self) -> None:
        return None

    def overruns(self) -> int:
        return 0

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """There is no socket."""


class Telling:
    """A receiver that has a report with the next number whenever it is asked."""

    finished = report_pending = has_received = False
    given_up = None
    silent_at = math.inf

    def __init__(self) -> None:
        self.counters = ReceiverCounters()
        self.wake_at, self.sequence = 0.2, 0
        self.answers = 0

    def due(self, now: float) -> ReceiverReport:
        self.sequence, self.wake_at = self.sequence + 1, now + 0.2
        return ReceiverReport("member", "receiving", 0, self.sequence)

    def report_failed(self) -> None:
        self.answers += 1

    def leave(self, now: float) -> ReceiverReport:
        return ReceiverReport("member", "left")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_one_report_is_on_its_way_at_a_time_and_the_newest_follows_it(
    round_trips: list[int],
) -> None:
    """However long round trips are, the server hears what is missing now and not what was."""
    told, server = Telling(), Reports()
    network = VirtualNetwork({})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualNetwork, "watch_reading", lambda *given: None)
        patch.setattr("tidegate.client.multicast.reception.GroupSocket", lambda *given: server)
        patch.setattr("tidegate.client.multicast.reception.MulticastReceiver", lambda *given: told)
        offer: Any = make_offer(DATA, FecParameters("raptorq", 96, 100, 0))
        ended: list[ReceptionOutcome] = []
        reception = Reception(
            *(
                network,
                offer,
                cast(Any, server),
                lambda at, data: None,
                Path("."),
                "",
                ended.append,
            ),
            have=lambda block: False,
            limit_bytes_s=math.inf,
        )
        reception.start()
        for answers, trip in enumerate(round_trips):
            network.run(lambda: False, network.now() + 0.2 * trip)
            assert len(server.open) == 1
            assert told.answers == answers
            newest = told.sequence
            server.open.pop()("the server is busy")
            assert newest in server.sequences
        reception.stop()
    assert server.sequences[:-1] == sorted(set(server.sequences[:-1]))
    assert [one.reason for one in ended] == ["stopped"]
