"""Pages write every language as Babel, which compiles the catalogues, would write it."""

from __future__ import annotations

import datetime
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel import Locale
from babel.dates import format_date
from babel.numbers import format_decimal
from babel.units import format_unit
from hypothesis import given
from hypothesis import strategies as st

from tests.installed import PYTHON, ROOT
from tidegate.protocol.units import split_duration
from tidegate.server.http.phrases import FOLDER, LANGUAGES, Phrases

DAY_S = 86_400
NO_BREAK = "\N{NO-BREAK SPACE}"
UNITS = {
    "s": "duration-second",
    "min": "duration-minute",
    "h": "duration-hour",
    "d": "duration-day",
}


def babel_date(language: str, day: datetime.date) -> str:
    if language == "en":
        return format_date(day, "d MMM y", Locale.parse("en_GB"))
    return format_date(day, "medium", Locale.parse(language))


@functools.cache
def babel_unit(language: str, count: int, unit: str) -> str:
    text = format_unit(count, UNITS[unit], "short", locale=Locale.parse(language))
    return text.replace(" ", NO_BREAK)


def babel_duration(language: str, duration_s: float) -> str:
    parts = split_duration(duration_s)
    return " ".join(babel_unit(language, count, unit) for unit, count in parts)


def durations() -> Iterator[int]:
    """One duration for every text that a page can show within four years, and more."""
    yield from range(90)
    yield from range(60, 90 * 60, 60)
    yield from range(90 * 60, 48 * 3600, 60)
    yield from range(2 * DAY_S, 1_500 * DAY_S, DAY_S)
    # Some languages have a plural form for whole millions.
    yield 10**6 * DAY_S


def test_the_compiled_catalogues_are_those_of_this_checkout(tmp_path: Path) -> None:
    subprocess.run([PYTHON, "-P", ROOT / "tools" / "build-catalogues", tmp_path], check=True)
    compiled = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    checked_in = ROOT / "templates" / "locales"
    assert compiled == {path.name: path.read_text("utf-8") for path in checked_in.glob("*.json")}
    assert {path.stem for path in checked_in.glob("*.po")} == set(LANGUAGES) - {"en"}


def test_a_catalogue_is_read_without_its_source() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_and_directions_are_those_of_babel(language: str) -> None:
    locale, phrases = Locale.parse(language), Phrases(language)
    assert (phrases.name, phrases.direction) == (locale.get_display_name(), locale.text_direction)


@pytest.mark.parametrize("language", LANGUAGES)
def test_numbers_are_those_of_babel(language: str) -> None:
    locale, phrases = Locale.parse(language), Phrases(language)
    for number in (*range(2_000), *range(9_800, 10_200), 99_999, *range(999_990, 1_000_010)):
        assert phrases.number(number) == format_decimal(number, locale=locale)


@pytest.mark.parametrize("language", LANGUAGES)
def test_dates_are_those_of_babel(language: str) -> None:
    phrases = Phrases(language)
    for number in (*range(800), *range(20_000, 20_800)):
        day = datetime.date(1970, 1, 1) + datetime.timedelta(number)
        assert phrases.date(number * DAY_S) == babel_date(language, day)


@pytest.mark.parametrize("language", LANGUAGES)
def test_durations_and_their_plurals_are_those_of_babel(language: str) -> None:
    phrases = Phrases(language)
    for duration_s in durations():
        assert phrases.time(duration_s) == babel_duration(language, duration_s), duration_s


@given(
    language=st.sampled_from(LANGUAGES),
    number=st.integers(0, 10**15),
    duration_s=st.floats(0, 10**7 * DAY_S),
    day_s=st.integers(0, 250_000_000_000),
)
def test_any_value_is_written_as_babel_writes_it(
    language: str, number: int, duration_s: float, day_s: int
) -> None:
    phrases = Phrases(language)
    assert phrases.number(number) == format_decimal(number, locale=Locale.parse(language))
    assert phrases.time(duration_s) == babel_duration(language, duration_s)
    day = datetime.datetime.fromtimestamp(day_s, datetime.UTC).date()
    assert phrases.date(day_s) == babel_date(language, day)
