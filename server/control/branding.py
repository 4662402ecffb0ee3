"""The operator's words and logo on the waiting page, and previews of that page."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from ...policies.contract import Estimate, Wait
from ..admission.responses import Notice, RetryResponder, Wording
from ..http.phrases import Phrases
from ..http.request import Request
from .key_values import KeyValues

LOGO_ROUTE = "/-/logo"
LOGO_MAX_BYTES = 256 * 1024
#: States of a visitor in a preview, and the policy's answer for each.
STATES = {
    "waiting": Wait(30.0, 4711, 212, False, Estimate(840.0, 1020.0, Estimate(900.0, 1200.0))),
    "ready": Wait(3.0, 4711, 1, True, Estimate(1.0, 5.0, Estimate(30.0, 60.0))),
    "closed": Wait(10.0, 4711, 212, False),
    "pre-queue": Wait(600.0),
}
_DOCUMENT = "waiting"


@dataclass(frozen=True, slots=True)
class Look:
    """The operator's words and logo (PNG, JPEG or WebP)."""

    title: str = ""
    text: str = ""
    logo: bytes = b""
    logo_type: str = ""

    @property
    def logo_bytes(self) -> int:
        """The size of the logo."""
        return len(self.logo)


class Branding:
    """Keeps the look and applies it to the waiting page."""

    def __init__(self, waiting: RetryResponder, documents: KeyValues) -> None:
        self._waiting = waiting
        self._documents = documents
        self._announcement = ""
        self._resumes_s: float | None = None
        kept = documents.read(_DOCUMENT)
        logo = base64.b64decode(kept.get("logo", ""))
        self.look = Look(
            kept.get("title", ""), kept.get("text", ""), logo, kept.get("logo_type", "")
        )
        self._apply()

    def change(self, look: Look) -> None:
        """Store this look and apply it."""
        self.look = look
        logo = base64.b64encode(look.logo).decode()
        body = {"title": look.title, "text": look.text, "logo": logo, "logo_type": look.logo_type}
        self._documents.write(_DOCUMENT, body)
        self._apply()

    def announce(self, text: str, resumes_s: float | None) -> None:
        """Show this text above the operator's own, and when downloads start again (Unix time)."""
        self._announcement = text
        self._resumes_s = resumes_s
        self._apply()

    def _apply(self) -> None:
        text = "\n\n".join(filter(None, (self._announcement, self.look.text)))
        tag = hashlib.sha256(self.look.logo).hexdigest()[:8]
        logo_url = f"{LOGO_ROUTE}?v={tag}" if self.look.logo else ""
        self._waiting.show(Wording(self.look.title, text, logo_url, self._resumes_s))

    def answer_logo(self, request: Request) -> None:
        """Answer a request for the logo."""
        if not self.look.logo:
            request.refuse(404, "not-found", "There is no logo.")
            return
        fields = [
            (b"Content-Type", self.look.logo_type.encode("ascii")),
            (b"Cache-Control", b"public, max-age=3600"),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        request.respond(200, fields, self.look.logo)

    def preview(self, state: str, language: str) -> bytes:
        """The waiting page in one of the `STATES`."""
        notice = Notice(
            file="/release-42.0-x86_64.iso",
            size_bytes=4_100_000_000,
            wait=STATES[state],
            token=None if state == "pre-queue" else "preview",
            waited_s=300.0,
            closed=state == "closed",
            opens_s=5400.0 if state == "pre-queue" else None,
        )
        return self._waiting.page(notice, Phrases(language))


def picture_type(data: bytes) -> str:
    """The media type of a raster picture by its first bytes; not of SVG, which may hold script."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""
