"""One process, IPv6, TLS, workers, each database, machines: the same answers and the same places.

Real servers over one folder are told the same, and what they answer is compared.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import unified_diff
from urllib.parse import urlsplit

import pytest

from tests.http_bench import OLD_S, Answer
from tests.postgres import postgres_running
from tests.running import RunningServer, make_release
from tests.test_server_tls import certificate

pytestmark = pytest.mark.e2e

ARGS = ("--slots", "1", "--reserve-small", "0", "--policy", "ticket", "--bandwidth", "300KB")
ENVIRON = {
    "TIDEGATE_CLIENTS_PER_ADDRESS": "65536",
    "TIDEGATE_EARLY_PENALTY_S": "0",
    "TIDEGATE_RETRY_JITTER": "0",
    "TIDEGATE_DRAIN_S": "0",
    "TIDEGATE_CLUSTER_LEASE_S": "4",
}
RULES = """
[[rules]]
path = "/gold/*"
require_class = "gold"
[[rules]]
path = "/later/*"
hidden_until = 2099-01-01T00:00:00Z
"""
TARGETS = (
    *("/", "/small.txt", "/gold/key.txt", "/later/key.txt", "/none", "/sub", "/sub/", "/.hidden"),
    *("/sub/page.html", "/-/none", "/%73mall.txt", "/small.txt?x", "/../small.txt", "//small.txt"),
)
LINES = (
    "",
    "If-None-Match: {etag}",
    'If-None-Match: "other"',
    "If-Match: {etag}",
    'If-Match: "other"',
    "If-Modified-Since: Fri, 01 Jan 2038 00:00:00 GMT",
    "If-Unmodified-Since: Fri, 01 Jan 2010 00:00:00 GMT",
    "Range: bytes=1-9",
    "Range: bytes=-3",
    "Range: bytes=9999-",
    "Range: bytes=0-1,4-5",
    "Range: bytes=1-9\r\nIf-Range: {etag}",
    "Accept: text/html",
    "Accept-Language: de\r\nAccept: text/html",
    "Expect: 100-continue",
    "Transfer-Encoding: nonsense",
)
METHODS = ("GET", "HEAD", "POST", "DELETE", "BREW")
#: What depends on the moment or on a key: a date, a place's token, what a process knows by then.
MOMENTARY = re.compile(
    rb"^(date|repr-digest|tidegate-ticket|tidegate-free|set-cookie"
    rb"|strict-transport-security|retry-after|refresh|tidegate-wait-[\w-]+): .*\r\n",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass
class Caller:
    """A client of one server that speaks on a connection of its own."""

    url: str

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.sock: socket.socket = socket.create_connection(
            (parts.hostname or "", parts.port or 0), timeout=30
        )
        if parts.scheme == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)

    def ask(self, method: str, target: str, *lines: str) -> bytes:
        """The answer's header, and its body if it is all there soon."""
        head = "".join(f"{line}\r\n" for line in lines if line)
        self.sock.sendall(f"{method} {target} HTTP/1.1\r\nHost: h\r\n{head}\r\n".encode())
        data = b""
        while b"\r\n\r\n" not in data or data.startswith(b"HTTP/1.1 100"):
            data = data.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            if b"\r\n\r\n" in data:
                break
            piece = self.sock.recv(1 << 16)
            if not piece:
                return data
            data += piece
        while not Answer(data, method == "HEAD").whole and len(data) < 100_000:
            piece = self.sock.recv(1 << 16)
            if not piece:
                break
            data += piece
        return data

    def close(self) -> None:
        self.sock.close()


def wait_for_digests(url: str) -> None:
    """Read the listings until they show the digests of all files, at each worker."""
    in_a_row = 0
    end_s = time.monotonic() + 30
    while in_a_row < 12:
        assert time.monotonic() < end_s, "the listings never have all digests"
        caller = Caller(url)
        pages = caller.ask("GET", "/") + caller.ask("GET", "/sub/")
        shown = pages.count(b"SHA-256 <bdi>") == 4
        in_a_row = in_a_row + 1 if shown else 0
        caller.close()
        time.sleep(0 if shown else 0.05)


def comparable(raw: bytes) -> bytes:
    """An answer without what depends on the moment."""
    head, mark, body = raw.partition(b"\r\n\r\n")
    # Machines have copies, so what tells one from its copy is no part of their ETags.
    head = re.sub(rb'ETag: "\w+"', b"ETag: ...", MOMENTARY.sub(b"", head + b"\r\n"))
    if b"text/html" in head:
        # Pages name their own address, which is longer by TLS.
        head = re.sub(rb"Content-Length: \d+\r\n", b"", head)
        body = re.sub(rb'<span class="digest">.*?</span>', b"", body)
    return head + mark + body.replace(b"https://h", b"http://h")


def conversation(url: str) -> list[tuple[str, bytes]]:
    """What a server says to everything; each question twice on one connection and once anew."""
    said = []
    with ExitStack() as stack:
        for method in METHODS:
            for target in TARGETS if method in ("GET", "HEAD") else TARGETS[:3]:
                for line in LINES if target == "/small.txt" else LINES[:1] + LINES[12:14]:
                    first, later = Caller(url), Caller(url)
                    stack.callback(first.close)
                    stack.callback(later.close)
                    probe = Answer(first.ask("HEAD", target), head_only=True)
                    filled = line.format(etag=probe.text("etag") or '"none"')
                    for caller in (first, first, later):
                        answer = b""
                        try:
                            answer = caller.ask(method, target, filled)
                        except (ConnectionError, ssl.SSLError):
                            answer = b"(closed)"
                        said.append((f"{method} {target} {line}", comparable(answer)))
    return said


def queue(url: str) -> list[tuple[str, int, str | None, str | None]]:
    """How a queue comes about and goes on: status, place and state told to each visit."""
    told = []
    callers: list[Caller] = []
    tokens: dict[str, str] = {}

    def visit(name: str, file: str, *lines: str) -> None:
        # Each visit is a new connection, so it may come to another worker.
        found = Caller(url)
        callers.append(found)
        own = [f"Tidegate-Ticket: {tokens[name]}"] if name in tokens else []
        fields = ("Tidegate-Wait: ticket", f"Tidegate-Client: {name}", *own, *lines)
        answer = Answer(found.ask("GET", file, *fields))
        token = answer.text("tidegate-ticket")
        if token is not None:
            tokens[name] = token
        place, state = answer.text("tidegate-place"), answer.text("tidegate-status")
        told.append((name, answer.status, place, state))

    for number in range(8):
        visit(f"client-{number}", "/big.iso")
    for number in (5, 2, 7):
        visit(f"client-{number}", "/big.iso")
    tokens.pop("client-6")
    visit("client-6", "/big.iso")
    visit("stranger", "/gold/key.txt")
    visit("client-1", "/other.iso")
    visit("stranger", "/big.iso", "Tidegate-Ticket: nonsense")
    visit("stranger", "/small.txt")
    for caller in callers:
        caller.close()
    return told


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("twins")
    release = folder / "release"
    make_release(release, big_iso=3_000_000, other_iso=3_000_000, small_txt=300)
    for name in ("gold/key.txt", "later/key.txt", "sub/page.html", ".hidden"):
        (release / name).parent.mkdir(exist_ok=True)
        (release / name).write_bytes(name.encode() * 9)
    for path in [release, *release.rglob("*")]:
        os.utime(path, (OLD_S, OLD_S))
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    cert, key = certificate(folder, "one")
    with postgres_running() as own, postgres_running() as shared, ExitStack() as stack:
        kinds = {
            "one process": (),
            "IPv6": ("--listen", "[::1]:0"),
            "TLS": ("--tls-cert", str(cert), "--tls-key", str(key)),
            "three workers": ("--workers", "3"),
            "three workers, TLS": (
                *("--workers", "3"),
                *("--tls-cert", str(cert), "--tls-key", str(key)),
            ),
            "PostgreSQL": (),
            "a machine": ("--cluster", shared),
        }

        def start(kind: str) -> RunningServer:
            args = ("--config", str(rules), *ARGS, *kinds[kind])
            database = {"TIDEGATE_DATABASE": own} if kind == "PostgreSQL" else {}
            state = folder / kind.replace(" ", "-").replace(",", "")
            return RunningServer(release, state, *args, **ENVIRON, **database)

        with ThreadPoolExecutor() as pool:
            servers = dict(zip(kinds, pool.map(start, kinds), strict=True))
            for server in servers.values():
                stack.callback(server.stop)
        # The last place is the one that its kind names.
        yield {kind: server.urls[-1] for kind, server in servers.items()}


OTHERS = ("IPv6", "TLS", "three workers", "three workers, TLS", "PostgreSQL", "a machine")


@pytest.mark.parametrize("kind", OTHERS)
def test_every_kind_of_server_gives_the_same_answers(urls: dict[str, str], kind: str) -> None:
    plain, other = conversation(urls["one process"]), conversation(urls[kind])
    assert len(plain) > 200
    different = {
        question: "\n".join(unified_diff(*(text.decode("latin-1").splitlines() for text in both)))
        for (question, *both) in (
            (one[0], one[1], same[1]) for one, same in zip(plain, other, strict=True)
        )
        if both[0] != both[1]
    }
    assert not different, "\n".join(map("\n".join, different.items()))[:4000]


def test_every_kind_of_server_lists_all_digests(urls: dict[str, str]) -> None:
    """A worker that has sent none of the files once knew none of their digests."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(wait_for_digests, urls.values()))


def test_every_kind_of_server_tells_the_same_places(urls: dict[str, str]) -> None:
    with ThreadPoolExecutor() as pool:
        told = dict(zip(urls, pool.map(queue, urls.values()), strict=True))
    plain = told["one process"]
    assert [place for _, _, place, _ in plain[1:8]] == [str(n) for n in range(1, 8)]
    for kind, places in told.items():
        assert places == plain, kind
