"""Wrong passwords from all over one network keep nobody else from logging in."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
import socket
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.running import make_release, serving, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

AT_ONCE = 40
TRIES = 2


class Visitor:
    """A client of the login page, through a trusted proxy on this machine."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url).netloc
        answer, text = self._ask("GET", {}, "")
        self._cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        self._token = re.findall(r'name="csrf" value="([^"]+)"', text)[0]

    def _ask(
        self, method: str, fields: dict[str, str], body: str
    ) -> tuple[http.client.HTTPResponse, str]:
        self._connection = http.client.HTTPConnection(self._place, timeout=60)
        with closing(self._connection) as connection:
            connection.request(method, "/login", body, fields)
            answer = connection.getresponse()
            return answer, answer.read().decode()

    def leave(self) -> None:
        """Wait no longer for an answer."""
        with contextlib.suppress(AttributeError, OSError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def login(self, address: str, password: str) -> int:
        fields = {"cookie": self._cookie, "x-forwarded-for": address}
        fields["content-type"] = "application/x-www-form-urlencoded"
        form = {"csrf": self._token, "name": "admin", "password": password}
        return self._ask("POST", fields, urlencode(form))[0].status


def test_the_right_password_gets_in_beside_wrong_ones_of_a_whole_network(tmp_path: Path) -> None:
    """Each of 15 was refused: the room was full, and each of these refusals was a wrong try."""
    make_release(tmp_path / "release", a_txt=10)
    options = ("--admin", "127.0.0.1:0", "--trusted-proxy", "127.0.0.1")
    slow = {"SLOW_PASSWORDS": "1"}
    with serving(tmp_path / "release", tmp_path / "state", *options, **slow) as server:
        wait_for(lambda: any("log in as admin" in line for line in server.lines), 60)
        told = "".join(server.lines)
        first = re.findall(r"log in as admin with (\S+)", told)[0]
        url = re.findall(r"Admin +(\S+)/", told)[0]
        seen: Counter[int] = Counter()
        over = threading.Event()
        attackers: list[Visitor] = []
        numbers = itertools.count()

        def guess() -> None:
            attacker = Visitor(url)
            attackers.append(attacker)
            while not over.is_set():
                address = f"2001:db8:7:{next(numbers) % 65536:x}::1"
                try:
                    seen[attacker.login(address, "a wrong guess")] += 1
                except (OSError, http.client.HTTPException):
                    assert over.is_set()

        threads = [threading.Thread(target=guess, daemon=True) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        # The room is full.
        wait_for(lambda: seen[503] or seen[429], 60)
        honest = Visitor(url)
        statuses = [honest.login(f"203.0.{number}.9", first) for number in range(TRIES)]
        over.set()
        for attacker in attackers:
            attacker.leave()
        for thread in threads:
            thread.join(60)
    assert statuses == [303] * TRIES
    assert seen[303] == 0
    # All that was checked of the network, beside those that were told to wait.
    assert seen[401] <= 45
