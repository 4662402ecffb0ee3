"""`tidegate get` at the mercy of a malicious origin or mirror."""

from __future__ import annotations

from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client.net.answers import Fields, read
from client.net.retry import Failed, Refused, RetryAfter
from client.net.urls import BadUrl, disposition_name, parse
from server.files.paths import split_path

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
