"""Answers that may be given to many: a request of a known shape is answered without the parser.

The laws, which `tests/test_twins_http.py` holds against a server that parses everything:

- *What is answered*: requests that `request_shape.recognise` understands as a whole, in their
  order, on a connection on which no answer is due. Everything else goes to the parser.
- *What an answer may depend on*: path, method, conditions and range of the request, and the state
  of the file. None depends on who asks: a request with a ticket, pass or cookie of this server is
  parsed, and so is all that a blocked peer or client sends. A trusted proxy's fields name the
  client, who is charged and logged; no others count.
- *Never stale*: `current` is asked before each answer (or `read`, which opens the file anew). Of a
  subject that is watched it is asked when `Changes` has told of one, and once a second.
- *Never forbidden*: `admit` is asked before each answer, and of a file it looks at the rules. A
  draining server gives none.
- *Bounded*: bodies are kept by the cache of their subject, or for 20 ms. The first request for a
  path leaves nothing behind, neither does one for what does not exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .answers import SERVER_LINE, Header, header_block, status_line
from .clock import Clock


@dataclass(frozen=True, slots=True)
class TurnTuning:
    """How long answers count as the same. Half and double change no row of the bench by 5 %."""

    #: A turn, in seconds.
    turn_s: float = 0.02
    #: Uses are reported this many turns after the first, and what is watched is compared again:
    #: after a second.
    report_turns: int = 50
    #: Bytes that left are charged at the end of a turn, or when they are as many as this.
    charge_bytes: int = 64 * 1024
    #: Bodies that were read for one answer are held for others of the same turn up to this sum.
    held_bytes: int = 8 << 20


_TUNING = TurnTuning()
#: A body up to this size is joined with its header, which costs less than two pieces to send.
JOINED_BYTES = 16 * 1024
#: How a header ends, by what becomes of the connection.
STAYS = b"\r\n"
CLOSES = b"Connection: close\r\n\r\n"


def ending_of(version_10: bytes | None, connection: bytes | None) -> bytes:
    """How the answer's header ends, by a request's version and its Connection field."""
    if version_10 is None:
        return STAYS if connection is None or connection.lower() != b"close" else CLOSES
    if connection is not None and connection.lower() == b"keep-alive":
        return b"Connection: keep-alive\r\n\r\n"
    return CLOSES


class Turns:
    """A moment of 20 ms, within which an answer that is asked for often counts as the same.

    Turns are counted only while requests come; `ended` hears how many bytes left in each. How often
    each answer was given is told a second after its first use, when no more requests come, and by
    `close_books`. Thousands of answers are told of in as many turns as they were first given in.
    """

    def __init__(self, reactor: Clock, ended: Callable[[int], None]) -> None:
        self.number = 0
        #: Grows when a subject that is watched may have changed, and at least once a second.
        self.version = 0
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
            self._call = self._reactor.callLater(_TUNING.turn_s, self._end)
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
            ready.drop_body()
        sent_bytes, self.sent_bytes = self.sent_bytes, 0
        told_bytes, self._told_bytes = self._told_bytes, 0
        asked = sent_bytes or told_bytes
        self._call = self._reactor.callLater(_TUNING.turn_s, self._end) if asked else None
        if not asked or self.number % _TUNING.report_turns == 0:
            self.version += 1
        self._ended(sent_bytes)
        self._close_books(self.number - _TUNING.report_turns if asked else self.number)


class Changes(Protocol):
    """Tells of changes by a descriptor (`files.folder_watch.FolderWatch`)."""

    #: It can be read once a subject that is watched may have changed; -1: there is none.
    fd: int

    def read(self) -> None:
        """Tell of later changes."""


class Subject:
    """What an answer says something of. By itself it stays true, for all clients."""

    __slots__ = ()

    def is_watched(self) -> bool:
        """Whether `Changes` tells when it is not `current` any more, from now on."""
        return False

    def current(self) -> bool:
        """Whether the answer is still true."""
        return True

    def admit(self) -> bool:
        """Whether it may be given once more; asked before each repetition."""
        return True

    def used(self, times: int) -> None:
        """It was given `times` times."""

    def read(self) -> bytes | None:
        """The body of an answer that has none in memory; None: the answer is not true any more."""
        return None


@dataclass(slots=True, eq=False, repr=False)
class Ready:
    """An answer that may be given to every request of one shape; see the laws above.

    `head` holds all fields but Date and Connection, Content-Length among them. A `body` of None is
    read when it is needed.
    """

    status: int
    head: bytes
    body: bytes | None
    subject: Subject
    body_bytes: int = 0
    _start: bytes = field(init=False)
    _turn: int = field(init=False, default=-1)
    #: That of `Turns` for which it need not be compared again.
    _version: int = field(init=False, default=-1)
    _uses: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._start = status_line(self.status) + b"\r\n"
        if self.body is not None:
            self.body_bytes = len(self.body)

    def drop_body(self) -> None:
        """Read the body from now on: another file needs the room, or the turn is over."""
        self.body = None

    def parts(self, body: bytes, date_line: bytes, ending: bytes) -> tuple[bytes, bytes]:
        """The answer in two parts, of which the second may be empty; its subject is not asked."""
        head = b"".join((self._start, date_line, self.head, ending))
        return (head + body, b"") if len(body) <= JOINED_BYTES else (head, body)

    def again(self, turns: Turns, date_line: bytes, ending: bytes) -> tuple[bytes, bytes] | None:
        """Its `parts`, if the subject says that it is current and may go; else None."""
        subject, body = self.subject, self.body
        if body is None:
            body = subject.read()
            if body is None:
                return None
            # Asked for twice in a turn.
            if self._turn == turns.number and turns.may_hold(self):
                self.body = body
            self._turn = turns.number
        elif self._version != turns.version:
            # Watched before it is compared.
            version = turns.version if subject.is_watched() else -1
            if not subject.current():
                return None
            self._version = version
        if not subject.admit():
            return None
        if not self._uses:
            turns.used(self)
        self._uses += 1
        return self.parts(body, date_line, ending)

    def close_books(self) -> None:
        """Report how often it was used."""
        uses, self._uses = self._uses, 0
        self.subject.used(uses)


#: The subject of an answer that may be given at once, and is not given `again`.
AT_ONCE = Subject()


def ready_of(
    status: int, headers: Iterable[Header], body: bytes, subject: Subject = AT_ONCE
) -> Ready:
    """A whole answer that has these fields."""
    head = b"%b%bContent-Length: %d\r\n" % (SERVER_LINE, header_block(headers), len(body))
    return Ready(status, head, body, subject)


class KnownFile(Protocol):
    """What may be said of a file that was asked for before."""

    #: The answer to who asks for it as it is; None: the parser's way.
    whole: Ready | None

    def answer_to(
        self,
        head: bytes | None,
        conditions: Mapping[bytes, bytes],
        address: str,
        agent: bytes | None,
    ) -> Ready | None:
        """The answer to HEAD, conditions (by lower-case name), ranges; None: the parser's way.

        A part of a file that its client downloads counts for that download.
        """


class Shortcut(Protocol):
    """Answers requests of a known shape (`files.site.Site`)."""

    @property
    def changes(self) -> Changes:
        """When what is known may have changed."""

    @property
    def known(self) -> Callable[[bytes], KnownFile | None]:
        """What is known of a path."""

    def first(
        self,
        path: bytes,
        accept: bytes | None,
        language: bytes | None,
        codings: bytes | None,
        query: bytes | None,
        is_plain: bool,
    ) -> Ready | None:
        """The answer for a path of which no file is known; None: the parser's way.

        It is admitted where its subject is `AT_ONCE`.

        A request that is not plain has a condition or a range: those mean nothing where no file is.
        """
