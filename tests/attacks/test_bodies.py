"""Who has not logged in to the admin page makes it keep little, whatever he has connected."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.admin_browser import AdminVisit
from tests.running import make_release, serving, wait_for
from tidegate.server.admin.adapter import BODIES, LIMITS

pytestmark = pytest.mark.e2e


def send(sockets: ExitStack, port: int, body: bytes, *fields: str) -> socket.socket:
    """A form of which no more comes."""
    sock = sockets.enter_context(socket.create_connection(("127.0.0.1", port), 20))
    head = "\r\n".join(("POST /login HTTP/1.1", "Host: x", *fields, "", ""))
    sock.sendall(head.encode() + body)
    return sock


def status(sock: socket.socket) -> bytes:
    return sock.recv(4096)[9:12]


def test_large_bodies_are_for_those_who_logged_in_and_few_at_once(tmp_path: Path) -> None:
    """500 connections without a login used to have 2 MB each kept for half a minute."""
    make_release(tmp_path / "release", a_txt=10)
    with (
        serving(tmp_path / "release", tmp_path / "state", "--admin", "127.0.0.1:0") as server,
        ExitStack() as sockets,
    ):
        wait_for(lambda: "log in as admin" in "".join(server.lines))
        visit = AdminVisit(server)
        port = int(visit.url.rpartition(":")[2])
        large = f"Content-Length: {LIMITS.max_body_bytes}"
        chunk = b"%x\r\n" % BODIES.small_bytes + b"a" * BODIES.small_bytes + b"\r\n"
        forged = "Cookie: tidegate-admin=" + visit.web.cookies["tidegate-admin"][::-1]
        for fields in ((), (forged,), ("Authorization: Bearer tg-none",)):
            # Before the body comes; where its length is not told, when it has become too large.
            assert status(send(sockets, port, b"", large, *fields)) == b"413"
            chunked = ("Transfer-Encoding: chunked", *fields)
            assert status(send(sockets, port, 2 * chunk, *chunked)) == b"413"
        own = "Cookie: tidegate-admin=" + visit.web.cookies["tidegate-admin"]
        held = [send(sockets, port, b"a" * 9, large, own) for _ in range(BODIES.large_bodies)]
        # A small form goes through beside them.
        assert visit.get("/account").status_code == 200
        held.append(send(sockets, port, b"", large, own))
        # Which one that is, is for the order in which the server reads them.
        (refused,) = select.select(held, [], [], 20)[0]
        assert status(refused) == b"503"
        for sock in held:
            sock.close()
        whole = f"Content-Length: {2 * BODIES.small_bytes}"
        wait_for(
            lambda: status(send(sockets, port, 2 * BODIES.small_bytes * b"a", whole, own)) == b"403"
        )
        assert status(send(sockets, port, 2 * BODIES.small_bytes * b"a", whole, own)) == b"403"


def test_after_a_start_strangers_are_told_from_logins_before_anybody_opened_a_page(
    tmp_path: Path,
) -> None:
    """Until then strangers could hold all of the few large bodies."""
    make_release(tmp_path / "release", a_txt=10)
    options = ("--admin", "127.0.0.1:0")
    with serving(tmp_path / "release", tmp_path / "state", *options) as server:
        wait_for(lambda: "log in as admin" in "".join(server.lines))
        own = "Cookie: tidegate-admin=" + AdminVisit(server).web.cookies["tidegate-admin"]
    with (
        serving(tmp_path / "release", tmp_path / "state", *options) as server,
        ExitStack() as sockets,
    ):
        wait_for(lambda: "Admin " in "".join(server.lines))
        admin = next(line for line in server.lines if "Admin " in line)
        port = int(admin.strip().rstrip("/").rpartition(":")[2])
        size = 2 * BODIES.small_bytes
        whole = f"Content-Length: {size}"
        for _ in range(BODIES.large_bodies + 1):
            assert status(send(sockets, port, b"", whole)) == b"413"
        assert status(send(sockets, port, size * b"a", whole, own)) == b"403"
