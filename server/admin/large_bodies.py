"""Who may send a large body, and how many at once: what strangers have us keep is bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...protocol.errors import ProtocolError


class LargeBodies:
    """See `http.parser.BodyAllowance`.

    `knows` says whether the fields of a request tell a client that may send one. So a server keeps
    no more than `most` of the largest bodies at once, and a small one on every other connection.
    """

    def __init__(
        self, small_bytes: int, most: int, knows: Callable[[Mapping[bytes, bytes]], bool]
    ) -> None:
        self.small_bytes = small_bytes
        self._most = most
        self._knows = knows
        self._open = 0

    def begin(self, fields: Mapping[bytes, bytes]) -> ProtocolError | None:
        """One more, of a request with these header fields; an error means that it is refused."""
        if not self._knows(fields):
            return ProtocolError(
                f"Without a login, a body has at most {self.small_bytes} bytes here.",
                status=413,
                code="body-too-large",
            )
        if self._open >= self._most:
            return ProtocolError(
                "As many large forms as this server takes at once are being sent; please come "
                "back soon.",
                status=503,
                code="too-many-bodies",
            )
        self._open += 1
        return None

    def end(self) -> None:
        """One that began is over."""
        self._open -= 1
