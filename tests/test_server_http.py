"""The HTTP layer by itself: strict reading, answers in order, and an end to every wait."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import ensureDeferred
from twisted.logger import LogLevel, capturedLogs

from tests.http_bench import Answer, Bench
from tidegate.server.http.answers import header_block
from tidegate.server.http.connection import HttpConnection
from tidegate.server.http.limits import HttpLimits
from tidegate.server.http.request import Request

OK = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: h\r\n"


class Seen:
    """A handler that remembers requests and answers with what they asked."""

    def __init__(self, answer: bool = True) -> None:
        self.requests: list[Request] = []
        self.gone: list[Request] = []
        self.answer = answer

    def __call__(self, request: Request) -> None:
        self.requests.append(request)
        request.on_gone(lambda: self.gone.append(request))
        if self.answer:
            request.respond(200, [], request.target + b"|" + request.body)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def make(tmp_path: Path, seen: Seen) -> Callable[..., Bench]:
    return lambda **options: Bench(tmp_path, **{"handler": seen, **options})


HEADER = b"GET / HTTP/1.1\r\nHost: h\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED: list[tuple[str, bytes, int]] = [
    ("content-length and transfer-encoding", CHUNKED[:-2] + b"Content-Length: 3\r\n\r\nabc", 400),
    (
        "transfer-encoding after content-length",
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "two content-lengths",
        POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        400,
    ),
    ("content-length list", POST + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    ("content-length with sign", POST + b"Content-Length: +3\r\n\r\nabc", 400),
    ("content-length with minus", POST + b"Content-Length: -3\r\n\r\nabc", 400),
    ("content-length in hex", POST + b"Content-Length: 0x3\r\n\r\nabc", 400),
    ("content-length beyond 64 bits", POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", 400),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    ("the same host twice", b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400),
    ("no host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("empty host", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
    ("host with a blank", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    ("host with a slash", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    ("host with user", b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    ("host with bad port", b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", 400),
    ("host list", b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    ("bare line feed", b"GET / HTTP/1.1\nHost: h\n\n", 400),
    ("bare line feed in the header", b"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", 400),
    ("bare carriage return", HEADER + b"X: a\rb\r\n\r\n", 400),
    ("folded line", HEADER + b"X: a\r\n b\r\n\r\n", 400),
    ("folded first line", b"GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400),
    ("blank before the colon", b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400),
    ("no colon", HEADER + b"X\r\n\r\n", 400),
    ("empty name", HEADER + b": x\r\n\r\n", 400),
    ("NUL in a value", HEADER + b"X: a\x00b\r\n\r\n", 400),
    ("NUL in a name", HEADER + b"X\x00: a\r\n\r\n", 400),
    ("NUL in the target", b"GET /\x00 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("blank in the target", b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("target without a slash", b"GET x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("no version", b"GET /\r\n\r\n", 505),
    ("no version and no header", b"GET /x\r\n", 505),
    ("fragment", b"GET /x#top HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("fragment in absolute form", b"GET http://h/x#top HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("half an escape", b"GET /x%2 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("a lone percent sign", b"GET /x% HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("absolute form without host", b"GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("absolute form with bad host", b"GET http://a..b/x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("host with an empty label", b"GET / HTTP/1.1\r\nHost: a..b\r\n\r\n", 400),
    ("unknown coding", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    ("chunked twice", POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    ("identity", POST + b"Transfer-Encoding: identity\r\n\r\n", 501),
    ("chunked in 1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("chunk size overflow", CHUNKED + b"f" * 20 + b"\r\n", 400),
    ("chunk size in C", CHUNKED + b"0x1\r\na\r\n0\r\n\r\n", 400),
    ("chunk size with sign", CHUNKED + b"+1\r\na\r\n0\r\n\r\n", 400),
    ("chunk ended by line feed", CHUNKED + b"1\na\r\n0\r\n\r\n", 400),
    ("chunk longer than it says", CHUNKED + b"1\r\nab\r\n0\r\n\r\n", 400),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("HTTP/2.0", b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
    ("HTTP/1.2", b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505),
    ("HTTP/0.9 spelled out", b"GET / HTTP/0.9\r\nHost: h\r\n\r\n", 505),
    ("unknown method", b"BREW /pot HTTP/1.1\r\nHost: h\r\n\r\n", 501),
    ("method in small letters", b"get / HTTP/1.1\r\nHost: h\r\n\r\n", 501),
    ("TLS on a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ("long target", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
    ("very long target", b"GET /" + b"a" * 60000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
    ("long header", HEADER + b"X: " + b"a" * 40000 + b"\r\n\r\n", 431),
    ("many fields", HEADER + b"".join(b"X%d: a\r\n" % i for i in range(200)) + b"\r\n", 431),
    ("large body announced", POST + b"Content-Length: 70000\r\n\r\n", 413),
    ("large body in chunks", CHUNKED + b"11171\r\n" + b"a" * 70001 + b"\r\n", 413),
    ("unknown expectation", POST + b"Expect: magic\r\nContent-Length: 1\r\n\r\na", 417),
]


@pytest.mark.parametrize(
    ("raw", "status"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_request_that_breaks_a_rule_is_refused_in_words_and_ends_the_connection(
    make: Callable[..., Bench], seen: Seen, raw: bytes, status: int
) -> None:
    client = make().connect()
    answer = client.ask(raw)
    assert answer.status == status
    assert answer.text("content-type") == "application/problem+json"
    assert answer.text("connection") == "close"
    document = json.loads(answer.body)
    assert document["status"] == status
    assert document["detail"].endswith(".")
    assert answer.rest == b""
    assert seen.requests == []
    # Whatever follows is read and thrown away: the answer must not be lost to a reset.
    client.send(OK)
    assert client.taken() == b""


@pytest.mark.parametrize(("raw", "status"), [row[1:] for row in REFUSED])
def test_the_same_refusals_come_when_bytes_drip_in(
    make: Callable[..., Bench], raw: bytes, status: int
) -> None:
    client = make().connect()
    for position in range(min(len(raw), 700)):
        client.send(raw[position : position + 1])
    client.send(raw[700:])
    answer = Answer(client.taken())
    # Byte by byte the first rule broken may be another one; it is refused all the same.
    assert answer.status == status or answer.status in (400, 414, 431)


ACCEPTED: list[tuple[str, bytes, bytes]] = [
    ("plain", OK, b"/x|"),
    ("leading line ends", b"\r\n\r\n" + OK, b"/x|"),
    ("absolute form", b"GET http://h/x?q HTTP/1.1\r\nHost: h\r\n\r\n", b"/x?q|"),
    ("absolute form without path", b"GET http://h?q HTTP/1.1\r\nHost: h\r\n\r\n", b"/?q|"),
    ("raw high bytes", "GET /ü HTTP/1.1\r\nHost: h\r\n\r\n".encode(), b"/%C3%BC|"),
    ("absolute form with user", b"GET http://u:p@h/x HTTP/1.1\r\nHost: h\r\n\r\n", b"/x|"),
    ("a percent sign in the query", b"GET /x?a=5% HTTP/1.1\r\nHost: h\r\n\r\n", b"/x?a=5%|"),
    ("host of a later IP version", b"GET /x HTTP/1.1\r\nHost: [v7.a:b]\r\n\r\n", b"/x|"),
    ("IPv6 host", b"GET /x HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", b"/x|"),
    ("upgrade offered", OK[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", b"/x|"),
    ("body", POST + b"Content-Length: 3\r\n\r\nabc", b"/x|abc"),
    ("chunked body", CHUNKED + b"2;ext=1\r\nab\r\n1\r\nc\r\n0\r\nTrailer: x\r\n\r\n", b"/x|abc"),
    ("empty value", OK[:-2] + b"X:\r\n\r\n", b"/x|"),
    ("1.0 without host", b"GET /x HTTP/1.0\r\n\r\n", b"/x|"),
]


@pytest.mark.parametrize(
    ("raw", "body"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED]
)
def test_a_request_that_keeps_the_rules_is_served(
    make: Callable[..., Bench], raw: bytes, body: bytes
) -> None:
    client = make().connect()
    answer = client.ask(raw)
    assert (answer.status, answer.body, answer.rest) == (200, body, b"")


@pytest.mark.parametrize(
    ("target", "field", "counts"),
    [
        (b"http://real:81/x", b"forged", b"real:81"),
        (b"HTTPS://u@real", b"forged", b"real"),
        (b"/x", b"real", b"real"),
    ],
)
def test_the_host_of_an_absolute_target_counts(
    make: Callable[..., Bench], target: bytes, field: bytes, counts: bytes
) -> None:
    """A cache keeps the answer under the target: a Host beside it must not get into links."""
    seen: list[bytes | None] = []

    def answer(request: Request) -> None:
        seen.append(request.header(b"host"))
        request.respond(200, [], b"")

    client = make(handler=answer).connect()
    client.ask(b"GET " + target + b" HTTP/1.1\r\nHost: " + field + b"\r\n\r\n")
    assert seen == [counts]


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
@settings(max_examples=60)
def test_pipelined_requests_are_answered_in_order_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    stream = b"".join(
        [
            b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n",
            b"POST /2 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"4\r\n\r\n\r\n\r\n0\r\n\r\n",
            b"GET /3 HTTP/1.1\r\nHost: h\r\n\r\n",
            b"POST /4 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
            b"\r\nGET /5 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /never HTTP/1.1\r\nHost: h\r\n\r\n",
        ]
    )
    client = Bench(tmp_path_factory.mktemp("d"), handler=Seen()).connect()
    marks = [0, *sorted(cuts), len(stream)]
    for start, end in itertools.pairwise(marks):
        if start < end:
            client.send(stream[start:end])
    rest = client.taken()
    bodies = []
    while rest:
        answer = Answer(rest)
        bodies.append(answer.body)
        rest = answer.rest
    assert bodies == [b"/1|", b"/2|\r\n\r\n", b"/3|", b"/4|\r\n\r\n", b"/5|"]


def test_a_pipelining_peer_costs_bounded_bytes_and_no_parsed_requests(
    make: Callable[..., Bench], seen: Seen
) -> None:
    seen.answer = False
    client = make().connect()
    client.send(OK * 1000)
    assert len(seen.requests) == 1
    sent = len(OK) * 1000
    while client.read_from and sent < 1 << 20:
        client.send(OK * 1000)
        sent += len(OK) * 1000
    assert sent < 2 * 64 * 1024
    seen.answer = True
    seen.requests[0].respond(200)
    assert client.read_from
    assert len(seen.requests) > 2000


def test_an_answer_waits_for_its_turn(make: Callable[..., Bench], seen: Seen) -> None:
    seen.answer = False
    client = make().connect()
    client.send(OK + OK.replace(b"/x", b"/y"))
    assert [r.target for r in seen.requests] == [b"/x"]
    seen.requests[0].respond(200, [], b"one")
    assert [r.target for r in seen.requests] == [b"/x", b"/y"]
    seen.requests[1].respond(200, [], b"two")
    first = Answer(client.taken())
    assert (first.body, Answer(first.rest).body) == (b"one", b"two")


def test_http_1_0_closes_unless_asked_to_stay(make: Callable[..., Bench]) -> None:
    client = make().connect()
    answer = client.ask(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert answer.text("connection") == "keep-alive"
    assert not client.wire.disconnecting
    answer = client.ask(b"GET /x HTTP/1.0\r\n\r\n")
    assert answer.text("connection") == "close"
    assert client.wire.disconnecting


def test_a_body_that_is_expected_is_called_for_once(make: Callable[..., Bench]) -> None:
    client = make().connect()
    client.send(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert client.taken() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert client.ask(b"hi").body == b"/x|hi"


def test_head_gets_the_same_header_and_no_body(make: Callable[..., Bench]) -> None:
    client = make().connect()
    get = client.get("/x")
    head = client.get("/x", method="HEAD")
    assert head.fields == get.fields
    assert head.rest == b""


def test_a_header_that_drips_in_is_timed_out_from_its_first_byte(
    make: Callable[..., Bench],
) -> None:
    bench = make(limits=HttpLimits(header_timeout_s=10))
    client = bench.connect()
    bench.tick(5)
    for byte in OK[:9]:
        client.send(bytes((byte,)))
        bench.tick(1)
    assert client.taken() == b""
    client.send(OK[9:10])
    bench.tick(3)
    answer = Answer(client.taken())
    assert answer.status == 408
    assert answer.text("connection") == "close"


def test_a_body_that_drips_in_is_timed_out(make: Callable[..., Bench]) -> None:
    bench = make(limits=HttpLimits(body_timeout_s=10))
    client = bench.connect()
    client.send(POST + b"Content-Length: 100\r\n\r\n")
    for _ in range(12):
        client.send(b"a")
        bench.tick(1)
    assert Answer(client.taken()).status == 408


def test_an_idle_connection_is_closed_without_a_word(make: Callable[..., Bench]) -> None:
    bench = make(limits=HttpLimits(idle_timeout_s=10))
    client = bench.connect()
    client.ask(OK)
    bench.tick(8)
    client.send(b"\r\n\r\n")
    assert not client.wire.disconnecting
    bench.tick(4)
    assert client.taken() == b""
    assert client.wire.disconnecting


def test_a_request_that_waits_keeps_no_parser(make: Callable[..., Bench]) -> None:
    asked: list[Request] = []
    bench = make(handler=asked.append)
    client = bench.connect()
    client.send(OK)
    bench.tick(2)
    assert client.connection is not None
    assert client.connection._parser is None
    client.send(OK)
    for _ in range(2):
        asked.pop().respond(200, [], b"told")
        assert Answer(client.taken()).body == b"told"
    assert client.connection.idle


def test_a_connection_that_cannot_be_looked_at_keeps_no_other_open(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(limits=HttpLimits(idle_timeout_s=10))
    clients = [bench.connect() for _ in range(3)]
    broken, *others = bench.factory.connections
    real = type(broken).sweep

    def sweep(connection: HttpConnection, now: float) -> None:
        if connection is broken:
            raise RuntimeError("boom")
        real(connection, now)

    monkeypatch.setattr(type(broken), "sweep", sweep)
    with capturedLogs() as logged:
        for client in clients:
            client.ask(OK)
        bench.tick(30)
    assert [client.wire.disconnecting for client in clients].count(True) == len(others)
    assert any(event["log_level"] is LogLevel.critical for event in logged)


def test_a_silent_peer_is_cut_at_last(make: Callable[..., Bench]) -> None:
    bench = make(limits=HttpLimits(linger_timeout_s=5))
    client = bench.connect()
    client.ask(b"nonsense\r\n\r\n")
    bench.tick(7)
    assert client.wire.aborted


def test_too_many_connections_are_told_so(make: Callable[..., Bench], seen: Seen) -> None:
    bench = make(limits=HttpLimits(max_connections=3, max_connections_per_address=2))
    first, second = bench.connect(), bench.connect()
    answer = Answer(bench.connect().taken())
    assert answer.status == 503
    assert answer.text("retry-after") == "5"
    assert "address" in json.loads(answer.body)["detail"]
    bench.factory.limits = HttpLimits(max_connections=2)
    seen.answer = False
    for client in (first, second):
        client.send(OK)
    assert Answer(bench.connect("192.0.2.2").taken()).status == 503
    for request in seen.requests:
        request.respond(200, [], b"")
    assert Answer(first.taken()).status == Answer(second.taken()).status == 200
    seen.answer = True
    for client in (first, second):
        client.leave()
    assert bench.connect().ask(OK).status == 200


def test_when_all_connections_are_taken_idle_ones_of_the_greediest_go_first(
    make: Callable[..., Bench], seen: Seen
) -> None:
    bench = make(limits=HttpLimits(max_connections=4))
    small = bench.connect("203.0.113.1")
    greedy = [bench.connect(f"192.0.2.{number}") for number in (1, 2, 2)]
    assert bench.connect("198.51.100.1").ask(OK).status == 200
    assert [one.wire.closed for one in greedy].count(True) == 1
    assert not greedy[0].wire.closed
    assert small.ask(OK).status == 200


def test_of_a_crowd_that_comes_at_once_nobody_is_cut_who_is_about_to_ask(
    make: Callable[..., Bench], seen: Seen
) -> None:
    bench = make(limits=HttpLimits(max_connections=3))
    crowd = [bench.connect("192.0.2.1") for _ in range(3)]
    assert Answer(bench.connect("192.0.2.1").taken()).status == 503
    assert [client.ask(OK).status for client in crowd] == [200] * 3
    # Who has said nothing for longer makes room.
    for client in crowd:
        client.leave()
    silent = [bench.connect("192.0.2.1") for _ in range(3)]
    bench.tick(3)
    assert bench.connect("192.0.2.1").ask(OK).status == 200
    assert [one.wire.closed for one in silent].count(True) == 1


def test_a_whole_network_of_one_owner_counts_as_one_address_but_a_proxy_does_not(
    make: Callable[..., Bench], seen: Seen
) -> None:
    few = HttpLimits(max_connections_per_address=2)
    bench = make(limits=few, proxies=["192.0.2.0/24"])
    clients = [bench.connect(f"2001:db8::{number}") for number in (1, 2)]
    assert Answer(bench.connect("2001:db8::3").taken()).status == 503
    clients.append(bench.connect("2001:db8:0:1::3"))
    clients += [bench.connect("192.0.2.7") for _ in range(5)]
    assert [client.ask(OK).status for client in clients] == [200] * len(clients)


def test_the_peer_leaving_is_told_once_and_answers_become_harmless(
    make: Callable[..., Bench], seen: Seen
) -> None:
    seen.answer = False
    client = make().connect()
    client.send(OK)
    client.leave()
    assert seen.gone == seen.requests
    seen.requests[0].respond(200, [], b"late")
    seen.requests[0].begin(200, [], 3)
    seen.requests[0].write(b"abc")
    seen.requests[0].finish()
    seen.requests[0].drip(200, b"X", b"y")
    assert client.taken() == b""
    late: list[int] = []
    seen.requests[0].on_gone(lambda: late.append(1))


def test_a_half_closed_peer_still_gets_the_answer_that_has_begun(
    make: Callable[..., Bench], seen: Seen
) -> None:
    seen.answer = False
    client = make().connect()
    client.send(OK)
    seen.requests[0].begin(200, [], 4)
    client.close_sending()
    assert not client.wire.disconnecting
    seen.requests[0].write(b"done")
    seen.requests[0].finish()
    assert Answer(client.taken()).body == b"done"
    assert client.wire.disconnecting


def test_a_held_peer_that_closes_its_side_has_left(make: Callable[..., Bench], seen: Seen) -> None:
    seen.answer = False
    client = make().connect()
    client.send(OK)
    client.close_sending()
    assert seen.gone == seen.requests


def test_header_lines_can_drip_out_before_the_answer(
    make: Callable[..., Bench], seen: Seen
) -> None:
    seen.answer = False
    client = make().connect()
    client.send(OK)
    request = seen.requests[0]
    request.drip(200, b"X-Tidegate-Wait", b"1")
    first = client.taken()
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert first.endswith(b"X-Tidegate-Wait: 1\r\n")
    request.drip(200, b"X-Tidegate-Wait", b"2")
    assert client.taken() == b"X-Tidegate-Wait: 2\r\n"
    request.respond(200, [(b"Content-Type", b"text/plain")], b"hello")
    answer = Answer(first + client.taken())
    assert (answer.status, answer.body) == (200, b"hello")


def test_an_answer_that_contradicts_a_drip_is_cut_off(
    make: Callable[..., Bench], seen: Seen
) -> None:
    seen.answer = False
    client = make().connect()
    client.send(OK)
    seen.requests[0].drip(200, b"X", b"1")
    client.taken()
    seen.requests[0].respond(503, [], b"no")
    assert client.wire.aborted
    assert client.taken() == b""


def test_streamed_answers_are_chunked_for_1_1_and_closed_for_1_0(
    make: Callable[..., Bench], seen: Seen
) -> None:
    seen.answer = False
    client = make().connect()
    for raw in (OK, b"GET /x HTTP/1.0\r\n\r\n"):
        client.send(raw)
        request = seen.requests[-1]
        request.begin(200, [], None)
        request.write(b"abc")
        request.write(b"")
        request.finish()
    data = client.taken()
    assert b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP/1.1 200" in data
    assert data.endswith(b"Connection: close\r\n\r\nabc")
    assert client.wire.disconnecting


def test_a_handler_that_fails_is_a_500_and_the_server_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: Request) -> None:
        raise RuntimeError("boom")

    noted: list[str] = []
    monkeypatch.setattr(
        "tidegate.server.http.request._log.failure", lambda text, *a, **k: noted.append(text)
    )
    client = Bench(tmp_path, handler=fail).connect()
    answer = client.ask(OK)
    assert answer.status == 500
    assert b"boom" not in answer.body
    assert noted


def test_a_browser_gets_a_page_instead_of_json(tmp_path: Path) -> None:
    client = Bench(tmp_path, handler=lambda r: r.refuse(404, "x", "No <b>.")).connect()
    answer = client.get("/", {"Accept": "text/html,*/*"})
    assert answer.text("content-type") == "text/html; charset=utf-8"
    assert b"No &lt;b&gt;." in answer.body
    assert client.get("/", {"Accept": "*/*"}).text("content-type") == "application/problem+json"


@pytest.mark.parametrize("value", [b"a\r\nX: y", b"a\nb", b"a\rb", b"a\0b", b"\r\n"])
def test_no_field_can_smuggle_a_line_out(value: bytes) -> None:
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        header_block([(b"Location", value)])


def test_the_end_closes_idle_connections_and_cuts_those_in_the_midst_of_an_answer(
    make: Callable[..., Bench], seen: Seen
) -> None:
    seen.answer = False
    bench = make()
    idle, busy = bench.connect(), bench.connect()
    busy.send(OK)
    ensureDeferred(bench.factory.close(1.0))
    assert idle.wire.closed
    assert busy.wire.aborted
    assert not idle.wire.aborted


def test_while_the_server_drains_each_connection_is_told_with_its_answer_that_it_ends(
    make: Callable[..., Bench], seen: Seen
) -> None:
    bench = make()
    idle, other, busy = bench.connect(), bench.connect(), bench.connect()
    assert idle.ask(OK).text("Connection") is None
    seen.answer = False
    busy.send(OK)
    bench.factory.drain()
    seen.answer = True
    assert not idle.wire.disconnecting
    for client in (idle, other):
        assert client.ask(OK).text("Connection") == "close"
        assert client.wire.closed
    seen.requests[1].respond(200, [], b"last")
    answer = Answer(busy.taken())
    assert (answer.body, answer.text("Connection")) == (b"last", "close")
    assert busy.wire.closed


def test_a_sweep_of_many_goes_in_parts_and_reaches_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.server.http.factory._SWEPT_AT_ONCE", 3)
    bench = Bench(tmp_path, limits=HttpLimits(header_timeout_s=2))
    clients = [bench.connect() for _ in range(8)]
    for client in clients:
        client.send(b"GET / HTTP/1.1")
    bench.tick(2)
    for _ in range(8):
        bench.clock.advance(1.0)
        bench.clock.advance(0)
        bench.clock.advance(0)
    assert [Answer(client.taken()).status for client in clients] == [408] * 8
