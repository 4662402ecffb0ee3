"""Neither strangers nor members of a multicast session take more than their part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_server_multicast_switch import FakeSender, House
from tidegate.protocol.errors import ProtocolError
from tidegate.protocol.session import ReceiverReport, decode_offer, decode_report, encode_report
from tidegate.server.multicast import sessions as sessions_module


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(sessions_module, "GroupSender", FakeSender)
    FakeSender.sent = []
    house = House(tmp_path)
    yield house
    house.switch.close()
    house.tree.close()


def asked(offer_member: str, first: int, end: int) -> bytes:
    return f"{offer_member} bytes={first}-{end - 1}".encode()


def test_joining_again_and_again_is_no_way_around_the_queue(house: House) -> None:
    """Each join used to bring 30 % of the file by HTTP, without a slot."""
    offers = [*house.three(), *(decode_offer(house.ask()[1].body) for _ in range(4))]
    house.run(2.0)
    size, step, got = len(house.body), 10_000, set()
    for offer in offers:
        for first in range(0, size, step):
            answer = house.post(offer.repair_url, asked(offer.member, first, first + step))
            if answer.status == 200:
                got.add(first)
    assert 0 < len(got) * step <= 0.3 * size


def test_repair_before_its_block_is_sent_is_refused(house: House) -> None:
    offer = house.three()[0]
    for first in (0, len(house.body) - 100):
        refused = house.post(offer.repair_url, asked(offer.member, first, first + 100))
        assert refused.status == 409


def test_reports_of_strangers_change_nothing(house: House) -> None:
    """Twelve of them used to take the rate of all to a quarter."""
    offer = house.three()[0]
    house.run(0.1)
    [session] = house.sessions.running
    rate = session.transmitter.rate_bytes_s
    for number in range(50):
        report = ReceiverReport(
            f"nobody{number}", "receiving", 0, 5, 10_000 + number, 10, counts={0: 9}
        )
        house.post(offer.report_url, encode_report(report))
        house.run(0.02)
    assert session.transmitter.rate_bytes_s >= rate
    assert session.counters.reports == 0


def test_a_report_of_77_bytes_is_not_read_into_a_million_rows() -> None:
    body = b'{"member":"m","state":"receiving","pass":0,"counts":[[0,1048575,1]]}'
    assert decode_report(body, 10, lambda name: False).counts == {}
    with pytest.raises(ProtocolError, match="more blocks than there can be"):
        decode_report(body, 10)
    # The same rows over and over do not add up unseen.
    again = b'{"member":"m","state":"receiving","counts":[%s]}'
    with pytest.raises(ProtocolError):
        decode_report(again % b",".join([b"[0,10,1]"] * 1000), 10)
