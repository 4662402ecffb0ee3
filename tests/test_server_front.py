"""The fast path: it answers what the strict path would, byte for byte, and nothing that is over."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import select
import socket
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from tests.http_bench import OLD_S, Answer, Bench, Dialled, bound
from tests.open_files import AdmitAll
from tests.test_server_http import ACCEPTED, REFUSED
from tidegate.server.admission.denylist import BlockList
from tidegate.server.files.disk import Disk
from tidegate.server.files.openfile import OpenFile
from tidegate.server.files.transfer import Representation
from tidegate.server.http.front import tcp_socket
from tidegate.server.http.limits import HttpLimits
from tidegate.server.http.ready import CLOSES, STAYS, Ready, Subject
from tidegate.server.http.request import Request

BODY = bytes(range(256)) * 20
HOST = b"Host: h\r\n"


@pytest.fixture(autouse=True)
def _hang_up() -> Generator[None, None, None]:
    yield
    Dialled.hang_up()


def test_both_families_may_be_named_for_one_port() -> None:
    """As the Debian package does: the second place once kept the service from starting."""
    with tcp_socket("0.0.0.0") as four, tcp_socket("::") as six:
        four.bind(("0.0.0.0", 0))
        four.listen()
        six.bind(("::", four.getsockname()[1]))
        six.listen()


FILES = {
    "a.bin": BODY,
    "x": b"ex",
    "middle.bin": BODY * 10,
    "big.bin": BODY * 40,
    "empty": b"",
    "sub/x.txt": b"hello",
    "page.html": b"<p>hello",
}


def fill(bench: Bench) -> Bench:
    for name, data in FILES.items():
        bench.write(name, data)
    return learn(bench)


def learn(bench: Bench) -> Bench:
    """A digest that becomes known later makes another answer: have them all now."""
    for name in FILES:
        client = bench.connect()
        client.get("/" + name, {"Want-Repr-Digest": "sha-256=5"})
        client.leave()
    return bench


def request(target: str, method: str = "GET", *lines: str, version: str = "1.1") -> bytes:
    head = "".join(f"{line}\r\n" for line in lines)
    return f"{method} {target} HTTP/{version}\r\n".encode() + HOST + head.encode() + b"\r\n"


SITE = [
    request("/a.bin"),
    request("/a.bin", "HEAD"),
    request("/a.bin", "GET", "Connection: close"),
    request("/a.bin", "GET", "Range: bytes=10-99"),
    request("/a.bin", "GET", "Range: bytes=99999-"),
    request("/a.bin", "GET", "Range: bytes=0-0,9-20"),
    request("/a.bin", "GET", "Range: bytes=-7", "If-Range: x"),
    request("/a.bin", "GET", "Range: bytes=-7", "Tidegate-Pass: x"),
    request("/big.bin", "GET", "Range: bytes=70000-170000"),
    request("/big.bin", "GET", "Range: bytes=1-"),
    request("/a.bin", "HEAD", "Range: bytes=1-7"),
    request("/a.bin", "GET", "If-None-Match: *"),
    request("/a.bin", "GET", "If-Modified-Since: Fri, 01 Jan 2038 00:00:00 GMT"),
    request("/a.bin", "GET", 'If-Match: "other"'),
    request("/a.bin", "GET", "Want-Repr-Digest: sha-256=0"),
    request("/a.bin", "GET", "Tidegate-Ticket: x"),
    request("/a.bin", version="1.0"),
    request("/a.bin", "GET", "Connection: keep-alive", version="1.0"),
    request("/a.bin", "GET", "Expect: 100-continue"),
    request("/a.bin", "POST", "Content-Length: 0"),
    request("/a.bin", "DELETE"),
    request("/a.bin?query"),
    request("http://h/a.bin"),
    request("//a.bin"),
    request("/%61.bin"),
    request("/middle.bin"),
    request("/big.bin"),
    request("/big.bin", "HEAD"),
    request("/empty"),
    request("/nothing"),
    request("/nothing", "HEAD"),
    request("/nothing", "GET", "Accept: text/html"),
    request("/nothing/at/all"),
    request("/a.bin/"),
    request("/a.bin/x"),
    request("/.hidden"),
    request("/../a.bin"),
    request("/sub"),
    request("/sub/"),
    request("/SHA256SUMS"),
    request("/SHA256SUMS", "HEAD"),
    request("/a.bin.meta4"),
    request("/nothing.meta4"),
    request("/a.bin.manifest.json"),
    request("/-/static/tidegate.css"),
    request("/-/nothing"),
    request("*", "OPTIONS"),
    request("/a.bin", "OPTIONS"),
    request("/a.bin", "GET", "X: " + "y" * 3000),
]
CASES = [*SITE, *(row[1] for row in REFUSED), *(row[1] for row in ACCEPTED)]


@pytest.fixture
def benches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, Bench]:
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * size)
    # As on a machine that gives it no time: a batch of events a turn.
    monkeypatch.setattr("tidegate.server.http.front._STAY_S", 0.0)
    return fill(Bench(tmp_path)), learn(Bench(tmp_path, shortcuts=False))


def conversation(bench: Bench, sends: list[bytes], early: bool = False) -> list[tuple[bytes, bool]]:
    """What is said to each of these, and whether that was the end.

    `early`: the first is there when the connection is taken.
    """
    client = Dialled(bench, first=sends[0] if early else b"")
    said = [(client.taken(), client.closed)] if early else []
    for data in sends[early:]:
        client.send(data)
        said.append((client.taken(), client.closed))
    Dialled.hang_up()
    return said


@pytest.mark.parametrize("raw", CASES, ids=range(len(CASES)))
def test_every_case_is_answered_as_without_the_fast_path(
    benches: tuple[Bench, Bench], raw: bytes
) -> None:
    ways = [[raw, raw, raw], [raw + raw, raw], [raw * 3]]
    # Cut at every third place, another third in the next case.
    first = 1 + CASES.index(raw) % 3
    ways += [[raw, raw[:cut], raw[cut:], raw] for cut in range(first, min(len(raw), 300), 3)]
    for sends in ways:
        assert conversation(benches[0], sends) == conversation(benches[1], sends), sends
    last = raw.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    for sends in ([raw, raw], [last], [last, raw], [last], [last + raw], [raw[:20], raw[20:]]):
        one, other = (conversation(bench, sends, early=True) for bench in benches)
        assert one == other, sends
    assert benches[0].factory.accepted_total == benches[1].factory.accepted_total
    assert not benches[0].factory.connections
    assert not benches[0].factory.per_address.open


@given(
    which=st.integers(0, len(SITE) - 1),
    position=st.integers(0, 200),
    byte=st.binary(min_size=0, max_size=2),
    cut=st.integers(0, 200),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_broken_requests_are_answered_as_without_the_fast_path(
    benches: tuple[Bench, Bench], which: int, position: int, byte: bytes, cut: int
) -> None:
    raw = SITE[which]
    broken = raw[:position] + byte + raw[position + 1 :]
    sends = [raw, broken, broken[:cut], broken[cut:], raw]
    sends = [data for data in sends if data]
    assert conversation(benches[0], sends) == conversation(benches[1], sends)


class Counting(AdmitAll):
    """Admits while it is open, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.open = self.plain = True
        self.counted: dict[str, int] = {}
        self.small = self.again = 0
        self.downloading = b"nobody"

    def admit_small(self, request: Request, rep: Representation, body_bytes: int) -> bool:
        self.small += 1
        return self.open and self.plain

    def is_plain(self, url_path: str) -> bool:
        return self.plain

    def admit_again(self, rep: Representation, body_bytes: int) -> bool:
        self.again += self.open
        return self.open

    def has_lease(self, rep: Representation, address: str, agent: bytes | None) -> bool:
        return agent == self.downloading

    def count_again(self, rep: Representation, body_bytes: int, times: int) -> None:
        self.counted[rep.url_path] = self.counted.get(rep.url_path, 0) + times


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def bench(tmp_path: Path, counting: Counting) -> Bench:
    return fill(Bench(tmp_path, admission=counting))


def warm(client: Dialled, target: str = "/a.bin") -> bytes:
    """An answer by the fast path, or so the caller has to prove."""
    client.get(target)
    client.get(target)
    return client.get(target)


def test_repetitions_are_admitted_each_and_counted(bench: Bench, counting: Counting) -> None:
    client = Dialled(bench)
    warm(client)
    asked = counting.small
    for _ in range(50):
        assert Answer(client.get("/a.bin")).body == BODY
    assert counting.small == asked, "the strict path was not entered"
    assert counting.again >= 50
    bench.tick(2)
    assert counting.counted["/a.bin"] == counting.again


def test_no_turn_reports_the_uses_of_more_files_than_came_in_one(
    bench: Bench, counting: Counting
) -> None:
    client, names = Dialled(bench), [f"/{number}.txt" for number in range(40)]
    for name in names:
        bench.write(name[1:], b"text")
        warm(client, name)
    bench.tick(2)
    told = counting.counted.copy()
    at_once = []
    for turn in range(200):
        for _ in range(3):
            client.get(names[turn % 40])
        bench.clock.advance(0.02)
        before, told = told, counting.counted.copy()
        at_once.append(sum(told[name] != before[name] for name in names))
    assert max(at_once) == 1
    bench.tick(2)
    assert sum(counting.counted[name] for name in names) == 40 * 3 + 600


def test_a_file_that_was_just_replaced_is_not_repeated_though_its_times_were_kept(
    tmp_path: Path, counting: Counting
) -> None:
    """`cp -p` keeps the modification time. A second write in the same clock tick shows nowhere."""
    changed_s = fill(Bench(tmp_path)).root.joinpath("a.bin").stat().st_ctime
    now = [changed_s + 0.05]
    bench = fill(Bench(tmp_path, admission=counting, wall=lambda: now[0]))
    now[0] = bench.root.joinpath("a.bin").stat().st_ctime + 0.05
    client = Dialled(bench)
    warm(client)
    asked = counting.small
    client.get("/a.bin")
    assert counting.small == asked + 1, "a strict walk"
    now[0] += 1.0
    warm(client)
    asked = counting.small
    client.get("/a.bin")
    assert counting.small == asked, "settled"


def test_bytes_are_charged_by_the_turn(tmp_path: Path) -> None:
    charged: list[int] = []
    bench = fill(Bench(tmp_path, charge=charged.append))
    client = Dialled(bench)
    whole = len(warm(client))
    bench.tick(1)
    charged.clear()
    for _ in range(30):
        client.get("/a.bin")
    bench.tick(1)
    assert sum(charged) == pytest.approx(30 * whole, rel=0.05)


def _hide(bench: Bench, counting: Counting) -> None:
    """As a rule does: the admission knows it, too."""
    bench.visible.hides = lambda path: True
    counting.plain = False


OVER: list[tuple[str, Callable[[Bench, Counting], object]]] = [
    ("replaced", lambda bench, _: bench.write("a.bin", b"new bytes", OLD_S + 5)),
    ("removed", lambda bench, _: os.unlink(bench.root / "a.bin")),
    ("hidden", lambda bench, counting: _hide(bench, counting)),
    ("ruled", lambda bench, counting: setattr(counting, "plain", False)),
    ("full", lambda bench, counting: setattr(counting, "open", False)),
    ("described otherwise", lambda bench, _: bench.site.forget_all()),
]


@pytest.mark.parametrize("change", [row[1] for row in OVER], ids=[row[0] for row in OVER])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_answer_that_is_over_is_not_given_again(
    bench: Bench, counting: Counting, change: Callable[[Bench, Counting], object], method: str
) -> None:
    client = Dialled(bench)
    for _ in range(3):
        client.get("/a.bin", method)
    change(bench, counting)
    strict = fill_nothing(bench, counting)
    said = client.get("/a.bin", method)
    assert said == conversation(strict, [request("/a.bin", method)])[0][0]


def fill_nothing(bench: Bench, counting: Counting) -> Bench:
    """A server without the fast path over the same directory, in the same state."""
    strict = Bench(bench.root, shortcuts=False, admission=counting)
    strict.clock.advance(bench.clock.seconds() - strict.clock.seconds())
    strict.visible.hides = bench.visible.hides
    for key, digests in bench.catalog._known.items():
        strict.catalog._known[key] = digests
    return strict


def test_a_hot_answer_is_over_when_its_file_changes(bench: Bench) -> None:
    client = Dialled(bench)
    for _ in range(40):
        client.get("/a.bin")
    bench.write("a.bin", b"new bytes", OLD_S + 5)
    assert Answer(client.get("/a.bin")).body == b"new bytes"


def test_what_was_missing_is_found_once_it_is_there(bench: Bench) -> None:
    client = Dialled(bench)
    for _ in range(3):
        assert Answer(client.get("/soon")).status == 404
    bench.write("soon", b"now")
    assert Answer(client.get("/soon")).body == b"now"
    assert Answer(client.get("/soon.meta4")).status != 404


def test_a_digest_that_became_known_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write("late.bin", BODY * 10)
    client = Dialled(bench)
    ask, bench.catalog.ask = bench.catalog.ask, lambda file, hits=1: None  # type: ignore[method-assign]
    said = [Answer(client.get("/late.bin")).text("repr-digest") for _ in range(3)]
    assert said == [None] * 3
    bench.catalog.ask = ask  # type: ignore[method-assign]
    client.get("/late.bin", X_Unknown="x")
    assert Answer(client.get("/late.bin")).text("repr-digest") is not None


def test_draining_leaves_nothing_to_the_fast_path(bench: Bench) -> None:
    client = Dialled(bench)
    warm(client)
    bench.factory.drain()
    assert client.taken() == b""
    for one in (client, Dialled(bench)):
        assert not one.closed
        assert Answer(one.get("/a.bin")).text("Connection") == "close"
        assert one.closed


def test_who_is_blocked_goes_the_strict_way_and_all_others_do_not(
    tmp_path: Path, counting: Counting
) -> None:
    blocked = BlockList(lambda: 0.0)
    bench = fill(Bench(tmp_path, admission=counting, denylist=blocked))
    one, other = Dialled(bench, "192.0.2.1"), Dialled(bench, "192.0.2.2")
    warm(one)
    blocked.add("192.0.2.1")
    for client in (one, Dialled(bench, "192.0.2.1")):
        asked = counting.small
        for _ in range(3):
            client.get("/a.bin")
        assert counting.small == asked + 3
    warm(other)
    asked = counting.small
    other.get("/a.bin")
    assert counting.small == asked


def test_a_part_is_judged_by_the_parser_where_its_client_downloads_the_file(
    bench: Bench, counting: Counting
) -> None:
    client = Dialled(bench)
    fields = {"Range": "bytes=100-4195"}
    Answer(client.get("/big.bin", **fields))
    counting.downloading = b"curl/8"
    for agent, judged in (("wget/1 ", 0), ("curl/8", 1), ("curl/8 ", 1)):
        asked = counting.small
        answer = Answer(client.get("/big.bin", **{**fields, "User-Agent": agent}))
        assert (answer.status, answer.body) == (206, (BODY * 40)[100:4196])
        assert counting.small - asked == judged


def test_parts_and_files_beyond_the_cache_are_repeated_from_the_disk(
    bench: Bench, counting: Counting
) -> None:
    bench.site._files.forget_all()
    bench.site._files.most_bytes = 12_500
    client = Dialled(bench)
    fields = {"Range": "bytes=100-4195"}
    assert Answer(client.get("/big.bin", **fields)).body == (BODY * 40)[100:4196]
    warm(client)
    warm(client, "/x")
    warm(client, "/sub/x.txt")
    bench.tick(1)
    assert bench.site._files.get(b"/a.bin").whole.body is None  # type: ignore[union-attr]
    asked = counting.small
    for _ in range(40):
        answer = Answer(client.get("/big.bin", **fields))
        assert (answer.status, answer.body) == (206, (BODY * 40)[100:4196])
        assert Answer(client.get("/a.bin")).body == BODY
    assert counting.small == asked, "the strict path was not entered"
    bench.tick(1)
    assert bench.site._files.get(b"/a.bin").whole.body is None  # type: ignore[union-attr]
    bench.write("big.bin", b"new" * 100_000, OLD_S + 5)
    bench.write("a.bin", b"new", OLD_S + 5)
    assert Answer(client.get("/big.bin", **fields)).body == (b"new" * 2000)[100:4196]
    assert Answer(client.get("/a.bin")).body == b"new"


def test_who_proves_something_is_judged_each_time(bench: Bench, counting: Counting) -> None:
    client = Dialled(bench)
    client.get("/a.bin")
    for fields in (
        {"Cookie": "tidegate-ticket=x"},
        {"Tidegate_Ticket": "x"},
        {"Tidegate_Pass": "x"},
    ):
        asked = counting.small
        for _ in range(3):
            client.get("/a.bin", **fields)
        assert counting.small == asked + 3
    asked = counting.small
    client.get("/a.bin?tidegate-pass=x")
    client.get("/a.bin?tidegate-pass=x")
    assert counting.small >= asked


def test_peers_behind_a_trusted_proxy_share_nothing_with_others(tmp_path: Path) -> None:
    bench = fill(Bench(tmp_path, proxies=["10.0.0.0/8"]))
    fields = {"X_Forwarded_Proto": "https"}
    proxied, plain = Dialled(bench, "10.0.0.1"), Dialled(bench, "192.0.2.1")
    for _ in range(3):
        assert b"https://h/" in Answer(proxied.get("/index.meta4", **fields)).body
        assert b"https://h/" not in Answer(plain.get("/index.meta4", **fields)).body


def test_a_slow_reader_gets_the_rest_of_a_repeated_answer_when_it_reads(bench: Bench) -> None:
    client = Dialled(bench, send_buffer=4096)
    first = client.get("/middle.bin")
    assert Answer(first).body == BODY * 10
    client.send(request("/middle.bin"))
    client.send(request("/middle.bin"))
    client.send(request("/a.bin"))
    data = client.taken()
    answers = [Answer(data)]
    while answers[-1].rest:
        answers.append(Answer(answers[-1].rest))
    assert [one.body for one in answers] == [BODY * 10, BODY * 10, BODY]


def test_one_who_takes_nothing_of_a_repeated_answer_is_cut(tmp_path: Path) -> None:
    limits = HttpLimits(min_rate_window_s=5, min_rate_bytes_s=1_000_000)
    bench = fill(Bench(tmp_path, limits=limits))
    client = Dialled(bench, send_buffer=4096)
    client.get("/middle.bin")
    client.send(request("/middle.bin"))
    bench.tick(8)
    client.taken()
    assert client.closed
    assert not bench.factory.connections


def test_an_idle_connection_is_closed_in_time_also_after_repeated_answers(tmp_path: Path) -> None:
    bench = fill(Bench(tmp_path, limits=HttpLimits(idle_timeout_s=10)))
    client = Dialled(bench)
    warm(client)
    bench.tick(8)
    assert client.get("/a.bin")
    bench.tick(8)
    assert Answer(client.get("/a.bin")).status == 200
    bench.tick(12)
    assert client.taken() == b""
    assert client.closed
    assert not bench.factory.per_address.open


def test_a_ready_answer_ends_what_it_was_asked_for_with_close(bench: Bench) -> None:
    last = request("/a.bin", "GET", "Connection: close")
    for number in range(5):
        # The last of them never are connections of the loop.
        client = Dialled(bench, first=last if number > 2 else b"")
        if number <= 2:
            client.send(last)
        answer = Answer(client.taken())
        assert (answer.body, answer.text("connection")) == (BODY, "close")
        assert client.closed
    assert not bench.factory.connections


def test_a_connection_of_one_known_request_ends_when_its_reader_has_all(bench: Bench) -> None:
    last = request("/middle.bin", "GET", "Connection: close")
    for _ in range(3):
        client = Dialled(bench, send_buffer=4096, first=last)
        assert Answer(client.taken()).body == BODY * 10
        assert client.closed
    gone = Dialled(bench, send_buffer=4096, first=last)
    gone.sock.close()
    gone.turn()
    assert not bench.factory.connections


@pytest.mark.parametrize("lines", [[], ["Connection: close"]])
def test_what_has_not_arrived_of_whole_answers_is_known(bench: Bench, lines: list[str]) -> None:
    name = "middle.bin"
    answers = bench.factory.answers
    asked = request(f"/{name}", "GET", *lines)
    for number in range(6):
        answers.wanted = number > 0
        client = Dialled(bench, send_buffer=4096, first=asked)
        flying = answers.flying_bytes(0.0, wanted=True)
        assert (flying >= len(FILES[name])) == (number > 0)
        assert Answer(client.taken()).body == FILES[name]
        assert answers.flying_bytes(0.0, wanted=True) == 0
    assert Answer(Dialled(bench, first=request("/a.bin")).taken()).body == BODY
    assert answers.flying_bytes(0.0, wanted=True) == 0


@pytest.mark.parametrize("name", ["middle.bin", "big.bin"])
def test_what_has_not_arrived_is_known_though_the_connection_is_over(
    bench: Bench, name: str
) -> None:
    """Counted as arrived, each end made a slow line look wider, so its cap stood above it."""
    answers = bench.factory.answers
    asked = request(f"/{name}", "GET", "Connection: close")
    for wanted in (False, True, True):
        answers.wanted = wanted
        client = Dialled(bench, send_buffer=1 << 20, first=asked)
        client.turn()
        assert not bench.factory.connections, "for everybody else it is closed"
        flying = answers.flying_bytes(0.0, wanted=wanted)
        assert (flying >= len(FILES[name])) == wanted
        assert Answer(client.taken()).body == FILES[name]
        assert client.closed, "its peer hears of the end with the last byte"
        assert answers.flying_bytes(1.0, wanted=True) == 0


def test_what_does_not_arrive_of_a_connection_that_is_over_is_let_go(bench: Bench) -> None:
    answers = bench.factory.answers
    asked = request("/middle.bin", "GET", "Connection: close")
    for still_wanted in (True, False):
        answers.wanted = True
        clients = [Dialled(bench, send_buffer=1 << 20, first=asked) for _ in range(502)]
        open_files = len(os.listdir("/proc/self/fd"))
        least = 500 * len(FILES["middle.bin"])
        assert answers.flying_bytes(0.0, wanted=True) >= least
        assert answers.flying_bytes(21.0 if still_wanted else 1.0, wanted=still_wanted) >= least
        assert len(os.listdir("/proc/self/fd")) == open_files - 500, "at most so many are kept"
        assert answers.flying_bytes(22.0, wanted=True) == 0
        assert Answer(clients[0].taken()).body == FILES["middle.bin"], "the system still sends it"
        Dialled.hang_up()


def test_too_many_connections_are_refused_in_words_then_without(tmp_path: Path) -> None:
    limits = HttpLimits(max_connections_per_address=1, max_refusals=1)
    bench = fill(Bench(tmp_path, limits=limits))
    first, second = Dialled(bench), Dialled(bench)
    assert Answer(second.taken()).status == 503
    third = Dialled(bench)
    assert third.taken() == b""
    assert third.closed
    assert Answer(first.get("/a.bin")).status == 200
    last = request("/a.bin", "GET", "Connection: close")
    first.send(last)
    assert Answer(first.taken()).status == 200
    second.sock.close()
    second.turn()
    keeps = Dialled(bench)
    assert Answer(Dialled(bench, first=last).taken()).status == 503, "known, but one too many"
    assert Answer(keeps.get("/a.bin")).status == 200


def test_a_connection_that_fails_does_not_take_others_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(
        "tidegate.server.http.front._log.failure", lambda text, *a, **k: noted.append(text)
    )
    client, other = Dialled(bench), Dialled(bench)
    broken = next(iter(bench.factory.connections))
    monkeypatch.setattr(type(broken), "received", _boom)
    client.send(request("/x"))
    monkeypatch.undo()
    assert Answer(other.get("/a.bin")).status == 200


def _boom(self: object, data: bytes) -> None:
    raise RuntimeError("boom")


def test_an_answer_keeps_its_date_of_the_second(tmp_path: Path) -> None:
    bench = fill(Bench(tmp_path))
    client = Dialled(bench)
    first = Answer(warm(client)).text("date")
    bench.tick(2)
    assert Answer(client.get("/a.bin")).text("date") != first


def test_a_connection_that_says_nothing_is_the_kernels_for_a_moment(bench: Bench) -> None:
    bench.clock.addReader = lambda reader: None  # type: ignore[attr-defined]
    port = bench.front.listen_on(bound("127.0.0.1"))
    with (
        socket.create_connection(("127.0.0.1", port.number)) as silent,
        socket.create_connection(("127.0.0.1", port.number)) as speaks,
    ):
        speaks.sendall(b"G")
        bench.front.doRead()
        (connection,) = bench.factory.connections
        assert connection.socket.getpeername() == speaks.getsockname()  # type: ignore[attr-defined]
        assert select.select([port.socket], [], [], 20)[0], "then it is ours, with all our bounds"
        bench.front.doRead()
        assert {one.socket.getpeername() for one in bench.factory.connections} == {  # type: ignore[attr-defined]
            silent.getsockname(),
            speaks.getsockname(),
        }
    bench.front.doRead()
    assert not bench.factory.connections
    port.stopListening()


def test_a_listening_socket_waits_when_no_descriptor_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.clock.addReader = lambda reader: None  # type: ignore[attr-defined]
    port = bench.front.listen_on(bound("127.0.0.1"))
    noted: list[str] = []
    monkeypatch.setattr(
        "tidegate.server.http.front._log.warn", lambda text, **k: noted.append(text)
    )
    with socket.create_connection(("127.0.0.1", port.number)) as client:
        # One that says nothing is the kernel's for a second (`TCP_DEFER_ACCEPT`).
        client.sendall(b"G")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            for _ in range(10):
                bench.front.doRead()
                bench.clock.advance(1)
            assert len(noted) == 1
            bench.clock.advance(60)
            bench.front.doRead()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(noted) == 2
        assert not bench.factory.connections
        bench.clock.advance(1)
        bench.front.doRead()
        (connection,) = bench.factory.connections
    bench.front.doRead()
    assert not connection.alive
    port.stopListening()


@pytest.mark.parametrize("window_s", [60.0, 600.0])
def test_a_connection_whose_peer_is_gone_is_ended_by_the_kernel(
    tmp_path: Path, window_s: float
) -> None:
    bench = Bench(tmp_path)
    bench.clock.addReader = lambda reader: None  # type: ignore[attr-defined]
    port = bench.front.listen_on(bound("127.0.0.1"))
    bench.factory.limits = HttpLimits(min_rate_window_s=window_s)
    bench.front.bound_silence()
    with socket.create_connection(("127.0.0.1", port.number)) as client:
        client.sendall(b"G")
        bench.front.doRead()
        (connection,) = bench.factory.connections
        ours: socket.socket = connection.socket  # type: ignore[attr-defined]
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        # It would be wrong to end a reader that stands still before the limit of rates does.
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * window_s
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 60
        with contextlib.suppress(OSError):  # a kernel before Linux 6.15
            assert ours.getsockopt(socket.IPPROTO_TCP, 44) < 10_000
    bench.front.doRead()
    port.stopListening()


def test_who_looks_whether_the_port_is_open_leaves_nothing_behind(bench: Bench) -> None:
    """A balancer connects and goes, with a reset or without one; others send and shut down."""
    bench.clock.addReader = lambda reader: None  # type: ignore[attr-defined]
    port = bench.front.listen_on(bound("127.0.0.1"))
    place = ("127.0.0.1", port.number)
    with capturedLogs() as logged:
        for linger in (b"", struct.pack("ii", 1, 0)) * 10:
            with socket.create_connection(place) as client:
                if linger:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            bench.front.doRead()
        with socket.create_connection(place, timeout=5.0) as client:
            client.sendall(request("/a.bin", "GET"))
            client.shutdown(socket.SHUT_WR)
            bench.front.doRead()
            assert Answer(client.recv(1 << 16)).body == BODY
            bench.front.doRead()
    assert not logged
    assert not bench.factory.connections
    port.stopListening()


def test_a_hot_answer_has_the_fields_of_the_connection_that_asks(tmp_path: Path) -> None:
    """One answer is given to plain and to encrypted connections, whose fields differ."""
    turns = Bench(tmp_path).factory.turns
    ready = Ready(200, b"Content-Length: 2\r\n", b"ok", Subject())
    for _ in range(40):
        for line in (b"Date: d\r\n", b"Date: d\r\nStrict-Transport-Security: x\r\n"):
            for ending in (STAYS, CLOSES):
                parts = ready.again(turns, line, ending)
                assert parts is not None
                assert line + b"Content-Length" in parts[0]
                assert (b"close" in parts[0]) == (ending is CLOSES)


def test_books_are_closed_each_second_and_at_the_end(tmp_path: Path) -> None:
    class Counted(Subject):
        __slots__ = ("times",)

        def used(self, times: int) -> None:
            self.times = times + getattr(self, "times", 0)

    sent: list[int] = []
    bench = Bench(tmp_path, charge=sent.append)
    subject = Counted()
    ready = Ready(200, b"", b"ok", subject)
    turns = bench.factory.turns
    for _ in range(100):
        ready.again(turns, b"", STAYS)
        turns.count(98)
        bench.clock.advance(0.021)
    assert subject.times >= 50
    assert sum(sent) == 100 * 98
    ready.again(turns, b"", STAYS)
    bench.factory.drain()
    assert subject.times == 101


@pytest.mark.parametrize(
    "lines", [[], ["Connection: close"], ["Range: bytes=1-9", "X: 1"], ["If-None-Match: *", "X: 2"]]
)
def test_a_connection_leaves_nothing_to_the_garbage_collector(
    tmp_path: Path, lines: list[str]
) -> None:
    bench = fill(Bench(tmp_path, shortcuts=False))

    def one() -> None:
        client = Dialled(bench)
        client.send(request("/big.bin", "GET", *lines))
        assert client.taken()
        Dialled.hang_up()
        bench.clock.advance(0.1)

    one()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            one()
        assert gc.collect() < 20
    finally:
        gc.enable()


class HeldDisk(Disk):
    """Reads nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked: list[tuple[int, int]] = []
        self._waiting: list[Deferred[None]] = []

    def fetch(self, file: OpenFile, start: int, stop: int) -> Deferred[None]:
        self.asked.append((start, stop))
        self._waiting.append(Deferred())
        return self._waiting[-1]

    def let_go(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)


def test_a_slow_disk_stops_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = HeldDisk()
    bench = fill(Bench(tmp_path, disk=disk))
    bench.write("cold.bin", BODY * 900)
    cold = (tmp_path / "cold.bin").stat().st_ino, (tmp_path / "big.bin").stat().st_ino
    monkeypatch.setattr(
        OpenFile, "at_hand", lambda file, start, stop: file.rep.key.inode not in cold
    )
    for reader in ("tidegate.server.files.tree", "tidegate.server.files.openfile"):
        monkeypatch.setattr(
            f"{reader}.read_at_hand",
            lambda fd, start, stop: (
                None if os.fstat(fd).st_ino in cold else os.pread(fd, stop - start, start)
            ),
        )
    slow, brief, other = Dialled(bench), Dialled(bench), Dialled(bench)
    head, _, body = slow.get("/cold.bin").partition(b"\r\n\r\n")
    fields = {"Range": "bytes=100-4195"}
    brief.send(request("/big.bin", "GET", "Range: bytes=100-4195"))
    assert Answer(other.get("/a.bin")).body == BODY, "served while two wait for the disk"
    assert len(disk.asked) == 2
    said = b""
    for _ in range(20):
        disk.let_go()
        body += slow.taken()
        said += brief.taken()
    assert (head[:15], body) == (b"HTTP/1.1 200 OK", BODY * 900)
    assert len(disk.asked) >= 5, "it reads ahead, not to the end"
    assert Answer(said).body == (BODY * 40)[100:4196]
    monkeypatch.undo()
    assert Answer(brief.get("/big.bin", **fields)).body == (BODY * 40)[100:4196]


def test_the_first_touch_of_a_small_file_reads_it_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its digest and for its body."""
    reads: list[int] = []
    real = os.preadv

    def read(fd: int, into: list[memoryview], start: int, flags: int = 0) -> int:
        reads.append(start)
        return real(fd, into, start, flags)

    bench.write("new.bin", BODY)
    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.delattr(os, "pread")
    answer = Answer(Dialled(bench).get("/new.bin"))
    assert (answer.body, reads) == (BODY, [0])
    assert answer.text("Repr-Digest")


def test_a_client_that_leaves_while_the_disk_is_slow_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldDisk()
    bench = fill(Bench(tmp_path, disk=disk))
    monkeypatch.setattr(OpenFile, "at_hand", lambda file, start, stop: False)
    bench.write("cold.bin", BODY * 900)
    client = Dialled(bench)
    client.get("/cold.bin")
    assert disk.asked
    client.sock.close()
    client.turn()
    disk.let_go()
    assert not bench.factory.connections


def test_what_was_just_written_is_at_hand(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write("a.bin", BODY * 100)
    file = bench.tree.open([b"a.bin"])
    assert file.at_hand(0, len(BODY) * 100)
    assert file.at_hand(len(BODY) * 200, len(BODY) * 300), "beyond its end there is no wait"


def test_a_burst_keeps_the_reactor_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand large downloads that began together were begun in turns of 0.2 s."""
    bench = Bench(tmp_path)
    bench.clock.addReader = lambda reader: None  # type: ignore[attr-defined]
    at = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    at.bind(str(tmp_path / "at"))
    port = bench.front.listen_on(at)
    # Whatever is done takes a second.
    slow = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr("tidegate.server.http.front.time", slow)
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(100)]
    answered = select.poll()
    for client in clients:
        client.connect(str(tmp_path / "at"))
        client.sendall(request("/none"))
        answered.register(client, select.POLLIN)
    many = []
    for _ in range(15):
        bench.front.doRead()
        many.append(len(answered.poll(0)))
    assert many == [*range(0, 100, 8), 100, 100]
    for client in clients:
        client.close()
    for _ in range(15):
        bench.front.doRead()
    assert not bench.factory.connections
    bench.front.close_port(port)
    at.close()


def test_a_port_is_emptied_before_all_that_came_to_it_is_answered(tmp_path: Path) -> None:
    """A unix socket whose queue is full takes nobody: a proxy sent files without their queue."""
    bench = Bench(tmp_path, shortcuts=False)
    bench.clock.addReader = lambda reader: None  # type: ignore[attr-defined]
    at = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    at.bind(str(tmp_path / "at"))
    port = bench.front.listen_on(at)
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(12)]
    for client in clients:
        client.connect(str(tmp_path / "at"))
        client.sendall(request("/none"))
    bench.front.doRead()
    waiting = select.poll()
    waiting.register(at, select.POLLIN)
    assert not waiting.poll(0)
    answered = select.poll()
    for client in clients:
        answered.register(client, select.POLLIN)
    assert len(answered.poll(0)) == 1
    for _ in range(40):
        bench.front.doRead()
        bench.clock.advance(0)
    assert len(answered.poll(0)) == 12
    for client in clients:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404 ")
        client.close()
    for _ in range(40):
        bench.front.doRead()
    assert not bench.factory.connections
    bench.front.close_port(port)
    at.close()
