"""Sends the first requests before the rest of the program is loaded.

Loading the command line and the downloader takes a tenth of a second, in which four mirrors on a
75 Mb/s line could have sent a megabyte. So for the plain case (http URLs, no proxy, nothing to
resume) the connections are opened and asked at once; a thread each keeps reading them, so that the
receive window opens as usual, and asks fast mirrors for more, until `take` hands a connection
over. Anything unusual on the command line means: do nothing, all goes the ordinary way.
"""

from __future__ import annotations

import os

from client.early_line import OPENING_BYTES, SAMPLE_BYTES, Early, Group
from client.identity import (
    CLIENT_FIELD,
    STANDARD_FIELDS,
    WAIT_FIELD,
    client_id,
    data_folder_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # known to type checkers by its name; importing `typing` takes too long
    from collections.abc import Callable

_FLAGS = frozenset({"-q", "--quiet", "--json", "--explain"})
_VALUES = frozenset({"-o", "--output", "--checksum", "--timeout"})


_flying: list[Early] = []
_sample_at: list[int] = []


def sample_at() -> int:
    """Where all mirrors are asked for a few bytes to compare, before the size is known."""
    if not _sample_at:
        number = int.from_bytes(os.urandom(4), "big")
        _sample_at.append(number % (OPENING_BYTES - SAMPLE_BYTES))
    return _sample_at[0]


def begin(words: list[str]) -> None:
    """Look at the arguments of `get`; start what can be started safely."""
    urls, output, checksum = [], None, False
    at = 0
    while at < len(words):
        word = words[at]
        if word in _FLAGS:
            at += 1
        elif word in _VALUES and at + 1 < len(words):
            output = words[at + 1] if word in ("-o", "--output") else output
            checksum = checksum or word == "--checksum"
            at += 2
        elif word.startswith("http://") and not word.lower().endswith((".meta4", ".metalink")):
            urls.append(word)
            at += 1
        else:
            return
    if not 0 < len(urls) <= 16:
        return
    split = [_split(url) for url in dict.fromkeys(urls)]
    home = os.environ.get("HOME")
    netrc = os.environ.get("NETRC") or (os.path.join(home, ".netrc") if home else None)
    if (
        None in split
        or any(os.environ.get(name) for name in _PROXIES)
        or (netrc is not None and os.path.exists(netrc))
    ):
        return
    places = [place for place in split if place is not None]
    name = output if output is not None else places[0][2].rpartition("/")[2]
    if name != "-" and (
        not name
        or os.path.isdir(name)
        or os.path.exists(name + ".tidegate-part.journal")
        or (checksum and os.path.exists(name))
    ):
        return
    who = client_id(data_folder_name())
    group = Group(len(places), len(places) >= _JURY)
    for number, (host, port, target) in enumerate(places):
        request = b""
        for start, end in first_spans(number, len(places), OPENING_BYTES):
            request += _request(host, port, target, who, start, end)
        _flying.append(Early(group, number, host, port, request, _more(host, port, target, who)))


#: So many mirrors can tell which of them has another copy.
_JURY = 3
_PROXIES = ("http_proxy", "all_proxy", "ALL_PROXY")


def _split(url: str) -> tuple[str, int, str] | None:
    """Host, port and target of a URL that has nothing special about it; None for others."""
    authority, _, path = url[7:].partition("/")
    host, colon, digits = authority.partition(":")
    if not host or set(host) - _HOST or set(path) - _HOST - set("/_~=?&+"):
        return None
    if colon and not (digits.isdecimal() and 0 < int(digits) < 65536):
        return None
    return host.lower(), int(digits) if colon else 80, "/" + path


_HOST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")


def _request(
    host: str, port: int, target: str, who: str, start: int | None, end: int | None
) -> bytes:
    """What `client.asking` will make of it; should it not, the connection is dropped unused."""
    authority = host if port == 80 else f"{host}:{port}"
    fields = [("Host", authority), *STANDARD_FIELDS, (CLIENT_FIELD, who), WAIT_FIELD]
    if start is not None and end is not None:
        fields.append(("Range", f"bytes={start}-{end - 1}"))
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _more(host: str, port: int, target: str, who: str) -> Callable[[int, int], bytes]:
    return lambda start, end: _request(host, port, target, who, start, end)


def first_spans(
    number: int, count: int, opening_bytes: int
) -> list[tuple[int, int] | tuple[None, None]]:
    """What mirror `number` of `count` is asked for at first; (None, None) is the whole file.

    Three or more can tell which of them has another copy, so these are asked for a sample before
    anything else.
    """
    if count == 1:
        return [(None, None)]
    opening = (number * opening_bytes, (number + 1) * opening_bytes)
    if count < _JURY:
        return [opening]
    return [(sample_at(), sample_at() + SAMPLE_BYTES), opening]


def take(host: str, port: int) -> Early | None:
    """A connection to that place, if one was started; it is handed out once."""
    for early in _flying:
        if early.host == host and early.port == port:
            # All of them are wanted in this very moment.
            early.group.stop = True
            _flying.remove(early)
            return early
    return None
