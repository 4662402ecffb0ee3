"""TLS in the world: the server's side on a memory socket, the client's within its connection.

Keys and random bytes are others in each run. Lengths are not: the key is of RSA, and no tickets
of sessions are sent.
"""

from __future__ import annotations

import datetime
import functools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from .wire import ServerEnd

_HEADER_BYTES, _RECORD_BYTES = 5, 16_384
_READ_BYTES = 1 << 20


@functools.cache
def _pem(number: int) -> tuple[bytes, bytes]:
    """A certificate and its key; each process makes its own."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"files{number}.example")])
    since = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1_000 + number)
        .not_valid_before(since)
        .not_valid_after(since + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return made.public_bytes(pem), key.private_bytes(pem, form, plain)


def write_certificate(folder: Path, number: int, *, key_too: bool = True) -> None:
    """The files of the operator; `key_too`: otherwise the renewal is half done."""
    certificate, key = _pem(number % 2)
    (folder / "cert.pem").write_bytes(certificate)
    if key_too:
        (folder / "key.pem").write_bytes(key)


class MemoryTls:
    """Stands for the `ssl.SSLSocket` of a connection."""

    def __init__(self, context: ssl.SSLContext, end: ServerEnd) -> None:
        context.num_tickets = 0
        self.end, self.line = end, end.line
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._record = self._unsent = b""
        #: What was encrypted, and not told to be sent yet.
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.end, name)

    def do_handshake(self) -> None:
        """See `ssl.SSLSocket`."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._read_record()
            else:
                self._flush()
                return

    def unwrap(self) -> None:
        """See `ssl.SSLSocket`: its own goodbye is sent, the peer's is not awaited."""
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            self._flush()
            raise

    def recv(self, most: int, flags: int = 0) -> bytes:
        """See `ssl.SSLSocket`: a record at a time, so that none is unseen by epoll."""
        while True:
            try:
                return self._tls.read(most)
            except ssl.SSLWantReadError:
                # What waits to be sent does not matter here.
                self._read_record()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def send(self, data: Any, flags: int = 0) -> int:
        """See `ssl.SSLSocket`: until all of a record has left, the same is to be sent again."""
        if not self._written and data:
            self._flush()
            self._written = self._tls.write(bytes(data[:_RECORD_BYTES]))
        self._flush()
        sent, self._written = self._written, 0
        return sent

    def _read_record(self) -> None:
        record = self._record
        while True:
            size = _HEADER_BYTES
            if len(record) >= _HEADER_BYTES:
                size += int.from_bytes(record[3:5], "big")
                if len(record) == size:
                    break
            try:
                data = self.end.recv(size - len(record))
            except BlockingIOError:
                self._record = record
                raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "more") from None
            if not data:
                self._in.write_eof()
                return
            record += data
        self._record = b""
        self._in.write(record)

    def _flush(self) -> None:
        self._unsent += self._out.read()
        while self._unsent:
            try:
                sent = self.end.send(self._unsent)
            except BlockingIOError:
                raise ssl.SSLWantWriteError(ssl.SSL_ERROR_WANT_WRITE, "full") from None
            self._unsent = self._unsent[sent:]


class ClientTls:
    """A client's side. `send` is what its connection sends bytes by."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._send = send
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="files.example")
        self._waiting: list[bytes] = []
        self._is_open = False

    def hello(self) -> bytes:
        """The first bytes."""
        self._shake()
        return self._out.read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLError:
            # More is to come, or an alert has.
            return
        self._is_open = True

    def write(self, data: bytes) -> None:
        """Send this, once that is possible."""
        if not self._is_open:
            self._waiting.append(data)
            return
        self._tls.write(data)
        self._send(self._out.read())

    def read(self, data: bytes) -> bytes:
        """What these bytes say."""
        self._in.write(data)
        if not self._is_open:
            self._shake()
            if not self._is_open:
                return b""
            finished = self._out.read()
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                self._tls.write(one)
            self._send(finished + self._out.read())
        found = b""
        try:
            while part := self._tls.read(_READ_BYTES):
                found += part
        except ssl.SSLError:
            # There is no more, or an alert ends it, as the connection does next.
            pass
        return found


def put_tls(put: Callable[[Any, str, Any], None]) -> None:
    """Have the server wrap the sockets of the world."""
    from tidegate.server.http.tls import TlsServer

    put(TlsServer, "wrap", lambda self, sock: MemoryTls(self._context, sock))
