"""Mutual TLS between the machines of a cluster, with nothing to configure.

All machines share one certificate and its key, which lie in the database beside the keys that sign
tickets: a machine that can read them is a member. Each end shows it and accepts nothing else. A
machine accepts a renewed one before another shows it.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet import ssl
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
)
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A certificate with its key, as PEM, and when it was made."""

    pem: str = field(repr=False)
    made_s: float


def make_identity(now: float) -> NodeIdentity:
    """A new one; its key never leaves the cluster."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # A name of its own: an issuer is looked for by its name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tidegate cluster {serial:040x}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        # The clocks of machines decide nothing: a certificate counts while it is in the database.
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return NodeIdentity(
        (certificate.public_bytes(serialization.Encoding.PEM) + private).decode(), now
    )


#: Every machine has read a shared key of this age, in seconds: they read them every ten minutes.
SETTLED_S = 3600.0


def settled(made_s: Collection[float], now: float) -> float:
    """When the key was made that is used: the newest that all have read, else the oldest."""
    read = [one_s for one_s in made_s if one_s <= now - SETTLED_S]
    return max(read) if read else min(made_s)


@implementer(IOpenSSLClientConnectionCreator, IOpenSSLServerConnectionCreator)
class MutualTls:
    """Makes both ends of connections; `use` gives it other identities from then on."""

    def __init__(self, identities: Sequence[NodeIdentity], now: float) -> None:
        self.use(identities, now)

    def use(self, identities: Sequence[NodeIdentity], now: float) -> None:
        """Show and accept these."""
        pem = ssl.PrivateCertificate
        trusted: list[Any] = [
            ssl.Certificate.loadPEM(one.pem.encode("ascii")) for one in identities
        ]
        shown_s = settled([one.made_s for one in identities], now)
        shown = next(one for one in identities if one.made_s == shown_s)
        mine: Any = pem.loadPEM(shown.pem)  # type: ignore[no-untyped-call]
        self._context: Any = mine.options(*trusted).getContext()

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        return SSL.Connection(self._context, None)

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        return SSL.Connection(self._context, None)

    def around(self, factory: Any) -> Any:
        """The factory of a server whose protocols speak through TLS."""
        wrapped: Any = TLSMemoryBIOFactory
        return wrapped(self, False, factory)
