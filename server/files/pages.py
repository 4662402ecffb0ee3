"""HTML pages from the templates package, and the static files they use, both from memory."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

import templates
from protocol import problems
from server.files.mediatypes import content_type_of
from server.http.answers import Header
from server.http.request import Request

STATIC_ROUTE = "/-/static"

#: Pages run nothing that is not ours, and are shown in nobody's frame.
SECURITY_HEADERS = (
    (
        b"Content-Security-Policy",
        b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"same-origin"),
)


#: What stands in a page that was rendered with open blanks; escaping leaves it alone.
_BLANK = re.compile("\ue000([a-z_]+)\ue001")
#: Pages with open blanks that are kept.
_MOST_PATTERNS = 256


def blank(name: str) -> str:
    """What a page is rendered with where a value of this name is filled in later."""
    return f"\ue000{name}\ue001"


class Pages:
    """Renders templates with everything escaped, and answers requests for static files.

    Templates get `static(name)`, which gives a URL below `route` that changes with the file's
    content; `folders` of the templates have the static files.
    """

    def __init__(self, route: str = STATIC_ROUTE, folders: Sequence[str] = ("static",)) -> None:
        directory = os.path.dirname(os.path.abspath(templates.__file__))
        self._route = route
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(directory),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            # The package's templates change with the package: no look at the disk for each page.
            auto_reload=False,
        )
        self._static: dict[str, tuple[bytes, str]] = {}
        self._patterns: dict[Hashable, tuple[bytes, list[tuple[str, bytes]]]] = {}
        for folder in folders:
            for path in Path(directory, folder).iterdir():
                body = path.read_bytes()
                tag = hashlib.blake2b(body, digest_size=8).hexdigest()
                self._static[path.name] = (body, tag)
        self.environment.globals["static"] = self.static_url

    def static_url(self, name: str) -> str:
        """The address of a static file. Raises KeyError for one that does not exist."""
        return f"{self._route}/{name}?v={self._static[name][1]}"

    def render(self, template: str, **values: Any) -> bytes:
        """A page as UTF-8 bytes."""
        return _bytes(self.environment.get_template(template).render(**values))

    def fill(
        self,
        template: str,
        shape: Hashable,
        fixed: Callable[[], Mapping[str, Any]],
        values: Mapping[str, object],
    ) -> bytes:
        """The same page by its pieces: at a tenth of the cost, where only some values differ.

        It is rendered once for each `shape` with `fixed`, in which `blank` stands for each of the
        `values`. Whatever else decides how the page comes out must be in the shape.
        """
        key = template, shape
        pattern = self._patterns.get(key)
        if pattern is None:
            first, *rest = _BLANK.split(self.environment.get_template(template).render(**fixed()))
            pieces = [
                (name, _bytes(text)) for name, text in zip(rest[::2], rest[1::2], strict=True)
            ]
            pattern = _bytes(first), pieces
            if len(self._patterns) >= _MOST_PATTERNS:
                self._patterns.clear()
            self._patterns[key] = pattern
        filled = {name: _bytes(escape(value)) for name, value in values.items()}
        out = [pattern[0]]
        for name, piece in pattern[1]:
            out.append(filled[name])
            out.append(piece)
        return b"".join(out)

    def answer_problem(self, request: Request) -> None:
        """Handler for `/-/problems/CODE`, where the type of a problem document leads."""
        code = request.path.rpartition(problems.BASE.encode())[2].decode("latin-1")
        text = problems.explanation(code)
        if text is None:
            request.refuse(404, "not-found", "There is no problem of this name.")
            return
        body = self.render("problems.html", code=code, text=Markup(text))
        fields = [(b"Content-Type", b"text/html; charset=utf-8"), *SECURITY_HEADERS]
        request.respond(200, fields, body)

    def answer_static(self, request: Request) -> None:
        """Handler for the static route."""
        name = request.path[len(STATIC_ROUTE) + 1 :].decode("latin-1")
        found = self.static_file(name, request.query, request.header(b"if-none-match"))
        if found is None:
            request.not_found()
        else:
            request.respond(*found)

    def static_file(
        self, name: str, query: bytes, known: bytes | None
    ) -> tuple[int, list[Header], bytes] | None:
        """Status, fields and body for a request with this query and If-None-Match."""
        found = self._static.get(name)
        if found is None:
            return None
        body, tag = found
        etag = f'"{tag}"'.encode("ascii")
        current = query == b"v=" + tag.encode("ascii")
        keep = b"public, max-age=31536000, immutable" if current else b"no-cache"
        fields = [
            (b"ETag", etag),
            (b"Cache-Control", keep),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        if known == etag:
            return 304, fields, b""
        return 200, [(b"Content-Type", content_type_of(name).encode("latin-1")), *fields], body


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
