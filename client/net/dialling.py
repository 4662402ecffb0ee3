"""TCP connections to names, raced over all their addresses as RFC 8305 says.

`tidegate get` begins one for each URL typed before it loads the rest of itself, so that look-up and
handshake cost no time of their own. What it is sure to ask for first can be sent then, too. Hence
this module imports next to nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from .near import is_near

#: As socket.getaddrinfo tells an address: family, kind, protocol, canonical name, address.
_Found = tuple[Any, ...]

#: The next address of a name is tried after so long (RFC 8305, section 5: 100 ms to 2 s).
_STAGGER_S = 0.2
#: So often a race looks whether its winner is still wanted.
_LOOK_S = 0.2
_MOST_BEGUN = 8
_PORTS = {"http": 80, "https": 443}
_HOST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")


class TooNear(OSError):
    """Another machine named a place that only this one can reach."""


class Dialling:
    """One attempt to connect, begun at once in a thread of its own, which never keeps the program
    alive. It owns its socket until `take`. A `foreign` one fails where only near addresses are."""

    def __init__(self, host: str, port: int, *, foreign: bool = False) -> None:
        self._place = host, port
        self._foreign = foreign
        self._lock = threading.Lock()
        self._over = False
        self._unwanted = False
        self._sock: socket.socket | None = None
        self._fault: Exception | None = None
        self._words = b""
        #: What was sent already.
        self.said = b""
        self._then: Callable[[], None] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` once `take` does not wait any more, at once or on another thread."""
        with self._lock:
            self._then = then
            over = self._over
        if over:
            then()

    def say(self, words: bytes) -> None:
        """Send `words` as soon as the connection stands. To be called once, before `take`."""
        with self._lock:
            self._words = words
            if self._sock is not None:
                self._send(self._sock)

    def hush(self) -> bool:
        """Send nothing that was not sent yet; whether the attempt has failed."""
        with self._lock:
            self._words = b""
            return self._fault is not None

    def take(self) -> socket.socket:
        """The connected socket, which does not block, now the caller's. To be called when it is
        over. Raises OSError (socket.gaierror where no address is known, TooNear) or UnicodeError.
        """
        with self._lock:
            sock, self._sock = self._sock, None
        if sock is None:
            raise self._fault or OSError("the connection was given up")
        return sock

    def give_up(self) -> None:
        """Nobody wants it any more; what was taken stays open."""
        with self._lock:
            self._unwanted = True
            sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _send(self, sock: socket.socket) -> None:
        # The next one to write finds out what is wrong with it.
        with contextlib.suppress(OSError):
            self.said = self._words[: sock.send(self._words)]

    def _run(self) -> None:
        sock = None
        try:
            sock = _race(*self._place, lambda: self._unwanted, foreign=self._foreign)
        except (OSError, UnicodeError) as fault:
            self._fault = fault
        with self._lock:
            if self._unwanted and sock is not None:
                sock.close()
                sock = None
            elif sock is not None and self._words:
                self._send(sock)
            self._sock = sock
            self._over = True
            then = self._then
        if then is not None:
            then()


def _race(
    host: str, port: int, unwanted: Callable[[], bool], *, foreign: bool = False
) -> socket.socket:
    found: list[_Found] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if foreign:
        found = [one for one in found if not is_near(one[-1][0])]
        if not found:
            raise TooNear("another server may not lead to services of this machine")
    left = _interleaved(found)
    fault = OSError("no address could be connected to")
    next_s = 0.0
    racing: set[socket.socket] = set()
    with selectors.DefaultSelector() as under_way:
        try:
            while (left or racing) and not unwanted():
                now = time.monotonic()
                if left and (now >= next_s or not racing):
                    *kind, _, address = left.pop(0)
                    try:
                        racing.add(sock := _begin(kind, address))
                    except OSError as error:
                        fault = error
                        continue
                    under_way.register(sock, selectors.EVENT_WRITE)
                    next_s = now + _STAGGER_S
                wait_s = max(0.0, min(next_s - now, _LOOK_S)) if left else _LOOK_S
                for key, _ in under_way.select(wait_s):
                    sock = next(one for one in racing if one is key.fileobj)
                    racing.remove(sock)
                    under_way.unregister(sock)
                    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if number == 0:
                        return sock
                    sock.close()
                    fault = OSError(number, os.strerror(number))
                    next_s = now
        finally:
            for sock in racing:
                sock.close()
    raise fault


def _begin(kind: Sequence[Any], address: Any) -> socket.socket:
    sock = socket.socket(*kind)
    sock.setblocking(False)
    number = sock.connect_ex(address)
    if number not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(number, os.strerror(number))
    return sock


def _interleaved(found: Sequence[_Found]) -> list[_Found]:
    """The families in turn, each in the order that the system prefers (RFC 8305, section 4)."""
    families: dict[int, list[_Found]] = {}
    for one in found:
        families.setdefault(one[0], []).append(one)
    return [one for turn in zip_longest(*families.values()) for one in turn if one is not None]


class HeadStart:
    """Connections to those URLs among `words` that name a plain host, begun at once; none where
    `environ` names a proxy. What nobody takes is closed by `close`."""

    def __init__(self, words: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> None:
        self._begun: dict[tuple[str, int], list[Dialling]] = {}
        #: Of the random choices that went into the words that were sent.
        self.seed: int | None = None
        self._settled = False
        if any(name.lower().endswith("_proxy") for name in environ or ()):
            return
        places = [plain_place(word) for word in dict.fromkeys(words)]
        for place in [place for place in places if place is not None][:_MOST_BEGUN]:
            self._begun.setdefault(place, []).append(Dialling(*place))

    @property
    def any(self) -> bool:
        """Whether connections were begun that nobody has taken yet."""
        return any(self._begun.values())

    def take(self, host: str, port: int) -> Dialling | None:
        """A connection of the caller's own, if one was begun to there."""
        if not self._settled:
            self._settle()
        begun = self._begun.get((host, port))
        return begun.pop(0) if begun else None

    def say(self, words: Mapping[tuple[str, int], Sequence[bytes]], seed: int) -> None:
        """Send the words for each place over its connections, in the order in which these are
        taken; nothing if they are not as many."""
        if {place: len(said) for place, said in words.items()} == {
            place: len(begun) for place, begun in self._begun.items()
        }:
            self.seed = seed
            for place, said in words.items():
                for one, text in zip(self._begun[place], said, strict=True):
                    one.say(text)

    def _settle(self) -> None:
        """The program itself speaks now: it may say something else where no connection stands yet,
        and everywhere if one of the mirrors is out of the game before the others are asked."""
        self._settled = True
        failed = [one.hush() for each in self._begun.values() for one in each]
        if any(failed):
            for place, each in self._begun.items():
                for number, one in enumerate(each):
                    if one.said:
                        one.give_up()
                        each[number] = Dialling(*place)

    def close(self) -> None:
        """Give up what was not taken."""
        for begun in self._begun.values():
            for one in begun:
                one.give_up()
        self._begun.clear()


def plain_place(word: str) -> tuple[str, int] | None:
    """Host and port of a URL without anything special: `client.net.urls` reads the others."""
    scheme, _, rest = word.partition("://")
    host, colon, number = rest.partition("/")[0].lower().partition(":")
    if scheme not in _PORTS or not host or not _HOST.issuperset(host):
        return None
    if not colon:
        return host, _PORTS[scheme]
    if not (number.isascii() and number.isdecimal() and len(number) < 6):
        return None
    return (host, int(number)) if 0 < int(number) < 1 << 16 else None
