"""The server under attack."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.running import RunningServer, make_release, serving


@contextmanager
def one_slot(folder: Path, *args: str) -> Iterator[RunningServer]:
    """A server of one slot with one large file, which takes minutes on its line."""
    make_release(folder / "release", big_iso=60_000_000)
    slots = ("--policy", "ticket", "--slots", "1", "--reserve-small", "0", "--bandwidth", "400kB/s")
    with serving(folder / "release", folder / "state", *slots, *args) as running:
        yield running


@contextmanager
def occupy(server: RunningServer, port: int = 0, source: str = "127.0.0.1") -> Iterator[None]:
    """Take the only slot, and all that the line gives to it."""
    number = port or int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", number), 20, (source, 0)) as taken:
        taken.sendall(b"GET /big.iso HTTP/1.1\r\nHost: x\r\nUser-Agent: other/1\r\n\r\n")
        assert taken.recv(12) == b"HTTP/1.1 200"

        def read() -> None:
            with suppress(OSError):
                while taken.recv(1 << 16):
                    pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            with suppress(OSError):
                taken.shutdown(socket.SHUT_RDWR)
            reader.join()
