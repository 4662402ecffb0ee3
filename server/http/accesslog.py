"""The access log: what each request was and what became of it, off the hot path.

A request costs the loop one small tuple; lines are written once a second and when many have
gathered, by a thread, so that a slow disk delays no request. Tickets, passes and
cookies are never written: they are credentials.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from twisted.logger import Logger

from .log_format import AccessEntry
from .log_outlets import LineWriter
from .request import Request

_log = Logger()
#: Bytes of a request target, and of a field, that an entry holds.
LONGEST_TARGET = 2048
LONGEST_FIELD = 512


class AccessLog:
    """Collects entries for a writer; with `in_thread` that works in a thread of its own."""

    def __init__(self, writer: LineWriter, *, in_thread: bool = False) -> None:
        self._writer = writer
        self._entries: list[AccessEntry] = []
        # Batches that may wait for a disk or a syslog that does not take them.
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(256)
        self._thread: threading.Thread | None = None
        if in_thread:
            self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._lost = 0

    def begin(self, request: Request, now: float) -> None:
        """A request has arrived: remember what is let go of before its end."""
        headers = request.headers
        request.entry = AccessEntry(
            request.client_address,
            request.method,
            request.target[:LONGEST_TARGET],
            "HTTP/1.0" if request.http10 else "HTTP/1.1",
            headers.get(b"user-agent", b"")[:LONGEST_FIELD],
            headers.get(b"referer", b"")[:LONGEST_TARGET],
            headers.get(b"range", b"")[:LONGEST_FIELD],
            request.is_tls,
            now,
            0.0,
        )

    def note(self, request: Request, complete: bool, now: float, wall_s: float) -> None:
        """A request is over; `now` is of the clock that `begin` had, `wall_s` Unix time."""
        if request.entry is None:
            # It could not be read as a whole.
            self.begin(request, now)
        assert request.entry is not None
        self.add(
            request.entry._replace(
                ended_s=wall_s,
                duration_s=now - request.entry.started_s,
                status=request.status,
                body_bytes=request.bytes_out,
                complete=complete,
                waited_s=request.waited_s,
                priority_class=request.priority_class,
            )
        )

    def add(self, entry: AccessEntry) -> None:
        """A request is over."""
        self._entries.append(entry)
        if len(self._entries) >= 512:
            self.flush()

    def flush(self) -> None:
        """Give away what has gathered."""
        if not self._entries:
            return
        entries, self._entries = self._entries, []
        if not self._do(lambda: self._writer.write(entries)):
            self._lost += len(entries)
        elif self._lost:
            lost, self._lost = self._lost, 0
            _log.error("{count} lines of the access log are lost: it was too slow.", count=lost)

    def reopen(self) -> None:
        """The file was renamed: begin a new one of the old name."""
        self.flush()
        self._do(self._writer.reopen)

    def close(self) -> None:
        """Everything noted so far is written. A disk that does not take it is not waited for."""
        self.flush()
        if self._do(self._writer.close) and self._thread is not None and self._do(None):
            self._thread.join(5.0)

    def _do(self, work: Callable[[], None] | None) -> bool:
        """Have the writer do this, or (None) the thread end; False: too much waits for it."""
        if self._thread is None:
            if work is not None:
                work()
            return True
        if self._thread.ident is None:
            self._thread.start()
        try:
            self._work.put_nowait(work)
        except queue.Full:
            return False
        return True

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
