"""An operator's colour can be read on both pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import templates
from tidegate.server.control.branding import (
    JUDGED_BY,
    colour_of,
    contrast,
    legible,
    style_of,
)

COLOURS = st.integers(0, 0xFFFFFF).map("#{:06x}".format)


def test_the_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#0b6e7f", "#0b6e7f") == 1.0


@given(COLOURS)
def test_every_colour_is_made_legible(colour: str) -> None:
    for paper in (JUDGED_BY.light_paper, JUDGED_BY.dark_paper):
        found = legible(colour, paper)
        assert contrast(found, paper) >= JUDGED_BY.least_contrast
        if contrast(colour, paper) >= JUDGED_BY.least_contrast:
            assert found == colour, "what can be read stays"
    for rules in style_of(colour).split("@media"):
        tokens = dict(re.findall(r"--([a-z-]+):(#[0-9a-f]{6})", rules))
        assert contrast(tokens["on-tide"], tokens["tide"]) >= JUDGED_BY.least_contrast
        assert contrast(tokens["tide-deep"], tokens["tide-wash"]) >= JUDGED_BY.least_contrast


@given(COLOURS)
def test_a_colour_is_read_as_people_write_it(colour: str) -> None:
    assert colour_of(f" {colour.upper()} ") == colour
    assert colour_of("#a0F") == "#aa00ff"


@pytest.mark.parametrize("text", ["teal", "#12345", "#1234567", "0b6e7f", "#0b6e7g", "#fff;}"])
def test_what_is_no_colour_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Write a colour as #0b6e7f"):
        colour_of(text)


def test_the_papers_are_those_of_the_pages() -> None:
    sheet = Path(*templates.__path__, "static", "base.css").read_text()
    assert re.findall(r"--paper: (#[0-9a-f]{6})", sheet) == [
        JUDGED_BY.light_paper,
        JUDGED_BY.dark_paper,
    ]
