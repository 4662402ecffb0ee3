"""HTML pages from the templates package, and the static files they use, both from memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ... import templates
from ...protocol import problems
from ..http.answers import Header
from ..http.request import Request
from .mediatypes import content_type_of

STATIC_ROUTE = "/-/static"

#: Pages run nothing that is not ours, and are shown in no other site's frame.
SECURITY_HEADERS = (
    (
        b"Content-Security-Policy",
        b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"same-origin"),
)


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
        for folder in folders:
            for path in Path(directory, folder).iterdir():
                body = path.read_bytes()
                self._static[path.name] = (body, hashlib.blake2b(body, digest_size=8).hexdigest())
        self.environment.globals["static"] = self.static_url

    def static_url(self, name: str) -> str:
        """The address of a static file. Raises KeyError for one that does not exist."""
        return f"{self._route}/{name}?v={self._static[name][1]}"

    def render(self, template: str, **values: Any) -> bytes:
        """A page as UTF-8 bytes."""
        return self.environment.get_template(template).render(**values).encode("utf-8", "replace")

    def pieces(self, template: str, **values: Any) -> Iterator[str]:
        """The same in pieces, for `admin.turns.LoopTurns`; `values` must not change meanwhile."""
        return self.environment.get_template(template).generate(**values)

    def compile(self, folder: str) -> None:
        """Read the templates of a folder, which otherwise happens at their first use."""
        for name in self.environment.list_templates(filter_func=lambda n: n.startswith(folder)):
            self.environment.get_template(name)

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
        return 200, [(b"Content-Type", content_type_of(name.encode())), *fields], body
