"""A ticket that was used, or is shown from elsewhere, admits nobody, also after a restart."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import pytest

from tests.running import RunningServer, make_release, serving, wait_for

pytestmark = pytest.mark.e2e
SIZE = 5_000_000


def port_of(server: RunningServer) -> int:
    return int(server.url.rpartition(":")[2])


def get(server: RunningServer, source: str = "127.0.0.1", ticket: str = "") -> tuple[int, str, str]:
    shown = {"Tidegate-Wait": "ticket"} | ({"Tidegate-Ticket": ticket} if ticket else {})
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), 20, (source, 0))
    try:
        connection.request("GET", "/big.iso", headers=shown)
        answer = connection.getresponse()
        body = answer.read()
        assert (answer.status != 200) or len(body) == SIZE
        return answer.status, answer.headers.get("Tidegate-Ticket", ""), body.decode("latin-1")
    finally:
        connection.close()


def test_a_used_ticket_is_refused_here_elsewhere_and_after_a_restart(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=SIZE, huge_iso=100_000_000)
    one = ("--policy", "ticket", "--slots", "1", "--reserve-small", "0")
    folders = (tmp_path / "release", tmp_path / "state", *one)
    with serving(*folders) as server:
        # A ticket is given to who has to wait.
        with socket.create_connection(("127.0.0.1", port_of(server)), 20) as before:
            before.sendall(b"GET /huge.iso HTTP/1.1\r\nHost: x\r\nUser-Agent: a\r\n\r\n")
            assert before.recv(12) == b"HTTP/1.1 200"
            status, ticket, _ = get(server)
            assert status == 503
            assert ticket
        wait_for(lambda: get(server, ticket=ticket)[0] == 200)
        for source in ("127.0.0.1", "127.5.0.1"):
            status, _, text = get(server, source, ticket)
            assert status == 403
            assert "ticket-used" in text or "ticket-foreign" in text
    with serving(*folders) as server:
        status, _, text = get(server, ticket=ticket)
        assert status == 403
        assert "ticket-used" in text
    with serving(tmp_path / "release", tmp_path / "another", "--policy", "ticket") as server:
        status, _, text = get(server, ticket=ticket)
        assert status == 403
        assert "ticket-forged" in text
