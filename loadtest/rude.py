"""Rude: rapid polling, hoarded tickets, ghost tickets and forged ones, among polite clients.

What must hold: `rude_gain` is not above 0 (a rude client waits no shorter than a polite one), and
nothing that a forger sends costs the others more than a few percent.
"""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import quote

import gevent
from locust import FastHttpUser, task

from tidegate.loadtest import options
from tidegate.loadtest.content import files_of
from tidegate.loadtest.recorder import must_count, tally
from tidegate.loadtest.replay import Replay, population
from tidegate.loadtest.users import Visitors
from tidegate.loadtest.workloads import File, address_of

__all__ = ["Forger", "Ghost", "Hoarder", "Rude", "Visitors", "options"]

#: Attackers' addresses lie above all visitors'.
_FIRST_ADDRESS = 1 << 23
for _name in ("hoard", "ghost", "forge"):
    must_count(f"{_name}_answers", f"the server answered no request to {_name}")


class _Attacker(FastHttpUser):
    abstract = True
    network_timeout = 30.0
    fixed_count = 1
    pause_s = 0.2

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._options = environment.parsed_options
        self._random = random.Random(id(self))
        self._files: list[File] = []
        self._address = address_of(_FIRST_ADDRESS + self._random.randrange(1 << 22))

    def on_start(self) -> None:
        """Choose the largest files: they are the ones with a queue.

        Small ones would only take bandwidth, as any client that downloads them may.
        """
        files = sorted(files_of(population(self._options)), key=lambda file: -file.size_bytes)
        self._files = [one for one in files if 4 * one.size_bytes >= files[0].size_bytes]

    def provoke(self, name: str, file: File, extra: dict[str, str]) -> None:
        """Ask as `extra` says and hang up at once; anything but a clean answer is a failure.

        One byte is asked for: a client that takes more is a downloader, and demand is not rudeness.
        """
        headers = {"User-Agent": "rude/1", "Tidegate-Wait": "ticket", "Range": "bytes=0-0"}
        headers |= extra
        if self._options.addresses == "forwarded":
            headers.setdefault("X-Forwarded-For", self._address)
        path = "/" + quote(file.name)
        with self.client.get(
            path, headers=headers, stream=True, catch_response=True, name=name
        ) as response:
            if response.status_code in (200, 206, 403, 429, 503):
                response.success()
                tally().count(f"{name}_answers")
            else:
                response.failure(f"answered {response.status_code}: {response.error}")
            if response.status_code == 403:
                tally().count("refused")
        self.client.client.close()
        gevent.sleep(self.pause_s)


class Hoarder(_Attacker):
    """Many names, one address: wants many places in one queue."""

    @task
    def hoard(self) -> None:
        """A new client identity each time."""
        name = f"{self._random.getrandbits(128):032x}"
        self.provoke("hoard", self._random.choice(self._files), {"Tidegate-Client": name})


class Ghost(_Attacker):
    """Takes tickets from many addresses and never comes back."""

    pause_s = 1.0

    @task
    def take_and_go(self) -> None:
        """A new address each time, where the server believes it."""
        address = address_of(_FIRST_ADDRESS + self._random.randrange(1 << 22))
        self.provoke("ghost", self._random.choice(self._files), {"X-Forwarded-For": address})


class Forger(_Attacker):
    """Shows tickets that it made up, from noise to nearly right ones."""

    @task
    def forge(self) -> None:
        """Random text in the alphabet of tickets, empty, over-long, or not even ASCII."""
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
        length = self._random.choice((1, 20, 120, 400, 3000))
        token = "".join(self._random.choices(alphabet, k=length))
        self.provoke("forge", self._random.choice(self._files), {"Tidegate-Ticket": token})


class Rude(Replay):
    """The population of `--workload`, with the attackers beside it."""

    beside = 3
