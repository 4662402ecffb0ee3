"""Many datagrams with one system call (`recvmmsg`), where the C library has it.

Python's socket module reads one datagram a call; at 100 Mb/s the calls cost as much as what is done
with the datagrams. Elsewhere, or when the call is refused, reads are single.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from socket import MSG_DONTWAIT
from typing import Any

_MANY = 32
#: A read with GRO may give 64 KiB; the odd rest keeps the slots out of each other's cache lines.
_SLOT_BYTES = (64 << 10) + 1600


class _IoVector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _Header), ("length", ctypes.c_uint))


class BatchReader:
    """Reads from a non-blocking socket; what a call returns is valid until the next one."""

    def __init__(self, fd: int, recv_into: Callable[[memoryview], int]) -> None:
        self._fd = fd
        self._recv_into = recv_into
        self._buffer = bytearray(_MANY * _SLOT_BYTES)
        whole = memoryview(self._buffer)
        self._slots = [whole[i * _SLOT_BYTES : (i + 1) * _SLOT_BYTES] for i in range(_MANY)]
        self._call: Any = None
        if sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8:
            self._prepare()

    def _prepare(self) -> None:
        call = getattr(ctypes.CDLL(None, use_errno=True), "recvmmsg", None)
        if call is None:
            return
        call.argtypes = (
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_uint,
            ctypes.c_int,
            ctypes.c_void_p,
        )
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._vectors = (_IoVector * _MANY)()
        self._messages = (_Message * _MANY)()
        for i in range(_MANY):
            self._vectors[i].base = start + i * _SLOT_BYTES
            self._vectors[i].length = _SLOT_BYTES
            header = self._messages[i].header
            header.vectors = ctypes.addressof(self._vectors) + i * ctypes.sizeof(_IoVector)
            header.vector_count = 1
        stride, at = ctypes.sizeof(_Message) // 4, _Message.length.offset // 4
        self._lengths = memoryview(self._messages).cast("B").cast("I")[at::stride]
        self._address = ctypes.addressof(self._messages)
        self._call = call

    def read(self) -> list[memoryview]:
        """What is there, at most `count` reads' worth; empty when nothing is. Raises OSError."""
        if self._call is None:
            return self._read_one()
        found = self._call(self._fd, self._address, _MANY, MSG_DONTWAIT, None)
        if found < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                return []
            if number in (errno.ENOSYS, errno.EPERM):
                self._call = None
                return self._read_one()
            raise OSError(number, os.strerror(number))
        lengths = self._lengths
        return [slot[: lengths[i]] for i, slot in enumerate(self._slots[:found])]

    def _read_one(self) -> list[memoryview]:
        slot = self._slots[0]
        try:
            return [slot[: self._recv_into(slot)]]
        except BlockingIOError:
            return []
