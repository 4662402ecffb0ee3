"""Requests that are answered without the parser get the answer, record and bill of parsed ones."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import representation
from tests.http_bench import OLD_S, Answer, Bench, Dialled
from tests.open_files import AdmitAll
from tidegate.server.admission.denylist import BlockList
from tidegate.server.files.cache import FileCache
from tidegate.server.files.request_queue import RequestQueue, levels_of
from tidegate.server.files.transfer import Representation
from tidegate.server.http.accesslog import AccessLog
from tidegate.server.http.request import AccessEntry
from tidegate.server.http.request_shape import MOST_FIELDS, recognise

BODY = bytes(range(256)) * 20
CRLF = "\r\n"
FILES = {
    "a.bin": BODY,
    "b c.txt": b"text",
    "middle.bin": BODY * 10,
    "large.bin": BODY * 400,
    "sub/x.txt": b"hello",
    "sub/index.html": b"<p>home",
}


class Billing(AdmitAll):
    """Admits all, and counts what of which file was given."""

    def __init__(self) -> None:
        super().__init__()
        self.bill: dict[tuple[str, int], int] = {}

    def admit_small(self, request: Any, rep: Representation, body_bytes: int) -> bool:
        self.count_again(rep, body_bytes, 1)
        return True

    def count_again(self, rep: Representation, body_bytes: int, times: int) -> None:
        key = rep.url_path, body_bytes
        self.bill[key] = self.bill.get(key, 0) + times


class Charging(RequestQueue):
    """A full line on which everybody may pass; remembers who was charged with what."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = True
        self.granted_bytes = math.inf
        self.charged: dict[str, int] = {}

    def charge(self, address: str, count: int) -> None:
        self.charged[address] = self.charged.get(address, 0) + count

    def wait(self, *of: Any) -> None:
        raise AssertionError("all may pass")


class Lines:
    """Keeps entries of the access log."""

    def __init__(self) -> None:
        self.entries: list[AccessEntry] = []

    def write(self, entries: list[AccessEntry]) -> None:
        self.entries += entries


class House:
    """A server with its books."""

    def __init__(
        self, root: Path, *, shortcuts: bool, busy: bool, proxies: Sequence[str] = ()
    ) -> None:
        self.sent: list[int] = []
        self.lines = Lines()
        self.admission = Billing()
        self.bench = Bench(
            root,
            shortcuts=shortcuts,
            admission=self.admission,
            charge=self.sent.append,
            access_log=AccessLog(self.lines.write),
            proxies=proxies,
        )
        self.requests = Charging()
        if busy:
            self.bench.factory.requests = self.requests
        self.answered = 0
        answer = self.bench.front._answer

        def counted(*of: Any) -> Any:
            found = answer(*of)
            self.answered += found is not None
            return found

        self.bench.front._answer = counted  # type: ignore[method-assign]
        for name in FILES:
            client = self.bench.connect("203.0.113.9")
            client.get(f"/{name}".replace(" ", "%20"), {"Want-Repr-Digest": "sha-256=5"})
            client.leave()

    def say(self, sends: list[bytes]) -> list[tuple[bytes, bool]]:
        """What is said to each of these on one connection, and whether that was the end."""
        client = Dialled(self.bench)
        said = []
        for data in sends:
            client.send(data)
            said.append((client.taken(), client.closed))
        Dialled.hang_up()
        self.bench.tick(2)
        return said

    def books(self) -> object:
        """Records of the access log, what was charged, and what was counted."""
        self.bench.factory.access_log.flush()  # type: ignore[union-attr]
        records = [
            entry._replace(started_s=0.0, ended_s=0.0, duration_s=0.0)
            for entry in self.lines.entries
        ]
        requests = self.requests
        asked = requests.shares.finish_tag(levels_of("192.0.2.1"))
        return records, sum(self.sent), self.admission.bill, requests.charged, asked


ETAGS = ("{etag}", "W/{etag}", '"other"', "*", '{etag}, "x"', "x", '"a"b"', '""')
DATES = ("{modified}", "Fri, 01 Jan 2010 00:00:00 GMT", "Friday, 01-Jan-38 00:00:00 GMT", "soon")
RANGES = (
    *("bytes=0-", "bytes=10-99", "bytes=-7", "bytes=-0", "bytes=9-3", "bytes=99999999-"),
    *("bytes=0-0,900-999", "bytes=0-0, -1", "bytes=9-20,0-9", "bytes=0-9,99999999-", "bytes=-,1-2"),
    "bytes=" + ",".join(f"{at}-{at}" for at in range(0, 4000, 400)),
)
MORE_RANGES = (
    "bytes=-",
    "bytes=0-200000",
    "Bytes=1-2",
    "lines=1-2",
    "bytes=1 -2",
)
VALUES: dict[str, tuple[str, ...]] = {
    "Host": ("h", "h:80", "[::1]", "", "a b", "h,h", "h\t", "-"),
    "User-Agent": ("curl/8", "a" * 700, "x  ", "\ta", "caf\xe9", "a\x01b"),
    "Accept": ("*/*", "text/html", "TEXT/HTML;q=0.1", "application/json"),
    "Accept-Language": ("de", "en-US,en;q=0.5", "zz", ""),
    "Accept-Encoding": ("gzip", "identity"),
    "Referer": ("http://h/?tidegate-ticket=t1.a.b", "x y"),
    "Connection": (
        "close",
        "keep-alive",
        "Keep-Alive",
        "CLOSE",
        "upgrade",
        "close, TE",
        "x",
        "Upgrade, HTTP2-Settings",
    ),
    "Cookie": ("a=b", "tidegate-ticket=x", "tidegate-visitor=v1.a.b", "x"),
    "If-None-Match": ETAGS,
    "If-Match": ETAGS[:4],
    "If-Modified-Since": DATES,
    "If-Unmodified-Since": DATES,
    "If-Range": ("{etag}", "{modified}", '"other"', "W/{etag}", "x"),
    "Authorization": ("Basic x",),
    "HTTP2-Settings": ("AAMAAABk",),
    "CF-Connecting-IP": ("198.51.100.9",),
    "CDN-Loop": ("cloudflare",),
    "TE": ("trailers",),
    "Origin": ("https://other.example",),
    "X-Request-Id": ("1",),
    "Range": RANGES + MORE_RANGES,
    "Content-Length": ("0", "5", "-1", "0, 0", "00"),
    "Transfer-Encoding": ("chunked", "gzip", "identity"),
    "Expect": ("100-continue", "x"),
    "Upgrade": ("websocket", "h2c"),
    "Tidegate-Ticket": ("x",),
    "Tidegate-Wait": ("ticket",),
    "X-Forwarded-For": ("198.51.100.7", "x, 198.51.100.8 ", "198.51.100.7, 192.0.2.1", "nobody"),
    "X-Forwarded-Proto": ("https", "http, HTTPS ", "x"),
    "X-Forwarded-Host": ("other",),
    "X-Real-IP": ("198.51.100.9",),
    "Forwarded": ("for=198.51.100.9;proto=https",),
    "Via": ("1.1 proxy",),
    "Sec-Fetch-Mode": ("navigate",),
    "Want-Digest": ("sha-256",),
    "DNT": ("1",),
    "X" * 300: ("y" * 3000,),
}
TARGETS = (
    *("/a.bin", "/a.bin", "/a.bin?x", "/middle.bin", "/none", "/large.bin", "/sub/x.txt") * 3,
    *("/a.bin", "/a.bin", "/middle.bin", "/large.bin", "/b%20c.txt", "/%61.bin", "/sub/", "/sub"),
    *(
        "/a.bin?v=1",
        "/a.bin?tidegate-ticket=x",
        "/a.bin?%74idegate-pass=x",
        "/a.bin?v=%20%zz",
        "/sub/?format=json",
    ),
    *("/none", "/none?x", "/none.meta4", "/a.bin.meta4", "/SHA256SUMS", "/a.bin/", "/a.bin/x"),
    *("//a.bin", "/./a.bin", "/../a.bin", "/.hidden", "/a.bin#x", "http://h/a.bin", "*", "/%"),
    *("HTTPS://[::1]:80/a.bin?x", "http://u@h/a.bin", "http://a..b/a.bin", "http:///a.bin"),
    *("/-/none", "/" + "x" * 1500, "/a.bin?" + "q" * 9000, "/caf\xe9"),
)


SHAPED = (
    *("User-Agent", "Accept", "Accept-Language", "Accept-Encoding", "Referer", "Connection"),
    *("Cookie", "If-None-Match", "If-Modified-Since", "Range", "DNT", "X-Forwarded-For"),
    *("X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via"),
    *("If-Range", "Range", "Authorization", "HTTP2-Settings", "CF-Connecting-IP", "CDN-Loop", "TE"),
    *("Origin", "X-Request-Id", "Upgrade", "Content-Length", "If-Match", "If-Unmodified-Since"),
)


def _or_rarely(usual: st.SearchStrategy[str], odd: list[str]) -> st.SearchStrategy[str]:
    return st.integers(0, 15).flatmap(lambda roll: usual if roll else st.sampled_from(odd))


@st.composite
def _lines(draw: st.DrawFn, *, odd: bool) -> str:
    """A line of a header; an odd one may be what smuggling is made of."""
    name = draw(st.sampled_from(sorted(VALUES) if odd else SHAPED))
    value = draw(st.sampled_from(VALUES[name]))
    spelled = draw(st.sampled_from([name, name.lower()]))
    if not odd:
        return f"{spelled}: {value}\r\n"
    spelled = draw(_or_rarely(st.just(spelled), [name.upper(), name + " ", " " + name]))
    gap = draw(_or_rarely(st.just(": "), [":", ":  ", " : ", ":\t", ";"]))
    ends = ["\n", "\r", "\r\n ", "\r\n\t", " \r\n", "\0\r\n"]
    return f"{spelled}{gap}{value}{draw(_or_rarely(st.just(CRLF), ends))}"


@st.composite
def _requests(draw: st.DrawFn) -> str:
    odd = draw(st.booleans())
    method, version, space = draw(st.sampled_from(["GET", "GET", "HEAD"])), "HTTP/1.1", " "
    if odd:
        method = draw(_or_rarely(st.just(method), ["POST", "get", "PRI", "OPTIONS"]))
        version = draw(_or_rarely(st.just(version), ["HTTP/1.0", "HTTP/1.2", "http/1.1", ""]))
        space = draw(_or_rarely(st.just(space), ["  ", "\t"]))
    elif draw(st.booleans()):
        version = "HTTP/1.0"
    lines = draw(st.lists(_lines(odd=odd), max_size=4))
    if not odd or draw(st.integers(0, 9)):
        lines.insert(draw(st.integers(0, len(lines))), "Host: h\r\n")
    head = f"{method}{space}{draw(st.sampled_from(TARGETS))} {version}\r\n"
    return head + "".join(lines) + "\r\n" + (draw(st.sampled_from(["", "hello"])) if odd else "")


@pytest.fixture(autouse=True)
def _same_chance(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * size)
    monkeypatch.setattr("tidegate.server.http.front._STAY_S", 0.0)
    yield
    Dialled.hang_up()


def _filled(root: Path) -> dict[str, str]:
    writer = Bench(root)
    for name, data in FILES.items():
        writer.write(name, data)
    client = writer.connect()
    answer = client.get("/a.bin")
    client.leave()
    return {"etag": answer.text("etag") or "", "modified": answer.text("last-modified") or ""}


@pytest.mark.parametrize(
    ("busy", "proxies"),
    [(False, ()), (True, ("192.0.2.0/24",))],
    ids=["free and direct", "busy and proxied"],
)
def test_every_request_has_the_answer_record_and_bill_of_the_parser(
    busy: bool, proxies: tuple[str, ...]
) -> None:
    with TemporaryDirectory() as folder:
        known = _filled(Path(folder))
        fast, strict = (
            House(Path(folder), shortcuts=shortcuts, busy=busy, proxies=proxies)
            for shortcuts in (True, False)
        )

        @settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(_requests(), min_size=1, max_size=3), st.booleans(), st.integers(1, 3))
        def holds(texts: list[str], in_one: bool, times: int) -> None:
            requests = [
                text.replace("{etag}", known["etag"])
                .replace("{modified}", known["modified"])
                .encode("latin-1")
                for text in texts
            ] * times
            sends = [b"".join(requests)] if in_one else requests
            assert fast.say(sends) == strict.say(sends)
            assert fast.books() == strict.books()

        holds()
        assert fast.answered > 20
        assert strict.answered == 0


def test_a_long_range_is_logged_no_longer_than_by_the_parser(tmp_path: Path) -> None:
    _filled(tmp_path)
    part = b"bytes=" + b",".join(b"%d-%d" % (at, at) for at in range(200))
    houses = [House(tmp_path, shortcuts=way, busy=False) for way in (True, False)]
    for house in houses:
        house.say([b"GET /a.bin HTTP/1.1\r\nHost: h\r\nRange: " + part + b"\r\n\r\n"])
    assert houses[0].books() == houses[1].books()
    assert houses[0].answered
    assert houses[0].lines.entries[-1].range != part


def test_an_answer_that_became_stale_is_charged_once(tmp_path: Path) -> None:
    _filled(tmp_path)
    fast, strict = (House(tmp_path, shortcuts=way, busy=True) for way in (True, False))
    request = b"GET /a.bin HTTP/1.1\r\nHost: h\r\n\r\n"
    for house in (fast, strict):
        house.say([request] * 2)
    fast.bench.write("new", b"other bytes").rename(tmp_path / "a.bin")
    for house in (fast, strict):
        assert house.say([request])[0][0].endswith(b"other bytes")
    assert fast.books() == strict.books()
    assert fast.answered


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_trusted_proxy_says_who_its_client_is(tmp_path: Path, trusted: bool) -> None:
    _filled(tmp_path)
    proxies = ["192.0.2.1"] if trusted else ["192.0.2.9"]
    house = House(tmp_path, shortcuts=True, busy=True, proxies=proxies)
    field = b"X-Forwarded-For: 203.0.113.66, 198.51.100.7\r\nX-Forwarded-Proto: https\r\n"
    house.requests.charged.clear()
    house.say([b"GET /a.bin HTTP/1.1\r\nHost: h\r\n" + field + b"\r\n"] * 4)
    assert house.answered > 1
    client = "198.51.100.7" if trusted else "192.0.2.1"
    assert set(house.requests.charged) == {client}
    house.books()
    entries = [entry for entry in house.lines.entries if entry.client != "203.0.113.9"]
    assert {(entry.client, entry.is_tls) for entry in entries} == {(client, trusted)}


def test_a_blocked_client_gains_nothing_by_a_proxy(tmp_path: Path) -> None:
    _filled(tmp_path)
    blocked = BlockList(lambda: 0.0)
    bench = Bench(tmp_path, proxies=["192.0.2.1"], denylist=blocked)
    answered: list[object] = []
    answer = bench.front._answer

    def counted(*of: Any) -> Any:
        answered.append(answer(*of))
        return answered[-1]

    bench.front._answer = counted  # type: ignore[method-assign]
    client = Dialled(bench)
    for _ in range(3):
        client.get("/a.bin", X_Forwarded_For="198.51.100.7")
    assert answered[-1] is not None
    blocked.add("198.51.100.7/32")
    client.get("/a.bin", X_Forwarded_For="198.51.100.7")
    assert answered[-1] is None, "the admission has to judge"
    client.get("/a.bin", X_Forwarded_For="198.51.100.8")
    assert answered[-1] is not None


def test_a_shape_holds_each_field_once_and_nothing_unknown() -> None:
    line, host = b"GET /a HTTP/1.1\r\n", b"Host: h\r\n"
    assert recognise(line + host + b"\r\n")
    for more in (b"Host: h\r\n", b"X: y\r\n", b"Content-Length: 1\r\n", b" folded\r\n", b"a\n"):
        assert not recognise(line + host + more + b"\r\n"), more
    for name in (b"User-Agent", b"Accept", b"Referer", b"Connection", b"Cookie", b"Range"):
        value = {b"Connection": b"close", b"Range": b"bytes=0-1"}.get(name, b"x")
        field = b"%b: %b\r\n" % (name, value)
        assert recognise(line + host + field + b"\r\n"), name
        assert recognise(line + host + field.lower() + b"\r\n"), name
        assert not recognise(line + host + field + field + b"\r\n"), name
    many = b"Pragma: no-cache\r\n" * MOST_FIELDS
    assert not recognise(line + host + many + b"\r\n")
    assert not recognise(line + host + b"\r\n" + b"x")


@pytest.mark.parametrize(
    "fields",
    [
        "Connection: Upgrade, HTTP2-Settings\r\nContent-Length: 0\r\nHTTP2-Settings: AAMAAABk\r\n"
        "Upgrade: h2c\r\n",
        "CF-RAY: 1-FRA\r\nCF-Visitor: {}\r\nCDN-Loop: cloudflare\r\ncf-connecting-ip: ::1\r\n",
        "Authorization: Basic x\r\nTE: trailers\r\nX-Request-Id: 1\r\n",
        "Range: bytes=0-9\r\nIf-Range: {etag}\r\n",
        "Range: bytes=0-9\r\nIf-Range: {modified}\r\n",
        "Range: bytes=0-9,200-299, 2000-2999\r\n",
        'If-Match: "x", {etag}\r\nIf-Unmodified-Since: {modified}\r\n',
        'If-None-Match: "x", W/"y"\r\n',
        "",
    ],
    ids=[
        *("Java", "behind Cloudflare", "credentials", "resumed", "resumed by date"),
        *("several ranges", "the same content", "one of several tags", "a query with escapes"),
    ],
)
@pytest.mark.parametrize("target", ["/a.bin?v=%20", "http://h:80/a.bin"])
def test_what_many_programs_say_needs_no_parser(tmp_path: Path, fields: str, target: str) -> None:
    known = _filled(tmp_path)
    fields = fields.replace("{etag}", known["etag"]).replace("{modified}", known["modified"])
    house = House(tmp_path, shortcuts=True, busy=False)
    said = house.say([f"GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n".encode()])
    assert Answer(said[0][0]).status == (206 if "Range" in fields else 200)
    assert house.answered == 1


@pytest.mark.parametrize("name", ["If-Range", "If-Match"])
@pytest.mark.parametrize("part", ["Range: bytes=10-99\r\n", ""])
def test_a_tag_from_before_a_touch_is_known_still(tmp_path: Path, name: str, part: str) -> None:
    _filled(tmp_path)
    house = House(tmp_path, shortcuts=True, busy=False)
    ask = "GET /a.bin HTTP/1.1\r\nHost: h\r\n"
    digest = ask + "Want-Repr-Digest: sha-256=5\r\n\r\n"
    former = Answer(house.say([digest.encode()])[0][0]).text("etag")
    os.utime(tmp_path / "a.bin", (OLD_S + 9, OLD_S + 9))
    # The new times are known now, to both ways.
    house.say([digest.encode(), f"{ask}\r\n".encode()])
    said = house.say([f"{ask}{part}{name}: {former}\r\n\r\n".encode()])
    answer = Answer(said[0][0])
    assert answer.status == (206 if part else 200)
    assert answer.text("etag") == former


@pytest.mark.parametrize(
    "field", ["If-Modified-Since: {modified}", 'If-None-Match: "x"', "Range: bytes=0-9"]
)
def test_a_condition_on_what_is_missing_needs_no_parser(tmp_path: Path, field: str) -> None:
    field = field.replace("{modified}", _filled(tmp_path)["modified"])
    house = House(tmp_path, shortcuts=True, busy=False)
    said = house.say([f"GET /none HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n".encode()])
    assert Answer(said[0][0]).status == 404
    assert house.answered == 1


@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_a_folder_without_its_slash_needs_no_parser(tmp_path: Path, accept: str) -> None:
    _filled(tmp_path)
    fast, strict = (House(tmp_path, shortcuts=way, busy=False) for way in (True, False))
    request = f"GET /sub?x=1 HTTP/1.1\r\nHost: h\r\nAccept: {accept}\r\n\r\n".encode()
    said = fast.say([request])
    assert said == strict.say([request])
    assert Answer(said[0][0]).text("location") == "/sub/?x=1"
    assert fast.answered == 1


@pytest.mark.parametrize("rule", ["hides", "keeps_secret"])
def test_no_folder_is_told_of_that_a_rule_keeps_back(tmp_path: Path, rule: str) -> None:
    _filled(tmp_path)
    house = House(tmp_path, shortcuts=True, busy=False)
    setattr(house.bench.visible, rule, lambda url_path: url_path == "/sub/")
    house.say([b"GET /sub HTTP/1.1\r\nHost: h\r\n\r\n"])
    assert house.answered == 0


def test_no_folder_is_told_of_that_lies_behind_a_link_out_of_the_tree(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    (other / "sub").mkdir(parents=True)
    root.mkdir()
    (root / "out").symlink_to(other)
    house = House(root, shortcuts=True, busy=False)
    for target in ("/out", "/out/sub"):
        said = house.say([f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode()])
        assert Answer(said[0][0]).status == 404
    assert house.answered == 0


def test_no_path_goes_up_where_dotted_names_are_shown(tmp_path: Path) -> None:
    bench = Bench(tmp_path, show_hidden=True)
    bench.write("a.bin", BODY)
    bench.write("sub/x.txt", b"hello")
    client = Dialled(bench)
    assert [Answer(client.get("/sub/../a.bin")).status for _ in range(3)] == [404] * 3


def test_nothing_is_kept_of_what_is_missing_or_asked_for_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(50):
        bench.write(f"{number}.bin", BODY)
    client = Dialled(bench)
    for number in range(50):
        assert Answer(client.get(f"/{number}.bin")).body == BODY
        assert Answer(client.get(f"/none-{number}")).status == 404
    assert not bench.site._files._files
    assert not bench.tree._open
    for number in range(50):
        # Two names may share one place of the table of those seen, so each comes twice in a row.
        for _ in range(2):
            assert Answer(client.get(f"/{number}.bin")).body == BODY
    assert len(bench.site._files._files) == 50, "the second touch is worth keeping"


@pytest.mark.parametrize("target", ["/sub/SHA256SUMS", "/sub/?format=json", "/sub/index.meta4"])
@pytest.mark.parametrize("way", ["renamed", "served"])
def test_no_listing_names_a_digest_of_an_older_content(
    tmp_path: Path, target: str, way: str
) -> None:
    """Not even in the moment in which what was read of a folder may be used again."""
    bench = Bench(tmp_path)
    times = iter(range(10**9))
    for folders in (bench.site.folders, bench.site._listings, bench.site._generated):
        # Each look at the clock finds it 10 ms later, so what was read may be used for 200 ms.
        held = "_reactor" if hasattr(folders, "_reactor") else "_clock"
        setattr(folders, held, _Ticking(bench.clock, times))
    bench.write("sub/x.txt", b"old")
    bench.write("sub/y.txt", b"other")
    client = Dialled(bench)

    def names(data: bytes) -> bool:
        return hashlib.sha256(data).hexdigest().encode() in Answer(client.get(target)).body

    for name in ("x.txt", "y.txt"):
        client.get(f"/sub/{name}", Want_Repr_Digest="sha-256=5")
    assert names(b"old")
    assert names(b"old")
    if way == "renamed":
        bench.write("sub/new", b"new bytes").rename(tmp_path / "sub/x.txt")
    else:
        (tmp_path / "sub/x.txt").write_bytes(b"new bytes")
    assert b"new bytes" in client.get("/sub/x.txt", Want_Repr_Digest="sha-256=5")
    assert not names(b"old")
    assert names(b"new bytes")


class _Ticking:
    """A clock that is 10 ms later each time it is read."""

    def __init__(self, clock: Any, times: Iterator[int]) -> None:
        self._clock, self._times = clock, times

    def seconds(self) -> float:
        return float(self._clock.seconds()) + next(self._times) / 100

    def callLater(self, *of: Any) -> Any:
        return self._clock.callLater(*of)


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=40, unique=True))
def test_files_that_were_forgotten_take_no_room(paths: list[bytes]) -> None:
    said: Any = SimpleNamespace(version=0, known=lambda key: None, head=lambda *asked: b"")
    nothing: Any = None

    def kept(times: int) -> set[bytes]:
        cache = FileCache(60_000, nothing, said, said, nothing, nothing, nothing)
        for _ in range(times):
            for path in paths:
                cache.keep(path, representation(), None, b"x" * len(path))
                cache.forget(path)
        for path in paths:
            cache.keep(path, representation(), None, b"x")
        return {path for path in paths if cache.get(path) is not None}

    assert kept(300 // len(paths)) == kept(0)
