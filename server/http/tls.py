"""TLS for the data plane: the standard library's, straight on the socket."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path
from typing import Literal

TlsVersion = Literal["1.2", "1.3"]
#: Mozilla's intermediate profile for TLS 1.2: forward secrecy, AEAD. TLS 1.3 has only such.
INTERMEDIATE = (
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305"
)
#: Type, version and length of a record (RFC 8446, 5.1).
_HEADER_BYTES = 5
_MOST_RECORD_BYTES = 1 << 14


class BadCertificate(Exception):
    """The files hold no certificate with its private key; the message names fault and remedy."""


class TlsServer:
    """A certificate with its private key, from PEM files; the chain follows the certificate.

    `ciphers` (OpenSSL's names) are those of TLS 1.2. Raises `BadCertificate`.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        oldest: TlsVersion = "1.2",
        ciphers: str = INTERMEDIATE,
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._oldest = ssl.TLSVersion.TLSv1_3 if oldest == "1.3" else ssl.TLSVersion.TLSv1_2
        self._ciphers = ciphers
        self._read = self._state_of_files()
        self._context = self._load()

    def reload(self) -> None:
        """Read the files again, for connections from now on; with a fault the old ones stay.

        Raises `BadCertificate`.
        """
        self._read, self._context = self._state_of_files(), self._load()

    def left_s(self, now: float) -> float | None:
        """The time until the certificate in the file expires; None if it cannot be read."""
        # A slow import, which only a server with TLS needs.
        from cryptography.x509 import load_pem_x509_certificate

        try:
            found = load_pem_x509_certificate(self._certificate.read_bytes())
        except (OSError, ValueError):
            return None
        return found.not_valid_after_utc.timestamp() - now

    @property
    def has_changed(self) -> bool:
        """Whether the files are others than those that were read."""
        return self._state_of_files() != self._read

    def _state_of_files(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_state_of, (self._certificate, self._key)))

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """The server's side of a connection whose handshake is still to be made."""
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self._oldest
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        try:
            context.set_ciphers(self._ciphers)
        except ssl.SSLError as fault:
            raise BadCertificate(
                f"tls_ciphers {self._ciphers!r} names no cipher that is known here; write names as "
                "`openssl ciphers` does, with colons between."
            ) from fault
        # The kernel encrypts, where it can.
        context.options |= getattr(ssl, "OP_ENABLE_KTLS", 0)
        # Without this the handshake fails with clients that offer h2 by ALPN, such as curl.
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as fault:
            raise BadCertificate(
                f"{self._certificate} and {self._key} are no certificate (PEM) with its private "
                f"key ({fault.reason or 'not PEM'}); name others with --tls-cert and --tls-key."
            ) from fault
        except ValueError as fault:
            raise BadCertificate(f"{self._key} has a password; take it off: {fault}.") from fault
        except OSError as fault:
            files = self._certificate, self._key
            bad = [one for one in files if one.is_dir() or not os.access(one, os.R_OK)] or files
            named = " and ".join(map(str, bad))
            raise BadCertificate(f"{named} cannot be read: {fault.strerror}.") from fault
        return context


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _no_password() -> str:
    raise ValueError("no operator can type it while the server starts")


def awaited_bytes(start: bytes) -> int:
    """How many bytes must be there before a connection that begins so can be judged anew.

    0: its first record is whole, or TLS must say what is wrong with it.
    """
    if len(start) < _HEADER_BYTES:
        return _HEADER_BYTES
    end = _HEADER_BYTES + int.from_bytes(start[3:5], "big")
    is_handshake = start[0] == 22 and end <= _HEADER_BYTES + _MOST_RECORD_BYTES
    return end if is_handshake and len(start) < end else 0


class AwaitedHello:
    """The first record of a connection, which stays in the kernel until it is whole.

    TLS costs 46 kB from its first byte on. Most clients send their hello in one record. Its socket
    is readable once enough has arrived.
    """

    __slots__ = ("_awaited_bytes", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._awaited_bytes = 0

    def has_come(self) -> bool:
        """Whether TLS may begin. Ask again when the socket is readable. Raises OSError."""
        try:
            start = self._socket.recv(_HEADER_BYTES + _MOST_RECORD_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            start = b""
        awaited = awaited_bytes(start)
        # Readable with less: the client is at its end, or the system is short of memory.
        came = awaited <= self._awaited_bytes
        self._awaited_bytes = awaited
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 if came else awaited)
        return came
