"""Sends the first requests before the rest of the program is loaded.

Loading the command line and the downloader takes a tenth of a second, in which four mirrors on a
75 Mb/s line could have sent a megabyte. So for the plain case (http URLs, no proxy, nothing to
resume) the connections are opened and asked at once; a thread each keeps reading them, so that the
receive window opens as usual, until `take` hands a connection over. Anything unusual on the command
line means: do nothing, all goes the ordinary way.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time

from client.identity import (
    CLIENT_FIELD,
    STANDARD_FIELDS,
    WAIT_FIELD,
    client_id,
    data_folder_name,
)

#: What each of several mirrors is asked for before the size is known.
OPENING_BYTES = 384 << 10
#: Before that, so many bytes from within the first opening, the same of all, to compare.
SAMPLE_BYTES = 4096
_MOST_BYTES = 8 << 20
#: How long the reading thread may overlook that it is wanted no more.
_BREATH_S = 0.01
_FLAGS = frozenset({"-q", "--quiet", "--json", "--explain"})
_VALUES = frozenset({"-o", "--output", "--checksum", "--timeout"})


class Early:
    """One connection that is already being answered; `buffer[:length]` is what has arrived."""

    def __init__(self, host: str, port: int, request: bytes) -> None:
        self.host = host
        self.port = port
        self.request = request
        self.buffer = bytearray()
        self.length = 0
        self.sock: socket.socket | None = None
        self._failed = False
        self.stop = False
        self.asked_s = 0.0
        self.heard_s = 0.0
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            # As bytes, a name is not put through IDNA, whose tables take long to load.
            found = socket.getaddrinfo(self.host.encode(), self.port, type=socket.SOCK_STREAM)
            sock = socket.socket(found[0][0], socket.SOCK_STREAM)
            sock.settimeout(3)
            sock.connect(found[0][4])
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(self.request)
            self.asked_s = time.monotonic()
            sock.settimeout(None)
            pause = struct.pack("ll", 0, int(_BREATH_S * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pause)
        except (OSError, UnicodeError):
            self._failed = True
            return
        finally:
            self._connected.set()
        self.sock = sock
        self.buffer = bytearray(_MOST_BYTES)
        view = memoryview(self.buffer)
        while not self.stop and self.length < _MOST_BYTES:
            # The kernel fills the buffer by itself, without waking Python for every packet.
            try:
                count = sock.recv_into(view[self.length :], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                continue
            except OSError:
                self._failed = True
                return
            if count == 0:
                # The end will be read once more by whoever takes over.
                return
            self.length += count
            self.heard_s = time.monotonic()

    def take(self) -> tuple[socket.socket, float] | None:
        """The socket, non-blocking, and its round trip in seconds; None when it did not come to
        anything."""
        self.stop = True
        # A handshake that is nearly done is worth a moment; a dead mirror is not.
        self._connected.wait(0.01)
        if self._connected.is_set():
            self._thread.join(1.0)
        if self.sock is None or self._failed or self._thread.is_alive():
            return None
        rtt_s = 0.001
        try:
            self.sock.setblocking(False)
            info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            rtt_s = struct.unpack_from("I", info, 68)[0] / 1e6
        except (OSError, AttributeError, struct.error):
            pass
        return self.sock, rtt_s


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
    for number, (host, port, target) in enumerate(places):
        request = b""
        for start, end in first_spans(number, len(places), OPENING_BYTES):
            request += _request(host, port, target, who, start, end)
        _flying.append(Early(host, port, request))


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
    if count < 3:
        return [opening]
    return [(sample_at(), sample_at() + SAMPLE_BYTES), opening]


def take(host: str, port: int) -> Early | None:
    """A connection to that place, if one was started; it is handed out once."""
    for early in _flying:
        if early.host == host and early.port == port:
            for one in _flying:
                # They are all wanted in this very moment.
                one.stop = True
            _flying.remove(early)
            return early
    return None
