"""The access log: what each request was and what became of it, off the hot path.

A request costs the loop one small tuple; lines are written once a second and when many have
gathered, by a thread (`log_outlets`), so that a slow disk delays no request. Tickets, passes and
cookies are never written: they are credentials.
"""

from __future__ import annotations

from typing import Protocol

from .access_entry import AccessEntry, AccessRecord
from .request import Request

_LONGEST_TARGET = 2048
_LONGEST_FIELD = 512


class EntryWriter(Protocol):
    """Takes entries to where they are kept."""

    def write(self, entries: list[AccessEntry]) -> None:
        """Keep these."""
        ...

    def reopen(self) -> None:
        """The file was renamed: begin a new one of the old name."""
        ...

    def close(self) -> None:
        """Everything given so far is written, as far as it can be."""
        ...


class AccessLog:
    """Collects entries for a writer."""

    def __init__(self, writer: EntryWriter) -> None:
        self._writer = writer
        self._entries: list[AccessEntry] = []

    def begin(self, request: Request, now: float) -> None:
        """A request has arrived: remember what is let go of before its end."""
        request.record = _record(request, now)

    def note(self, request: Request, complete: bool, now: float, wall_s: float) -> None:
        """A request is over; `now` is of the clock that `begin` had, `wall_s` Unix time."""
        record = request.record
        if record is None:
            record = _record(request, now)
        self._add(
            AccessEntry(
                record,
                record.client or request.connection.peer_address,
                wall_s,
                now - record.started_s,
                request.status,
                request.bytes_out,
                complete,
                request.waited_s,
                request.priority_class,
            )
        )

    def note_shortcut(
        self, record: AccessRecord, peer_address: str, wall_s: float, status: int, body_bytes: int
    ) -> None:
        """A request was answered at once, without the parser; fields may be too long as yet."""
        record = record._replace(
            target=record.target[:_LONGEST_TARGET],
            agent=record.agent[:_LONGEST_FIELD],
            referrer=record.referrer[:_LONGEST_TARGET],
        )
        self._add(AccessEntry(record, peer_address, wall_s, 0.0, status, body_bytes, True))

    def _add(self, entry: AccessEntry) -> None:
        self._entries.append(entry)
        if len(self._entries) >= 512:
            self.flush()

    def flush(self) -> None:
        """Give away what has gathered."""
        if self._entries:
            entries, self._entries = self._entries, []
            self._writer.write(entries)

    def reopen(self) -> None:
        """The file was renamed: begin a new one of the old name."""
        self.flush()
        self._writer.reopen()

    def close(self) -> None:
        """Everything noted so far is written, as far as it can be."""
        self.flush()
        self._writer.close()


def _record(request: Request, now: float) -> AccessRecord:
    connection, headers = request.connection, request.headers
    client = request.client_address
    return AccessRecord(
        "" if client == connection.peer_address else client,
        request.method,
        request.target[:_LONGEST_TARGET],
        "HTTP/1.0" if request.http10 else "HTTP/1.1",
        headers.get(b"user-agent", b"")[:_LONGEST_FIELD],
        headers.get(b"referer", b"")[:_LONGEST_TARGET],
        headers.get(b"range", b"")[:_LONGEST_FIELD],
        request.is_tls,
        now,
    )
