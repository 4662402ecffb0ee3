"""A client of HTTP/3, for tests: curl and wget of Debian have none."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import threading

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent


class Http3Download:
    """A file that a thread fetches from localhost, over a connection of its own.

    It stands still with the first bytes until `go` is set, and leaves after `most_bytes`.
    """

    def __init__(self, port: int, path: str, agent: str, *, most_bytes: int = 1 << 62) -> None:
        self.most_bytes = most_bytes
        self.status = b""
        self.size_bytes = 0
        self.digest = hashlib.sha256()
        self.go = threading.Event()
        self._asked = {":method": "GET", ":scheme": "https", ":authority": f"localhost:{port}"}
        self._asked |= {":path": path, "user-agent": agent}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._fetch(port)))
        self._thread.start()

    def join(self) -> str:
        """The digest of what came."""
        self.go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.digest.hexdigest()

    async def _fetch(self, port: int) -> None:
        download, over = self, asyncio.Event()

        class Protocol(QuicConnectionProtocol):
            def quic_event_received(self, event: QuicEvent) -> None:
                for told in http.handle_event(event):
                    if isinstance(told, HeadersReceived):
                        download.status = dict(told.headers)[b":status"]
                    elif isinstance(told, DataReceived):
                        download.size_bytes += len(told.data)
                        download.digest.update(told.data)
                        assert download.go.wait(60)
                        if told.stream_ended or download.size_bytes >= download.most_bytes:
                            over.set()

        options = QuicConfiguration(alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE)
        made = connect("localhost", port, configuration=options, create_protocol=Protocol)
        async with made as protocol:
            http = H3Connection(protocol._quic)
            stream = protocol._quic.get_next_available_stream_id()
            fields = [(name.encode(), value.encode()) for name, value in self._asked.items()]
            http.send_headers(stream, fields, end_stream=True)
            protocol.transmit()
            await asyncio.wait_for(over.wait(), 60)
