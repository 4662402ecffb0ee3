"""Who asks: people behind one address have places of their own, and nobody has more than his."""

from __future__ import annotations

import gc
import re
import sys
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import BIG, Asked, FakeConnection, House
from tidegate.protocol.ticket import Key, KeyRing, Ticket
from tidegate.server.admission.client_keys import Client, Clients, address_of, program_of
from tidegate.server.admission.evidence import EVIDENCE, Evidence
from tidegate.server.http.cookies import read_cookie, read_cookies, set_cookie
from tidegate.server.http.proxies import block_of, prefixes_of
from tidegate.server.http.request import Request

JSON = "application/json"
CHROME = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 "
    "Safari/537.36"
)
HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
KEYS = KeyRing([Key("k1", b"0123456789abcdef")])
PLACE = "tidegate-place"


def request(address: str = "192.0.2.1", **fields: str) -> Request:
    headers = {name.replace("_", "-").encode(): value.encode() for name, value in fields.items()}
    return Request(FakeConnection(address), b"GET", b"/big.iso", headers)  # type: ignore[arg-type]


def browse(
    house: House, cookies: str = "", *, query: str = "", address: str = "192.0.2.1"
) -> Asked:
    fields = {"accept": HTML, **({"cookie": cookies} if cookies else {})}
    return house.ask(address, agent=CHROME, query=query, **fields)


def cookies_of(asked: Asked) -> str:
    """What a browser sends back after this answer."""
    given = {**asked.start_fields, **asked.connection.fields}.get("set-cookie", "")
    return "; ".join(line.partition(";")[0] for line in given.splitlines())


# -- addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "prefixes"),
    [
        ("192.0.2.7", ("192.0.2.7", "192.0.2.0/24")),
        ("::ffff:192.0.2.7", ("192.0.2.7", "192.0.2.0/24")),
        ("2001:db8:1:2:3:4:5:6", ("2001:db8:1:2::/64", "2001:db8:1::/56", "2001:db8:1::/48")),
        ("fe80::1%eth0", ("fe80::/64", "fe80::/56", "fe80::/48")),
        ("", ("local",)),
        ("strange", ("strange",)),
    ],
)
def test_an_address_is_enclosed_by_its_prefixes(address: str, prefixes: tuple[str, ...]) -> None:
    assert prefixes_of(address) == prefixes
    assert block_of(address) == prefixes[0]


@given(st.lists(st.sampled_from([0, 0, 1, 0xDB8]), min_size=8, max_size=8))
def test_prefixes_are_written_as_the_library_writes_networks(groups: list[int]) -> None:
    address = IPv6Address(b"".join(group.to_bytes(2) for group in groups))
    networks = [IPv6Network((address, bits), strict=False) for bits in (64, 56, 48)]
    assert prefixes_of(str(address)) == tuple(map(str, networks))


# -- cookies -----------------------------------------------------------------------------------


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_reading_cookies_never_crashes(field: bytes, more: bytes) -> None:
    read_cookie({b"cookie": field + b"tidegate-visitor" + more}, b"tidegate-visitor")


def test_a_cookie_is_found_by_its_whole_name_among_others() -> None:
    headers = {b"cookie": b"xtidegate-visitor=no; a=b;tidegate-visitor = yes , c=d"}
    assert read_cookie(headers, b"tidegate-visitor") == b"yes"
    assert read_cookie({}, b"tidegate-visitor") is None
    assert read_cookie({b"cookie": b"tidegate-visitor"}, b"tidegate-visitor") is None


def test_no_more_than_eight_cookies_of_a_name_are_checked() -> None:
    headers = {b"cookie": b"; ".join(b"a=%d" % number for number in range(20))}
    assert [*read_cookies(headers, b"a")] == [b"%d" % number for number in range(8)]


def test_a_cookie_cannot_end_its_own_attributes() -> None:
    name, value = set_cookie(b"n", b"v", path=b"/a;b", age_s=5, secure=True)
    assert name == b"Set-Cookie"
    assert value == b"n=v; Path=/a%3Bb; Max-Age=5; HttpOnly; SameSite=Lax; Secure"


# -- names -------------------------------------------------------------------------------------


def test_a_name_beyond_the_bound_of_its_address_is_shared() -> None:
    clients = Clients(4, lambda: 0.0)
    fields = [{"tidegate_client": str(n)} for n in range(500)]
    names = [clients.identify(request(**one), KEYS, None, browser=False).key for one in fields]
    assert len(set(names[:4])) == 4
    assert len(set(names)) <= 4 + 8
    assert clients.identify(request(**fields[0]), KEYS, None, browser=False).key == names[0]
    elsewhere = clients.identify(request("192.0.2.2", **fields[9]), KEYS, None, browser=False)
    assert elsewhere.key not in names


def test_a_name_long_unused_makes_room() -> None:
    now = [0.0]
    clients = Clients(2, lambda: now[0])

    def key(name: str) -> str:
        return clients.identify(request(tidegate_client=name), KEYS, None, browser=False).key

    first, second = key("a"), key("b")
    now[0] = 3000.0
    assert key("a") == first
    shared = key("c")
    assert shared.startswith("192.0.2.1#s"), "both others were used within the hour"
    now[0] = 4800.0
    own = key("c")
    assert own not in (first, second, shared)
    assert key("a") == first, "the one that was used last stays"
    assert address_of(first) == address_of(own) == "192.0.2.1"


def test_of_two_proofs_the_older_one_counts() -> None:
    clients = Clients(4, lambda: 100.0)
    ticket = Ticket(1, "192.0.2.1", "v1", "/big.iso", BIG, BIG, 1.0, 300.0)
    cookie = clients.identify(request(), KEYS, None, browser=True).cookie
    back = request(cookie=f"tidegate-visitor={cookie}")
    assert clients.identify(back, KEYS, ticket, browser=True).since_s == 100.0
    ticket = replace(ticket, issued_s=50.0)
    assert clients.identify(back, KEYS, ticket, browser=True).since_s == 50.0


def test_a_client_that_shows_more_than_its_program_is_not_known_by_it() -> None:
    assert program_of(request(user_agent="x")) == b"x"
    assert program_of(request(user_agent="x", cookie="a=b")) is None
    assert program_of(request(user_agent="x", tidegate_client="a")) is None


def test_names_are_bounded_over_all_addresses() -> None:
    clients = Clients(1000, lambda: 0.0)

    def come(first: int) -> None:
        for number in range(first, first + 70_000):
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            clients.identify(request(address, user_agent="x"), KEYS, None, browser=False)

    come(0)
    gc.collect()
    before = sys.getallocatedblocks()
    come(70_000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 20_000


def test_the_id_counts_before_the_user_agent() -> None:
    clients = Clients(100, lambda: 0.0)

    def key(**fields: str) -> str:
        return clients.identify(request(**fields), KEYS, None, browser=False).key

    one = key(tidegate_client="a", user_agent="x")
    assert one == key(tidegate_client="a", user_agent="y") != key(user_agent="x")
    one_network = {
        clients.identify(request(f"2001:db8::{n:x}", user_agent="x"), KEYS, None, browser=False).key
        for n in range(99)
    }
    assert len(one_network) == 1


def test_a_cookie_of_an_old_key_is_given_anew_with_its_age() -> None:
    now = [100.0]
    clients = Clients(100, lambda: now[0])
    first = clients.identify(request(), KEYS, None, browser=True)
    now[0] = 200.0
    newer = KeyRing([Key("k2", b"fedcba9876543210"), Key("k1", b"0123456789abcdef")])
    back = request(cookie=f"tidegate-visitor={first.cookie}")
    again = clients.identify(back, newer, None, browser=True)
    assert again.key == first.key
    assert again.since_s == 100.0
    assert newer.is_current(again.cookie or "")
    [(_, same)] = clients.greet(back, KEYS)
    assert same.startswith(f"tidegate-visitor={first.cookie};".encode())
    assert b"Max-Age=2592000" in same, "a visit renews it for 30 days"
    [(_, field)] = clients.greet(back, newer)
    assert field.startswith(b"tidegate-visitor=v1.k2.")


def test_a_forged_visitor_cookie_is_replaced() -> None:
    clients = Clients(100, lambda: 5.0)
    found = clients.identify(
        request(cookie="tidegate-visitor=v1.k1.AA.BB"), KEYS, None, browser=True
    )
    assert found.cookie is not None
    assert KEYS.read_visitor(found.cookie).issued_s == 5.0


# -- people behind one address -----------------------------------------------------------------


def test_thirty_equal_browsers_behind_one_address_have_thirty_places() -> None:
    house = House(slots=1)
    first = browse(house)
    assert first.started
    assert "tidegate-visitor=v1." in first.start_fields["set-cookie"]
    crowd = [browse(house) for _ in range(30)]
    places = [int(one.connection.fields[PLACE]) for one in crowd]
    assert sorted(places) == list(range(1, 31))
    for one, place in zip(crowd, places, strict=True):
        assert one.connection.fields["refresh"]
        back = browse(house, cookies_of(one))
        assert int(back.connection.fields[PLACE]) == place
        mine = one.connection.fields["set-cookie"].partition(";")[0]
        assert mine in back.connection.fields["set-cookie"], "renewed, not another"


def test_a_browser_without_cookies_keeps_its_place_by_the_address_it_is_sent_to() -> None:
    house = House(slots=1)
    browse(house)
    waiting = [browse(house) for _ in range(5)]
    for one in waiting:
        query = re.fullmatch(r"\d+; url=[^?]*\?(.*)", one.connection.fields["refresh"])
        assert query is not None
        back = browse(house, query=query[1])
        assert back.connection.fields[PLACE] == one.connection.fields[PLACE]


def test_a_browser_that_resumes_is_known_by_its_cookie_whatever_it_accepts() -> None:
    house = House(slots=1)
    first = browse(house)
    second = house.ask(agent=CHROME, accept="*/*", cookie=cookies_of(first), ranges=(BIG // 2, BIG))
    assert second.started
    assert len(house.gate.downloads) == 1


def test_one_browser_that_opens_a_download_too_often_is_told_place_time_and_way_on() -> None:
    house = House(slots=1, connections_per_lease=2)
    cookies = cookies_of(browse(house))
    assert browse(house, cookies).started
    third = browse(house, cookies)
    assert third.connection.status == 503
    assert third.connection.fields[PLACE] == "1"
    assert "refresh" in third.connection.fields


def test_a_ticket_brings_its_name_to_another_program_of_the_same_address() -> None:
    house = House(slots=1)
    browse(house)
    waiting = browse(house)
    token = waiting.connection.fields["tidegate-ticket"]
    there = house.ask(agent="tidegate/1", token=token)
    assert there.connection.fields[PLACE] == waiting.connection.fields[PLACE]
    elsewhere = house.ask("192.0.2.9", agent="tidegate/1", token=token)
    assert elsewhere.connection.status == 403


def test_tools_of_one_name_share_their_place_and_others_do_not() -> None:
    house = House(slots=1)
    house.ask(agent="other/1")
    assert house.ask(agent="x/1", accept=JSON).connection.fields[PLACE] == "1"
    assert house.ask(agent="x/1", accept=JSON).connection.fields[PLACE] == "1"
    assert house.ask(agent="y/1", accept=JSON).connection.fields[PLACE] == "2"


def test_who_shares_a_place_and_comes_after_it_was_used_asks_anew_without_the_ticket() -> None:
    house = House(slots=1)
    first = house.ask(agent="other/1")
    one, other = (house.ask(agent="x/1", accept=JSON) for _ in range(2))
    assert one.token
    assert one.connection.fields[PLACE] == other.connection.fields[PLACE]
    first.transfer.finish()
    house.wait(1)
    begun = house.ask(agent="x/1", accept=JSON, token=one.token)
    begun.transfer.finish()
    house.wait(1)
    late = house.ask(agent="x/1", accept=JSON, token=other.token)
    assert late.connection.status == 403
    assert "ask without it for a new one" in late.connection.body.decode()
    assert house.ask(agent="x/1", accept=JSON).started


def test_a_program_under_a_browsers_name_is_held_and_browsers_are_shown_the_page() -> None:
    """yt-dlp's fields; browsers send all of Fetch Metadata, or over plain HTTP nothing of it."""
    for known in ({}, {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}):
        house = House(slots=1)
        house.ask(agent="other/1")
        assert house.ask(agent=CHROME, accept=HTML, **known).connection.status == 503
        held = house.ask(agent=CHROME, accept=HTML, sec_fetch_mode="navigate")
        assert (held.connection.status, held.started) == (0, False)


def test_a_job_says_where_its_client_is() -> None:
    house = House(slots=1)
    jobs = []
    offer = house.gate.policy.offer

    def spy(job, now, ticket=None):  # type: ignore[no-untyped-def]
        jobs.append(job)
        return offer(job, now, ticket)

    house.gate.policy.offer = spy  # type: ignore[method-assign]
    house.ask("2001:db8::1", agent="curl/8.5.0")
    assert jobs[0].network == ("2001:db8::/64", "2001:db8::/56", "2001:db8::/48")
    assert not jobs[0].known


# -- evidence ----------------------------------------------------------------------------------


def client(key: str = "192.0.2.1#a", since_s: float | None = None) -> Client:
    return Client(key, prefixes_of(address_of(key)), since_s)


def test_a_proof_counts_when_it_is_older_than_the_rush() -> None:
    evidence = Evidence()
    evidence.waits(1000.0)
    assert evidence.knows(client(since_s=999.0), 1001.0)
    assert not evidence.knows(client(since_s=1000.5), 1001.0)
    assert not evidence.knows(client(), 1001.0)
    for at in range(1000, 3000, 100):
        evidence.waits(float(at))
    assert not evidence.knows(client(since_s=1500.0), 2950.0)
    later = 2900.0 + EVIDENCE.rush_gap_s + 1
    evidence.waits(later)
    assert evidence.knows(client(since_s=1500.0), later)


def test_a_restart_in_a_rush_makes_nobody_known_who_came_in_it() -> None:
    evidence = Evidence()
    evidence.resume(100.0, 500.0)
    inside, before = client(since_s=100.0), client(since_s=99.0)
    assert not evidence.knows(inside, 501.0)
    assert evidence.knows(before, 501.0)
    evidence.waits(510.0)
    assert not evidence.knows(inside, 511.0)


def test_bytes_taken_count_and_wasted_places_count_against_a_name() -> None:
    evidence = Evidence()
    evidence.took("192.0.2.1#a", 1000, 1 << 30, 998.0)
    assert not evidence.knows(client(), 999.0)
    evidence.took("192.0.2.1#a", 1 << 20, 1 << 30, 999.0)
    evidence.waits(1000.0)
    assert evidence.knows(client(), 1001.0)
    evidence.left("192.0.2.1#a", 1 << 20, 1 << 30, 1002.0)
    assert evidence.knows(client(), 1003.0)
    evidence.left("192.0.2.1#a", 10, 1 << 30, 1002.0)
    assert not evidence.knows(client(since_s=1.0), 1003.0)
    evidence.took("192.0.2.1#a", 100, 100, 1003.5)
    assert evidence.knows(client(since_s=1.0), 1004.0)
    assert not evidence.knows(client(), 1004.0)


def test_what_is_taken_during_a_rush_earns_no_share_of_its_own() -> None:
    """A megabyte under each of a thousand names used to make a thousand shares of one address."""
    evidence = Evidence()
    evidence.waits(1000.0)
    names = [f"192.0.2.1#{number}" for number in range(1000)]
    for name in names:
        evidence.took(name, 1 << 20, 1 << 30, 1001.0)
    assert not any(evidence.knows(client(name), 1100.0) for name in names)
    evidence.waits(later := 1000.0 + EVIDENCE.rush_gap_s + 1.0)
    assert all(evidence.knows(client(name), later) for name in names)


def test_collected_cookies_of_one_network_count_only_up_to_a_bound() -> None:
    evidence = Evidence()
    evidence.waits(1000.0)
    known = [evidence.knows(client(f"192.0.2.{n % 250}#{n}", 1.0), 1001.0) for n in range(5000)]
    assert sum(known) == 1024
    assert evidence.knows(client("192.0.2.0#0", 1.0), 1001.0)
    assert evidence.knows(client("198.51.100.1#0", 1.0), 1001.0)


def test_evidence_is_bounded() -> None:
    evidence = Evidence()
    for number in range(70_000):
        evidence.took(f"10.0.0.1#{number}", 10, 10, 1.0)
    assert len(evidence._names) <= 65_536


def test_a_download_that_took_its_bytes_makes_its_client_known() -> None:
    house = House(slots=2)
    first = house.ask(agent="x/1")
    first.transfer.finish()
    assert house.gate.parts.evidence.knows(
        Client(next(iter(house.arrivals)).client, ("192.0.2.1", "192.0.2.0/24")),
        house.clock.seconds() + 1.0,
    )
