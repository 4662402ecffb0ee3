"""Fields are read as the RFCs say, what we write we read back, and nonsense never raises."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.headers import (
    EntityTag,
    format_http_date,
    format_link,
    format_repr_digest,
    parse_etag,
    parse_http_date,
    parse_links,
    parse_repr_digest,
    parse_retry_after,
    parse_want_digest,
    strong_match,
    weak_match,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "http_fields.json").read_text("utf-8")
)


@pytest.mark.parametrize(("text", "unix_s"), VECTORS["dates"])
def test_dates_of_all_three_forms_are_read(text: str, unix_s: int | None) -> None:
    assert parse_http_date(text) == unix_s


@given(st.integers(0, 253_402_300_799))
@settings(max_examples=100)
def test_a_date_survives_the_round_trip(unix_s: int) -> None:
    assert parse_http_date(format_http_date(unix_s)) == unix_s
    assert format_http_date(unix_s + 0.9) == format_http_date(unix_s)


@pytest.mark.parametrize(("text", "tags"), VECTORS["etags"])
def test_entity_tag_lists_are_read_as_far_as_they_go(text: str, tags: list[list[Any]]) -> None:
    for tag in {tag for tag, _ in tags} | {"absent"}:
        assert weak_match(text, EntityTag(tag)) == (tag in [one for one, _ in tags])
        assert strong_match(text, EntityTag(tag)) == ([tag, False] in tags)


@given(st.from_regex(r"[!\x23-\x7e\x80-\xff]{0,20}", fullmatch=True), st.booleans())
@settings(max_examples=50)
def test_an_entity_tag_survives_the_round_trip(tag: str, weak: bool) -> None:
    made = EntityTag(tag, weak)
    assert parse_etag(str(made)) == made
    assert weak_match(f'"x", {made}', made)


def test_strong_comparison_needs_two_strong_tags_and_weak_comparison_does_not() -> None:
    strong = EntityTag("a")
    assert strong_match('"x", "a"', strong)
    assert not strong_match('W/"a"', strong)
    assert not strong_match('"a"', EntityTag("a", weak=True))
    assert weak_match('W/"a"', strong)
    assert strong_match("*", strong)
    assert weak_match(" * ", strong)
    assert not weak_match('"b"', strong)


ETAG = re.compile(r'[ \t,]*(?P<weak>W/)?"(?P<tag>[!\x23-\x7e\x80-\xff]*)"')


def tags_one_by_one(text: str) -> tuple[EntityTag, ...]:
    """The list by a match for each tag; quadratic."""
    tags = []
    position = 0
    while match := ETAG.match(text, position):
        tags.append(EntityTag(match["tag"], match["weak"] is not None))
        position = match.end()
        rest = text[position:].lstrip(" \t")
        if rest and not rest.startswith(","):
            break
    return tuple(tags)


SOME_TAGS = st.lists(
    st.sampled_from(
        ['"a"', 'W/"b"', '""', '"a,b"', ",", ", ", " ", "\t", "W/", '"', "*", "x", "\xff"]
    )
).map("".join) | st.text(st.characters(max_codepoint=255))


@given(SOME_TAGS, st.sampled_from(["a", "b", "", "a,b", ", "]), st.booleans())
@settings(max_examples=500)
def test_a_list_of_tags_is_what_a_match_for_each_of_them_gives(
    text: str, tag: str, weak: bool
) -> None:
    tags, current = tags_one_by_one(text), EntityTag(tag, weak)
    star = text.strip() == "*"
    assert weak_match(text, current) == (star or tag in [one.tag for one in tags])
    assert strong_match(text, current) == (star or (current in tags and not weak))


@pytest.mark.parametrize(("text", "wants"), VECTORS["want_digest"])
def test_want_digest_weights_are_read(text: str, wants: dict[str, int]) -> None:
    assert parse_want_digest(text) == wants


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=30)
def test_a_digest_survives_the_round_trip(raw: bytes) -> None:
    assert parse_repr_digest(format_repr_digest(raw)) == {"sha-256": raw}


@pytest.mark.parametrize("spoilt", ["md5", "crc=1", "SHA-256=:AAAA:", "sha-512=:AA?A:", "x=:A:y"])
def test_a_digest_beside_what_cannot_be_read_is_no_digest(spoilt: str) -> None:
    """RFC 9651, 4.2: a field of which a part fails is ignored."""
    good = format_repr_digest(bytes(32))
    assert parse_repr_digest(f"{good}, {spoilt}") == parse_repr_digest(f"{spoilt}, {good}") == {}


@pytest.mark.parametrize(("text", "links"), VECTORS["links"])
def test_links_are_read(text: str, links: list[list[Any]]) -> None:
    assert [[link.target, dict(link.parameters)] for link in parse_links(text)] == links


def test_a_link_survives_the_round_trip() -> None:
    text = format_link("http://m/a b", rel="duplicate next", pri="2", title='say "hi" \\')
    (link,) = parse_links(f"{text}, {text}")[:1]
    assert link.target == "http://m/a b"
    assert link.relations == ("duplicate", "next")
    assert link.parameters["title"] == 'say "hi" \\'


@pytest.mark.parametrize(("text", "wait_s"), VECTORS["retry_after"])
def test_retry_after_is_read_as_seconds_or_date(text: str, wait_s: float | None) -> None:
    assert parse_retry_after(text, 784111740.0) == wait_s


@given(st.text(max_size=200))
@settings(max_examples=100)
def test_no_field_value_makes_a_reader_raise(text: str) -> None:
    parse_http_date(text)
    parse_etag(text)
    weak_match(text, EntityTag("a"))
    parse_repr_digest(text)
    parse_want_digest(text)
    parse_links(text)
    parse_retry_after(text, 0.0)


def test_of_a_link_s_repeated_parameter_the_first_counts() -> None:
    [link] = parse_links('<a>; rel=duplicate; pri=1; rel="next"; pri=2')
    assert link.relations == ("duplicate",)
    assert link.parameters["pri"] == "1"
