"""Small HTTP mirrors that misbehave as told.

What a mirror says on a connection is a generator of steps. Here a thread a connection performs
them, on 127.0.0.1; `virtual_network` does the same in virtual time.
"""

from __future__ import annotations

import contextlib
import enum
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Behaviour:
    """What one mirror does. Rates are bytes per second; `*_after` count body bytes in all."""

    data: bytes
    path: str = "/file.bin"
    rate: float = 0.0
    ranges: bool = True
    etag: str | None = '"one"'
    new_etag_after: int | None = None
    stall_after: int | None = None
    reset_after: int | None = None
    close_each: bool = False
    #: With `close_each`: closes without reading what was sent meanwhile, which resets.
    hasty: bool = False
    #: Throws away what is sent while it is answering.
    deaf: bool = False
    #: The same, but it reads on after the answer: what is asked then is answered.
    swallows: bool = False
    #: Resets in every answer, after so many bytes of it.
    cut_after: int | None = None
    #: Thinks so long before each answer.
    delay_s: float = 0.0
    busy_times: int = 0
    busy_status: int = 503
    retry_after: str = "1"
    status: int | None = None
    #: The Content-Range that goes with it.
    told_range: str | None = None
    redirect: str | None = None
    chunked: bool = False
    no_length: bool = False
    #: The size that it tells of the file, where that is a lie.
    told_bytes: int | None = None
    short_by: int = 0
    wrong_start: bool = False
    #: A part is complete so much too early; `scant_told`: its head says so.
    scant_by: int = 0
    scant_told: bool = False
    #: Minds only where a range begins.
    to_the_end: bool = False
    huge_head: bool = False
    interim: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    ticket_first: bool = False
    ticket_retry: str = "0"
    #: A client that comes while so many are being served is told to come back.
    most_connections: int | None = None
    #: Certificate and key in one file, see `certificate`: the mirror speaks TLS.
    tls: Path | None = None


def certificate(folder: Path, name: str = "DNS:localhost") -> Path:
    """A fresh self-signed certificate for `name`, with its key, in one PEM file."""
    key, found = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", f"subjectAltName={name}"]
    files = ["-keyout", str(key), "-out", str(found)]
    subprocess.run([*command.split(), *files, *names], check=True, capture_output=True)
    found.write_text(found.read_text() + key.read_text())
    return found


class Step(enum.Enum):
    """What a mirror does on its connection but sending (bytes) and waiting (seconds)."""

    #: It is sent what has come, at least a byte; nothing where the client has gone.
    READ = enum.auto()
    #: It is told whether something has come.
    LOOK = enum.auto()
    #: Its side of the connection ends.
    END = enum.auto()
    #: When the connection is closed, it is reset.
    RESET = enum.auto()


#: Says at the end whether the connection goes on.
Steps = Generator[bytes | float | Step, Any, bool]


class Script:
    """What a mirror says, on a socket or in virtual time; `requests` are the heads it has read."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[str] = []
        #: Which connection each request came on.
        self.asked_by: list[int] = []
        self.sent = 0
        self.cuts = 0
        self.connections = 0
        self.serving = 0

    def talk(self, connection: int) -> Steps:
        """One connection, from its first request to its close."""
        buffer = b""
        while True:
            while b"\r\n\r\n" not in buffer:
                data = yield Step.READ
                if not data:
                    return False
                buffer += data
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            self.asked_by.append(connection)
            self.requests.append(head.decode())
            if not (yield from self._answer(head.decode())):
                return False
            if self.behaviour.deaf and (buffer or (yield Step.LOOK)):
                # It has lost its place in what it was asked.
                yield 60.0
                return False
            if self.behaviour.swallows:
                buffer = b""
                while (yield Step.LOOK):
                    if not (yield Step.READ):
                        return False

    def _answer(self, head: str) -> Steps:
        told = self.behaviour
        yield float(told.delay_s)
        lines = head.split("\r\n")
        target = lines[0].split(" ")[1]
        fields = {k.strip().lower(): v.strip() for k, _, v in (x.partition(":") for x in lines[1:])}
        if told.huge_head:
            yield b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000
            return True
        if told.interim:
            yield b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        if target in told.pages:
            kind, page = told.pages[target]
            return (yield from self._send("200 OK", [("Content-Type", kind)], page))
        if told.redirect is not None:
            return (yield from self._send("302 Found", [("Location", told.redirect)], b"elsewhere"))
        if told.status is not None:
            told_range = [("Content-Range", told.told_range)] if told.told_range else []
            return (yield from self._send(f"{told.status} No", told_range, b"no"))
        if told.ticket_first and "tidegate-ticket" not in fields:
            ticket = [
                ("Retry-After", told.ticket_retry),
                ("Tidegate-Ticket", "place-1"),
                ("Tidegate-Place", "1"),
                ("Tidegate-Wait-Expected", "2"),
                ("Tidegate-Done", "150"),
            ]
            return (yield from self._send("503 Wait", ticket, b"wait"))
        if told.busy_times > 0:
            told.busy_times -= 1
            busy = [("Retry-After", told.retry_after)]
            return (yield from self._send(f"{told.busy_status} Busy", busy, b"busy"))
        if told.most_connections is not None and self.serving >= told.most_connections:
            return (yield from self._send("503 Busy", [("Retry-After", "9")], b"busy"))
        if target != told.path:
            return (yield from self._send("404 Not Found", [], b"nothing here"))
        self.serving += 1
        try:
            return (yield from self._file(fields))
        finally:
            self.serving -= 1

    def _file(self, fields: dict[str, str]) -> Steps:
        told = self.behaviour
        data, etag = told.data, told.etag
        if told.new_etag_after is not None and self.sent >= told.new_etag_after:
            etag = '"two"'
            data = bytes(255 - byte for byte in data)
        out = [("Accept-Ranges", "bytes"), *told.headers]
        if etag is not None:
            out.append(("ETag", etag))
        wanted = fields.get("range") if told.ranges else None
        if wanted is not None and fields.get("if-range") not in (None, etag):
            wanted = None
        if wanted is None:
            return (yield from self._send("200 OK", out, data))
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(len(data), int(last or len(data) - 1) + 1)
        if told.to_the_end:
            end = len(data)
        if start >= len(data):
            out.append(("Content-Range", f"bytes */{len(data)}"))
            return (yield from self._send("416 Range Not Satisfiable", out, b""))
        if told.wrong_start:
            start += 1
        size = len(data) if told.told_bytes is None else told.told_bytes
        stop = end - min(told.scant_by, end - start - 1)
        if told.scant_told:
            end = stop
        out.append(("Content-Range", f"bytes {start}-{end - 1}/{size}"))
        return (yield from self._send("206 Partial Content", out, data[start:stop]))

    def _send(self, status: str, out: list[tuple[str, str]], body: bytes) -> Steps:
        told = self.behaviour
        is_file = status.startswith("20")
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in out)]
        if told.chunked and is_file:
            lines.append("Transfer-Encoding: chunked")
        elif not (told.no_length and is_file):
            lie = told.told_bytes if status.startswith("200") else None
            lines.append(f"Content-Length: {len(body) if lie is None else lie}")
        if told.close_each or (told.no_length and is_file):
            lines.append("Connection: close")
        yield ("\r\n".join(lines) + "\r\n\r\n").encode()
        if is_file and told.short_by:
            body = body[: -told.short_by]
        for at in range(0, len(body), 8192):
            part = body[at : at + 8192]
            if is_file and told.cut_after is not None and at + len(part) > told.cut_after:
                self.cuts += 1
                yield Step.RESET
                return False
            if is_file and not (yield from self._may_send(len(part))):
                return False
            if told.chunked and is_file:
                part = f"{len(part):x}\r\n".encode() + part + b"\r\n"
            yield part
        if told.chunked and is_file:
            yield b"0\r\n\r\n"
        if told.close_each and not told.hasty:
            yield Step.END
            while (yield Step.READ):
                pass
        ends = told.short_by or told.no_length or told.told_bytes is not None
        return not (told.close_each or (is_file and ends))

    def _may_send(self, count: int) -> Steps:
        told = self.behaviour
        if told.reset_after is not None and self.sent + count > told.reset_after:
            told.reset_after = None
            yield Step.RESET
            return False
        if told.stall_after is not None and self.sent + count > told.stall_after:
            yield 60.0
            return False
        self.sent += count
        if told.rate:
            yield count / told.rate
        return True


class Mirror(Script):
    """A running mirror; `url` names its file."""

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(behaviour)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{behaviour.path}"
        self._tls: ssl.SSLContext | None = None
        if behaviour.tls is not None:
            self.url = f"https://localhost:{self.port}{behaviour.path}"
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(behaviour.tls)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(sock)
                self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        if self._tls is not None:
            try:
                sock = self._tls.wrap_socket(sock, server_side=True)
            except OSError:
                return
        steps = self.talk(threading.get_ident())
        with contextlib.suppress(OSError, StopIteration), sock, contextlib.closing(steps):
            step = next(steps)
            while not self._stop.is_set():
                step = steps.send(self._perform(sock, step))

    def _perform(self, sock: socket.socket, step: bytes | float | Step) -> bytes | bool | None:
        if isinstance(step, bytes):
            sock.sendall(step)
        elif isinstance(step, float):
            self._stop.wait(step)
        elif step is Step.READ:
            return sock.recv(65536)
        elif step is Step.LOOK:
            return bool(select.select([sock], [], [], 0)[0]) and bool(sock.recv(1, socket.MSG_PEEK))
        elif step is Step.END:
            sock.shutdown(socket.SHUT_WR)
        elif step is Step.RESET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return None


@contextlib.contextmanager
def running(*behaviours: Behaviour) -> Iterator[list[Mirror]]:
    """Mirrors for the length of a test."""
    mirrors = [Mirror(behaviour) for behaviour in behaviours]
    try:
        yield mirrors
    finally:
        for mirror in mirrors:
            mirror.close()


def wait_for(condition: object, limit_s: float = 10.0) -> None:
    """Until the callable says yes."""
    assert callable(condition)
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)
