"""The fast path and the strict path of HTTP give the same answers, whatever happens between them.

Two servers over one folder, with real gates, live through the same day; one of them has no fast
path. Every byte of every answer is compared, the date included, as their clocks agree.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from tests.fakes import House
from tests.http_bench import OLD_S, Answer, Bench, Dialled
from tests.test_server_tls import certificate
from tidegate.server.admission.denylist import BlockList
from tidegate.server.admission.rules import Rule, RuleBook
from tidegate.server.http.tls import TlsServer

CRLF = "\r\n"
BODY = bytes(range(256)) * 20
NOON_S = OLD_S + 1_000_000
RELEASE_S = NOON_S + 600
#: Versions of each file, in turn: a small one, one of several writes, one that needs a lease.
FILES = {
    "a.bin": (BODY, BODY[:100], b""),
    "middle.bin": (BODY * 10, BODY * 11, BODY * 9),
    "large.bin": (BODY * 400, BODY * 401, BODY),
    "gold/x.txt": (b"for gold", b"for gold again", b""),
    "later/y.txt": (b"released", b"released again", b""),
    "page/index.html": (b"<p>one", b"<p>two", b"<p>three"),
}
RULES = (
    (),
    (
        Rule(path="/gold/", require_class="gold"),
        Rule(path="/later/", hidden_until=datetime.fromtimestamp(RELEASE_S, UTC)),
        Rule(path="/middle.bin", treat_as="large"),
    ),
    (Rule(path="/a.bin", require_class="gold"), Rule(path="/large.bin", treat_as="small")),
    (Rule(path="*", hidden_until=datetime.fromtimestamp(RELEASE_S, UTC)),),
)
TARGETS = (
    *(f"/{name}" for name in FILES),
    *("/", "/gold/", "/later/", "/page/", "/a.bin?x", "/%61.bin", "/none", "/a.bin.meta4"),
    *("/SHA256SUMS", "/later/SHA256SUMS", "/a.bin.manifest.json", "/.hidden", "/-/none"),
)
CONDITIONS = (
    "",
    "If-None-Match: {etag}",
    'If-None-Match: "other"',
    "If-None-Match: *",
    "If-Match: {etag}",
    'If-Match: "other"',
    "If-Modified-Since: {modified}",
    "If-Modified-Since: Fri, 01 Jan 2010 00:00:00 GMT",
    "If-Unmodified-Since: {modified}",
    "Range: bytes=0-",
    "Range: bytes=10-99",
    "Range: bytes=-7",
    "Range: bytes=99999999-",
    "Range: bytes=0-0,9-20",
    "Range: bytes=10-99\r\nIf-Range: {etag}",
    'Range: bytes=10-99\r\nIf-Range: "other"',
    "Range: bytes=10-99\r\nIf-Range: {modified}",
    "Range: bytes=0-0,900-999",
    'If-None-Match: "x", {etag}',
)
FIELDS = (
    "",
    "Connection: close",
    "Accept: text/html",
    "Accept-Encoding: gzip",
    "User-Agent: curl/8.0",
    "Tidegate-Wait: ticket",
    "Want-Repr-Digest: sha-256=5",
    "X-Forwarded-For: 198.51.100.7",
    "X-Forwarded-For: 198.51.100.8",
    "X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https",
    "Forwarded: for=198.51.100.7;proto=https",
)
METHODS = ("GET", "GET", "GET", "HEAD", "POST")
PEERS = ("192.0.2.1", "10.0.0.1", "2001:db8::1")
BLOCKED = ("192.0.2.1/32", "198.51.100.7/32", "2001:db8::/64")


@dataclass
class World:
    """One of the two servers, with its clients by number."""

    root: Path
    is_fast: bool
    preface: bool
    tls: TlsServer | None
    clients: dict[int, Dialled] = field(default_factory=dict)
    #: How many answers the fast path gave.
    repeated: int = 0

    def __post_init__(self) -> None:
        clock = Clock()
        clock.advance(NOON_S)
        self.house = House("fair", clock=clock, slots=1, bandwidth_bytes_s=1e6)
        self.blocked = BlockList(clock.seconds)
        self.bench = Bench(
            self.root,
            shortcuts=self.is_fast,
            clock=clock,
            admission=self.house.gate,
            visibility=self.house.gate.reception,
            proxies=["10.0.0.0/8"],
            preface=self.preface,
            denylist=self.blocked,
        )
        answer = self.bench.front._answer

        def counted(*of: Any) -> tuple[bytes, bytes, bool] | None:
            found = answer(*of)
            self.repeated += found is not None
            return found

        self.bench.front._answer = counted  # type: ignore[method-assign]

    def connect(self, number: int) -> Dialled:
        """The client of this number, connected anew if the server has hung up."""
        found = self.clients.get(number)
        if found is None or found.closed:
            peer = PEERS[number % len(PEERS)]
            found = Dialled(self.bench, peer, tls=self.tls)
            if self.preface and peer.startswith("10."):
                found.send(preface_of("198.51.100.7"))
            self.clients[number] = found
        return found

    def ask(self, number: int, raw: bytes) -> tuple[bytes, bool]:
        """What is said to a request, and whether that was the end."""
        client = self.connect(number)
        client.send(raw)
        return client.taken(), client.closed

    def learn(self) -> None:
        """Have all digests: one that becomes known later makes another answer."""
        self.bench.site.forget_all()
        for name in FILES:
            client = self.bench.connect("203.0.113.9")
            client.get("/" + name, {"Want-Repr-Digest": "sha-256=5"})
            client.leave()


def preface_of(address: str) -> bytes:
    """PROXY protocol, version 2: this client came by TLS."""
    ends = socket.inet_aton(address) + socket.inet_aton("10.0.0.1") + struct.pack(">HH", 4000, 443)
    body = ends + struct.pack(">BHBI", 0x20, 5, 0x01, 0)
    return struct.pack(">12sBBH", b"\r\n\r\n\0\r\nQUIT\n", 0x21, 0x11, len(body)) + body


class Day:
    """Both servers over one folder, and what happens to both."""

    def __init__(self, root: Path, preface: bool, tls: TlsServer | None) -> None:
        self.root = root
        self.versions = dict.fromkeys(FILES, 0)
        self.changes = itertools.count(1)
        for name in FILES:
            self._write(name)
        self.worlds = [World(root, fast, preface, tls) for fast in (True, False)]
        self.learn()

    def _write(self, name: str) -> None:
        data = FILES[name][self.versions[name] % 3]
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        changed_s = OLD_S + next(self.changes)
        os.utime(path, (changed_s, changed_s))

    def learn(self) -> None:
        for world in self.worlds:
            world.learn()

    def ask(self, number: int, method: str, target: str, *lines: str) -> bytes:
        """The answer of both; raises AssertionError where they differ."""
        known = self._validators(target) if any("{" in line for line in lines) else {}
        head = "".join(f"{line.format(**known)}\r\n" for line in lines if line)
        raw = f"{method} {target} HTTP/1.1\r\nHost: h\r\n{head}\r\n".encode("latin-1")
        fast, strict = (world.ask(number, raw) for world in self.worlds)
        assert fast == strict, raw
        return fast[0]

    def _validators(self, target: str) -> dict[str, str]:
        """The file's validators, as a strict server tells them to somebody else."""
        client = self.worlds[1].bench.connect("203.0.113.9")
        raw = f"HEAD {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
        client.send(raw)
        answer = Answer(client.taken(), head_only=True)
        client.leave()
        # Both have been asked, so that both have counted it.
        other = self.worlds[0].bench.connect("203.0.113.9")
        other.send(raw)
        other.taken()
        other.leave()
        return {
            "etag": answer.text("etag") or '"none"',
            "modified": answer.text("last-modified") or "Fri, 01 Jan 2010 00:00:00 GMT",
        }

    def happen(self, what: str, which: int) -> None:
        """A change of the same kind at both."""
        name = sorted(FILES)[which % len(FILES)]
        if what == "rewrite":
            self.versions[name] += 1
            self._write(name)
            self.learn()
        elif what == "remove":
            (self.root / name).unlink(missing_ok=True)
        for world in self.worlds:
            if what == "rule":
                world.house.gate.parts.rules = RuleBook(RULES[which % len(RULES)])
            elif what == "wait":
                world.bench.tick((0.02, 1.0, 5.0, 700.0)[which % 4])
            elif what == "block":
                world.blocked.add(BLOCKED[which % len(BLOCKED)])
            elif what == "lift":
                world.blocked.discard(BLOCKED[which % len(BLOCKED)])
            elif what == "read":
                for client in world.clients.values():
                    client.taken()


ASKS = st.tuples(
    st.just("ask"),
    st.integers(0, 5),
    st.sampled_from(METHODS),
    st.sampled_from(TARGETS),
    st.just("") | st.sampled_from(CONDITIONS),
    st.just("") | st.sampled_from(FIELDS),
    st.integers(2, 5),
)
CHANGES = st.tuples(
    st.sampled_from(["rewrite", "remove", "rule", "wait", "block", "lift", "read"]),
    st.integers(0, 11),
)
STEPS = st.lists(st.one_of(ASKS, ASKS, ASKS, CHANGES), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsServer:
    return TlsServer(*certificate(tmp_path_factory.mktemp("tls"), "one"))


@pytest.fixture(autouse=True)
def _same_chance(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both servers draw the same numbers, and a turn of the loop is a batch of events."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * size)
    monkeypatch.setattr("secrets.token_bytes", lambda size: b"0" * size)
    monkeypatch.setattr("tidegate.server.http.front._STAY_S", 0.0)
    yield
    Dialled.hang_up()


def live_through(steps: list[tuple[Any, ...]], preface: bool, tls: TlsServer | None) -> int:
    """How often the fast path answered; raises AssertionError where an answer differs."""
    with TemporaryDirectory() as folder:
        day = Day(Path(folder), preface, tls)
        for step in steps:
            if step[0] == "ask":
                _, number, method, target, condition, more, times = step
                for _ in range(times):
                    day.ask(number, method, target, condition, more)
            else:
                day.happen(*step)
        Dialled.hang_up()
    assert day.worlds[1].repeated == 0
    return day.worlds[0].repeated


@pytest.mark.parametrize("way", ["plain", "preface", "tls"])
def test_both_paths_give_the_same_answers_all_day(way: str, tls: TlsServer) -> None:
    """Clients come directly, by a proxy that writes X-Forwarded-For, with a preface, or by TLS."""

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(STEPS)
    def holds(steps: list[tuple[Any, ...]]) -> None:
        nonlocal repeated
        repeated += live_through(steps, way == "preface", tls if way == "tls" else None)

    repeated = 0
    holds()
    # Chance decides how often; in the test of conditions it does not.
    assert repeated, "the fast path took no part"


@pytest.mark.parametrize("way", ["plain", "preface", "tls"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_is_answered_the_same_to_everybody(
    way: str, condition: str, tls: TlsServer
) -> None:
    asks = [
        ("ask", number, method, target, condition, more, 3)
        for target in ("/a.bin", "/middle.bin", "/gold/x.txt", "/page/", "/none")
        for method in ("GET", "HEAD")
        for number, more in (
            (0, ""),
            (1, FIELDS[7]),
            (2, "Accept: text/html"),
        )
    ]
    steps = [*asks, ("rule", 1), *asks]
    answered = live_through(steps, way == "preface", tls if way == "tls" else None)
    # A file that does not have this tag may have had it; 404 is answered all the same.
    is_parsed = condition.endswith(('If-Match: "other"', 'If-Range: "other"'))
    assert (answered > 40) != is_parsed


@pytest.mark.parametrize("condition", ["", "Range: bytes=1-", "Range: bytes=70000-1500000"])
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_body_is_the_same_by_sendfile_and_encrypted(
    name: str, condition: str, tls: TlsServer, tmp_path: Path
) -> None:
    """Bodies go out by `sendfile`, from memory, or in pieces through TLS."""
    plain, encrypted = World(tmp_path, True, False, None), World(tmp_path, True, False, tls)
    for file, versions in FILES.items():
        plain.bench.write(file, versions[0])
    raw = f"GET /{name} HTTP/1.1\r\nHost: h\r\n{condition}{condition and CRLF}\r\n".encode()
    for _ in range(3):
        said = [world.ask(0, raw)[0] for world in (plain, encrypted)]
        answers = [Answer(one) for one in said]
        assert answers[0].whole
        assert answers[0].body == answers[1].body
        assert answers[0].status == answers[1].status
    if not condition:
        assert answers[0].body == FILES[name][0]
