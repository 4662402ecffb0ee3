from __future__ import annotations

import pytest

from client import early
from client.asking import Asking
from client.urls import parse


@pytest.mark.parametrize(
    "url",
    ["http://a.example/x.iso", "http://A.example:8080/a/b-1.2_3~x?y=1&z", "http://127.0.0.1/"],
)
@pytest.mark.parametrize("span", [(0, 10), (None, None)])
def test_the_early_request_is_the_one_that_would_be_sent(
    url: str, span: tuple[int, int] | tuple[None, None]
) -> None:
    place = early._split(url)
    assert place is not None
    parsed = parse(url)
    fields = [("Tidegate-Wait", "ticket")]
    if span[0] is not None and span[1] is not None:
        fields.append(("Range", f"bytes={span[0]}-{span[1] - 1}"))
    wanted = Asking({}, client_id="c" * 32).request(parsed, parsed, fields)
    assert early._request(*place, "c" * 32, *span) == wanted


@pytest.mark.parametrize(
    "url",
    [
        "http://u:p@a/x",
        "http://[::1]/x",
        "http://a/x%20y",
        "http://a/x y",
        "http://a:0/x",
        "http://a:99999/x",
        "http://ä/x",
        "http:///x",
        "http://a/x#y",
        "http://a/<x>",
    ],
)
def test_what_is_special_is_left_to_the_ordinary_way(url: str) -> None:
    assert early._split(url) is None


@pytest.mark.parametrize(
    "words",
    [
        ["--limit-rate", "1MB", "http://127.0.0.1:1/x"],
        ["-r", "http://127.0.0.1:1/x"],
        ["https://127.0.0.1:1/x"],
        ["http://127.0.0.1:1/x.meta4"],
        ["-o"],
        [],
    ],
)
def test_nothing_is_started_for_an_unusual_command_line(words: list[str]) -> None:
    early.begin(words)
    assert early._flying == []


def test_three_mirrors_are_asked_for_the_same_sample_first() -> None:
    first, second, third = (early.first_spans(n, 3, 100) for n in range(3))
    assert first[0] == second[0] == third[0]
    assert [spans[1] for spans in (first, second, third)] == [(0, 100), (100, 200), (200, 300)]
    assert early.first_spans(0, 1, 100) == [(None, None)]
    assert early.first_spans(1, 2, 100) == [(100, 200)]
