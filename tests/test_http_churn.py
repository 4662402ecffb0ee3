"""A crowd that is never twice the same leaves nothing behind, whatever it asks for."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.http_bench import Bench, Dialled

BODY = bytes(range(256)) * 20
#: A multiple of what each table holds, so that each is as full after it as before.
REQUESTS = 2048
#: The largest number of objects that a request may leave on the average. A kept name is one.
MOST_LEFT = 0.5

Kind = Callable[[int], bytes]
KINDS: dict[str, Kind] = {
    "agent": lambda n: b"GET /a.bin HTTP/1.1\r\nHost: h\r\nUser-Agent: agent/%d\r\n\r\n" % n,
    "cookie": lambda n: b"GET /a.bin HTTP/1.1\r\nHost: h\r\nCookie: session=%d\r\n\r\n" % n,
    "query": lambda n: b"GET /a.bin?v=%d HTTP/1.1\r\nHost: h\r\n\r\n" % n,
    "missing": lambda n: b"GET /none-%d HTTP/1.1\r\nHost: h\r\n\r\n" % n,
    "language": lambda n: (
        b"GET /none HTTP/1.1\r\nHost: h\r\nAccept: text/html\r\nAccept-Language: de;q=0.%d\r\n\r\n"
        % n
    ),
    "tag": lambda n: b'GET /a.bin HTTP/1.1\r\nHost: h\r\nIf-None-Match: "%d"\r\n\r\n' % n,
    "range": lambda n: b"GET /large.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=%d-\r\n\r\n" % n,
    "host": lambda n: b"GET /a.bin HTTP/1.1\r\nHost: h%d\r\n\r\n" % n,
    "listing": lambda n: b"GET /sub/?format=json&v=%d HTTP/1.1\r\nHost: h\r\n\r\n" % n,
    "refused": lambda n: b"GET /a.bin HTTP/1.1\r\nHost: h\r\nHost: h%d\r\n\r\n" % n,
}


def _ask(bench: Bench, kind: Kind, first: int) -> None:
    for number in range(first, first + REQUESTS):
        client = Dialled(bench, f"198.51.100.{number % 200}")
        client.send(kind(number))
        client.taken()
        if number % 100 == 0:
            Dialled.hang_up()
            bench.tick(2)
    Dialled.hang_up()
    bench.tick(5)


@pytest.mark.parametrize("name", KINDS)
def test_requests_that_never_repeat_leave_nothing_behind(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path)
    for file in ("a.bin", "sub/x.txt"):
        bench.write(file, BODY)
    bench.write("large.bin", BODY * 2)
    kind = KINDS[name]
    _ask(bench, kind, 0)
    gc.collect()
    before = sys.getallocatedblocks()
    _ask(bench, kind, REQUESTS)
    gc.collect()
    assert (sys.getallocatedblocks() - before) / REQUESTS < MOST_LEFT
    assert not bench.factory.connections
