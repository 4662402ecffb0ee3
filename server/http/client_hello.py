"""Leaves a ClientHello to the kernel until it is whole: TLS costs 46 kB from its first byte on.

A client that says half a hello and waits costs its socket, as one that says nothing.
"""

from __future__ import annotations

import socket

#: Type, version and length of a record (RFC 8446, 5.1).
_HEADER_BYTES = 5
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_MOST_RECORD_BYTES = 1 << 14
#: Type and length of a handshake message (RFC 8446, 4).
_MESSAGE_HEADER_BYTES = 4
#: Clients send a hello of a few hundred bytes in one record, some of 2 kB in two. Each record is
#: looked at again when the next arrives, so there is a bound. Beyond it TLS begins at once.
_MOST_RECORDS = 4


def awaited_bytes(start: bytes) -> int:
    """How many bytes must be there before a connection that begins so can be judged anew.

    0: the hello is whole, or TLS must say what is wrong with it.
    """
    at, message = 0, b""
    for _ in range(_MOST_RECORDS):
        if len(start) < at + _HEADER_BYTES:
            return at + _HEADER_BYTES
        size = int.from_bytes(start[at + 3 : at + 5], "big")
        if start[at] != _HANDSHAKE or not 0 < size <= _MOST_RECORD_BYTES:
            return 0
        end = at + _HEADER_BYTES + size
        if len(start) < end:
            return end
        message += start[at + _HEADER_BYTES : end]
        if len(message) >= _MESSAGE_HEADER_BYTES:
            whole = _MESSAGE_HEADER_BYTES + int.from_bytes(message[1:4], "big")
            if message[0] != _CLIENT_HELLO or len(message) >= whole:
                return 0
        at = end
    return 0


class AwaitedHello:
    """The hello of one connection, whose socket is readable once enough of it has arrived."""

    __slots__ = ("_awaited_bytes", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._awaited_bytes = 0

    def has_come(self) -> bool:
        """Whether TLS may begin. Ask again when the socket is readable. Raises OSError."""
        try:
            most = _MOST_RECORDS * (_HEADER_BYTES + _MOST_RECORD_BYTES)
            start = self._socket.recv(most, socket.MSG_PEEK)
        except BlockingIOError:
            start = b""
        awaited = awaited_bytes(start)
        # Readable with less: the client is at its end, or the system is short of memory.
        came = awaited <= self._awaited_bytes
        self._awaited_bytes = awaited
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 if came else awaited)
        return came
