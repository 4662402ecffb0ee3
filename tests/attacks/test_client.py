"""`tidegate get` at the mercy of a malicious origin or mirror."""

from __future__ import annotations

import contextlib
import tracemalloc
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.client.cli import folder
from tidegate.client.cli.folder import read_listing
from tidegate.client.fetch.options import Options
from tidegate.client.net.answers import Fields, read
from tidegate.client.net.errors import UsageProblem
from tidegate.client.net.http import Connection
from tidegate.client.net.network import Cancellable, Endpoint, Receiver
from tidegate.client.net.request_builder import RequestBuilder
from tidegate.client.net.retry import Failed, Refused, RetryAfter
from tidegate.client.net.urls import BadUrl, disposition_name, parse
from tidegate.protocol.errors import BadManifest
from tidegate.protocol.manifest import decode_metalink
from tidegate.server.files.paths import split_path

DEVICES = {
    "CON",
    "PRN",
    "AUX",
    "NUL",
    *(f"{port}{n}" for port in ("COM", "LPT") for n in range(10)),
}
PROBLEM = Fields([("Content-Type", "application/problem+json"), ("Retry-After", "5")])


@pytest.mark.parametrize("opening", [b"[", b'{"a":'], ids=["arrays", "objects"])
@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_problem_document_that_nests_without_end_is_none(status: int, opening: bytes) -> None:
    """A thousand brackets used to end the download with a traceback."""
    meaning = read(status, PROBLEM, opening * 60_000)
    assert isinstance(meaning, RetryAfter | Failed | Refused)


@pytest.mark.parametrize("odd", [b"[" * 60_000, b"<![of[ no kind ]]> <a href=b>"])
def test_a_listing_that_no_parser_bears_has_the_links_before(odd: bytes) -> None:
    """Both used to end `get -r` with a traceback."""
    base = parse("http://a.example/x/")
    assert read_listing(odd, base) == ({}, [])
    assert read_listing(b"<a href=a>" + odd, base) == ({base.join("a"): ""}, [])


def test_links_that_sort_a_listing_are_no_files() -> None:
    """Apache has them in each listing; another copy of each file would be fetched."""
    base = parse("http://a.example/x/")
    page = b"<a href='?C=N;O=D'>Name</a><a href='a.iso?view'>look</a><a href=a.iso>a.iso</a>"
    assert read_listing(page, base) == ({base.join("a.iso"): ""}, [])


def test_a_folder_that_contains_itself_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(url: str, options: Options, limit_bytes: int) -> bytes:
        asked.append(url)
        assert len(asked) < 100
        return b"<a href=again/>again</a><a href=a.iso>a.iso</a>"

    monkeypatch.setattr(folder, "fetch_bytes", answer)
    found = folder.walk(parse("http://a.example/x/"), Options())
    assert len(found) == len(asked) == folder.TUNING.most_levels + 1


def test_a_folder_whose_folders_never_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more folders in each of them kept `get -r` asking for 2**32 listings."""
    asked: list[str] = []

    def fetch(url: str, options: Options, limit_bytes: int) -> bytes:
        asked.append(url)
        return b'<a href="a/"></a><a href="b/"></a><a href="c/"></a>'

    monkeypatch.setattr(folder, "fetch_bytes", fetch)
    monkeypatch.setattr(folder, "TUNING", folder.TUNING._replace(most_names=1000))
    with pytest.raises(UsageProblem, match="more than 1000 files and folders"):
        folder.walk(parse("http://h/x/"), Options())
    assert len(asked) < 1000


def test_two_names_of_a_listing_are_never_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were written into one part file at the same time."""
    links = [f'<a href="{name}">' for name in ("a%3A.txt", "a%2A.txt", "a_.1.txt", "%61%3F.txt")]

    def fetch(url: str, options: Options, limit_bytes: int) -> bytes:
        return "".join(links).encode()

    monkeypatch.setattr(folder, "fetch_bytes", fetch)
    found = folder.walk(parse("http://h/x/"), Options())
    assert [entry.parts for entry in found] == [
        *[("a_.txt",), ("a_.1.txt",), ("a_.1.1.txt",), ("a_.2.txt",)],
    ]


def test_what_a_server_says_in_plain_text_is_told_without_control_characters() -> None:
    said = Fields([("Content-Type", "text/plain; charset=utf-8")])
    found = read(400, said, b"This port speaks\r\nTLS \x1b[2J\x00, use https.\n")
    assert isinstance(found, Failed | Refused)
    assert found.text == "This port speaks TLS \ufffd[2J\ufffd, use https"


def test_a_time_to_come_back_that_no_float_holds_is_not_believed() -> None:
    found = read(503, PROBLEM, b'{"retry_after_s": ' + b"9" * 4000 + b"}")
    assert isinstance(found, RetryAfter)
    assert found.retry_after_s == 5.0


@pytest.mark.parametrize("host", ["a\0b", "a b", "a\x7fb", "a<b", 'a"b', "a\\b", "%00" * 100])
def test_a_host_that_is_none_is_never_asked(host: str) -> None:
    """A zero byte used to reach the resolver, which raises for it."""
    with pytest.raises(BadUrl):
        parse(f"http://{host}/file")


@pytest.mark.parametrize(
    "host", ["example.org", "[::1]", "[fe80::1%25eth0]", "127.0.0.1", "büro.de"]
)
def test_honest_hosts_are_taken(host: str) -> None:
    assert parse(f"http://{host}/file").host


def test_the_zone_of_an_address_is_for_this_machine_alone() -> None:
    """It was looked up as "25eth0", and told to the server."""
    for text in ("https://[fe80::1%25eth0]:8080/x", "https://[fe80::1%eth0]:8080/x"):
        url = parse(text)
        assert url.host == "fe80::1%eth0"
        assert url.authority == "[fe80::1]:8080"
        assert url.join("y").host == url.host
        assert url.text == "https://[fe80::1%25eth0]:8080/x"
        assert RequestBuilder({}).route(url)[0] == Endpoint("fe80::1%eth0", 8080, "fe80::1")


@given(st.text(st.sampled_from("%% a4Fgé.~+;=\x7f"), max_size=12))
@example("100% x")
@example("100%")
@example("%%41")
def test_a_name_as_it_was_typed_reaches_every_server_alike(name: str) -> None:
    """A percent sign that begins no escape was sent as it was: nginx answers 400, and we too."""
    url = parse(f"http://h/({name})")
    sent = url.target.removeprefix("/").encode()
    typed = unquote_to_bytes(f"({name})")
    assert unquote_to_bytes(sent) == typed
    assert split_path(sent) == [typed]
    assert url.join(url.target) == url
    assert parse(f"http://h/?q=({name})").target == f"/?q={sent.decode()}"


@given(
    st.text(max_size=60) | st.sampled_from(["CON", "nul.txt", "Com1 .tar.gz", "-rf", "a. .", "~"])
)
def test_a_name_from_elsewhere_is_one_plain_file_on_every_system(name: str) -> None:
    """`-rf`, `CON` and `keep.txt.` used to be taken as they came."""
    for text in (f'attachment; filename="{name}"', f"a; filename*=UTF-8''{quote(name)}"):
        found = disposition_name(text)
        if found is not None:
            assert found.isprintable()
            assert not set(found) & set('/\\<>:"|?*')
            assert found[0] not in ".- "
            assert found[-1] not in ". "
            assert found.partition(".")[0].strip().upper() not in DEVICES


def test_names_that_windows_or_a_shell_would_take_for_more() -> None:
    wanted = {"CON": "_CON", "nul.txt": "_nul.txt", "-rf": "rf", "a.txt. ": "a.txt", ". .": None}
    for name, safe in wanted.items():
        assert disposition_name(f'attachment; filename="{name}"') == safe


class _Wire:
    """Network, transport, owner and taker of one connection, on a clock of its own."""

    rtt_s = 0.01

    def __init__(self) -> None:
        self.now_s = 0.0
        self.body_bytes = 0
        self.ended = False
        self.fault: str | None = None
        self.connection = Connection(self, Endpoint("h", 80), self, 10.0)  # type: ignore[arg-type]
        self.connection.connected(self)  # type: ignore[arg-type]
        self.connection.send(b"GET / HTTP/1.1\r\n\r\n", self)  # type: ignore[arg-type]

    def feed(self, data: bytes) -> None:
        self.now_s += 1.0
        self.connection.received(memoryview(data))

    def now(self) -> float:
        return self.now_s

    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Cancellable:
        return self  # type: ignore[return-value]

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...
    def cancel(self) -> None: ...
    def expect(self, count: int) -> None: ...
    def opened(self, rtt_s: float) -> None: ...
    def head(self, status: int, fields: Fields) -> None: ...

    def body(self, data: memoryview) -> None:
        self.body_bytes += len(data)

    def end(self) -> None:
        self.ended = True

    def closed(self, text: str, permanent: bool, crowded: bool) -> None:
        self.fault = text


@pytest.mark.parametrize("unit", [b"<a/>", b'<a b="c" d="e"/>', b"\n"])
def test_a_metalink_that_a_server_names_takes_little_memory(unit: bytes) -> None:
    """One of 60 MB made a plain `tidegate get` take 1.1 GB."""
    document = (
        b'<metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="x">%b</file></metalink>'
    )
    body = document % (unit * (8_000_000 // len(unit)))
    tracemalloc.start()
    try:
        with contextlib.suppress(BadManifest):
            decode_metalink(body)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 60_000_000


@pytest.mark.parametrize(
    "field",
    [
        "Content-Length: 1000000000000000000",
        "Content-Length: 12345678901234567890123",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, chunked",
    ],
)
def test_a_body_whose_end_nobody_can_tell_is_none(field: str) -> None:
    """A length of 19 digits was taken for none, so an answer that broke off was the file; of a
    packed transfer the packed bytes were."""
    wire = _Wire()
    wire.feed(f"HTTP/1.1 200 OK\r\n{field}\r\n\r\n".encode() + b"5\r\nhello\r\n0\r\n\r\n")
    wire.connection.lost("the connection was closed", False)
    assert wire.fault == "the answer is not HTTP"
    assert (wire.body_bytes, wire.ended) == (0, False)


def test_answers_that_are_announced_for_ever_end() -> None:
    """A server that went on with 103 kept its client busy without end."""
    wire = _Wire()
    for _ in range(20):
        wire.feed(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10)
    assert wire.fault == "it announces answers without end"
    honest = _Wire()
    honest.feed(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3)
    honest.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert (honest.body_bytes, honest.ended, honest.fault) == (2, True, None)


@pytest.mark.parametrize(("opening", "drip"), [(b"5;", b"x" * 100), (b"0\r\n", b"Z: z\r\n")])
def test_what_stands_around_chunks_is_no_sign_of_life(opening: bytes, drip: bytes) -> None:
    """An extension or trailer without end kept a download waiting for ever."""
    wire = _Wire()
    wire.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" + opening)
    alive_s = wire.connection.last_s
    for _ in range(5):
        wire.feed(drip)
    assert (wire.connection.last_s, wire.body_bytes, wire.fault) == (alive_s, 5, None)
    assert not wire.ended


def test_a_head_in_drips_is_seen_to_be_one() -> None:
    wire = _Wire()
    for byte in b"HTTP/1.1 200 OK\r\nX: y":
        wire.feed(bytes([byte]))
    assert wire.connection.headless
    assert wire.connection.idle_s == 0.0
