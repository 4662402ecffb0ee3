"""Building the bytes of answers: status lines, header blocks, and problems as small pages."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from ...protocol import problems
from .phrases import PROBLEMS_FOR_PEOPLE, phrases_for

Header = tuple[bytes, bytes]

#: Status -> its status line, without the line end.
STATUS_LINE: Mapping[int, bytes] = {
    int(status): f"HTTP/1.1 {int(status)} {status.phrase}".encode("ascii") for status in HTTPStatus
}

SERVER_LINE = b"Server: Tidegate\r\n"
PROBLEM_JSON = problems.MEDIA_TYPE.encode("ascii")
HTML = b"text/html; charset=utf-8"
NO_STORE: Header = (b"Cache-Control", b"no-store")
#: The fields of a JSON document that is of this moment.
JSON_NOW: tuple[Header, Header] = ((b"Content-Type", b"application/json"), NO_STORE)

#: What is said of what is not there: status, code, detail.
NOT_FOUND = (404, "not-found", "There is nothing here under this name.")

_PAGE = (
    '<!doctype html><html lang="{language}" dir="{direction}"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<title>{title}</title><style>a{{color:#0f6b75;font-weight:600;margin-inline-end:1.5rem}}"
    "small{{color:#5b6874}}small a{{margin:0}}"
    "body{{font:1.0625rem/1.6 system-ui,sans-serif;max-width:38rem;"
    "margin:18vh auto 0;padding:0 1.25rem;color:#1d2733;background:#fbfaf7}}h1{{font-size:1.5rem;"
    "line-height:1.25}}p{{color:#4a5866}}@media (prefers-color-scheme:dark){{body{{color:#e6e9ec;"
    "background:#14181d}}p{{color:#a9b4bf}}a{{color:#5cc0cd}}"
    "small{{color:#8c98a4}}}}</style><main><h1>{title}</h1>{detail}"
    '<p>{again}<a href="/">{all_files}</a></p><p><small dir="ltr">{status}</small></p></main>'
    "</html>\n"
)


def status_line(status: int) -> bytes:
    """The status line of an answer, without the line end."""
    return STATUS_LINE.get(status) or b"HTTP/1.1 %d Unknown" % status


def header_block(headers: Iterable[Header]) -> bytes:
    """Join header fields into lines, each ended by CRLF.

    Raises ValueError when a field holds CR, LF or NUL: such a field could start another answer.
    """
    lines = [b"%b: %b\r\n" % field for field in headers]
    block = b"".join(lines)
    count = len(lines)
    if b"\0" in block or block.count(b"\r") != count or block.count(b"\n") != count:
        raise ValueError("a header field holds CR, LF or NUL")
    return block


def problem_page(
    status: int, code: str, detail: str, accept_language: bytes | None = None
) -> bytes:
    """A problem as a small page, for people whose browser asked for text/html.

    It speaks their language. A problem that only programs meet has no translation: there the
    `detail` stands in English.
    """
    phrases = phrases_for(accept_language)
    key = PROBLEMS_FOR_PEOPLE.get(code)
    text = html.escape(phrases(key) if key is not None else detail)
    own = "" if key is not None or phrases.language == "en" else ' lang="en" dir="ltr"'
    # Asking again may help, without its query: a ticket or pass that is no good is left behind.
    may_pass = status in (403, 408, 500, 503)
    again = f'<a href="?">{html.escape(phrases("try_again"))}</a>' if may_pass else ""
    # A place that is lost is no right that is missing.
    is_plain = key == "problem_ticket" or status not in (403, 404, 500, 503)
    return _PAGE.format(
        language=phrases.tag,
        direction=phrases.direction,
        title=html.escape(phrases("error" if is_plain else f"error_{status}")),
        detail=f"<p{own}>{text}</p>",
        all_files=html.escape(phrases("files_all")),
        again=again,
        status=f'HTTP {status} · <a href="{problems.type_of(code)}">{html.escape(code)}</a>',
    ).encode("utf-8")


def problem_answer(
    status: int,
    code: str,
    detail: str,
    accept: bytes | None,
    language: bytes | None,
    **members: Any,
) -> tuple[list[Header], bytes]:
    """Fields and body of a problem: a document, or a small page for those who want text/html."""
    if prefers_html(accept):
        content_type, body = HTML, problem_page(status, code, detail, language)
    else:
        content_type, body = PROBLEM_JSON, problems.document(status, code, detail, **members)
    fields = [
        (b"Content-Type", content_type),
        NO_STORE,
        (b"Vary", b"Accept, Accept-Language"),
        (b"X-Content-Type-Options", b"nosniff"),
    ]
    return fields, body


def prefers_html(accept: bytes | None) -> bool:
    """Whether an Accept field names text/html, as browsers do and download tools do not."""
    return accept is not None and b"text/html" in accept.lower()
