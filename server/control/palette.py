"""An operator's colour on the visitors' pages, made legible on the light and on the dark page."""

from __future__ import annotations

import re
from typing import NamedTuple


class PageColours(NamedTuple):
    """What colours of an operator are judged against."""

    #: The paper of the light page, as `base.css` has it.
    light_paper: str = "#fbfaf6"
    #: That of the dark page.
    dark_paper: str = "#10161c"
    #: Least contrast of text (WCAG 2.2, 1.4.3, level AA).
    least_contrast: float = 4.5
    #: Steps between a colour and black or white among which the first legible one is taken.
    steps: int = 50


JUDGED_BY = PageColours()


def colour_of(text: str) -> str:
    """A colour as `#rrggbb`. Raises ValueError."""
    colour = text.strip().lower()
    if len(colour) == 4:
        colour = "#" + "".join(2 * digit for digit in colour[1:])
    if not re.fullmatch(r"#[0-9a-f]{6}", colour):
        raise ValueError("Write a colour as #0b6e7f: a number sign and six hexadecimal digits.")
    return colour


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, 1 to 21, as WCAG defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def legible(colour: str, paper: str) -> str:
    """The colour itself, or the first mix with black or white that is legible on the paper."""
    towards = ink_on(paper)
    mixes = (_mixed(colour, towards, step / JUDGED_BY.steps) for step in range(JUDGED_BY.steps + 1))
    return next(mix for mix in mixes if contrast(mix, paper) >= JUDGED_BY.least_contrast)


def ink_on(ground: str) -> str:
    """Black or white, whichever is easier to read on the ground."""
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, ground))


def style_of(colour: str) -> str:
    """A style sheet after `base.css` that gives links, buttons and bars this colour."""
    light, dark = (
        _tokens(legible(colour, p), p) for p in (JUDGED_BY.light_paper, JUDGED_BY.dark_paper)
    )
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _tokens(tide: str, paper: str) -> str:
    wash = _mixed(paper, tide, 0.12)
    deep = legible(_mixed(tide, ink_on(paper), 0.25), wash)
    return f"--tide:{tide};--tide-deep:{deep};--tide-wash:{wash};--on-tide:{ink_on(tide)}"


def _channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def _mixed(one: str, other: str, share: float) -> str:
    pairs = zip(_channels(one), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _luminance(colour: str) -> float:
    """The relative luminance of an sRGB colour, 0 to 1 (WCAG 2.2)."""
    shares = [value / 255 for value in _channels(colour)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
