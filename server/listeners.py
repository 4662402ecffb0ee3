"""Sockets: TCP on IPv4 and IPv6, TLS, and unix sockets for a proxy in front."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet import error
from twisted.internet.ssl import CertificateOptions

from server.settings import split_address

_BACKLOG = 4096


class CannotListen(Exception):
    """A listener cannot be opened; the message names the fault and the remedy."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An open listener and the URL under which it serves."""

    port: Any
    url: str
    unix_path: Path | None = None


def tls_options(cert: Path, key: Path) -> CertificateOptions:
    """TLS from PEM files; the first certificate is ours, the others complete the chain."""
    try:
        chain = _certificates(cert.read_bytes())
        private = crypto.load_privatekey(crypto.FILETYPE_PEM, key.read_bytes())
        options = CertificateOptions(
            privateKey=private,
            certificate=chain[0],
            extraCertChain=chain[1:],
            # Without this the handshake fails with whoever offers h2 by ALPN, as curl does.
            acceptableProtocols=[b"http/1.1"],
        )
        options.getContext()
    except OSError as fault:
        raise CannotListen(f"{fault.filename} cannot be read: {fault.strerror}.") from fault
    except (SSL.Error, crypto.Error, ValueError, IndexError) as fault:
        raise CannotListen(
            f"{cert} and {key} are no certificate (PEM) with its private key: {fault}."
        ) from fault
    return options


def open_listener(
    reactor: Any, place: str, factory: Any, tls: CertificateOptions | None, flag: str = "--listen"
) -> Listener:
    """Listen at `HOST:PORT`, `[IPv6]:PORT` or `unix:PATH`, from `flag`. Raises `CannotListen`."""
    try:
        if place.startswith("unix:"):
            path = Path(place.removeprefix("unix:"))
            _remove_stale(path)
            port = reactor.listenUNIX(str(path), factory, backlog=_BACKLOG, mode=0o666)
            return Listener(port, f"http+unix://{str(path).replace('/', '%2F')}", path)
        host, number = split_address(place)
        if tls is None:
            port = reactor.listenTCP(number, factory, backlog=_BACKLOG, interface=host)
        else:
            port = reactor.listenSSL(number, factory, tls, backlog=_BACKLOG, interface=host)
    except error.CannotListenError as fault:
        reason = getattr(fault.socketError, "strerror", None) or str(fault.socketError)
        raise CannotListen(
            f"Cannot listen on {place}: {reason}; choose another address with {flag}."
        ) from fault
    number = port.getHost().port
    shown = f"[{host}]" if ":" in host else host
    return Listener(port, f"{'https' if tls else 'http'}://{shown}:{number}")


def _remove_stale(path: Path) -> None:
    """A socket file that a killed server left behind would keep us from listening."""
    try:
        if stat.S_ISSOCK(path.stat().st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass


def _certificates(pem: bytes) -> list[crypto.X509]:
    end = b"-----END CERTIFICATE-----"
    return [
        crypto.load_certificate(crypto.FILETYPE_PEM, part + end)
        for part in pem.split(end)
        if b"BEGIN CERTIFICATE" in part
    ]
