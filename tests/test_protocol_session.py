"""Capability, offer, report, answer: round trips, golden texts, and clear refusals."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.multicast_link import make_offer
from tidegate.protocol.errors import BadHeader, ProtocolError
from tidegate.protocol.fec import FecParameters
from tidegate.protocol.session import (
    Capability,
    ReceiverReport,
    ReportAnswer,
    decode_answer,
    decode_offer,
    decode_report,
    encode_answer,
    encode_offer,
    encode_report,
    format_capability,
    parse_capability,
)

FEC = FecParameters("raptorq", 1424, 736)


def test_the_header_reads_as_documented():
    value = 'v=1; fec="raptorq,xor,none"; rate=12500000; scope=site; ip="4,6"'
    capability = Capability(("raptorq", "xor", "none"), 12_500_000.0, "site", ("4", "6"))
    assert format_capability(capability) == value
    assert parse_capability(value) == capability


@given(
    fec=st.lists(st.sampled_from(["raptorq", "xor", "none"]), min_size=1, unique=True),
    rate=st.one_of(st.just(math.inf), st.integers(1, 10**12).map(float)),
    scope=st.sampled_from(["link", "site", "organisation"]),
)
def test_capability_round_trip(fec, rate, scope):
    capability = Capability(tuple(fec), rate, scope)
    assert parse_capability(format_capability(capability)) == capability


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("v=2; fec=none", None),
        ("fec=none", None),
        ("v=1", Capability(("none",))),
        ('v=1;fec="turbo,xor";new=thing', Capability(("xor",))),
        # What an older client sends.
        ('v=1; fec="raptorq,rs,xor,none,paper"', Capability(("raptorq", "xor", "none"))),
        ("v=1; fec=rs", Capability(("none",))),
        ("v=1; scope=global; ip=9", Capability(("none",))),
    ],
)
def test_what_is_unknown_is_ignored(value, expected):
    assert parse_capability(value) == expected


@pytest.mark.parametrize("value", ["v", "v=1; rate=-3", "v=1; rate=0", '"', "v=1;" + "a=b;" * 400])
def test_an_unreadable_header_is_refused(value):
    with pytest.raises(BadHeader):
        parse_capability(value)


@given(st.text(max_size=60))
def test_any_header_is_read_or_refused(value):
    with contextlib.suppress(BadHeader):
        parse_capability(value)


def test_offer_round_trip_with_everything_set():
    offer = replace(make_offer(b"x" * 3_000_000, FEC), ssm=True, sha256=b"s" * 32, ttl=4)
    assert decode_offer(encode_offer(offer)) == offer
    by_url = replace(offer, hashes=(), hashes_url="/-/multicast/1/hashes")
    assert decode_offer(encode_offer(by_url)) == by_url


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"group": "10.0.0.1"}, "not a multicast group"),
        ({"group": "nowhere"}, "no IP address"),
        ({"port": 0}, "port"),
        ({"key": "!!"}, "base64"),
        ({"key": "AAAA"}, "key"),
        ({"session": "12"}, "session"),
        ({"size_bytes": -1}, "size_bytes"),
        ({"hashes": "AAAA"}, "one hash for each block"),
        ({"v": 2}, "version"),
        ({"rate_bytes_s": True}, "rate_bytes_s"),
        ({"fec": []}, "fec"),
        (
            {"fec": {"scheme": "x", "symbol_bytes": 60000, "block_symbols": 99, "group": 0,
                     "parity": 0}},
            "1 MiB",
        ),
        # A receiver made room for each of 2.5 thousand million blocks before it had one hash.
        (
            {"fec": {"scheme": "none", "symbol_bytes": 8, "block_symbols": 1, "group": 0,
                     "parity": 0}, "size_bytes": 20 << 30, "hashes": "", "hashes_url": "/h"},
            "too many blocks",
        ),
        ({"silence_s": float("nan")}, "malformed"),
    ],
)  # fmt: skip
def test_a_harmful_offer_is_refused_by_name(change, match):
    document = json.loads(encode_offer(make_offer(b"x" * 3000, FEC)))
    with pytest.raises(ProtocolError, match=match):
        decode_offer(json.dumps({**document, **change}).encode())


wants = st.dictionaries(st.integers(0, 5000), st.integers(1, 4096), max_size=30)


@given(
    state=st.sampled_from(["joined", "receiving", "done", "left"]),
    counts=wants,
    symbols=st.dictionaries(st.integers(0, 5000), st.integers(0, 2**737), max_size=5),
    numbers=st.tuples(*[st.integers(0, 10**9)] * 5),
)
@settings(max_examples=60)
def test_report_round_trip(state, counts, symbols, numbers):
    report = ReceiverReport("m", state, 3, *numbers, counts, symbols)
    assert decode_report(encode_report(report)) == report


def test_runs_of_equal_wants_are_joined():
    body = encode_report(ReceiverReport("m", "receiving", 1, counts=dict.fromkeys(range(9), 7)))
    assert json.loads(body)["counts"] == [[0, 9, 7]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"state":"asleep"}',
        b'{"state":"done"}',
        b'{"state":"done","member":"m","counts":[[0,99999999,1]]}',
        b'{"state":"done","member":"m","counts":[[0,1]]}',
        b'{"state":"done","member":"m","symbols":[[0,"zz"]]}',
        b'{"state":"done","member":"m","expected":-1}',
        b'{"state":"done","member":"m\\u0000"}',
    ],
)
def test_a_broken_report_is_refused(body):
    with pytest.raises(ProtocolError):
        decode_report(body)


def test_a_report_wants_no_more_blocks_than_the_file_has():
    body = encode_report(ReceiverReport("m", "receiving", 1, counts=dict.fromkeys(range(9), 7)))
    assert len(decode_report(body, 9).counts) == 9
    with pytest.raises(ProtocolError, match="more blocks"):
        decode_report(body, 8)


def test_answers():
    assert decode_answer(encode_answer(ReportAnswer("unicast", 0.5))) == ReportAnswer(
        "unicast", 0.5
    )
    with pytest.raises(ProtocolError):
        decode_answer(b'{"action":"explode","report_window_s":1}')


@pytest.mark.parametrize("key", [None, "", "AAAA", "!" * 44])
def test_an_offer_needs_a_key_for_its_marks(key):
    document = json.loads(encode_offer(make_offer(b"x" * 3000, FEC)))
    del document["mark_key"]
    if key is not None:
        document["mark_key"] = key
    with pytest.raises(ProtocolError, match="mark_key"):
        decode_offer(json.dumps(document).encode())
