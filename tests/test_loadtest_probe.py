"""What a load test asks before it begins: with a login, and without telling it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tidegate.loadtest.cli import what_is_missing
from tidegate.loadtest.probe import ServerProbe
from tidegate.loadtest.workloads import File

LOGIN = "Basic " + base64.b64encode(b"me:secret").decode()


class Guarded(BaseHTTPRequestHandler):
    """Has `a.iso` for those who log in; `busy` is never free."""

    def do_HEAD(self) -> None:
        if self.headers["Authorization"] != LOGIN:
            self.send_response(401)
        elif self.path == "/busy":
            self.send_response(503)
        elif self.path == "/a.iso":
            self.send_response(200)
            self.send_header("Content-Length", "9")
        else:
            self.send_response(404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def place() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_login_in_the_address_is_used_and_not_told(place: str) -> None:
    probe = ServerProbe(f"http://me:secret@{place}")
    sizes = [probe.size_of(path) for path in ("/a.iso", "/b.iso", "/busy")]
    assert sizes == [9, None, -1]
    told = what_is_missing(probe, [File("a.iso", 9), File("b.iso", 9)])
    assert told == f"http://{place} lacks 1 of the 2 files that are asked for: b.iso."
    assert what_is_missing(probe, [File("busy", 1)]) is None
    assert "a.iso (9 B, not 8 B)" in str(what_is_missing(probe, [File("a.iso", 8)]))
    assert ServerProbe(f"http://{place}").size_of("/a.iso") is None


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(OSError, match=r"^http://127\.0\.0\.1:1 does not answer") as fault:
        ServerProbe("http://me:secret@127.0.0.1:1").get("/")
    assert "secret" not in str(fault.value)
