"""Malformed input, as one small tree of exceptions; each knows the HTTP status it deserves.

Building one costs nothing and logs nothing: the catcher decides. A refusal (queue full, not your
turn) is a value, never one of these.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Input that breaks a rule; `status` is the HTTP status an answer to it carries.

    `str(error)` is one plain sentence naming the fault and, where there is one, the remedy.
    """

    status: int = 400
    #: Short stable identifier, used as the last part of a problem type (RFC 9457).
    code: str = "bad-request"

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code


class BadHeader(ProtocolError):
    """A header field that cannot be read."""

    code = "bad-header"


class BadRange(ProtocolError):
    """No range of a syntactically valid Range header can be satisfied (RFC 9110, 15.5.17)."""

    status = 416
    code = "range-not-satisfiable"


class BadToken(ProtocolError):
    """A ticket or pass that is forged, expired, foreign or replayed; `code` says which."""

    status = 403
    code = "bad-ticket"


class BadPacket(ProtocolError):
    """A datagram that is not ours, truncated, or fails its tag."""

    code = "bad-packet"


class BadManifest(ProtocolError):
    """A manifest or update file that cannot be trusted or read."""

    code = "bad-manifest"
