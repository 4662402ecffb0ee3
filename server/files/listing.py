"""Directory listings: a page for people, JSON for programs, a feed, or the `index.html` there."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, quote_from_bytes, urlencode

from markupsafe import Markup

from ...protocol.manifest import xml_legal
from ...protocol.units import format_size, whole_number
from ..http.answers import HTML, Header, prefers_html
from ..http.clock import Clock
from ..http.phrases import Phrases, phrases_for, told_size
from ..http.request import Request
from .digests import DigestService
from .directory_cache import REUSE_FACTOR, SOME_ORIGIN, Coming, DirectoryCache, FolderLook
from .openfile import OpenFile, Unreadable
from .pages import SECURITY_HEADERS, Pages
from .paths import COMPANIONS, SIGNATURES, url_of
from .readme import MOST_README_BYTES, READMES, render_readme
from .transfer import HasTorrent, Visibility, kept_from_all
from .tree import DirectoryEntry, IsDirectory, NotHere, Overloaded, Tree

#: Names that go with others rather than being what a person came for.
_COMPANIONS = (*COMPANIONS, "sha256sums", "sha512sums", "md5sums")
ATOM = b"application/atom+xml"
#: Searches may take this much time at once, seconds.
_BURST_S = 2.0
#: Rows of one page; a directory with more has several.
_ROWS = 1000


def _query_of(request: Request) -> dict[str, list[str]]:
    """The fields of a query; one with more of them than any page of ours has means nothing."""
    try:
        return parse_qs(request.query.decode("latin-1"), max_num_fields=64)
    except ValueError:
        return {}


def _iso(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(int(unix_s), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _href(entry: DirectoryEntry) -> str:
    return quote_from_bytes(entry.name, safe="") + ("/" if entry.is_directory else "")


@dataclass(frozen=True, slots=True)
class ListingView:
    """How a visitor wants to see a directory."""

    sort: str
    falling: bool
    number: int
    text: str
    language: str

    @classmethod
    def of(cls, query: dict[str, list[str]], form: str, language: str) -> ListingView:
        """What a query asks for; what it cannot mean is left out."""
        if form != "html":
            return cls("name", False, 1, "", "en")
        page = whole_number(query.get("page", ["1"])[0])
        number = min(page, 1_000_000) if page is not None else 1
        sort = query.get("sort", ["name"])[0]
        order = query.get("order", [""])[0]
        sort = sort if sort in ("name", "size", "date") else "name"
        falling = order == "desc" if order in ("asc", "desc") else sort == "date"
        return cls(sort, falling, number, query.get("q", [""])[0].strip()[:100], language)

    def query(self, **changed: object) -> str:
        """The same with something changed, as a link on its page has it."""
        order = "desc" if self.falling else "asc"
        fields = {"q": self.text, "sort": self.sort, "order": order, **changed}
        return "?" + urlencode({name: value for name, value in fields.items() if value != ""})


@dataclass(frozen=True, slots=True)
class _Kept:
    """A page, and what it says: `FolderLook.content`, and how often digests had been learned."""

    until_s: float
    told: tuple[object, int]
    kind: bytes
    body: bytes


@dataclass
class _Searches:
    """What searching may cost: a twentieth of the time, and a burst."""

    _credit_s: float = _BURST_S
    _at_s: float = 0.0

    def may(self, now: float) -> bool:
        """Whether there is time for one."""
        earned = max(0.0, now - self._at_s) / REUSE_FACTOR
        self._credit_s, self._at_s = min(_BURST_S, self._credit_s + earned), now
        return self._credit_s > 0.0

    def took(self, cost_s: float) -> None:
        """One was made."""
        self._credit_s -= cost_s


@dataclass
class Listings:
    """Answers for directories.

    `_clock` measures what rendering costs. `_greet` gives the fields that a browser gets with its
    first page.
    """

    _tree: Tree
    _catalog: DigestService
    _folders: DirectoryCache
    _visibility: Visibility
    _pages: Pages
    _clock: Clock
    _greet: Callable[[Request], Sequence[Header]]
    _has_torrent: HasTorrent
    #: The oldest first, and their bytes.
    _kept: dict[tuple[object, ...], _Kept] = field(default_factory=dict)
    _kept_bytes: int = 0
    _searches: _Searches = field(default_factory=_Searches)

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
        look = ListingView.of(query, form, phrases_for(request.header(b"accept-language")).language)
        key = (form, look, *parts)
        try:
            folder = self._folders.look(parts)
        except NotHere:
            return False
        now = self._clock.seconds()
        kept = self._kept.get(key)
        told = folder.content, self._catalog.version
        if (
            kept is None
            or kept.told[0] is not folder.content
            or (kept.until_s <= now and (folder.coming or kept.told != told))
        ):
            if look.text and not self._searches.may(now):
                again = [(b"Retry-After", b"2")]
                request.refuse(503, "overloaded", "Many search here just now; ask again.", again)
                return True
            kind, body = self._render(form, parts, look, folder)
            cost_s = self._clock.seconds() - now
            if look.text:
                self._searches.took(cost_s)
            self._drop(key)
            kept = self._kept[key] = _Kept(now + cost_s * REUSE_FACTOR, told, kind, body)
            self._kept_bytes += len(body)
            # As much as pages of 1 000 rows in a few languages.
            while self._kept_bytes > 16 << 20:
                self._drop(next(iter(self._kept)))
        fields: list[Header] = [
            (b"Content-Type", kept.kind),
            (b"Cache-Control", b"no-cache"),
            (b"Vary", b"Accept, Accept-Language"),
            *SECURITY_HEADERS,
        ]
        body = kept.body
        if form != "json":
            origin = request.origin
            # A shell reads the commands of the page.
            is_plain = re.fullmatch(rb"https?://[A-Za-z0-9.:\[\]_-]+", origin)
            safe = origin if is_plain else b"http://SERVER"
            body = body.replace(SOME_ORIGIN, safe)
        if form == "html":
            # It may carry a visitor cookie, so no shared cache may keep it.
            fields[1] = (b"Cache-Control", b"private, no-cache")
            fields.append((b"Content-Language", Phrases(look.language).tag.encode("ascii")))
            if prefers_html(request.header(b"accept")):
                fields += self._greet(request)
        request.respond(200, fields, body)
        return True

    def _drop(self, key: tuple[object, ...]) -> None:
        kept = self._kept.pop(key, None)
        self._kept_bytes -= 0 if kept is None else len(kept.body)

    def _render(
        self, form: str, parts: list[bytes], look: ListingView, folder: FolderLook
    ) -> tuple[bytes, bytes]:
        entries, coming = folder.entries, folder.coming
        if form == "json":
            return b"application/json", self._json(parts, entries, coming)
        if form == "atom":
            return ATOM, self._feed(parts, entries)
        return HTML, self._html(parts, entries, coming, look)

    @staticmethod
    def _form(request: Request, query: dict[str, list[str]]) -> str:
        asked = query.get("format", [""])[0]
        if asked in ("json", "html", "atom"):
            return asked
        accept = (request.header(b"accept") or b"").lower()
        return "json" if b"application/json" in accept and b"text/html" not in accept else "html"

    def _ask_for_digests(self, parts: list[bytes], entries: Iterable[DirectoryEntry]) -> None:
        """Have what a listing lacks for a later one.

        A worker walks no tree (`digest_warmup`): it would know only files that it has sent.
        """
        files = (entry for entry in entries if not entry.is_directory)
        unknown = (entry for entry in files if self._catalog.known(entry.key) is None)
        # No more: each is opened, which takes 10 to 50 µs.
        for entry in islice(unknown, 32):
            with suppress(NotHere, IsDirectory, Overloaded):
                self._catalog.ask(self._tree.open([*parts, entry.name]), hits=0)

    def _described(self, parts: list[bytes], entry: DirectoryEntry) -> dict[str, Any]:
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

    def _json(
        self, parts: list[bytes], entries: list[DirectoryEntry], coming: list[Coming]
    ) -> bytes:
        path = url_of(b"/".join(parts)) + ("/" if parts else "")
        described = [self._described(parts, entry) for entry in entries]
        self._ask_for_digests(parts, entries)
        for one in coming:
            hidden = self._described(parts, one.entry)
            described.append({**hidden, "sha256": None, "opens_in_s": round(one.opens_in_s)})
        document = {"path": path, "entries": described}
        return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"

    def _feed(self, parts: list[bytes], entries: list[DirectoryEntry]) -> bytes:
        """The newest files (RFC 4287)."""
        files = [entry for entry in entries if not entry.is_directory]
        files.sort(key=lambda entry: entry.mtime_s, reverse=True)
        rows = [self._described(parts, entry) for entry in files[:50]]
        for row in rows:
            row["size"] = format_size(row["size_bytes"])
            row["name"] = xml_legal(row["name"])
        path = url_of(b"/".join(parts)) + ("/" if parts else "")
        return self._pages.render(
            "feed.xml",
            origin=SOME_ORIGIN.decode(),
            title=xml_legal(parts[-1].decode("utf-8", "replace"))
            if parts
            else Phrases()("files_all"),
            path=path or "/",
            rows=rows,
            updated=rows[0]["modified"] if rows else _iso(0.0),
        )

    def _html(
        self,
        parts: list[bytes],
        entries: list[DirectoryEntry],
        coming: list[Coming],
        look: ListingView,
    ) -> bytes:
        phrases = Phrases(look.language)
        found = entries
        if look.text:
            wanted = look.text.casefold()
            found = [e for e in entries if wanted in e.name.decode("utf-8", "replace").casefold()]
        pages = max(1, -(-len(found) // _ROWS))
        number = min(max(1, look.number), pages)
        ordered = self._ordered(found, look.sort, look.falling)
        names = {entry.name for entry in entries}
        shown = ordered[(number - 1) * _ROWS : number * _ROWS]
        rows = [self._row(parts, entry, names, phrases) for entry in shown]
        self._ask_for_digests(parts, shown)
        expected = [
            {
                "name": one.entry.name.decode("utf-8", "replace"),
                "href": _href(one.entry),
                "opens": phrases("title_prequeue", time=phrases.time(one.opens_in_s)),
                "is_file": not one.entry.is_directory,
            }
            for one in coming
        ]
        sizes = [entry.size_bytes for entry in entries if not entry.is_directory]
        crumbs = [
            {"name": part.decode("utf-8", "replace"), "url": url_of(b"/".join(parts[:depth])) + "/"}
            for depth, part in enumerate(parts, 1)
        ]
        wanted_rows = [r for r in rows if r["type"] == "file" and not r["companion"]]
        example = max(wanted_rows, key=lambda r: int(r["size_bytes"]), default=None)
        return self._pages.render(
            "listing.html",
            t=phrases,
            crumbs=crumbs,
            rows=rows,
            coming=expected,
            look=look,
            summary=phrases("files_sum", n=phrases.number(len(sizes)), size=told_size(sum(sizes))),
            number=number,
            pages=pages,
            readme="" if look.text or number > 1 else self._readme(parts, entries),
            example_url=SOME_ORIGIN.decode() + example["typed_url"] if example else None,
            directory_url=url_of(b"/".join(parts)) + ("/" if parts else ""),
        )

    def _row(
        self, parts: list[bytes], entry: DirectoryEntry, names: set[bytes], phrases: Phrases
    ) -> dict[str, Any]:
        row = self._described(parts, entry)
        row["href"] = _href(entry)
        lower = row["name"].lower()
        # pip checks the digest that an address carries behind `#` when the file is one it installs.
        if row["sha256"] and lower.endswith((".whl", ".tar.gz", ".zip")):
            row["href"] += f"#sha256={row['sha256']}"
        row["size"] = "" if entry.is_directory else format_size(entry.size_bytes)
        # As typed in a shell: nothing that it would read as its own.
        row["typed_url"] = "/" + quote_from_bytes(b"/".join([*parts, entry.name]), safe="/")
        row["companion"] = lower.endswith(_COMPANIONS)
        row["torrent"] = not entry.is_directory and self._has_torrent(row["url"], entry.size_bytes)
        row["date"] = phrases.date(entry.mtime_s)
        row["signatures"] = [
            {"kind": ending[1:].decode(), "href": quote_from_bytes(entry.name + ending, safe="")}
            for ending in SIGNATURES
            if entry.name + ending in names
        ]
        return row

    def _readme(self, parts: list[bytes], entries: list[DirectoryEntry]) -> Markup:
        """What the folder says of itself."""
        by_name = {entry.name.lower(): entry for entry in entries if not entry.is_directory}
        for name in READMES:
            entry = by_name.get(name)
            if entry is not None and entry.size_bytes <= MOST_README_BYTES:
                try:
                    file = self._tree.open([*parts, entry.name])
                    if kept_from_all(self._visibility, self._tree.place_of(file)):
                        continue
                    text = file.read_at(0, entry.size_bytes)
                except (IsDirectory, NotHere, Unreadable):
                    continue
                return render_readme(name, text.decode("utf-8", "replace"))
        return Markup("")

    @staticmethod
    def _ordered(entries: list[DirectoryEntry], sort: str, falling: bool) -> list[DirectoryEntry]:
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
