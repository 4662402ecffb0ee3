"""Marks: signed datagrams that say where the sender stands.

All members know the key of the tags, so a tag only shows that a datagram is a member's. The state
of the session (the end of a pass, the next pass, the end of the session, the number of datagrams
sent) is read from signed marks only: Ed25519 over `_CONTEXT` and the 32 header bytes. The session's
public key comes with the offer (`mark_key`).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_CONTEXT = b"tidegate multicast mark 1\0"


class MarkSigner:
    """Signs the marks of one session. `seed` has 32 secret random bytes."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        #: The public key, 32 bytes.
        self.public = self._key.public_key().public_bytes_raw()

    def signature(self, header: bytes) -> bytes:
        """The payload of a mark, 64 bytes."""
        return self._key.sign(_CONTEXT + header)


class MarkChecker:
    """Checks the signatures of marks. `public` comes with the offer.

    Raises `ValueError` for a key of another length.
    """

    def __init__(self, public: bytes) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(public)

    def is_signed(self, header: bytes, signature: bytes) -> bool:
        """Whether the origin signed this mark. Takes 0.1 ms."""
        try:
            self._key.verify(signature, _CONTEXT + header)
        except InvalidSignature:
            return False
        return True
