"""Behind a proxy no header line arrives: programs that follow are redirected while they wait."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from tests.fakes import Asked, FakeFactory, House
from tidegate.server.admission.client_programs import DEFAULT_TOOLS, ToolTable, for_this_try
from tidegate.server.http.proxies import TrustedProxies

PIP = "pip/23.2 {}"


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    """A full server, to which 192.0.2.* are proxies and others come directly."""
    monkeypatch.setattr(FakeFactory, "proxies", TrustedProxies(["192.0.2.0/24"]))
    house = House("ticket", slots=1, slot_use_fraction=0.0)
    assert house.ask(agent="first/1").started
    return house


def location(asked: Asked) -> str:
    assert asked.connection.status == 302
    assert asked.connection.fields["cache-control"] == "no-store"
    return asked.connection.fields["location"]


def test_a_program_is_redirected_with_its_ticket_and_keeps_its_place(house: House) -> None:
    asked = house.ask(agent=PIP, query="from=mirror&tidegate-redirects=x")
    other = house.ask(agent=PIP, token=None, file="/other.iso")
    places = [row.number for row in house.gate.policy.tickets()]
    house.wait(7)
    assert asked.connection.status == 0
    house.wait(2)
    assert asked.connection.drips == []
    parts = urlsplit(location(asked))
    query = parse_qs(parts.query)
    assert parts.path == "/big.iso"
    assert query["from"] == ["mirror"]
    assert query["tidegate-redirects"] == ["1"]
    again = house.ask(agent=PIP, query=parts.query)
    house.wait(9)
    second = parse_qs(urlsplit(location(again)).query)
    assert second["tidegate-redirects"] == ["2"]
    assert len(second["tidegate-ticket"]) == 1
    assert [row.number for row in house.gate.policy.tickets()] == places
    assert len(places) == 2
    assert other.connection.status == 302


def test_its_turn_comes_while_it_waits_in_a_redirect(house: House) -> None:
    asked = house.ask(agent=PIP)
    house.wait(9)
    again = house.ask(agent=PIP, query=urlsplit(location(asked)).query)
    (download,) = house.gate.downloads.values()
    house.gate.leases.end(download, "over")
    house.wait(1)
    assert again.started


def test_after_the_last_redirect_comes_503_for_those_who_obey_it(house: House) -> None:
    asked = house.ask(agent=PIP, query="tidegate-redirects=29")
    house.wait(9)
    assert asked.connection.status == 503
    assert int(asked.connection.fields["retry-after"]) >= 1


def test_after_the_last_redirect_others_stay(house: House) -> None:
    asked = house.ask(agent="Python-urllib/3.11", query="tidegate-redirects=9")
    house.wait(60)
    assert asked.connection.status == 0
    # The lines reach the proxy, which would give up otherwise.
    assert asked.connection.drips


@pytest.mark.parametrize("agent", ["curl/7.88.1", "Wget/1.21", "never-met/1", "httpx/0.27"])
def test_what_may_not_follow_is_never_redirected(house: House, agent: str) -> None:
    """`curl -O` without -L saves nothing and ends with success."""
    asked = house.ask(agent=agent)
    house.wait(60)
    assert asked.connection.status == 0
    assert asked.connection.drips


def test_who_comes_directly_gets_header_lines_as_ever(house: House) -> None:
    asked = house.ask("203.0.113.5", agent=PIP)
    house.wait(60)
    assert asked.connection.status == 0
    assert asked.connection.drips


def test_programs_that_count_no_header_lines_are_redirected_everywhere(house: House) -> None:
    asked = house.ask("203.0.113.5", agent="pacman/6.0.2 (Linux x86_64) libalpm/13.0.2")
    house.wait(9)
    assert "tidegate-redirects=1" in location(asked)


def test_a_server_that_stops_redirects_nobody(house: House) -> None:
    asked = house.ask(agent=PIP)
    house.gate.drain()
    assert asked.connection.status == 503


@pytest.mark.parametrize("rule", [*DEFAULT_TOOLS, ToolTable().unknown])
def test_no_try_is_redirected_more_often_than_its_program_follows(rule: object) -> None:
    for hop in (0, 1, 5, 100, 10_000):
        for by_proxy in (False, True):
            kept = for_this_try(rule, by_proxy, hop)  # type: ignore[arg-type]
            if kept.redirects:
                assert hop < kept.redirects
                assert kept.drip_lines == 0
                assert kept.silent_s < 30
