"""Exceptions for malformed input, each with its HTTP status.

They log nothing. A refusal (queue full, not your turn) is a value, never one of these.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Malformed input; `status` is the HTTP status of the answer.

    `str(error)` is one plain sentence that names the fault and, if there is one, the remedy.
    """

    status: int = 400
    #: The last part of the problem type (RFC 9457); stable.
    code: str = "bad-request"

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code


class BadHeader(ProtocolError):
    """A header field cannot be read."""

    code = "bad-header"


class BadRange(ProtocolError):
    """No range of a syntactically valid Range header can be satisfied (RFC 9110, 15.5.17)."""

    status = 416
    code = "range-not-satisfiable"


class BadToken(ProtocolError):
    """A ticket or pass is forged, expired, foreign or replayed; `code` says which.

    `key` names its key where the reader lacks that one. With status 503 it may be good.
    """

    status = 403
    code = "bad-ticket"

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, key: str = ""
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.key = key


class BadManifest(ProtocolError):
    """A manifest or update file cannot be read or trusted."""

    code = "bad-manifest"
