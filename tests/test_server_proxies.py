"""Who stands behind a proxy: only what the proxy itself wrote counts."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.protocol.errors import BadHeader
from tidegate.server.http.proxies import (
    Preface,
    ProxyHeader,
    TrustedProxies,
    parse_address,
    read_preface,
)

XFF: ProxyHeader = "x-forwarded-for"
PROXY = "10.0.0.1"
CASES: list[tuple[ProxyHeader, dict[str, str], str, str, bool]] = [
    (XFF, {"x-forwarded-for": "203.0.113.9"}, PROXY, "203.0.113.9", False),
    (XFF, {"x-forwarded-for": "203.0.113.9"}, "192.0.2.1", "192.0.2.1", False),
    (XFF, {"x-forwarded-for": "6.6.6.6, 203.0.113.9, 10.1.1.1"}, PROXY, "203.0.113.9", False),
    (XFF, {"x-forwarded-for": "nonsense"}, PROXY, PROXY, False),
    (XFF, {"x-forwarded-for": "6.6.6.6, nonsense"}, PROXY, PROXY, False),
    (XFF, {"x-forwarded-for": "::ffff:203.0.113.9"}, PROXY, "203.0.113.9", False),
    (XFF, {"x-forwarded-for": "[2001:db8::1]:99"}, PROXY, "2001:db8::1", False),
    (XFF, {"x-forwarded-for": "203.0.113.9:4711"}, PROXY, "203.0.113.9", False),
    (XFF, {"x-forwarded-for": "fe80::1%eth0"}, PROXY, PROXY, False),
    (XFF, {}, PROXY, PROXY, False),
    # What the client sent by another way passes through a proxy untouched.
    (
        XFF,
        {"forwarded": "for=6.6.6.6", "x-forwarded-for": "203.0.113.9"},
        PROXY,
        "203.0.113.9",
        False,
    ),
    (XFF, {"forwarded": "for=6.6.6.6;proto=https"}, PROXY, PROXY, False),
    (XFF, {"x-real-ip": "6.6.6.6"}, PROXY, PROXY, False),
    (XFF, {"x-forwarded-proto": "https"}, PROXY, PROXY, True),
    (XFF, {"x-forwarded-proto": "https, http"}, PROXY, PROXY, False),
    (XFF, {"x-forwarded-proto": "https"}, "192.0.2.1", "192.0.2.1", False),
    (
        "x-real-ip",
        {"x-real-ip": "203.0.113.9", "x-forwarded-for": "6.6.6.6"},
        PROXY,
        "203.0.113.9",
        False,
    ),
    ("forwarded", {"forwarded": 'for="[2001:db8::1]:99";proto=https'}, PROXY, "2001:db8::1", True),
    ("forwarded", {"forwarded": 'proto="https"; for="203.0.113.9"'}, PROXY, "203.0.113.9", True),
    ("forwarded", {"forwarded": "for=unknown"}, PROXY, PROXY, False),
    (
        "forwarded",
        {"forwarded": 'for="open, For = 203.0.113.9 ; Proto=HTTPS'},
        PROXY,
        "203.0.113.9",
        True,
    ),
    ("forwarded", {"forwarded": "for=6.6.6.6, by=10.0.0.1"}, PROXY, PROXY, False),
    (
        "forwarded",
        {"forwarded": "for=203.0.113.9", "x-forwarded-for": "6.6.6.6"},
        PROXY,
        "203.0.113.9",
        False,
    ),
    ("forwarded", {"x-forwarded-proto": "https"}, PROXY, PROXY, False),
]


@pytest.mark.parametrize(("header", "fields", "peer", "address", "tls"), CASES)
def test_one_header_counts_and_only_from_trusted_networks(
    header: ProxyHeader, fields: dict[str, str], peer: str, address: str, tls: bool
) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"], header)
    headers = {name.encode(): value.encode() for name, value in fields.items()}
    assert proxies.client_address(peer, headers) == address
    assert proxies.is_tls(peer, headers) is tls


def test_without_trusted_networks_nothing_is_believed() -> None:
    proxies = TrustedProxies()
    assert proxies.client_address("", {b"x-forwarded-for": b"6.6.6.6"}) == ""
    assert not proxies.is_tls("", {b"x-forwarded-proto": b"https"})


def test_a_unix_socket_is_trusted_by_name() -> None:
    proxies = TrustedProxies(["unix"])
    assert proxies.client_address("", {b"x-forwarded-for": b"203.0.113.9"}) == "203.0.113.9"
    assert proxies.client_address("127.0.0.1", {b"x-forwarded-for": b"6.6.6.6"}) == "127.0.0.1"


def test_a_chain_of_invented_proxies_is_not_followed_for_ever() -> None:
    proxies = TrustedProxies(["10.0.0.0/8"])
    chain = b"203.0.113.9," + b",".join(b"10.0.0.2" for _ in range(3000))
    assert proxies.client_address(PROXY, {b"x-forwarded-for": chain}) == "10.0.0.2"


@given(st.sampled_from(["x-forwarded-for", "forwarded", "x-real-ip"]), st.binary(max_size=200))
def test_no_header_crashes(header: ProxyHeader, value: bytes) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"], header)
    fields = {header.encode(): value, b"x-forwarded-proto": value}
    proxies.client_address(PROXY, fields)
    proxies.is_tls(PROXY, fields)


# -- PROXY protocol, version 2 -------------------------------------------------------------------

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def preface(address: str, command: int = 0x21, extensions: bytes = b"") -> bytes:
    source = ipaddress.ip_address(address).packed
    body = source + bytes(len(source)) + struct.pack(">HH", 4711, 80) + extensions
    family = 0x11 if len(source) == 4 else 0x21
    return SIGNATURE + struct.pack(">BBH", command, family, len(body)) + body


TLS = struct.pack(">BHBI", 0x20, 5, 1, 0)
NO_TLS = struct.pack(">BHBI", 0x20, 5, 0, 0)


@pytest.mark.parametrize(
    ("data", "address", "tls"),
    [
        (preface("203.0.113.9"), "203.0.113.9", False),
        (preface("2001:db8::1"), "2001:db8::1", False),
        (preface("::ffff:203.0.113.9"), "203.0.113.9", False),
        (preface("203.0.113.9", extensions=TLS), "203.0.113.9", True),
        (preface("203.0.113.9", extensions=b"\x04\x00\x01x" + TLS), "203.0.113.9", True),
        (
            preface("203.0.113.9", extensions=NO_TLS),
            "203.0.113.9",
            False,
        ),
        (preface("203.0.113.9", extensions=b"\x20\xff\xff"), "203.0.113.9", False),
        (preface("203.0.113.9", command=0x20), None, False),
        (SIGNATURE + b"\x21\x00\x00\x00", None, False),
    ],
)
def test_a_preface_is_read_once_it_is_whole(data: bytes, address: str | None, tls: bool) -> None:
    assert read_preface(data + b"GET /") == Preface(address, tls, len(data))
    for end in range(len(data)):
        assert read_preface(data[:end]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        SIGNATURE + b"\x31\x11\x00\x00",
        SIGNATURE + b"\x21\x11\x00\x04abcd",
        # Addresses without their ports.
        SIGNATURE + b"\x21\x11\x00\x08" + bytes(8),
        SIGNATURE + b"\x21\x21\x00\x23" + bytes(35),
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_what_is_no_preface_is_refused(data: bytes) -> None:
    with pytest.raises(BadHeader):
        read_preface(data)


@given(st.binary(max_size=80), st.integers(0, 16))
def test_no_preface_crashes(data: bytes, start: int) -> None:
    for tried in (data, preface("203.0.113.9")[:start] + data):
        try:
            read_preface(tried)
        except BadHeader:
            continue


@given(st.one_of(st.from_regex(r"\A[0-9.]{0,18}\Z"), st.text(max_size=20), st.ip_addresses(v=4)))
def test_an_ipv4_address_is_read_as_ipaddress_reads_it(given: object) -> None:
    text = str(given).replace(":", "")
    bare = text.strip().strip('"')
    try:
        known: str | None = str(ipaddress.ip_address(bare))
    except ValueError:
        known = None
    if not bare.startswith("["):
        assert parse_address(text) == known
