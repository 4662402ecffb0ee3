"""Clients that take nothing: they neither spoil what others are told nor keep slots from them."""

from __future__ import annotations

import json
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.running import RunningServer, make_release, serving, wait_for

pytestmark = pytest.mark.e2e

SLOTS = 3
ARGS = ("--policy", "ticket", "--slots", f"{SLOTS + 1}", "--reserve-small", "1")


def stalled_reader(url: str, name: str) -> socket.socket:
    """A download that is begun and never read."""
    parts = urlsplit(url)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((parts.hostname, parts.port))
    reader.sendall(f"GET /big.iso HTTP/1.1\r\nHost: x\r\nTidegate-Client: {name}\r\n\r\n".encode())
    assert reader.recv(12).endswith(b"200")
    return reader


def ask(server: RunningServer, client: str, token: str | None = None) -> dict[str, Any] | None:
    """What a client that takes tickets is told; None when its download starts."""
    headers = {"Tidegate-Client": client, "Tidegate-Wait": "ticket"}
    headers["Accept"] = "application/problem+json"
    if token is not None:
        headers["Tidegate-Ticket"] = token
    request = urllib.request.Request(f"{server.url}/big.iso", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60):
            return None
    except urllib.error.HTTPError as error:
        with error:
            told: dict[str, Any] = json.load(error)
            return told


def test_stalled_readers_on_all_slots_cost_others_seconds_not_hours(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=1)
    os.truncate(tmp_path / "release" / "big.iso", 400_000_000)
    environ = {"TIDEGATE_CLIENTS_PER_ADDRESS": "65536", "TIDEGATE_LEASE_IDLE_S": "1"}
    with serving(tmp_path / "release", tmp_path / "state", *ARGS, **environ) as server:
        readers = [stalled_reader(server.url, f"stalled-{number}") for number in range(SLOTS)]
        told: list[dict[str, Any]] = []
        tokens: dict[str, str] = {}

        def newcomer() -> bool:
            client = f"newcomer-{len(tokens)}"
            answer = ask(server, client)
            if answer is None:
                return True
            told.append(answer)
            tokens[client] = answer["ticket"]
            return len(tokens) >= 6

        wait_for(newcomer, 60)
        assert all(answer["expected_wait_s"] < 3_000 for answer in told), told
        for reader in readers:
            reader.close()
        for client, token in list(tokens.items())[:SLOTS]:
            wait_for(lambda: ask(server, client, token) is None, 60)  # noqa: B023
            started = ask(server, client, token)
            assert started is None or started["type"].endswith("ticket-used"), started
