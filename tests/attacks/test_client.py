"""`tidegate get` at the mercy of a malicious origin or mirror."""

from __future__ import annotations

import pytest

from client.net.answers import Fields, read
from client.net.retry import ComeBack, Failed, Refused
from client.net.urls import BadUrl, parse

PROBLEM = Fields([("Content-Type", "application/problem+json"), ("Retry-After", "5")])


@pytest.mark.parametrize("opening", [b"[", b'{"a":'], ids=["arrays", "objects"])
@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_problem_document_that_nests_without_end_is_none(status: int, opening: bytes) -> None:
    """A thousand brackets used to end the download with a traceback."""
    meaning = read(status, PROBLEM, opening * 60_000)
    assert isinstance(meaning, ComeBack | Failed | Refused)


def test_a_time_to_come_back_that_no_float_holds_is_not_believed() -> None:
    found = read(503, PROBLEM, b'{"retry_after_s": ' + b"9" * 4000 + b"}")
    assert isinstance(found, ComeBack)
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
