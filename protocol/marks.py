"""Marks that only the origin can make: a signature behind the header says where the sender stands.

Every member knows the key of the tags, so a tag says that a datagram is a member's, no more. What a
session does as a whole (a pass ends, the next begins, the session is over, so many datagrams were
sent) is therefore believed of signed marks alone: Ed25519 over `_CONTEXT` and the 32 header bytes,
with a key pair of this session whose public half comes with the offer (`mark_key`).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_CONTEXT = b"tidegate multicast mark 1\0"


class MarkSigner:
    """Signs the marks of one session; `seed` has 32 random bytes that nobody else knows."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        #: What receivers check with, 32 bytes.
        self.public = self._key.public_key().public_bytes_raw()

    def signature(self, header: bytes) -> bytes:
        """The 64 bytes that are a mark's payload."""
        return self._key.sign(_CONTEXT + header)


class MarkChecker:
    """Tells the origin's marks from those of other members; `public` comes with the offer.

    Raises `ValueError` for a key of another length.
    """

    def __init__(self, public: bytes) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(public)

    def is_signed(self, header: bytes, signature: bytes) -> bool:
        """Whether the origin made this mark. About 0.1 ms."""
        try:
            self._key.verify(signature, _CONTEXT + header)
        except InvalidSignature:
            return False
        return True
