"""Numbers of thousands of digits, of which Python's reader makes an exception."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import RunningServer, make_release, serving
from tidegate.client.fetch.acceptance import read_findings
from tidegate.client.net.answers import Fields
from tidegate.client.net.urls import parse
from tidegate.protocol.units import whole_number


def test_a_whole_number_is_one_in_ascii_and_of_a_bounded_length() -> None:
    assert [whole_number(text) for text in ("0", "007", "9" * 18)] == [0, 7, 10**18 - 1]
    for text in ("", "-1", "+1", " 1", "1.0", "0x1", "\u00b2", "9" * 19, "0" * 5000):
        assert whole_number(text) is None


def test_a_mirror_with_a_priority_of_5000_digits_is_one_of_none() -> None:
    """It used to end the download with a traceback."""
    link = f'<http://m.example/a>; rel="duplicate"; pri={"9" * 5000}'
    found = read_findings(parse("http://o.example/a"), Fields([("Link", link)]))
    assert [mirror.host for mirror in found.mirrors] == ["m.example"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("numbers")
    make_release(folder / "release", a_txt=10)
    with serving(folder / "release", folder / "state") as running:
        yield running


@pytest.mark.e2e
@pytest.mark.parametrize(
    "request_",
    [
        b"POST /a.txt HTTP/1.1\r\nContent-Length: " + b"0" * 5000,
        b"GET /?page=" + b"9" * 5000 + b" HTTP/1.1\r\nAccept: text/html",
        b"GET /a.txt HTTP/1.1\r\nRange: bytes=0-" + b"9" * 5000,
        b"GET /a.txt HTTP/1.1\r\nTidegate-Remaining: " + b"9" * 5000,
        b"GET /a.txt HTTP/1.1\r\nWant-Repr-Digest: sha-256=" + b"9" * 5000,
        b"GET /a.txt HTTP/1.1\r\nIf-Modified-Since: Fri, 31 Dec " + b"9" * 5000,
    ],
    ids=["length", "page", "range", "remaining", "weight", "date"],
)
def test_a_number_of_5000_digits_makes_no_traceback(server: RunningServer, request_: bytes) -> None:
    """A length of zeros, or a page of nines, made one each, and its connection stayed open."""
    host, _, port = server.url.rpartition("/")[2].partition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(request_ + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = connection.recv(12)
    assert answer[:9] == b"HTTP/1.1 "
    assert answer[9:10] in b"24"
    assert "Traceback" not in "".join(server.errors)
