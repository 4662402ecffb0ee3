"""Directory listings: a page for people, JSON for programs, `index.html` where there is one."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, quote_from_bytes

from protocol.units import format_size
from server.files.digests import Catalog
from server.files.directory_cache import REUSE_FACTOR, Clock, Folders
from server.files.openfile import OpenFile
from server.files.pages import SECURITY_HEADERS, Pages
from server.files.paths import url_of
from server.files.transfer import Visibility
from server.files.tree import Entry, IsDirectory, NotHere, Tree
from server.http.answers import HTML, Header, prefers_html
from server.http.request import Request

#: What the heading calls the root.
_SERVED_AS = "Release files"
_SORTS = ("name", "size", "date")
#: Names that go with another file rather than being what a person came for.
_COMPANIONS = (
    ".asc",
    ".sig",
    ".sha256",
    ".sha512",
    ".md5",
    ".minisig",
    ".meta4",
    ".torrent",
    ".zsync",
    ".sbom",
    ".pem",
    ".crt",
    ".sigstore",
    "sha256sums",
    "sha512sums",
    "md5sums",
)
#: pip checks the digest that an address carries behind `#` when the file is one it installs.
_PIP_READS = (".whl", ".tar.gz", ".zip")
_MOST_KEPT = 64
#: Rows of one page; a directory with more has several.
_ROWS = 1000
#: Stands in kept pages for how the server was called; `.invalid` is nobody's name (RFC 2606).
_SOME_ORIGIN = b"http://this-server.invalid"
_SHELL_SAFE = re.compile(rb"https?://[A-Za-z0-9.:\[\]_-]+")


def _query_of(request: Request) -> dict[str, list[str]]:
    """The fields of a query; one with more of them than any page of ours has means nothing."""
    try:
        return parse_qs(request.query.decode("latin-1"), max_num_fields=64)
    except ValueError:
        return {}


def _iso(unix_s: float) -> str:
    at = datetime.datetime.fromtimestamp(int(unix_s), datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


class Listings:
    """Answers for directories.

    `clock` measures what rendering costs. `greet` gives the fields that a browser gets with its
    first page.
    """

    def __init__(
        self,
        tree: Tree,
        catalog: Catalog,
        folders: Folders,
        visibility: Visibility,
        pages: Pages,
        clock: Clock,
        greet: Callable[[Request], Sequence[Header]],
    ) -> None:
        self._tree = tree
        self._catalog = catalog
        self._folders = folders
        self._visibility = visibility
        self._pages = pages
        self._clock = clock
        self._greet = greet
        self._kept: dict[tuple[object, ...], tuple[float, bytes, bytes]] = {}

    def index_of(self, request: Request, parts: list[bytes]) -> OpenFile | None:
        """The `index.html` that answers for this directory; None where a listing does."""
        if request.query or self._form(request, {}) != "html":
            return None
        try:
            index = self._tree.open([*parts, b"index.html"])
        except (IsDirectory, NotHere):
            return None
        return None if self._visibility.hidden(index.rep.url_path) else index

    def answer(self, request: Request, parts: list[bytes]) -> bool:
        """Answer for a directory; False when there is none."""
        query = _query_of(request)
        form = self._form(request, query)
        page = query.get("page", ["1"])[0]
        number = min(int(page), 1_000_000) if page.isascii() and page.isdigit() else 1
        sort = query.get("sort", ["name"])[0]
        order = query.get("order", [""])[0]
        sort = sort if sort in _SORTS else "name"
        falling = order == "desc" if order in ("asc", "desc") else sort == "date"
        key = (form, sort, falling, number if form == "html" else 1, *parts)
        now = self._clock.seconds()
        kept = self._kept.get(key)
        if kept is None or kept[0] <= now:
            try:
                entries = self._folders.entries(parts)
            except NotHere:
                return False
            if form == "json":
                kind, body = b"application/json", self._json(parts, entries)
            else:
                kind, body = HTML, self._html(parts, entries, sort, falling, max(1, number))
            cost_s = self._clock.seconds() - now
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            kept = self._kept[key] = (now + cost_s * REUSE_FACTOR, kind, body)
        fields: list[Header] = [
            (b"Content-Type", kept[1]),
            (b"Cache-Control", b"no-cache"),
            (b"Vary", b"Accept"),
            *SECURITY_HEADERS,
        ]
        body = kept[2]
        if form == "html":
            origin = request.origin
            safe = origin if _SHELL_SAFE.fullmatch(origin) else b"http://SERVER"
            body = body.replace(_SOME_ORIGIN, safe)
            if prefers_html(request.header(b"accept")):
                fields += self._greet(request)
        request.respond(200, fields, body)
        return True

    @staticmethod
    def _form(request: Request, query: dict[str, list[str]]) -> str:
        asked = query.get("format", [""])[0]
        if asked in ("json", "html"):
            return asked
        accept = (request.header(b"accept") or b"").lower()
        return "json" if b"application/json" in accept and b"text/html" not in accept else "html"

    def _described(self, parts: list[bytes], entry: Entry) -> dict[str, Any]:
        slash = "/" if entry.is_directory else ""
        known = None if entry.is_directory else self._catalog.known(entry.key)
        return {
            "name": entry.name.decode("utf-8", "replace"),
            "type": "directory" if entry.is_directory else "file",
            "size_bytes": None if entry.is_directory else entry.size_bytes,
            "modified": _iso(entry.mtime_s),
            "sha256": known.sha256.hex() if known is not None else None,
            "url": url_of(b"/".join([*parts, entry.name])) + slash,
        }

    def _json(self, parts: list[bytes], entries: list[Entry]) -> bytes:
        path = url_of(b"/".join(parts)) + ("/" if parts else "")
        document = {"path": path, "entries": [self._described(parts, e) for e in entries]}
        return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"

    def _html(
        self, parts: list[bytes], entries: list[Entry], sort: str, falling: bool, number: int
    ) -> bytes:
        pages = max(1, -(-len(entries) // _ROWS))
        number = min(number, pages)
        ordered = self._ordered(entries, sort, falling)
        rows = []
        for entry in ordered[(number - 1) * _ROWS : number * _ROWS]:
            row = self._described(parts, entry)
            row["href"] = quote_from_bytes(entry.name, safe="") + (
                "/" if entry.is_directory else ""
            )
            lower = row["name"].lower()
            if row["sha256"] and lower.endswith(_PIP_READS):
                row["href"] += f"#sha256={row['sha256']}"
            row["size"] = "" if entry.is_directory else format_size(entry.size_bytes)
            # As typed in a shell: nothing that it would read as its own.
            row["typed_url"] = "/" + quote_from_bytes(b"/".join([*parts, entry.name]), safe="/")
            row["companion"] = lower.endswith(_COMPANIONS)
            row["date"] = row["modified"][:10]
            rows.append(row)
        sizes = [entry.size_bytes for entry in entries if not entry.is_directory]
        crumbs = []
        for depth, part in enumerate(parts, 1):
            crumbs.append(
                {
                    "name": part.decode("utf-8", "replace"),
                    "url": url_of(b"/".join(parts[:depth])) + "/",
                }
            )
        wanted = [r for r in rows if r["type"] == "file" and not r["companion"]]
        example = max(wanted, key=lambda r: int(r["size_bytes"]), default=None)
        return self._pages.render(
            "listing.html",
            served_as=_SERVED_AS,
            crumbs=crumbs,
            rows=rows,
            sort=sort,
            falling=falling,
            files=len(sizes),
            total=format_size(sum(sizes)),
            number=number,
            pages=pages,
            example_url=_SOME_ORIGIN.decode() + example["typed_url"] if example else None,
            directory_url=url_of(b"/".join(parts)) + ("/" if parts else ""),
        )

    @staticmethod
    def _ordered(entries: list[Entry], sort: str, falling: bool) -> list[Entry]:
        keys = {
            "name": lambda e: e.name.lower(),
            "size": lambda e: e.size_bytes,
            "date": lambda e: e.mtime_s,
        }
        directories = [entry for entry in entries if entry.is_directory]
        files = [entry for entry in entries if not entry.is_directory]
        files.sort(key=keys[sort], reverse=falling)
        directories.sort(
            key=keys["name" if sort == "size" else sort], reverse=falling and sort != "size"
        )
        return directories + files
