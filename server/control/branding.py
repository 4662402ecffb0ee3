"""The operator's words, logo and legible colour on the waiting page, and previews of it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from ...policies.contract import Estimate, Wait
from ..admission.responses import Notice, RetryResponder, Wording, Words
from ..http.phrases import Phrases
from ..http.request import Request
from .key_values import KeyValues


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


STYLE_ROUTE = "/-/look"
LOGO_ROUTE = "/-/logo"
LOGO_MAX_BYTES = 256 * 1024
#: The states of a visitor, and the policy's answer for each in a preview.
STATES = {
    "waiting": Wait(30.0, 4711, 212, False, Estimate(840.0, 1020.0, Estimate(900.0, 1200.0))),
    "ready": Wait(3.0, 4711, 1, True, Estimate(1.0, 5.0, Estimate(30.0, 60.0))),
    "busy": Wait(30.0),
    "closed": Wait(10.0, 4711, 212, False),
    "pre-queue": Wait(600.0),
}


@dataclass(frozen=True, slots=True)
class Look:
    """The operator's words, logo (PNG, JPEG or WebP) and colour (`#rrggbb`, empty for ours)."""

    words: tuple[Words, ...] = ()
    logo: bytes = b""
    logo_type: str = ""
    colour: str = ""

    @property
    def logo_bytes(self) -> int:
        return len(self.logo)

    def own_words(self, state: str, language: str) -> Words:
        """The words of exactly this state and language; empty ones if there are none."""
        own = Words(state, language)
        return next((w for w in self.words if (w.state, w.language) == (state, language)), own)

    def saying(self, words: Words) -> Look:
        """The look with these words in the place of those for the same state and language."""
        others = [w for w in self.words if (w.state, w.language) != (words.state, words.language)]
        if words.title or words.text:
            others.append(words)
        return replace(self, words=tuple(sorted(others, key=lambda w: (w.state, w.language))))


class Branding:
    """Keeps the look and applies it to the waiting page."""

    def __init__(self, waiting: RetryResponder, documents: KeyValues) -> None:
        self._waiting = waiting
        self._documents = documents
        self._announcement = ""
        self._resumes_s: float | None = None
        kept = documents.read("waiting")
        self.look = Look(
            tuple(Words(**one) for one in kept.get("words", ())),
            base64.b64decode(kept.get("logo", "")),
            kept.get("logo_type", ""),
            kept.get("colour", ""),
        )
        self._apply(self.look)

    def change(self, look: Look) -> None:
        """Store this look and apply it."""
        self.look = look
        body = {**asdict(look), "logo": base64.b64encode(look.logo).decode()}
        self._documents.write("waiting", body)
        self._apply(look)

    def announce(self, text: str, resumes_s: float | None) -> None:
        """Show this text above the operator's own, and when downloads start again (Unix time)."""
        self._announcement = text
        self._resumes_s = resumes_s
        self._apply(self.look)

    def _apply(self, look: Look) -> None:
        tag = hashlib.sha256(look.logo).hexdigest()[:8]
        self._waiting.wording = Wording(
            look.words,
            self._announcement,
            f"{LOGO_ROUTE}?v={tag}" if look.logo else "",
            f"{STYLE_ROUTE}?colour={look.colour[1:]}" if look.colour else "",
            self._resumes_s,
        )

    def answer_style(self, request: Request) -> None:
        colour = self.look.colour
        body = style_of(colour).encode() if colour else b""
        _answer(request, "colour", "text/css; charset=utf-8", body)

    def answer_logo(self, request: Request) -> None:
        _answer(request, "logo", self.look.logo_type, self.look.logo)

    def preview(self, state: str, language: str, look: Look | None = None) -> bytes:
        """The waiting page in one of the `STATES`, as it is or with another look."""
        notice = Notice(
            file="/release-42.0-x86_64.iso",
            size_bytes=4_100_000_000,
            wait=STATES[state],
            token="preview" if STATES[state].ticket is not None else None,
            waited_s=300.0,
            closed=state == "closed",
            opens_s=5400.0 if state == "pre-queue" else None,
            entry="preview" if state == "pre-queue" else "",
        )
        self._apply(look or self.look)
        try:
            return self._waiting.page(notice, Phrases(language))
        finally:
            self._apply(self.look)


def _answer(request: Request, what: str, media_type: str, body: bytes) -> None:
    """Answer with a body that browsers keep for an hour; an empty one is not there."""
    if not body:
        request.refuse(404, "not-found", f"There is no {what}.")
        return
    kept = (b"Cache-Control", b"public, max-age=3600")
    fields = [(b"Content-Type", media_type.encode("ascii")), kept]
    request.respond(200, [*fields, (b"X-Content-Type-Options", b"nosniff")], body)


def picture_type(data: bytes) -> str:
    """The media type of a whole raster picture by its ends; not of SVG, which may hold script."""
    if data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") and b"IEND" in data[-12:]:
        return "image/png"
    if data.startswith(b"\xff\xd8\xff") and b"\xff\xd9" in data[-64:]:
        return "image/jpeg"
    is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    whole = len(data) >= 8 + int.from_bytes(data[4:8], "little")
    return "image/webp" if is_webp and whole else ""
