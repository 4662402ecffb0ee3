"""Where lines of the access log go: a file, standard error, syslog or the journal.

What they cannot take, and what one address has beyond its lines of a minute, is counted and said in
the operator's log instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.logger import Logger

from ..http.proxies import prefixes_of
from ..http.request import AccessEntry
from .log_format import Format

_log = Logger()
#: A network (see `prefixes_of`) has as many lines as this number of its addresses.
_NETWORK = 8
_JOURNAL = "/run/systemd/journal/socket"


class LogOutlet:
    """Standard error, as it is at that moment. Faults of an outlet are OSError."""

    def send(self, lines: list[str]) -> None:
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()

    def reopen(self) -> None:
        """Begin anew under the same name, where it has one."""

    def close(self) -> None:
        """Write no more, where it is ours."""


def log_file(place: str | None) -> Path | None:
    """The file that a place of the log names; None where it is none."""
    if place is None or place in ("-", "journal") or place.partition(":")[0] == "syslog":
        return None
    return Path(place)


def open_outlet(place: str) -> LogOutlet:
    """`-`, `journal`, `syslog`, `syslog:HOST:PORT`, `syslog:PATH` or a file. Raises OSError."""
    path = log_file(place)
    if path is not None:
        return _File(path)
    if place == "-":
        return LogOutlet()
    if place == "journal":
        return _Datagrams(_JOURNAL, _journal_entry)
    _, _, address = place.partition(":")
    return _Datagrams(address or "/dev/log", _syslog_entry)


class _File(LogOutlet):
    """Whole lines leave in one write, so that several processes may share a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = self._open()
        #: A full disk took the beginning of a line, which the next must not go on.
        self._cut = False

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            # A named pipe is not waited for: who begins to read it may never come.
            handle = os.open(self._path, flags | os.O_NONBLOCK, 0o640)
        except OSError as fault:
            if fault.errno == errno.ENXIO:
                raise OSError(errno.ENXIO, "no program reads this pipe") from None
            raise
        os.set_blocking(handle, True)
        return handle

    def send(self, lines: list[str]) -> None:
        lines = ["", *lines] if self._cut else lines
        left = memoryview(("\n".join(lines) + "\n").encode("ascii", "backslashreplace"))
        while left:
            done = os.write(self._handle, left)
            self._cut = left[done - 1] != ord("\n")
            left = left[done:]

    def reopen(self) -> None:
        fresh = self._open()
        old, self._handle, self._cut = self._handle, fresh, False
        os.close(old)

    def close(self) -> None:
        os.close(self._handle)


class _Datagrams(LogOutlet):
    """A datagram a line, to a unix socket or HOST:PORT."""

    def __init__(self, address: str, entry: Callable[[str], bytes]) -> None:
        self._entry = entry
        self._to: Any = address
        family = socket.AF_UNIX
        if not address.startswith("/"):
            host, _, port = address.rpartition(":")
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
            family, _, _, _, self._to = found[0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        # A syslog that takes nothing for so long loses the line.
        self._socket.settimeout(2.0)
        with contextlib.suppress(OSError):
            self._socket.connect(self._to)

    def send(self, lines: list[str]) -> None:
        for line in lines:
            data = self._entry(line)
            try:
                self._socket.send(data)
            except OSError:
                # The daemon was started again, and with it its socket.
                self._socket.connect(self._to)
                self._socket.send(data)

    def close(self) -> None:
        self._socket.close()


def _syslog_entry(line: str) -> bytes:
    """The form that every syslog daemon takes; it adds time and host itself (RFC 3164, 4.3)."""
    # RFC 5424: 8 times the facility "daemon" (3), and the severity "informational" (6).
    return f"<30>tidegate[{os.getpid()}]: {line}".encode("ascii", "backslashreplace")


def _journal_entry(line: str) -> bytes:
    """systemd's native protocol: NAME=value lines."""
    fields = {
        "MESSAGE": line,
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "tidegate",
        "TIDEGATE_LOG": "access",
    }
    return "".join(f"{name}={value}\n" for name, value in fields.items()).encode(
        "ascii", "backslashreplace"
    )


class LineWriter:
    """Writes entries at once; at most `most` of one address in a minute, 0 for no bound."""

    def __init__(self, outlet: LogOutlet, form: Format, most_per_minute: int = 0) -> None:
        self._outlet = outlet
        self._form = form
        self._most = most_per_minute
        self._window_s = 0.0
        self._lines: dict[str, int] = {}
        self._left_out = 0

    def write(self, entries: list[AccessEntry]) -> None:
        kept = [entry for entry in entries if self._may_stay(entry)] if self._most else entries
        if not kept:
            return
        try:
            self._outlet.send([self._form(entry) for entry in kept])
        except OSError as fault:
            _log.error(
                "Lines that the access log lost: {count} ({fault}).",
                count=len(kept),
                fault=fault.strerror or fault,
            )

    def _may_stay(self, entry: AccessEntry) -> bool:
        if not self._window_s <= entry.ended_s < self._window_s + 60.0:
            self._say_what_was_left_out()
            self._window_s = entry.ended_s
            self._lines.clear()
        networks = prefixes_of(entry.client)
        address, widest = networks[0], networks[-1]
        own = self._lines[address] = self._lines.get(address, 0) + 1
        if widest != address:
            together = self._lines[widest] = self._lines.get(widest, 0) + 1
        else:
            together = own
        if own <= self._most and together <= _NETWORK * self._most:
            return True
        self._left_out += 1
        return False

    def _say_what_was_left_out(self) -> None:
        count, self._left_out = self._left_out, 0
        if count:
            _log.warn(
                "The access log left out {count} requests of addresses that had more than {most} "
                "in a minute, or networks that had {times} times as many.",
                count=count,
                most=self._most,
                times=_NETWORK,
            )

    def reopen(self) -> None:
        """Begin a new file; a fault is logged, and the old one goes on."""
        try:
            self._outlet.reopen()
        except OSError as fault:
            _log.error(
                "The access log cannot be opened again, the old file goes on: {fault}. Keep it in "
                "a folder of its own that the server may write to.",
                fault=fault.strerror,
            )

    def close(self) -> None:
        self._say_what_was_left_out()
        self._outlet.close()


class InThread:
    """Has a `LineWriter` work in a thread of its own, so that a slow disk delays no request."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        # Batches that may wait for a disk or a syslog that does not take them.
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(256)
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._lost = 0

    def write(self, entries: list[AccessEntry]) -> None:
        if not self._do(lambda: self._writer.write(entries)):
            self._lost += len(entries)
        elif self._lost:
            lost, self._lost = self._lost, 0
            _log.error("Lines that the access log lost: {count} (it was too slow).", count=lost)

    def reopen(self) -> None:
        self._do(self._writer.reopen)

    def close(self) -> None:
        if self._do(self._writer.close) and self._do(None):
            self._thread.join(5.0)

    def _do(self, work: Callable[[], None] | None) -> bool:
        """Have the thread do this, or (None) end; False: too much waits for it."""
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
