"""Answers that may be given to many: a request of a known shape is answered without the parser.

The laws, which `tests/test_twins_http.py` holds against a server that parses everything:

- *What is answered*: requests that `request_shape.recognise` understands as a whole, in their
  order, on a connection on which no answer is due. Everything else goes to the parser.
- *What an answer may depend on*: path, method, conditions and range of the request, and the state
  of the file. Other answers that may be repeated also depend on query, host, `Accept`,
  `Accept-Language` and encryption, see `Remembered`. None depends on who asks: a request with a
  ticket, pass or cookie of this server is parsed, and so is all that a blocked peer or client
  sends. A trusted proxy's fields name the client, who is charged and logged; no others count.
- *Never stale*: `current` is asked before each answer (or `read`, which opens the file anew). From
  the seventeenth answer within 20 ms on it is not asked again in these 20 ms.
- *Never forbidden*: `admit` is asked before each answer, and of a file it looks at the rules. A
  draining server gives none.
- *Bounded*: bodies are kept by the cache of their subject, or for 20 ms. The first request for a
  path leaves nothing behind, neither does one for what does not exist.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .answers import status_line
from .clock import Clock


@dataclass(frozen=True, slots=True)
class TurnTuning:
    """How long answers count as the same. Half and double change no row of the bench by 5 %."""

    #: A turn, in seconds.
    turn_s: float = 0.02
    #: So often in a turn an answer is compared with its file.
    looks: int = 16
    #: Uses are reported this many turns after the first: after a second.
    report_turns: int = 50
    #: Bytes that left are charged at the end of a turn, or when they are as many as this.
    charge_bytes: int = 64 * 1024
    #: Bodies that were read for one answer are held for others of the same turn up to this sum.
    held_bytes: int = 8 << 20


_TUNING = TurnTuning()
_LOOKS = _TUNING.looks
#: A body up to this size is joined with its header, which costs less than two pieces to send.
JOINED_BYTES = 16 * 1024
#: Remembered answers that are no files: how many, and the bytes of their bodies.
_MOST_REMEMBERED = 1024
_REMEMBERED_BYTES = 8 << 20
#: How a header ends, by what becomes of the connection.
STAYS = b"\r\n"
CLOSES = b"Connection: close\r\n\r\n"
_STAYS_BY_10 = b"Connection: keep-alive\r\n\r\n"


def ending_of(version_10: bytes | None, connection: bytes | None) -> bytes:
    """How the answer's header ends, by a request's version and its Connection field."""
    if version_10 is None:
        return STAYS if connection is None or connection.lower() != b"close" else CLOSES
    if connection is not None and connection.lower() == b"keep-alive":
        return _STAYS_BY_10
    return CLOSES


class Turns:
    """A moment of 20 ms, within which an answer that is asked for often counts as the same.

    Turns are counted only while requests come; `ended` hears how many bytes left in each. How often
    each answer was given is told a second after its first use, when no more requests come, and by
    `close_books`. Thousands of answers are told of in as many turns as they were first given in.
    """

    def __init__(self, reactor: Clock, ended: Callable[[int], None]) -> None:
        self.number = 0
        #: What has left in this turn and was not charged yet, and what was.
        self.sent_bytes = 0
        self._told_bytes = 0
        self._held_bytes = 0
        self._held: list[Ready] = []
        self._reactor = reactor
        self._ended = ended
        #: Since which turn each has to be told of.
        self._used: deque[tuple[int, Ready]] = deque()
        self._call: Any = None

    def look(self) -> int:
        """A request has come: turns pass from now on. The number of this one."""
        if self._call is None:
            self._call = self._reactor.callLater(_TUNING.turn_s, self._end)
        return self.number

    def used(self, ready: Ready) -> None:
        """This one was given for the first time since the books were closed."""
        self._used.append((self.number, ready))

    def may_hold(self, ready: Ready) -> bool:
        """Whether there is room to hold its body until the turn is over."""
        if self._held_bytes + ready.body_bytes > _TUNING.held_bytes:
            return False
        self._held_bytes += ready.body_bytes
        self._held.append(ready)
        return True

    def keeps(self, ready: Ready) -> None:
        """It is hot, and keeps what it sends until the turn is over."""
        self._held.append(ready)

    def close_books(self) -> None:
        """Have all subjects told how often they were used."""
        self._close_books(self.number)

    def _close_books(self, until: int) -> None:
        used = self._used
        while used and used[0][0] <= until:
            used.popleft()[1].close_books()

    def count(self, sent_bytes: int) -> None:
        """Charge the bytes of an answer that leaves."""
        if self._call is None:
            self.look()
        self.sent_bytes += sent_bytes
        if self.sent_bytes >= _TUNING.charge_bytes:
            self._tell()

    def _tell(self) -> None:
        sent_bytes, self.sent_bytes = self.sent_bytes, 0
        self._told_bytes += sent_bytes
        self._ended(sent_bytes)

    def _end(self) -> None:
        self.number += 1
        self._held_bytes = 0
        held, self._held = self._held, []
        for ready in held:
            ready.let_go()
        sent_bytes, self.sent_bytes = self.sent_bytes, 0
        told_bytes, self._told_bytes = self._told_bytes, 0
        asked = sent_bytes or told_bytes
        self._call = self._reactor.callLater(_TUNING.turn_s, self._end) if asked else None
        self._ended(sent_bytes)
        self._close_books(self.number - _TUNING.report_turns if asked else self.number)


class Subject(Protocol):
    """What an answer says something of."""

    def current(self) -> bool:
        """Whether the answer is still true."""
        ...

    def admit(self) -> bool:
        """Whether it may be given once more; asked before each repetition."""
        ...

    def used(self, times: int) -> None:
        """It was given `times` times."""
        ...

    def read(self) -> bytes | None:
        """The body of an answer that has none in memory; None: the answer is not true any more."""
        ...


class Plainly:
    """What may be said to every client as long as `current` and `admit` say so."""

    __slots__ = ("admit", "current")

    def __init__(
        self, current: Callable[[], bool], admit: Callable[[], bool] = lambda: True
    ) -> None:
        self.current = current
        self.admit = admit

    def used(self, times: int) -> None:
        """Not counted."""

    def read(self) -> bytes | None:
        """It has its body in memory."""
        return None


class Ready:
    """An answer that may be given to every request of one shape; see the laws above.

    `head` holds all fields but Date and Connection, Content-Length among them. A `body` of None is
    read when it is needed.
    """

    __slots__ = (
        "_holds",
        "_joined",
        "_looks",
        "_start",
        "_turn",
        "_uses",
        "body",
        "body_bytes",
        "head",
        "status",
        "subject",
    )

    def __init__(
        self, status: int, head: bytes, body: bytes | None, subject: Subject, body_bytes: int = 0
    ) -> None:
        self.status = status
        self._start = status_line(status) + b"\r\n"
        self.head = head
        self.body = body
        self.body_bytes = body_bytes if body is None else len(body)
        self.subject = subject
        #: Whether the body is here until the turn is over.
        self._holds = False
        #: What is sent while it is hot, with the date and the ending that it has.
        self._joined: tuple[bytes, bytes, tuple[bytes, bytes]] | None = None
        self._turn = -1
        self._looks = 0
        self._uses = 0

    def drop_body(self) -> None:
        """Another file needs the room: read the body from now on."""
        self.body = self._joined = None

    def parts(self, body: bytes, date_line: bytes, ending: bytes) -> tuple[bytes, bytes]:
        """The answer in two parts, of which the second may be empty; its subject is not asked."""
        head = b"".join((self._start, date_line, self.head, ending))
        return (head + body, b"") if len(body) <= JOINED_BYTES else (head, body)

    def again(self, turns: Turns, date_line: bytes, ending: bytes) -> tuple[bytes, bytes] | None:
        """Its `parts`, if the subject says that it is current and may go; else None."""
        joined = self._joined
        if (
            joined is not None
            and joined[0] is date_line
            and joined[1] is ending
            and self._turn == turns.number
        ):
            # It is hot: it was compared often enough in this turn.
            if not self.subject.admit():
                return None
            if not self._uses:
                turns.used(self)
            self._uses += 1
            return joined[2]
        body = self.body
        first = self._turn != turns.number
        if first or self._looks < _LOOKS or body is None:
            if body is not None:
                if not self.subject.current():
                    return None
            else:
                body = self.subject.read()
                if body is None:
                    return None
                if not first and turns.may_hold(self):
                    self.body, self._holds = body, True
            if first:
                self._turn = turns.look()
                self._looks = 0
            self._looks += 1
        if not self.subject.admit():
            return None
        if not self._uses:
            turns.used(self)
        self._uses += 1
        parts = self.parts(body, date_line, ending)
        if self._looks >= _LOOKS and self.body is not None:
            if self._joined is None:
                turns.keeps(self)
            self._joined = date_line, ending, parts
        return parts

    def let_go(self) -> None:
        """The turn is over for which something was held."""
        self._joined = None
        if self._holds:
            self._holds = False
            self.body = None

    def close_books(self) -> None:
        """Report how often it was used."""
        uses, self._uses = self._uses, 0
        self.subject.used(uses)


class KnownFile(Protocol):
    """What may be said of a file that was asked for before."""

    #: The answer to who asks for it as it is; None: the parser's way.
    whole: Ready | None

    def answer_to(
        self,
        head: bytes | None,
        none_match: bytes | None,
        since: bytes | None,
        part: bytes | None,
        address: str,
        agent: bytes | None,
    ) -> Ready | None:
        """The answer to a HEAD request, a condition or a range; None: the parser's way.

        A part of a file that its client downloads counts for that download.
        """
        ...


class Shortcut(Protocol):
    """Answers requests of a known shape (`files.site.Site`)."""

    @property
    def known(self) -> Callable[[bytes], KnownFile | None]:
        """What is known of a path."""
        ...

    def first(
        self,
        path: bytes,
        accept: bytes | None,
        language: bytes | None,
        codings: bytes | None,
        is_plain: bool,
    ) -> Ready | None:
        """The answer to the first request for a path, admitted; None: the parser's way.

        A request that is not plain has a condition or a range: those mean nothing where no file is.
        """
        ...


#: Whether the client came by TLS, and the groups on which an answer about no file may depend.
RememberedKey = tuple[bytes | bool | None, ...]


def remembered_key(is_tls: bool, found: re.Match[bytes]) -> RememberedKey:
    """What an answer that is `Remembered` may depend on."""
    return (is_tls, *found.group(1, 2, 3, 5, 7, 8, 12, 13, 14))


class Remembered:
    """Answers about what is no file, such as `SHA256SUMS`, bounded in number and bytes."""

    def __init__(self) -> None:
        self._answers: dict[RememberedKey, Ready] = {}
        self._bytes = 0
        self.get: Callable[[RememberedKey], Ready | None] = self._answers.get

    def keep(self, key: RememberedKey, ready: Ready) -> None:
        """Give this answer to the same request as long as it is current."""
        if len(self._answers) >= _MOST_REMEMBERED or self._bytes >= _REMEMBERED_BYTES:
            self.forget_all()
        self.forget(key)
        self._answers[key] = ready
        self._bytes += ready.body_bytes

    def forget(self, key: RememberedKey) -> None:
        """This one is not true any more."""
        ready = self._answers.pop(key, None)
        if ready is not None:
            self._bytes -= ready.body_bytes

    def forget_all(self) -> None:
        """None is true any more."""
        self._answers.clear()
        self._bytes = 0
