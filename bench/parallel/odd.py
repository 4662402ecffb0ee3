"""A mirror that misbehaves: `odd.py ADDRESS FILE --cut BYTES` or `--deaf`.

`--cut` resets the connection after this many bytes of each answer. `--deaf` discards requests that
arrive during an answer, as servers do that read each request into a fresh buffer.
"""

from __future__ import annotations

import argparse
import re
import select
import socket
import struct
import threading
from pathlib import Path

_CHUNK = 16 << 10
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)", re.IGNORECASE)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("file", type=Path)
    parser.add_argument("--cut", type=int)
    parser.add_argument("--deaf", action="store_true")
    given = parser.parse_args()
    data = given.file.read_bytes()
    with socket.create_server((given.address, 80)) as listener:
        while True:
            connection, _ = listener.accept()
            words = (connection, data, given.cut, given.deaf)
            threading.Thread(target=_serve, args=words, daemon=True).start()


def _serve(connection: socket.socket, data: bytes, cut: int | None, deaf: bool) -> None:
    asked = b""
    try:
        while True:
            while b"\r\n\r\n" not in asked:
                more = connection.recv(65536)
                if not more:
                    return
                asked += more
            request, _, asked = asked.partition(b"\r\n\r\n")
            head, body = _answer(request, data)
            whole = memoryview(head + body)
            for at in range(0, len(whole), _CHUNK):
                if cut is not None and at > cut:
                    _reset(connection)
                    return
                connection.sendall(whole[at : at + _CHUNK])
                is_readable = deaf and select.select([connection], [], [], 0)[0]
                if is_readable and not connection.recv(65536):
                    return
            if deaf:
                asked = b""
    except OSError:
        pass
    finally:
        connection.close()


def _answer(request: bytes, data: bytes) -> tuple[bytes, bytes]:
    found = _RANGE.search(request)
    start = int(found[1]) if found else 0
    last = min(int(found[2]), len(data) - 1) if found and found[2] else len(data) - 1
    body = data[start : last + 1]
    status, fields = b"200 OK", b""
    if found:
        status = b"206 Partial Content"
        fields = b"Content-Range: bytes %d-%d/%d\r\n" % (start, last, len(data))
    head = b'HTTP/1.1 %s\r\nAccept-Ranges: bytes\r\nETag: "odd"\r\n%sContent-Length: %d\r\n\r\n'
    return head % (status, fields, len(body)), body


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


if __name__ == "__main__":
    main()
