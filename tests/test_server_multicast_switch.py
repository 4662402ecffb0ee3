"""In front of the gate: who is held, who is offered a session, who never notices anything."""

from __future__ import annotations

import errno
import ipaddress
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs

from tests.fakes import FakeConnection
from tests.multicast_link import HeapSpace, open_packet
from tests.open_files import AdmitAll
from tidegate.client.multicast.receiver import MulticastReceiver
from tidegate.protocol.fec import BlockLayout, available_schemes
from tidegate.protocol.packet import PAYLOAD_OFFSET, PacketType
from tidegate.protocol.session import (
    HEADER_NAME,
    OFFER_TYPE,
    Capability,
    Offer,
    ReceiverReport,
    decode_answer,
    decode_offer,
    encode_offer,
    encode_report,
    format_capability,
)
from tidegate.protocol.units import format_rate, format_size
from tidegate.server.files.openfile import OpenFile
from tidegate.server.files.transfer import BodyPlan
from tidegate.server.files.tree import Tree
from tidegate.server.http.request import Request
from tidegate.server.multicast import sessions as sessions_module
from tidegate.server.multicast.blocks import hash_blocks
from tidegate.server.multicast.demand import DemandDetector
from tidegate.server.multicast.live import SentContent
from tidegate.server.multicast.schedule import FOLDER, ScheduledSend, ScheduleWatch, write_entry
from tidegate.server.multicast.service import MulticastRoutes
from tidegate.server.multicast.sessions import Sessions
from tidegate.server.multicast.settings import MulticastSettings
from tidegate.server.multicast.switch import MulticastSwitch, hurry

CAPABLE = format_capability(Capability(available_schemes(), scope="site"))


class FakeSender:
    """A group nobody hears; remembers the datagrams."""

    sent: ClassVar[list[bytes]] = []
    mtu: ClassVar[int] = 1500

    def __init__(
        self, interface: Any, group: str, port: int, ttl: int, rate_bytes_s: float
    ) -> None:
        assert ipaddress.ip_address(group) in ipaddress.ip_network("232.64.0.0/10")
        assert ttl == 1

    def waiting_bytes(self) -> float:
        return 0.0

    def send_one(self, datagram: bytes) -> bool:
        self.sent.append(datagram)
        return True

    def send_equal(self, pieces: list[Any], parts: int, size: int) -> int:
        for at in range(0, len(pieces), parts):
            datagram = b"".join(pieces[at : at + parts])
            assert len(datagram) == size
            if size + 28 > self.mtu:
                raise OSError(errno.EMSGSIZE, "Message too long")
            self.sent.append(datagram)
        return len(pieces) // parts

    def close(self) -> None:
        """Nothing to close."""


class Hashes:
    """Hashes that are there at once, or when the test says so."""

    def __init__(self) -> None:
        self.ready = True
        self._known: dict[Any, tuple[bytes, ...]] = {}

    def known(self, key: Any, layout: BlockLayout) -> tuple[bytes, ...] | None:
        return self._known.get((key, layout)) if self.ready else None

    def want(self, file: OpenFile, layout: BlockLayout) -> Deferred[tuple[bytes, ...]]:
        found = self._known[file.rep.key, layout] = hash_blocks(file, layout)
        return succeed(found)


class Inner(AdmitAll):
    """The gate: remembers whom it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[Request] = []

    def enter(self, request: Request, rep: Any, plan: Any, start: Any) -> None:
        self.entered.append(request)


class House:
    """A switch with everything around it driven by hand."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = Clock()
        self.release = folder / "release"
        self.release.mkdir()
        self.body = random.Random(3).randbytes(400_000)
        (self.release / "obj.bin").write_bytes(self.body)
        self.tree = Tree(self.release)
        usual = {"enabled": True, "least_bytes": 1000, "hold_share": 0.0}
        self.settings = MulticastSettings(**{**usual, **settings})
        self.hot = DemandDetector(self.settings)
        self.hashes = Hashes()
        self.sessions = Sessions(
            self.clock,
            self.settings,
            random.Random(1),
            ended=lambda session, reason: self.hot.ended(
                session.object_key, session.id, never_began=session.waiting
            ),
        )
        self.inner = Inner()
        self.eligible = True
        self.switch = MulticastSwitch(
            self.clock,
            self.inner,
            self.tree,
            self.hot,
            self.hashes,  # type: ignore[arg-type]
            self.sessions,
            lambda request, rep: self.eligible,
        )
        self.routes = MulticastRoutes(self.sessions)

    def ask(
        self,
        value: str | None = CAPABLE,
        status: int = 200,
        address: str = "192.0.2.1",
        **fields: str,
    ) -> tuple[Request, FakeConnection]:
        headers = {name.replace("_", "-").encode(): text.encode() for name, text in fields.items()}
        if value is not None:
            headers[HEADER_NAME.lower().encode()] = value.encode()
        connection = FakeConnection(address)
        request = Request(connection, b"GET", b"/obj.bin", headers)  # type: ignore[arg-type]
        rep = self.tree.open([b"obj.bin"]).rep
        plan = BodyPlan(status, (), ((0, rep.size_bytes),), rep.size_bytes)
        self.switch.enter(request, rep, plan, lambda listener: None)  # type: ignore[arg-type,return-value]
        return request, connection

    def three(self) -> list[Offer]:
        connections = [self.ask()[1] for _ in range(3)]
        assert [c.status for c in connections] == [200] * 3
        assert {c.fields["content-type"] for c in connections} == {OFFER_TYPE}
        return [decode_offer(c.body) for c in connections]

    def post(self, path: str, body: bytes, method: bytes = b"POST") -> FakeConnection:
        connection = FakeConnection()
        self.routes(Request(connection, method, path.encode(), {}, body=body))  # type: ignore[arg-type]
        return connection

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.002)):
            self.clock.advance(0.002)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(sessions_module, "GroupSender", FakeSender)
    monkeypatch.setattr(sessions_module, "interface_mtu", lambda *words: FakeSender.mtu)
    FakeSender.sent, FakeSender.mtu = [], 1500
    house = House(tmp_path)
    yield house
    house.switch.close()
    house.tree.close()


def test_the_third_makes_a_session_and_all_three_get_the_same_one(house: House) -> None:
    first, second = house.ask(), house.ask()
    assert (first[1].status, second[1].status) == (0, 0)
    third = house.ask()
    offers = [decode_offer(one[1].body) for one in (first, second, third)]
    assert len({offer.session for offer in offers}) == 1
    assert len({offer.member for offer in offers}) == 3
    assert offers[0].hashes == hash_blocks(house.tree.open([b"obj.bin"]), offers[0].layout())
    assert third[1].fields["vary"] == HEADER_NAME
    assert house.inner.entered == []
    late = decode_offer(house.ask()[1].body)
    assert late.session == offers[0].session


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (None, 200),
        (CAPABLE, 206),
        ("v=2; fec=none", 200),
        ("nonsense ;;", 200),
        ('v=1; fec="raptorq"; ip="6"', 200),
        ('v=1; fec="raptorq"; rate=1000', 200),
    ],
)
def test_all_others_go_straight_to_the_gate(house: House, value: str | None, status: int) -> None:
    house.three()
    request, connection = house.ask(value, status)
    assert house.inner.entered == [request]
    assert connection.status == 0


def test_a_file_under_a_rule_is_the_gates_to_judge(house: House) -> None:
    house.eligible = False
    request, _ = house.ask()
    assert house.inner.entered == [request]


def test_when_the_window_ends_each_goes_on_by_itself(house: House) -> None:
    first, _ = house.ask()
    house.clock.advance(10)
    second, _ = house.ask()
    assert house.inner.entered == []
    house.clock.advance(5)
    assert house.inner.entered == [first]
    house.clock.advance(10)
    assert house.inner.entered == [first, second]


@pytest.fixture
def brief(tmp_path: Path, house: House) -> Iterator[House]:
    """Requests are held for a third of a second, then they gather."""
    (tmp_path / "brief").mkdir()
    brief = House(tmp_path / "brief", hold_share=10.0)
    yield brief
    brief.switch.close()
    brief.tree.close()


def told(house: House, offer: Offer, state: str = "joined") -> None:
    house.post(offer.report_url, encode_report(ReceiverReport(offer.member, state)))


def test_two_gather_after_a_brief_hold_and_the_third_completes_the_cohort(brief: House) -> None:
    first, second = brief.ask()[1], brief.ask()[1]
    brief.run(0.3)
    assert (first.status, second.status) == (0, 0)
    brief.run(0.2)
    offers = [decode_offer(one.body) for one in (first, second)]
    assert [offer.meanwhile for offer in offers] == [True, True]
    assert brief.inner.entered == []
    brief.run(3.0)
    assert FakeSender.sent == []
    assert brief.sessions.running[0].waiting
    third = decode_offer(brief.ask()[1].body)
    assert (third.session, third.meanwhile) == (offers[0].session, False)
    for offer in (*offers, third):
        told(brief, offer)
    brief.run(0.5)
    assert FakeSender.sent
    assert not brief.sessions.running[0].waiting


def test_a_cohort_that_never_stands_is_called_off_and_warms_nothing(brief: House) -> None:
    offer = decode_offer_after(brief, 0.5)
    receiver = MulticastReceiver(
        offer, offer.hashes, lambda at, data: None, random.Random(1), 0.0, HeapSpace()
    )
    brief.clock.advance(15.0)
    brief.run(0.1)
    receiver.take_all([memoryview(one) for one in FakeSender.sent], 15.0)
    assert receiver.given_up == "the sender closed the session"
    assert brief.sessions.running == ()
    assert len(FakeSender.sent) == 3
    # Two are as few as before.
    brief.clock.advance(100.0)
    again = decode_offer_after(brief, 0.5)
    assert decode_offer(brief.ask()[1].body).meanwhile
    assert again.session != offer.session


def decode_offer_after(house: House, seconds: float) -> Offer:
    connection = house.ask()[1]
    house.run(seconds)
    return decode_offer(connection.body)


def test_two_files_go_out_one_after_the_other(house: House) -> None:
    """Both take a second alone; the second gets little before the first is out."""
    (house.release / "two.bin").write_bytes(house.body)
    for name in ("obj.bin", "two.bin"):
        file = house.tree.open([name.encode()])
        layout = house.sessions.layout(file.rep.size_bytes)
        fec = house.sessions.choose_fec([Capability(available_schemes())], layout)
        content = SentContent(name, file, fec, hash_blocks(file, layout))
        session = house.sessions.open(content, lead_s=0.0)
        assert session is not None
        told(house, decode_offer(encode_offer(session.offer(float("inf"), "192.0.2.1"))))
    first, second = house.sessions.running
    while first.carousel.first_pass_left_bytes:
        house.run(0.01)
    sent = {"first": first.transmitter.sent_bytes, "second": second.transmitter.sent_bytes}
    assert sent["first"] >= len(house.body)
    assert sent["second"] < 0.15 * sent["first"]
    house.run(1.0)
    assert not second.carousel.first_pass_left_bytes


def test_so_many_gather_at_once_and_no_more(brief: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "TUNING", sessions_module.TUNING._replace(most_waiting=0))
    request, connection = brief.ask()
    brief.run(0.5)
    assert connection.status == 0
    assert brief.inner.entered == [request]


def test_who_leaves_while_held_counts_no_more(house: House) -> None:
    first, connection = house.ask()
    house.ask()
    connection.leave(first)
    _, third = house.ask()
    assert third.status == 0


def test_those_who_wait_with_tickets_are_hurried_and_offered_the_session(house: House) -> None:
    waiter, _ = house.ask(tidegate_ticket="t1", tidegate_client="one")
    assert house.inner.entered == [waiter]
    assert hurry(house.hot, house.sessions, waiter) == 5.0
    assert hurry(house.hot, house.sessions, house.ask(None)[0]) is None
    house.ask(tidegate_ticket="t2", tidegate_client="two")
    _, third = house.ask()
    offer = decode_offer(third.body)
    # Most of the cohort will only ask within the next seconds: the session waits for them.
    assert offer.start_in_s == 5.0
    assert house.ask(tidegate_ticket="t1", tidegate_client="one")[1].status == 200


@pytest.mark.parametrize("mtu", [1280, 1492, 1500, 9000, 200])
def test_symbols_fill_the_mtu_of_the_interface(house: House, mtu: int) -> None:
    FakeSender.mtu = mtu
    symbol = house.three()[0].fec.symbol_bytes
    fits = min(1500, max(576, mtu)) - 28 - PAYLOAD_OFFSET
    assert fits - 8 < symbol <= fits
    assert symbol % 8 == 0


def test_an_mtu_that_shrinks_closes_the_session_and_the_next_one_fits(house: House) -> None:
    offers = house.three()
    receiver = MulticastReceiver(
        offers[0], offers[0].hashes, lambda at, data: None, random.Random(1), 0.0, HeapSpace()
    )
    for offer in offers:
        house.post(offer.report_url, encode_report(ReceiverReport(offer.member, "joined")))
    house.run(0.02)
    assert FakeSender.sent
    FakeSender.mtu = 1280
    house.run(0.1)
    assert house.sessions.running == ()
    receiver.take_all([memoryview(one) for one in FakeSender.sent], 0.1)
    # At once, long before it would miss anything.
    assert receiver.given_up == "the sender closed the session"
    answer = house.post(
        offers[1].report_url, encode_report(ReceiverReport(offers[1].member, "receiving"))
    )
    assert decode_answer(answer.body).action == "closed"
    again = house.three()
    assert again[0].session != offers[0].session
    assert again[0].fec.symbol_bytes == 1280 - 28 - PAYLOAD_OFFSET - 4
    for offer in again:
        house.post(offer.report_url, encode_report(ReceiverReport(offer.member, "joined")))
    house.run(0.5)
    assert len(house.sessions.running) == 1


def test_an_mtu_that_shrinks_while_they_wait_lets_them_go_on(house: House) -> None:
    held = [house.ask()[1] for _ in range(2)]
    FakeSender.mtu = 1280
    third = house.ask()[1]
    assert [c.status for c in (*held, third)] == [200] * 3
    assert decode_offer(third.body).fec.symbol_bytes < 1280


def test_a_session_sends_sealed_datagrams_and_ends_when_all_are_done(house: House) -> None:
    offers = house.three()
    for offer in offers:
        house.post(offer.report_url, encode_report(ReceiverReport(offer.member, "joined")))
    assert house.sessions.running[0].takes_joiners
    house.run(0.5)
    got = bytearray(len(house.body))
    for datagram in FakeSender.sent:
        header, payload = open_packet(offers[0].key, datagram)
        if header.type is PacketType.SYMBOL:
            at = header.block * offers[0].layout().block_bytes + header.symbol * len(payload)
            got[at : at + len(payload)] = payload[: len(got) - at]
    assert bytes(got) == house.body
    for offer in offers:
        answer = house.post(offer.report_url, encode_report(ReceiverReport(offer.member, "done")))
        assert decode_answer(answer.body).action == "closed"
    house.run(0.2)
    assert house.sessions.running == ()
    assert house.sessions.sent_bytes_total > len(house.body)
    # It still answers for a while, then is forgotten.
    assert house.post(offers[0].report_url, b"{}").status == 400
    house.clock.advance(40)
    assert house.post(offers[0].report_url, b"{}").status == 404


def test_repair_gives_members_a_bounded_share(house: House) -> None:
    offer = house.three()[0]
    body = f"{offer.member} bytes=10-19,100-104".encode()
    # Nothing that is yet to be sent.
    assert house.post(offer.repair_url, body).status == 409
    house.run(2.0)
    answer = house.post(offer.repair_url, f"{offer.member} bytes=10-19,100-104".encode())
    assert answer.body == house.body[10:20] + house.body[100:105]
    for body, status in (
        (f"{offer.member} bytes=0-399999".encode(), 409),
        (b"stranger bytes=0-1", 409),
        (f"{offer.member} bytes=399999-400000".encode(), 400),
        (f"{offer.member} bytes=9-3".encode(), 400),
        (b"\xff", 400),
    ):
        assert house.post(offer.repair_url, body).status == status, body
    assert house.post(offer.report_url, b"", b"GET").status == 405


def test_status_lists_what_runs(house: House) -> None:
    house.three()
    (row,) = json.loads(house.post("/-/multicast", b"", b"GET").body)["sessions"]
    assert (row["members"], row["phase"]) == (3, "gather")
    assert "obj" not in str(row), "it may be hidden until its hour"


def test_the_operator_sees_a_session_as_it_runs(house: House) -> None:
    offers = house.three()
    assert house.sessions.figures() == (1, 3)
    for offer in offers:
        house.post(offer.report_url, encode_report(ReceiverReport(offer.member, "joined")))
    house.run(0.5)
    lossy = ReceiverReport(offers[0].member, "receiving", expected=200, received=190)
    house.post(offers[0].report_url, encode_report(lossy))
    house.post(offers[1].report_url, encode_report(ReceiverReport(offers[1].member, "done")))
    ((name, state, facts),) = house.sessions.lines()
    assert (name, state, facts["code"]) == ("/obj.bin", "sending", offers[0].fec.scheme)
    assert (facts["receivers"], facts["done"], facts["reports"]) == ("2", "1", "5")
    assert (facts["loss"], facts["rate"]) == ("5.0 %", format_rate(house.settings.rate))
    session = house.sessions.running[0]
    assert facts["sent"] == format_size(session.transmitter.sent_bytes) != "0 B"
    # One has it, two have what has gone out of it; it was sent once.
    assert 1.5 * len(house.body) < session.saved_bytes < 3 * len(house.body)
    assert facts["saved"] == format_size(session.saved_bytes)


def test_nothing_is_sent_while_hashes_are_unknown_and_nobody_hangs(house: House) -> None:
    house.hashes.ready = False
    for _ in range(3):
        house.ask()
    house.clock.advance(15)
    assert len(house.inner.entered) == 3
    assert FakeSender.sent == []


def test_closing_lets_the_held_go_on_and_ends_sessions(house: House) -> None:
    request, _ = house.ask()
    house.switch.close()
    assert house.inner.entered == [request]
    later, _ = house.ask()
    assert house.inner.entered == [request, later]


def test_a_file_that_is_written_to_ends_the_session(house: House) -> None:
    offer = house.three()[0]
    (house.release / "obj.bin").write_bytes(b"other")
    house.run(1.0)
    assert house.sessions.running == ()
    assert house.post(offer.repair_url, f"{offer.member} bytes=0-1".encode()).status == 409


@pytest.mark.parametrize("place", ["decide", "choose_fec"])
def test_a_fault_sends_those_who_are_held_on_by_themselves(
    house: House, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def broken(*words: Any) -> Any:
        raise RuntimeError("boom")

    asked = [house.ask()[0] for _ in range(2)]
    target: object = house.hot if place == "decide" else house.sessions
    monkeypatch.setattr(target, place, broken)
    with capturedLogs() as logged:
        asked.append(house.ask()[0])
    assert house.inner.entered == asked
    assert [event["log_level"] for event in logged] == [LogLevel.critical]
    monkeypatch.undo()


def test_a_held_request_that_fails_takes_no_other_along(house: House) -> None:
    (first, connection), (second, _) = house.ask(), house.ask()
    real = house.inner.enter

    def enter(request: Request, *words: Any) -> None:
        if request is first:
            raise RuntimeError("boom")
        real(request, *words)

    house.inner.enter = enter  # type: ignore[method-assign]
    with capturedLogs() as logged:
        house.clock.advance(15)
    assert house.inner.entered == [second]
    assert connection.aborted
    assert [event["log_level"] for event in logged] == [LogLevel.critical]
    third, _ = house.ask()
    house.clock.advance(15)
    assert house.inner.entered == [second, third], "it went on looking"


def test_the_schedule_opens_sessions_at_their_time_and_drops_nonsense(
    house: House, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    watch = ScheduleWatch(
        house.clock,
        state,
        house.tree,
        house.hot,
        house.hashes,  # type: ignore[arg-type]
        house.sessions,
        wall=lambda: 1000.0 + house.clock.seconds(),
    )
    watch.start()
    write_entry(state, ScheduledSend("/obj.bin", 1000.0 + 700.0))
    write_entry(state, ScheduledSend("/missing.bin", 1000.0))
    (state / FOLDER / "broken.json").write_text("{")
    house.clock.advance(1)
    assert len(list((state / FOLDER).iterdir())) == 1
    assert house.sessions.running == ()
    for _ in range(100):
        house.clock.advance(1)
    (session,) = house.sessions.running
    offer = decode_offer(house.ask()[1].body)
    assert offer.session == session.id
    assert 590 < offer.start_in_s <= 600
    ((_, stage, facts),) = house.sessions.lines()
    assert (stage, facts["sent"]) == ("starts in 10 min", "0 B")
    house.post(offer.report_url, encode_report(ReceiverReport(offer.member, "joined")))
    house.run(1)
    assert FakeSender.sent == []
    for _ in range(598):
        house.clock.advance(1)
    house.run(3)
    assert len(FakeSender.sent) > 200
    assert len(FakeSender.sent[0]) > PAYLOAD_OFFSET
    watch.stop()


def test_an_announced_session_takes_no_rate_before_its_hour(house: House, tmp_path: Path) -> None:
    """It has fewer bytes left than the one that sends, which got a twentieth for ten minutes."""
    (house.release / "small.bin").write_bytes(house.body[:50_000])
    watch = ScheduleWatch(
        house.clock,
        tmp_path / "state",
        house.tree,
        house.hot,
        house.hashes,  # type: ignore[arg-type]
        house.sessions,
        wall=house.clock.seconds,
    )
    write_entry(tmp_path / "state", ScheduledSend("/small.bin", 10.0, listens=False))
    watch.start()
    house.three()
    small, large = house.sessions.running
    house.run(0.2)
    assert large.transmitter.rate_bytes_s == house.settings.rate
    house.run(10)
    assert small.transmitter.sent_bytes > 50_000
    watch.stop()


def test_a_scheduled_send_keeps_its_entry_until_it_has_ended(house: House, tmp_path: Path) -> None:
    """So it is there after a kill, even between its announcement and its end."""
    state = tmp_path / "state"

    def watching() -> ScheduleWatch:
        watch = ScheduleWatch(
            house.clock,
            state,
            house.tree,
            house.hot,
            house.hashes,  # type: ignore[arg-type]
            house.sessions,
            wall=lambda: 1000.0 + house.clock.seconds(),
        )
        watch.start()
        return watch

    entry = write_entry(state, ScheduledSend("/obj.bin", 1000.0 + 300.0, listens=False))
    killed = watching()
    house.clock.advance(2)
    (session,) = house.sessions.running
    assert entry.exists(), "the send is announced, and not made yet"
    killed.stop()
    session.stop("the server stops")
    again = watching()
    (session,) = house.sessions.running
    for _ in range(298):
        house.clock.advance(1)
    house.run(10)
    assert len(FakeSender.sent) > 200
    assert house.sessions.running == ()
    house.clock.advance(1)
    assert not entry.exists()
    house.clock.advance(5)
    assert house.sessions.running == (), "what was sent is not sent again"
    entry = write_entry(state, ScheduledSend("/obj.bin", 1700.0))
    house.clock.advance(1)
    assert len(house.sessions.running) == 1
    entry.unlink()
    house.clock.advance(2)
    assert house.sessions.running == (), "it was called off"
    again.stop()


def test_a_scheduled_send_survives_what_befalls_its_file_before_its_hour(
    house: House, tmp_path: Path
) -> None:
    """Uploaded late, replaced while it is announced, written to: the hour still holds."""
    state, late = tmp_path / "state", house.release / "late.bin"
    watch = ScheduleWatch(
        house.clock,
        state,
        house.tree,
        house.hot,
        house.hashes,  # type: ignore[arg-type]
        house.sessions,
        wall=lambda: 1000.0 + house.clock.seconds(),
    )
    entry = write_entry(state, ScheduledSend("/late.bin", 1000.0 + 300.0, listens=False))
    with capturedLogs() as logged:
        watch.start()
        house.clock.pump([1.0] * 60)
    assert entry.exists()
    assert house.sessions.running == ()
    told = [event for event in logged if "late.bin" in str(event.get("path"))]
    assert len(told) == 1, "said once, not with each try"
    late.write_bytes(house.body)
    house.clock.pump([1.0] * 15)
    (first,) = house.sessions.running
    fresh = house.release / "fresh"
    fresh.write_bytes(house.body[::-1])
    fresh.rename(late)
    house.clock.pump([1.0] * 15)
    (second,) = house.sessions.running
    assert second.object_key != first.object_key, "what is sent is what the name means now"
    with late.open("ab") as more:
        more.write(b"more")
    house.clock.pump([1.0] * 15)
    (third,) = house.sessions.running
    assert third.layout.size_bytes == len(house.body) + 4
    house.clock.pump([1.0] * (300 - 106))
    house.run(10)
    assert len(FakeSender.sent) > 200
    house.clock.advance(1)
    assert not entry.exists()
    watch.stop()


def test_a_scheduled_send_whose_file_never_comes_is_dropped_after_its_hour(
    house: House, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    watch = ScheduleWatch(
        house.clock,
        state,
        house.tree,
        house.hot,
        house.hashes,  # type: ignore[arg-type]
        house.sessions,
        wall=lambda: 1000.0 + house.clock.seconds(),
    )
    entry = write_entry(state, ScheduledSend("/never.bin", 1000.0 + 30.0))
    watch.start()
    house.clock.pump([1.0] * 29)
    assert entry.exists()
    house.clock.pump([1.0] * 2)
    assert not entry.exists()
    watch.stop()


def test_sessions_share_the_rate(house: House) -> None:
    house.three()
    (session,) = house.sessions.running
    assert session.transmitter.rate_bytes_s == house.settings.rate
    (house.release / "two.bin").write_bytes(house.body)
    file = house.tree.open([b"two.bin"])
    layout = house.sessions.layout(file.rep.size_bytes)
    fec = house.sessions.choose_fec([Capability(available_schemes())], layout)
    other = house.sessions.open(SentContent("two", file, fec, hash_blocks(file, layout)))
    assert other is not None
    both = session.transmitter.rate_bytes_s + other.transmitter.rate_bytes_s
    assert round(both) == house.settings.rate
    assert session.transmitter.rate_bytes_s > 0.9 * house.settings.rate
    # A fault in one session's part leaves the other its own, and they are looked at again.
    real = session.adapt

    def broken() -> None:
        raise RuntimeError("boom")

    session.adapt = broken  # type: ignore[method-assign]
    other.transmitter.rate_bytes_s = 1.0
    with capturedLogs() as logged:
        house.run(0.25)
    assert len([event for event in logged if event["log_level"] is LogLevel.critical]) >= 2
    assert other.transmitter.rate_bytes_s > 1.0
    session.adapt = real  # type: ignore[method-assign]
    other.stop("enough")
    assert session.transmitter.rate_bytes_s == house.settings.rate


# --- what one member's word costs the others -----------------------------------------------------

LIMITED = format_capability(Capability(available_schemes(), rate_bytes_s=2_968_751.0, scope="site"))


class Voters:
    """A session of members from networks of their own, that report twice a second."""

    def __init__(self, house: House, values: dict[str, str]) -> None:
        self.house = house
        connections = {at: house.ask(value, address=at)[1] for at, value in values.items()}
        self.offers = {at: decode_offer(one.body) for at, one in connections.items()}
        for offer in self.offers.values():
            told(house, offer)
        house.run(0.6)
        self.counts = {at: [0, 0, 0] for at in values}
        #: What the last reports were answered with: "unicast", or "" for: go on.
        self.answers = dict.fromkeys(values, "")
        self.rates: list[float] = []

    @property
    def rate(self) -> float:
        return self.house.sessions.running[0].transmitter.rate_bytes_s

    def run(
        self,
        seconds: float,
        faults: dict[str, Callable[[float], tuple[float, float, int]]],
        sequence: int = 1 << 31,
    ) -> None:
        """`faults`: what is lost on the way at a rate, what in the own buffer, and the queue.

        `sequence` is the last datagram seen; of one that was not sent yet nobody knows the way.
        """
        for _ in range(int(2 * seconds)):
            self.house.clock.advance(0.5)
            for at, offer in self.offers.items():
                if self.answers[at]:
                    continue
                sent = int(self.rate / 2 / 1500)
                lost, overruns, queue_ms = faults.get(at, lambda rate: (0, 0, 0))(self.rate)
                counts = self.counts[at]
                counts[0] += sent
                counts[1] += sent - round(sent * (lost + overruns))
                counts[2] += round(sent * overruns)
                report = ReceiverReport(offer.member, "receiving", 0, sequence, *counts, queue_ms)
                answer = self.house.post(offer.report_url, encode_report(report))
                if answer.status == 200 and decode_answer(answer.body).action == "unicast":
                    self.answers[at] = "unicast"
                self.rates.append(self.rate)

    @property
    def at_unicast(self) -> list[str]:
        return [at for at, answer in self.answers.items() if answer == "unicast"]


#: Each in a network of its own, and all in one: an office.
PLACES = [[f"198.51.{number}.9" for number in range(10)], [f"10.0.0.{n}" for n in range(10)]]


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("members", [5, 10])
def test_a_fifth_that_names_a_low_rate_slows_nobody_down(
    house: House, places: list[str], members: int
) -> None:
    liars = places[: members // 5]
    values = {at: LIMITED if at in liars else CAPABLE for at in places[:members]}
    voters = Voters(house, values)
    assert voters.rate >= 0.9 * house.settings.rate
    voters.run(5.0, {})
    assert min(voters.rates) >= 0.9 * house.settings.rate
    assert voters.at_unicast == liars


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("members", [5, 10])
@pytest.mark.parametrize("sequence", [0, 1 << 31])
@pytest.mark.parametrize("lie", [(0.24, 0.0, 50), (0.0, 0.3, 0), (0.0, 0.05, 0), (0.08, 0.0, 50)])
def test_a_fifth_that_reports_losses_slows_nobody_down(
    house: House,
    places: list[str],
    members: int,
    lie: tuple[float, float, int],
    sequence: int,
) -> None:
    liars = places[: members // 5]
    voters = Voters(house, dict.fromkeys(places[:members], CAPABLE))
    voters.run(12.0, dict.fromkeys(liars, lambda rate: lie), sequence)
    assert min(voters.rates) >= 0.9 * house.settings.rate
    assert set(voters.at_unicast) <= set(liars)
    # What costs the others a tenth at most may stay.
    assert max(lie[:2]) < 0.1 or voters.at_unicast == liars


def test_a_network_of_many_members_has_one_vote(house: House) -> None:
    honest = [f"198.51.{number}.9" for number in range(4)]
    crowd = [f"203.0.113.{number}" for number in range(1, 41)]
    values = {at: LIMITED if at in crowd else CAPABLE for at in (*crowd, *honest)}
    voters = Voters(house, values)
    voters.run(5.0, {})
    assert min(voters.rates) >= 0.9 * house.settings.rate
    assert voters.at_unicast == crowd


def slow_line(limit: float) -> Callable[[float], tuple[float, float, int]]:
    """What is too much for it is lost, and its queue stands."""
    return lambda rate: (max(0.0, 1 - limit / rate), 0.0, 50 if rate > limit else 0)


def test_a_slower_majority_decides_and_stays(house: House) -> None:
    places = PLACES[0][:5]
    voters = Voters(house, dict.fromkeys(places, CAPABLE))
    voters.run(30.0, dict.fromkeys(places[:3], slow_line(6e6)))
    late = voters.rates[len(voters.rates) // 3 :]
    assert 0.8 * 6e6 < sum(late) / len(late) < 1.2 * 6e6
    assert voters.at_unicast == []


def test_a_line_that_all_share_sends_nobody_away(house: House) -> None:
    """Loss at the server's own line is everybody's."""
    places = PLACES[0][:6]
    voters = Voters(house, dict.fromkeys(places, CAPABLE))
    voters.run(30.0, dict.fromkeys(places, slow_line(7e6)))
    late = voters.rates[len(voters.rates) // 3 :]
    assert 0.8 * 7e6 < sum(late) / len(late) < 1.2 * 7e6
    assert voters.at_unicast == []


def test_a_slower_minority_goes_to_unicast_and_the_others_get_all(house: House) -> None:
    places = PLACES[0][:5]
    voters = Voters(house, dict.fromkeys(places, CAPABLE))
    voters.run(12.0, {places[1]: slow_line(6e6)})
    assert min(voters.rates) >= 0.9 * house.settings.rate
    assert voters.at_unicast == [places[1]]
    assert voters.rate == house.settings.rate


def test_a_receiver_that_is_busy_for_a_moment_stays(house: House) -> None:
    places = PLACES[0][:5]
    voters = Voters(house, dict.fromkeys(places, CAPABLE))
    voters.run(2.0, {places[0]: lambda rate: (0.0, 0.2, 0)})
    voters.run(10.0, {})
    assert voters.at_unicast == []
