from __future__ import annotations

import json
import math
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.errors import BadToken
from tidegate.protocol.ticket import TOKENS, Key, KeyRing, Pass, ReturningVisitor, Ticket

VECTORS = json.loads((Path(__file__).parent / "vectors" / "ticket.json").read_text())
RING = KeyRing([Key("k2", b"second secret, 16+"), Key("k1", b"first secret of 16+")])
URL_SAFE = set(string.ascii_letters + string.digits + "-_.")

names = st.text(max_size=300)
weights = st.floats(min_value=0.001, max_value=1e6)
preferences = st.from_regex(r"[A-Za-z0-9_-]{0,32}", fullmatch=True)
client_names = st.from_regex(r"[A-Za-z0-9_-]{1,32}", fullmatch=True)
counts = st.integers(min_value=0, max_value=2**63 - 1)
times = st.floats(min_value=0, max_value=4e9)
tickets = st.builds(
    Ticket, counts, names, client_names, names, counts, counts, weights, times, preferences
)


def a_ticket(**changes: object) -> Ticket:
    fields: dict[str, object] = {
        "number": 7,
        "address": "203.0.113.9",
        "name": "v2",
        "file": "/a.iso",
        "size_bytes": 10,
        "remaining_bytes": 9,
        "weight": 1.0,
        "issued_s": 1_000.0,
    }
    return Ticket(**{**fields, **changes})  # type: ignore[arg-type]


def code_of(token: str, *, ring: KeyRing = RING, now: float = 1_001.0) -> str:
    with pytest.raises(BadToken) as caught:
        ring.read_ticket(token, "203.0.113.9", "/a.iso", now)
    return caught.value.code


@given(tickets)
@settings(max_examples=100)
def test_a_ticket_comes_back_as_it_was_written_in_text_that_fits_anywhere(ticket: Ticket) -> None:
    token = RING.write_ticket(ticket)
    assert set(token) <= URL_SAFE
    assert len(token) <= TOKENS.token_length
    assert RING.read_ticket(token, ticket.address, ticket.file, ticket.issued_s + 1) == ticket


@given(st.text(max_size=200) | st.text(alphabet=sorted(URL_SAFE), max_size=2000))
@settings(max_examples=100)
def test_garbage_is_forged_and_never_crashes(garbage: str) -> None:
    assert code_of(garbage) == "ticket-forged"
    with pytest.raises(BadToken):
        RING.read_pass(garbage, 0.0)


@given(st.data())
@settings(max_examples=100)
def test_any_changed_character_makes_it_forged(data: st.DataObject) -> None:
    token = RING.write_ticket(a_ticket())
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from(sorted(URL_SAFE - {token[at]})))
    changed = token[:at] + other + token[at + 1 :]
    assert code_of(changed) == "ticket-forged"


def test_a_ticket_of_another_address_or_file_is_foreign() -> None:
    assert code_of(RING.write_ticket(a_ticket(address="x"))) == "ticket-foreign"
    assert code_of(RING.write_ticket(a_ticket(file="/b"))) == "ticket-foreign"


def test_a_ticket_expires_with_its_age() -> None:
    token = RING.write_ticket(a_ticket())
    last_s = 1_000.0 + 30 * 86_400
    assert RING.read_ticket(token, "203.0.113.9", "/a.iso", last_s) == a_ticket()
    assert code_of(token, now=last_s + 1.0) == "ticket-expired"


def test_a_ticket_that_was_proven_proves_nothing_elsewhere_or_later() -> None:
    ring = KeyRing([Key("k2", b"second secret, 16+")])
    token = ring.write_ticket(a_ticket())
    for _ in range(2):
        assert ring.read_ticket(token, "203.0.113.9", "/a.iso", 1_001.0) == a_ticket()
    for address, file in (("203.0.113.8", "/a.iso"), ("203.0.113.9", "/b.iso")):
        with pytest.raises(BadToken) as caught:
            ring.read_ticket(token, address, file, 1_001.0)
        assert caught.value.code == "ticket-foreign"
    assert code_of(token, ring=ring, now=1_000.0 + 31 * 86_400) == "ticket-expired"
    assert code_of(token[:-1] + ("A" if token[-1] != "A" else "B"), ring=ring) == "ticket-forged"


def test_no_more_proven_tickets_are_remembered_than_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.protocol.ticket.TOKENS", TOKENS._replace(proven=3))
    ring = KeyRing([Key("k2", b"second secret, 16+")])
    for number in range(1, 20):
        token = ring.write_ticket(a_ticket(number=number))
        assert ring.read_ticket(token, "203.0.113.9", "/a.iso", 1_001.0).number == number
        assert len(ring._proven) <= 3


def test_keys_rotate_with_overlap() -> None:
    old = KeyRing([Key("k1", b"first secret of 16+")])
    token = old.write_ticket(a_ticket())
    assert RING.read_ticket(token, "203.0.113.9", "/a.iso", 1_001.0) == a_ticket()
    assert RING.write_ticket(a_ticket()).startswith("t2.k2.")
    only_new = KeyRing([Key("k2", b"second secret, 16+")])
    assert code_of(token, ring=only_new) == "ticket-forged"


def test_a_pass_is_no_ticket_and_a_ticket_is_no_pass() -> None:
    permit = Pass("s1", "gold", 4.0, "*", 0.0, 9e9, 1)
    assert code_of(RING.write_pass(permit)) == "ticket-forged"
    with pytest.raises(BadToken) as caught:
        RING.read_pass(RING.write_ticket(a_ticket()), 0.0)
    assert caught.value.code == "pass-forged"


@given(
    st.builds(
        Pass,
        st.from_regex(r"[A-Za-z0-9_-]{1,32}", fullmatch=True),
        preferences,
        weights,
        st.text(min_size=1, max_size=40),
        times,
        times,
        st.integers(1, 10**6),
    )
)
@settings(max_examples=100)
def test_a_pass_comes_back_as_it_was_written(permit: Pass) -> None:
    token = RING.write_pass(permit)
    assert set(token) <= URL_SAFE
    assert len(token) <= TOKENS.token_length
    assert RING.read_pass(token, 0.0) == permit


@pytest.mark.parametrize(
    ("path", "now", "uses", "code"),
    [
        ("/iso/a.iso", 5.0, 0, "pass-early"),
        ("/iso/a.iso", 20.0, 0, "pass-expired"),
        ("/src/a.tar", 10.0, 0, "pass-path"),
        ("/iso/a.iso", 10.0, 2, "pass-used"),
    ],
)
def test_a_pass_counts_only_where_when_and_as_often_as_it_says(
    path: str, now: float, uses: int, code: str
) -> None:
    permit = Pass("s1", "gold", 4.0, "/iso/*", 10.0, 20.0, 2)
    permit.check("/iso/a.iso", 10.0, 1)
    with pytest.raises(BadToken) as caught:
        permit.check(path, now, uses)
    assert caught.value.code == code


def test_what_cannot_be_written_is_refused_when_writing() -> None:
    for bad in (
        {"number": -1},
        {"weight": math.nan},
        {"weight": 0.0},
        {"priority_class": "a b"},
        {"name": ""},
    ):
        with pytest.raises(ValueError):
            RING.write_ticket(a_ticket(**bad))
    with pytest.raises(ValueError, match="16 secret bytes"):
        Key("k", b"short")
    with pytest.raises(ValueError, match="same name"):
        KeyRing([Key("k", b"x" * 16), Key("k", b"y" * 16)])


@given(st.binary(min_size=8, max_size=8), times)
def test_a_visitor_comes_back_as_it_was_written(ident: bytes, issued_s: float) -> None:
    token = RING.write_visitor(ReturningVisitor(ident, issued_s))
    assert set(token) <= URL_SAFE
    assert RING.read_visitor(token) == ReturningVisitor(ident, issued_s)
    assert RING.is_current(token)
    old = KeyRing([Key("k1", b"first secret of 16+")]).write_visitor(
        ReturningVisitor(ident, issued_s)
    )
    assert RING.read_visitor(old).ident == ident
    assert not RING.is_current(old)


@given(st.text(max_size=80) | st.builds(RING.write_ticket, tickets))
@settings(max_examples=100)
def test_what_is_no_visitor_is_refused(token: str) -> None:
    with pytest.raises(BadToken) as caught:
        RING.read_visitor(token)
    assert caught.value.code == "visitor-forged"
    RING.is_current(token)


def test_golden_vectors() -> None:
    ring = KeyRing([Key(VECTORS["key"], bytes.fromhex(VECTORS["secret"]))])
    for vector in VECTORS["tickets"]:
        ticket = Ticket(**vector["ticket"])
        assert ring.write_ticket(ticket) == vector["token"]
        assert ring.read_ticket(vector["token"], ticket.address, ticket.file, 0.0) == ticket
    for vector in VECTORS["passes"]:
        permit = Pass(**vector["pass"])
        assert ring.write_pass(permit) == vector["token"]
        assert ring.read_pass(vector["token"], 0.0) == permit
    for vector in VECTORS["visitors"]:
        visitor = ReturningVisitor(bytes.fromhex(vector["ident"]), vector["issued_s"])
        assert ring.write_visitor(visitor) == vector["token"]
        assert ring.read_visitor(vector["token"]) == visitor
