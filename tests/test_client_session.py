from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.client.net.answers import Body, Fields, OutOfRange, Redirect, read
from tidegate.client.net.retry import Failed, FailureReason, Granted, Refused, RetryAfter

WAITING = {
    "Retry-After": "12",
    "Tidegate-Ticket": "tok",
    "Tidegate-Place": "3",
    "Tidegate-Wait-Expected": "11.5",
    "Tidegate-Wait-P90": "20",
    "Tidegate-Status": "waiting",
    "Content-Type": "application/problem+json",
}


def problem(kind: str, detail: str) -> bytes:
    return json.dumps({"type": f"https://example.org/problems/{kind}", "detail": detail}).encode()


def test_a_part_says_where_it_belongs() -> None:
    fields = Fields.of({"Content-Range": "bytes 10-19/100", "ETag": '"x"', "Tidegate-Ticket": "l"})
    meaning = read(206, fields)
    assert meaning == Body(10, 20, 100, False, '"x"', Granted("l"))


def test_a_whole_file_is_told_apart_from_a_part() -> None:
    meaning = read(200, Fields.of({"Content-Length": "7", "ETag": 'W/"x"'}))
    assert isinstance(meaning, Body)
    assert (meaning.whole, meaning.size_bytes, meaning.validator) == (True, 7, None)


def test_a_body_in_chunks_has_no_length_whatever_else_is_said() -> None:
    """RFC 9112, 6.3: Transfer-Encoding overrides Content-Length."""
    meaning = read(200, Fields.of({"Content-Length": "7", "Transfer-Encoding": "chunked"}))
    assert isinstance(meaning, Body)
    assert (meaning.end, meaning.size_bytes) == (None, None)


@pytest.mark.parametrize(("second", "counts"), [("02", True), ("03", False)])
def test_a_file_that_may_change_in_this_second_has_no_date_to_go_on_by(
    second: str, counts: bool
) -> None:
    """RFC 9110, 8.8.2.2."""
    modified, answered = (f"Thu, 01 Jan 1970 00:00:{one} GMT" for one in (second, "03"))
    fields = Fields.of({"Content-Length": "7", "Last-Modified": modified, "Date": answered})
    meaning = read(200, fields)
    assert isinstance(meaning, Body)
    assert meaning.validator == (modified if counts else None)


@pytest.mark.parametrize(
    "value", ["bytes 5-4/10", "bytes 0-10/10", "bytes */10", "items 0-1/2", ""]
)
def test_an_impossible_part_is_a_failure(value: str) -> None:
    assert isinstance(read(206, Fields.of({"Content-Range": value})), Failed)


def test_a_wait_carries_everything_the_server_told() -> None:
    meaning = read(503, Fields.of(WAITING), problem("waiting", "You are number 3."))
    assert meaning == RetryAfter(12, "tok", 3, 11.5, 20, False, "You are number 3")


@pytest.mark.parametrize("kind", ["ticket-forged", "ticket-expired", "ticket-used"])
def test_a_bad_ticket_is_the_tickets_fault(kind: str) -> None:
    fields = Fields.of({"Content-Type": "application/problem+json"})
    meaning = read(403, fields, problem(kind, "Bad ticket."))
    assert meaning == Refused(FailureReason.REFUSED, "Bad ticket", ticket_fault=True)


def test_plain_refusals() -> None:
    none = Fields([])
    assert isinstance(missing := read(404, none), Refused)
    assert missing.reason is FailureReason.NOT_FOUND
    assert isinstance(denied := read(403, none), Refused)
    assert denied.reason is FailureReason.REFUSED
    for status in (408, 425, 500):
        assert isinstance(read(status, none), Failed)
    assert isinstance(read(429, none), RetryAfter)


def test_redirects_and_ranges_past_the_end() -> None:
    assert read(302, Fields.of({"Location": "/x"})) == Redirect("/x", Granted())
    assert isinstance(read(302, Fields([])), Failed)
    assert read(416, Fields.of({"Content-Range": "bytes */99"})) == OutOfRange(99)
    assert read(416, Fields([])) == OutOfRange(None)


@pytest.mark.parametrize(
    ("told", "wait_s"),
    [("120", 120), ("Thu, 01 Jan 1970 00:02:00 GMT", 90), ("soon", None)],
)
def test_retry_after_is_seconds_or_a_date(told: str, wait_s: float | None) -> None:
    meaning = read(503, Fields.of({"Retry-After": told}), b"", 30.0)
    assert isinstance(meaning, RetryAfter)
    assert meaning.retry_after_s == wait_s


def test_what_a_server_says_cannot_drive_the_terminal() -> None:
    fields = Fields.of({"Content-Type": "application/problem+json"})
    meaning = read(404, fields, problem("x", "gone\x1b[2J now"))
    assert isinstance(meaning, Refused)
    assert "\x1b" not in meaning.text


@settings(max_examples=100)
@given(
    st.integers(100, 999),
    st.dictionaries(
        st.sampled_from(["Retry-After", "Content-Range", "Content-Length", "Location", "ETag"]),
        st.text(max_size=30),
    ),
    st.binary(max_size=40),
)
def test_no_answer_whatsoever_raises(status: int, fields: dict[str, str], body: bytes) -> None:
    read(status, Fields.of({**fields, "Content-Type": "application/problem+json"}), body, 1e9)


@pytest.mark.parametrize(
    ("header", "exact", "wait_s"),
    [
        *(("3", 2.25, 2.25), ("3", 9, 3), ("3", 1.9, 3)),
        *(("3", "soon", 3), ("3", True, 3), (None, 2.5, None)),
    ],
)
def test_the_exact_time_counts_where_it_agrees_with_the_header(
    header: str | None, exact: object, wait_s: float | None
) -> None:
    fields = {"Content-Type": "application/problem+json"}
    if header is not None:
        fields["Retry-After"] = header
    meaning = read(503, Fields.of(fields), json.dumps({"retry_after_s": exact}).encode())
    assert isinstance(meaning, RetryAfter)
    assert meaning.retry_after_s == wait_s
