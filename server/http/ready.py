"""The fast path: a request that is known by its bytes is answered without parsing it.

Its laws, which the differential test holds against a server without it:

- *What it may answer*: bytes that arrived alone and whole on an idle connection, equal to bytes
  that the strict path parsed, found free of faults and answered with a `Ready`. A request that is
  split, pipelined, has a body or speaks HTTP/1.0 goes the strict way. An access log hears of each
  repetition.
- *What an answer may depend on*: the request's bytes, whether the connection is encrypted, and
  whether its peer is a trusted proxy (each combination has its own table); and on what its subject
  is asked. An answer that depends on anything else (who asks, a ticket, a pass, a rule, the queue)
  is never made a `Ready`.
- *It is never stale*: `current` is asked before an answer is given (or `read`, which opens the file
  anew), but for one that was asked for more than sixteen times within the same 20 ms: that one is
  as old as 20 ms at the most.
- *It is never forbidden*: `admit` is asked every single time. A peer that the operator has blocked
  has no table, and all that is known is forgotten when one more is blocked. A server that drains
  forgets it, too.
- *It is bounded*: by requests and by their bytes; what is full is emptied. Bodies are kept by their
  subject's cache, or for 20 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .access_entry import AccessRecord
from .answers import status_line
from .clock import Clock

_TURN_S = 0.02
#: What left is told once it is so much, be the turn over or not: a cap must know it in time.
_TOLD_BYTES = 64 * 1024
_LOOKS_PER_TURN = 16
_BOOKS_TURNS = 50
_MOST_READY = 32_768
_MOST_READY_BYTES = 8 * 1024 * 1024
_LONGEST_BYTES = 2048
#: Bodies that were read for one answer are held for others of the same moment up to this much.
_MOST_HELD_BYTES = 8 * 1024 * 1024
#: A body up to this size is joined with its header, which costs less; else it is sent beside it.
_JOINED_BYTES = 16 * 1024


class Turns:
    """A moment of 20 ms, within which an answer that is asked for often counts as the same.

    Turns are counted only while somebody asks; `ended` hears how many bytes left in each. How often
    each answer was given is told once a second, when nobody asks any more, and by `close_books`.
    """

    def __init__(self, reactor: Clock, ended: Callable[[int], None]) -> None:
        self.number = 0
        #: What has left in this turn, and was not told yet or was.
        self.sent_bytes = 0
        self._told_bytes = 0
        self._held_bytes = 0
        self._held: list[Ready] = []
        self._reactor = reactor
        self._ended = ended
        self._used: list[Ready] = []
        self._books_open = 0
        self._call: Any = None

    def look(self) -> int:
        """Somebody asks: turns pass from now on. The number of this one."""
        if self._call is None:
            self._call = self._reactor.callLater(_TURN_S, self._end)
        return self.number

    def used(self, ready: Ready) -> None:
        """This one was given for the first time since the books were closed."""
        self._used.append(ready)

    def may_hold(self, ready: Ready) -> bool:
        """Whether there is room to hold its body until the turn is over."""
        if self._held_bytes + ready.body_bytes > _MOST_HELD_BYTES:
            return False
        self._held_bytes += ready.body_bytes
        self._held.append(ready)
        return True

    def keeps(self, ready: Ready) -> None:
        """It is hot, and keeps what it sends until the turn is over."""
        self._held.append(ready)

    def close_books(self) -> None:
        """Have all subjects told how often they were used."""
        self._books_open = 0
        used, self._used = self._used, []
        for ready in used:
            ready.close_books()

    def tell(self) -> None:
        """What has left in this turn is charged now."""
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
        self._books_open += 1
        self._call = self._reactor.callLater(_TURN_S, self._end) if asked else None
        self._ended(sent_bytes)
        if not asked or self._books_open >= _BOOKS_TURNS:
            self.close_books()


class Subject(Protocol):
    """What an answer says something of."""

    def current(self) -> bool:
        """Whether the answer is still true."""
        ...

    def admit(self) -> bool:
        """Whether it may be given once more; asked before each repetition."""
        ...

    def used(self, times: int) -> None:
        """So many repetitions were given."""
        ...

    def read(self) -> bytes | None:
        """The body of an answer that has none in memory; None: the answer is not true any more."""
        ...


class Plainly:
    """What may be said to anybody as long as `current` says so."""

    __slots__ = ("current",)

    def __init__(self, current: Callable[[], bool]) -> None:
        self.current = current

    def admit(self) -> bool:
        """Always."""
        return True

    def used(self, times: int) -> None:
        """Nobody counts."""

    def read(self) -> bytes | None:
        """It has its body in memory."""
        return None


class Ready:
    """An answer that may be given again to the same request; see the laws above.

    `head` holds all fields but Date and Connection, Content-Length among them. A `body` of None is
    read when it is needed.
    """

    __slots__ = (
        "_close",
        "_date",
        "_holds",
        "_keep",
        "_looks",
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
        self.head = head
        self.body = body
        self.body_bytes = body_bytes if body is None else len(body)
        self.subject = subject
        #: Whether the body is here until the turn is over.
        self._holds = False
        #: What is sent while it is hot to who stays and to who leaves, and with which date.
        self._keep: tuple[bytes, bytes] | None = None
        self._close: tuple[bytes, bytes] | None = None
        self._date = b""
        self._turn = -1
        self._looks = 0
        self._uses = 0

    def header(self, date_line: bytes, *, close: bool) -> bytes:
        """The answer's header, with the date."""
        end = b"Connection: close\r\n\r\n" if close else b"\r\n"
        return b"".join((status_line(self.status), b"\r\n", date_line, self.head, end))

    @property
    def is_short(self) -> bool:
        """Whether it is sent in one piece with its header."""
        return self.body_bytes <= _JOINED_BYTES

    def drop_body(self) -> None:
        """Somebody else needs the room: read the body from now on."""
        self.body = self._keep = self._close = None

    def again(self, turns: Turns, date_line: bytes, close: bool) -> tuple[bytes, bytes] | None:
        """The answer in two parts (the second may be empty); None: ask the strict way."""
        body = self.body
        first = self._turn != turns.number
        if first or self._looks < _LOOKS_PER_TURN or body is None:
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
        turns.sent_bytes += len(self.head) + self.body_bytes + 96
        if turns.sent_bytes >= _TOLD_BYTES:
            turns.tell()
        parts = self._close if close else self._keep
        if parts is not None and self._date is date_line:
            return parts
        head = self.header(date_line, close=close)
        parts = (head + body, b"") if len(body) <= _JOINED_BYTES else (head, body)
        if self._looks >= _LOOKS_PER_TURN and self.body is not None:
            if self._keep is None and self._close is None:
                turns.keeps(self)
            elif self._date is not date_line:
                self._keep = self._close = None
            self._date = date_line
            if close:
                self._close = parts
            else:
                self._keep = parts
        return parts

    def let_go(self) -> None:
        """The turn is over for which something was held."""
        self._keep = self._close = None
        if self._holds:
            self._holds = False
            self.body = None

    def close_books(self) -> None:
        """Report how often it was used."""
        uses, self._uses = self._uses, 0
        self.subject.used(uses)


#: An answer, whether the connection ends with it, and the access log's record of the request.
Known = tuple[Ready, bool, AccessRecord | None]


class ReadyTable:
    """Answers by the bytes of whole requests."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._bytes = 0
        #: Nothing is remembered any more: the server is about to stop.
        self.closed = False
        #: The way to look a request up, without a call of ours in between.
        self.get: Callable[[bytes], Known | None] = self._known.get

    def remember(
        self, raw: bytes, ready: Ready, *, close: bool, record: AccessRecord | None = None
    ) -> None:
        """These bytes were answered with `ready`; `record` is what the access log says of them."""
        if len(raw) > _LONGEST_BYTES or self.closed:
            return
        if len(self._known) >= _MOST_READY or self._bytes >= _MOST_READY_BYTES:
            self.forget_all()
        if raw not in self._known:
            self._bytes += len(raw)
        self._known[raw] = (ready, close, record)

    def forget(self, raw: bytes) -> None:
        """This one is not true any more."""
        if self._known.pop(raw, None) is not None:
            self._bytes -= len(raw)

    def forget_all(self) -> None:
        """Nothing is known any more."""
        self._known.clear()
        self._bytes = 0
