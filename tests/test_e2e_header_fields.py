"""The full set of response fields of each kind of file answer is the one in PROTOCOL.md."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import pytest

from tests.running import ROOT, RunningServer, make_release, serving, wait_for

pytestmark = pytest.mark.e2e

LARGE = 3_000_000
AWARE = {"Tidegate-Wait": "ticket"}
BROWSER = {"Accept": "text/html", "User-Agent": "Mozilla/5.0 (X11) Firefox/150.0"}
#: Answers that begin while a slot is free: the request and its status.
FREE: dict[str, tuple[str, str, Mapping[str, str], int]] = {
    "200, HEAD": ("HEAD", "/big.iso", {}, 200),
    "200, small file": ("GET", "/small.txt", {}, 200),
    "200, large file": ("GET", "/big.iso", {}, 200),
    "206": ("GET", "/small.txt", {"Range": "bytes=0-9"}, 206),
    "304": ("GET", "/big.iso", {"If-None-Match": "*"}, 304),
    "404": ("GET", "/absent", {}, 404),
}
#: Answers that begin while another client has the only slot.
FULL: dict[str, tuple[str, str, Mapping[str, str], int]] = {
    "503, ticket-aware program": ("GET", "/big.iso", AWARE, 503),
    "503, browser": ("GET", "/big.iso", BROWSER, 503),
}


def documented() -> dict[str, set[str]]:
    """The fields of each answer, by the table in PROTOCOL.md; `+` adds to the last whole row."""
    found: dict[str, set[str]] = {}
    whole: set[str] = set()
    for answers, more, fields in re.findall(
        r"^\| ((?:200|206|304|404|503)[^|]*) \| (\+ )?((?:`[\w-]+` ?)+) \|$",
        (ROOT / "PROTOCOL.md").read_text("utf-8"),
        re.MULTILINE,
    ):
        named = set(re.findall(r"`([\w-]+)`", fields)) | (whole if more else set())
        whole = whole if more else named
        found |= dict.fromkeys(answers.split("; "), named)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("fields")
    make_release(folder / "release", big_iso=LARGE, held_iso=50_000_000, small_txt=2_000)
    with serving(
        *(folder / "release", folder / "state", "--policy", "ticket", "--slots", "1")
    ) as found:
        wait_for(lambda: "Repr-Digest" in fields(found, "HEAD", "/big.iso", {})[1])
        wait_for(lambda: "Repr-Digest" in fields(found, "HEAD", "/small.txt", {})[1])
        yield found


def fields(
    server: RunningServer, method: str, target: str, sent: Mapping[str, str]
) -> tuple[int, set[str]]:
    """The status and the names of all fields of an answer, whose body is read."""
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.request(method, target, headers=dict(sent))
    answer = connection.getresponse()
    names = {name for name, _ in answer.getheaders()}
    answer.read()
    connection.close()
    return answer.status, names


def test_the_table_has_each_answer_that_is_compared() -> None:
    assert documented().keys() == FREE.keys() | FULL.keys()


@pytest.mark.parametrize("answer", FREE)
def test_an_answer_has_the_documented_fields_and_no_others(
    server: RunningServer, answer: str
) -> None:
    method, target, sent, status = FREE[answer]
    assert fields(server, method, target, sent) == (status, documented()[answer])


def test_an_answer_while_all_slots_are_taken_has_the_documented_fields(
    server: RunningServer,
) -> None:
    parts = urlsplit(server.url)
    holder = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    holder.request("GET", "/held.iso", headers={"User-Agent": "curl/8"})
    assert holder.getresponse().status == 200
    for answer, (method, target, sent, status) in FULL.items():
        assert fields(server, method, target, sent) == (status, documented()[answer])
    holder.close()
