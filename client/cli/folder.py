"""`tidegate get -r URL/`: a whole folder, its small files over few connections (paper B, III-B).

Listings are read as JSON where the server offers it, else as the links of an HTML index. Only what
lies below the URL is fetched, and only to below the output folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path, PurePath
from signal import Signals
from typing import NamedTuple
from urllib.parse import unquote

from ...protocol.units import format_size
from ..api import already_there, build, fetch_bytes, finish, open_network, read_urls
from ..fetch.options import Options
from ..net.errors import DownloadFailed, Interrupted, LocalProblem, NoRoom, UsageProblem
from ..net.sockets import AsyncioNetwork, run_blocking
from ..net.urls import BadUrl, Url, safe_name
from .show import Quiet


class FolderLimits(NamedTuple):
    """Bounds of `-r`."""

    #: Files at a time, as many connections as a browser opens.
    together: int = 6
    #: Files and folders: listings without an end stop here.
    most_names: int = 100_000
    #: 100 000 names have 20 MB.
    listing_bytes: int = 32 << 20
    #: A folder that contains itself stops here.
    most_levels: int = 32


TUNING = FolderLimits()


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file to fetch: where it is, and the parts of its path below the folder."""

    url: Url
    parts: tuple[str, ...]
    #: Its digest in hexadecimal, where the listing tells it.
    sha256: str = ""


def read_listing(data: bytes, base: Url) -> tuple[dict[Url, str], list[Url]]:
    """Files with their SHA-256, and folders, directly below `base`, from a JSON or HTML listing."""
    texts: list[tuple[str, str]] = []
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        links = _Links()
        # The standard library asserts that a marked section has a keyword it knows.
        with contextlib.suppress(AssertionError):
            links.feed(data.decode("utf-8", "replace"))
        texts = [(text, "") for text in links.found]
    else:
        lists = document.values() if isinstance(document, dict) else [document]
        rows = next((one for one in lists if isinstance(one, list)), [])
        for row in rows:
            if isinstance(row, Mapping):
                name = row.get("href") or row.get("url") or row.get("path") or row.get("name")
                folder = row.get("kind", row.get("type")) in ("directory", "folder", "dir")
                if isinstance(name, str):
                    name += "/" if folder and not name.endswith("/") else ""
                    texts.append((name, str(row.get("sha256") or "")))
            elif isinstance(row, str):
                texts.append((row, ""))
    files: dict[Url, str] = {}
    folders: dict[Url, None] = {}
    for text, sha256 in texts:
        try:
            url = base.join(text.split("#")[0])
        except BadUrl:
            continue
        rest = url.target.removeprefix(base.target)
        if url.origin != base.origin or rest == url.target or not rest or "?" in rest:
            continue
        if rest.endswith("/") and "/" not in rest[:-1]:
            folders[url] = None
        elif "/" not in rest:
            files[url] = sha256
    return files, list(folders)


def walk(base: Url, options: Options) -> list[FolderEntry]:
    """All files below a folder; raises DownloadFailed."""
    asked = replace(options, headers=(*options.headers, ("Accept", "application/json, */*;q=0.5")))
    waiting: deque[tuple[Url, tuple[str, ...]]] = deque([(base, ())])
    found: list[FolderEntry] = []
    seen = {base}
    taken: dict[tuple[str, ...], int] = {}
    while waiting:
        folder, parts = waiting.popleft()
        files, folders = read_listing(fetch_bytes(folder.text, asked, TUNING.listing_bytes), folder)
        for url, sha256 in files.items():
            if name := url.file_name():
                found.append(FolderEntry(url, _free((*parts, name), taken), sha256))
        if len(found) + len(seen) > TUNING.most_names:
            raise UsageProblem(f"the folder has more than {TUNING.most_names} files and folders")
        for url in folders:
            name = safe_name(unquote(url.target.rstrip("/").rpartition("/")[2]))
            if url not in seen and name and len(parts) < TUNING.most_levels:
                seen.add(url)
                waiting.append((url, (*parts, name)))
    return found


def _free(parts: tuple[str, ...], taken: dict[tuple[str, ...], int]) -> tuple[str, ...]:
    """These parts, with a number in the name where an earlier file has them."""
    at, name = parts, PurePath(parts[-1])
    while at in taken:
        taken[parts] += 1
        at = (*parts[:-1], name.with_stem(f"{name.stem}.{taken[parts]}").name)
    taken[at] = 0
    return at


def fetch_folder(
    words: list[str] | tuple[str, ...],
    output: str | None,
    options: Options,
    show: Quiet,
    stopped_by: Sequence[Signals],
) -> int:
    """Fetch everything below the URL; returns the exit status (that of the worst file)."""
    if len(words) != 1 or output == "-":
        raise UsageProblem("-r takes one URL and a folder to write to")
    base = read_urls([words[0].rstrip("/") + "/"])[0]
    name = safe_name(unquote(base.target.rstrip("/").rpartition("/")[2])) or base.host
    entries = walk(base, options)
    if not entries:
        raise UsageProblem(f"{base.text} lists no files")
    return _Batch(Path(name if output is None else output), entries, options, show).run(stopped_by)


@dataclass(slots=True)
class _Batch:
    """Several downloads at a time over one pool of connections, as one progress view."""

    root: Path
    entries: list[FolderEntry]
    options: Options
    show: Quiet
    done: int = 0
    bytes: int = 0
    worst: int = 0
    full: bool = False

    def run(self, stopped_by: Sequence[Signals]) -> int:
        try:
            run_blocking(self._all, stopped_by)
        except Interrupted as problem:
            self.worst = problem.code
            self.show.failed(problem)
        began = f"{self.done} of {len(self.entries)} files, {format_size(self.bytes)}"
        self.show.event("retry" if self.worst else "folder", {"url": "Folder", "text": began})
        return self.worst

    async def _all(self) -> None:
        network = open_network(self.options, most_idle=TUNING.together)
        waiting = iter([one for one in self.entries if not self._is_there(one)])
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(TUNING.together):
                    group.create_task(self._one_by_one(waiting, network))
        except* DownloadFailed as group_of:
            raise group_of.exceptions[0] from None
        finally:
            await network.close()

    def _is_there(self, entry: FolderEntry) -> bool:
        path, sha256 = self.root.joinpath(*entry.parts), entry.sha256
        ready = already_there(path, "sha256", sha256, None) if sha256 else None
        if ready is None:
            return False
        self.done += 1
        self.show.done(ready)
        return True

    async def _one_by_one(self, waiting: Iterator[FolderEntry], network: AsyncioNetwork) -> None:
        for entry in waiting:
            path = self.root.joinpath(*entry.parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LocalProblem.of(error, path.parent) from None
            download = build(network, [entry.url], path, self.options, self.show.event)
            self.show.begin(download)
            try:
                result = await finish(download)
            except DownloadFailed as problem:
                self.worst = self.worst or problem.code
                if not (self.full and isinstance(problem, NoRoom)):
                    self.show.failed(problem)
                if isinstance(problem, NoRoom):
                    # Those that run may end; files after it would fail as well.
                    self.full = True
                    deque(waiting, maxlen=0)
            else:
                self.done += 1
                self.bytes += result.size_bytes
                self.show.done(result)
