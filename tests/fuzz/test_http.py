"""The HTTP front answers or closes, whatever arrives and however it is cut."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from tests.http_bench import Bench
from tests.readers import UNITS

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))
LONG = "FUZZ_EXAMPLES" in os.environ
STATUS_LINE = re.compile(rb"HTTP/1\.1 [2345]\d\d ")

lines = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n", b"GET /a.bin HTTP/1.1\r\n", b"HEAD /sub/?x=1 HTTP/1.1\r\n",
        b"GET /a.bin.meta4 HTTP/1.1\r\n", b"GET /SHA256SUMS HTTP/1.0\r\n", b"POST / HTTP/1.1\r\n",
        b"GET /-/static/base.css HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n", b"Host: h\r\n",
        b"Range: bytes=0-1,3-\r\n", b"Range: bytes=-5\r\n", b"If-Range: \"x\"\r\n", b"\r\n",
        b"If-None-Match: *\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n",
        b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Accept: text/html\r\n",
        b"Cookie: tidegate-visitor=v1.k.AA.BB\r\n", b"Tidegate-Ticket: t2.k.AA.BB\r\n",
        b"Upgrade: h2c\r\n", b"Want-Repr-Digest: sha-256=1\r\n", b"3\r\nabc\r\n0\r\n\r\n",
    ]
)  # fmt: skip
streams = st.lists(lines | st.sampled_from(UNITS) | st.binary(max_size=8), min_size=1, max_size=14)


@pytest.mark.timeout(3600 if LONG else 120)
def test_the_front_answers_or_closes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    (tmp_path / "sub" / "x.txt").write_bytes(b"x")
    bench = Bench(tmp_path)

    @settings(
        max_examples=EXAMPLES,
        derandomize=not LONG,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(streams, st.integers(1, 40))
    def attack(pieces: list[bytes], cut: int) -> None:
        client = bench.connect()
        data = b"".join(pieces)
        with capturedLogs() as logged:
            for at in range(0, len(data), cut):
                client.send(data[at : at + cut])
            bench.tick(2)
            said = client.taken()
            client.leave()
        assert not said or STATUS_LINE.match(said)
        assert not [event for event in logged if "log_failure" in event]
        assert not bench.factory.connections

    attack()
