"""`/.well-known/security.txt` (RFC 9116): where to report a vulnerability of this site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from ..http.request import Request


def security_txt(
    contacts: Sequence[str], wall: Callable[[], float]
) -> Callable[[Request, list[bytes]], bool]:
    """Answers for the file where there are `contacts` (URIs) and the operator wrote none."""
    lines = "".join(f"Contact: {contact}\r\n" for contact in contacts)

    def answer(request: Request, parts: list[bytes]) -> bool:
        if not lines or parts != [b".well-known", b"security.txt"]:
            return False
        today = datetime.fromtimestamp(wall(), UTC).replace(hour=0, minute=0, second=0)
        # RFC 9116, 2.5.5: less than a year; a copy that is kept longer must be fetched again.
        text = f"{lines}Expires: {today + timedelta(days=180):%Y-%m-%dT%H:%M:%SZ}\r\n"
        fields = [
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Cache-Control", b"max-age=86400"),
        ]
        request.respond(200, fields, text.encode("ascii"))
        return True

    return answer
