"""What `tidegate get` asks for while most of it is still being loaded.

Loading takes a tenth of a second. A command line without anything special leaves no doubt about
the first requests, so they are sent over connections that are begun at once. The whole program
asks in its usual way: what it writes first must be, byte for byte, what was sent
(`client.net.sockets`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from ...protocol.ranges import format_range
from ..net.dialling import HeadStart, plain_place
from ..net.identity import client_secret, data_folder
from ..net.request_builder import RequestBuilder
from ..net.retry import WAITS_FOR_TICKET
from ..net.urls import BadUrl, Url, parse
from ..schedule.openings import JURY, first_sample, opening
from ..storage.journal import part_and_journal

#: Options that change nothing about the first requests; the latter have a value.
_PLAIN = ("-q", "--quiet", "--json", "--explain")
_NAMED = ("-o", "--output")


def ask(begun: HeadStart, words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Send over `begun` what the command line `words` will surely ask for first, if anything."""
    urls, output = read(words)
    if not urls or not begun.any or any(map(os.path.exists, _parts(urls, output))):
        return
    secret, seed = client_secret(data_folder(environ)), int.from_bytes(os.urandom(8), "big")
    if secret != client_secret(data_folder(environ)):
        # It cannot be kept, so the program will be called by another name.
        return
    asking = RequestBuilder(environ, secret=secret)
    sample = first_sample(Random(seed)) if len(urls) >= JURY else None
    said: dict[tuple[str, int], list[bytes]] = {}
    for lane, url in enumerate(urls):
        spans = [span for span in (sample, opening(lane, len(urls))) if span is not None]
        fields = [[("Range", format_range([span]))] for span in spans] or [[]]
        requests = [asking.request(url, url, [WAITS_FOR_TICKET, *one]) for one in fields]
        said.setdefault((url.host, url.port), []).append(b"".join(requests))
    begun.say(said, seed)


def read(words: Sequence[str]) -> tuple[list[Url], str | None]:
    """The URLs and the output that a command line without anything special names; no URL where
    there is anything special."""
    urls: list[Url] = []
    output = None
    rest = iter(words)
    for word in rest:
        if word in _NAMED:
            output = next(rest, None)
        elif word not in _PLAIN:
            try:
                url = parse(word)
            except BadUrl:
                return [], None
            if plain_place(word) is None or url.scheme != "http" or url in urls:
                return [], None
            if url.file_name().lower().endswith((".meta4", ".metalink")):
                return [], None
            urls.append(url)
    return urls, output


def _parts(urls: Sequence[Url], output: str | None) -> list[Path]:
    """Where bytes of an earlier attempt may lie: then the program asks for others."""
    own = urls[0].file_name() or "download"
    places = [Path(own)] if output is None else [Path(output), Path(output, own)]
    real = [Path(os.path.realpath(place)) for place in places]
    return [part_and_journal(place)[0] for place in (*places, *real) if place.name]
