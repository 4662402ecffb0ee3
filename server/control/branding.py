"""The operator's words, logo and colour on the waiting page, and previews of that page."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict, dataclass, replace

from ...policies.contract import Estimate, Wait
from ..admission.responses import Notice, RetryResponder, Wording, Words
from ..http.phrases import Phrases
from ..http.request import Request
from .key_values import KeyValues
from .palette import style_of

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
    """The media type of a raster picture by its first bytes; not of SVG, which may hold script."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""
