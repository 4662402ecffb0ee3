"""What one request costs the gate: polls, new tickets, starts; processor time in one process.

A turn is 20 requests and the passing of 20 ms in which the policy settles. On a busy machine the
quick turns tell most, the tenth part of all that is quickest. Sockets and journal are faked, all
else is what a server runs: 100 downloads run and 400 tickets wait under `fair`, on a known line.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Collection
from itertools import count
from typing import Any

import click

from bench.shared import markdown
from bench.shared.subject import require
from tests.fakes import Asked, House
from tidegate.policies.contract import ONE_LINE
from tidegate.server.admission.downloads import LeasedDownload
from tidegate.server.files.transfer import Transfer

REQUESTS = 20
LINE_BYTES_S = 12.5e6
BROWSER: dict[str, Any] = {
    "agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "accept_language": "de,en-US;q=0.7,en;q=0.3",
}
PROGRAM: dict[str, Any] = {"agent": "tidegate/1"}


class KnownLine:
    """A line that carries what it carries, and is full."""

    lines = ONE_LINE
    busy = True

    def __init__(self, line_bytes_s: float) -> None:
        self.line_bytes_s = line_bytes_s

    def goodput_bytes_s(self) -> float:
        """All of it."""
        return self.line_bytes_s

    def set_ceiling(self, bandwidth_bytes_s: float | None) -> None:
        """It is known already."""

    def held_back(self, download: LeasedDownload) -> bool | None:
        """Nobody is."""
        return False

    def ended(self, transfer: Transfer, now: float) -> None:
        """Nothing is under way."""

    def wanted_by(self, downloads: int) -> None:
        """It has room for nobody more."""

    def tick(self, now: float, downloads: Collection[LeasedDownload], asleep_bytes: int) -> None:
        """There is nothing to find out."""


def address(number: int) -> str:
    """One of many networks."""
    return f"10.{number >> 8 & 255}.{number & 255}.1"


def cookie_of(answer: dict[str, str]) -> dict[str, Any]:
    """The field with which a browser shows what it was given."""
    given = answer.get("set-cookie")
    if given is None:
        return {}
    return {"cookie": "; ".join(line.partition(";")[0] for line in given.split("\n"))}


def crowd(
    fields: dict[str, Any], running: int, waiting: int, line_bytes_s: float = LINE_BYTES_S
) -> tuple[House, dict[str, tuple[str, dict[str, Any]]]]:
    """A house with so many downloads and tickets; by address the token, and what cookie came."""
    house = House("fair", slots=50, slots_max=max(1, running), bandwidth_bytes_s=line_bytes_s)
    house.gate.parts.line = KnownLine(line_bytes_s)
    house.wait(2)
    tokens: dict[str, tuple[str, dict[str, Any]]] = {}
    for number in count():
        if len(tokens) >= waiting:
            break
        asked = house.ask(address(number), **fields)
        if not asked.started:
            tokens[address(number)] = asked.token, cookie_of(asked.connection.fields)
        house.clock.advance(0.005)
    house.wait(1)
    return house, tokens


def turns(
    house: House, one: Callable[[], Asked], many: int, *, starts: bool
) -> tuple[float, float]:
    """The cost of a request, µs: a tenth of the turns is quicker, and half of them.

    Raises NothingMeasured unless most requests start a download, or wait, as `starts` says.
    """
    costs, meant = [], 0
    for _ in range(many):
        began = time.thread_time_ns()
        for _ in range(REQUESTS):
            meant += one().started == starts
        house.clock.advance(0.02)
        costs.append((time.thread_time_ns() - began) / 1e3 / REQUESTS)
        # Journal and counts of a fake grow for ever.
        house.arrivals.clear()
    require_meant(meant, many * REQUESTS, starts=starts)
    return statistics.quantiles(costs, n=10)[0], statistics.median(costs)


def require_meant(meant: int, asked: int, *, starts: bool) -> None:
    """Raise NothingMeasured unless most of the requests got the answer that is measured."""
    what = "started a download" if starts else "were told to wait"
    require(2 * meant > asked, f"{meant} of {asked} requests {what}.")


def polls(fields: dict[str, Any], many: int) -> tuple[float, float]:
    """Visits with a ticket, each as it was told."""
    house, tokens = crowd(fields, 100, 400)
    table, keys = house.gate.policy.queue.table, house.keys  # type: ignore[attr-defined]
    now = house.clock.seconds()
    crowded = [
        (who, token, cookie, keys.read_ticket(token, who, "/big.iso", now).number)
        for who, (token, cookie) in tokens.items()
    ]
    visits = iter(crowded * (many * REQUESTS // len(tokens) + 1))

    def poll() -> Asked:
        who, token, cookie, number = next(visits)
        row = table.rows.get(number)
        if row is not None:
            table.promise_s[row] = house.clock.seconds()
        return house.ask(who, token=token, **fields, **cookie)

    return turns(house, poll, many, starts=False)


def newcomers(fields: dict[str, Any], many: int) -> tuple[float, float]:
    """First visits that are told to wait."""
    house, _ = crowd(fields, 100, 400)
    numbers = count(10_000)
    return turns(house, lambda: house.ask(address(next(numbers)), **fields), many, starts=False)


def starts(many: int) -> tuple[float, float]:
    """Downloads that begin at once and end."""
    house, _ = crowd(PROGRAM, 4000, 0)
    numbers = count(10_000)

    def one() -> Asked:
        asked = house.ask(address(next(numbers)), **PROGRAM)
        asked.transfer.finish()
        return asked

    return turns(house, one, many, starts=True)


def lasting(many: int) -> tuple[float, float]:
    """The same, each for half a second: the policy hears of them, and looks how far they are."""
    house, _ = crowd(PROGRAM, 4000, 0, 100.0 * LINE_BYTES_S)
    numbers = count(10_000)
    under_way: deque[Asked] = deque()

    def one() -> Asked:
        asked = house.ask(address(next(numbers)), **PROGRAM)
        under_way.append(asked)
        if len(under_way) > 25 * REQUESTS:
            under_way.popleft().transfer.finish()
        return asked

    return turns(house, one, many, starts=True)


@click.command()
@click.option("--turns", "many", default=100, show_default=True)
def main(many: int) -> None:
    """Measure and print."""
    rows = [
        ("poll, JSON", polls(PROGRAM, many)),
        ("poll, page", polls(BROWSER, many)),
        ("new ticket, JSON", newcomers(PROGRAM, many)),
        ("new ticket, page", newcomers(BROWSER, many)),
        ("start and end of a lease", starts(many)),
        ("the same, each for half a second", lasting(many)),
    ]
    lines = [[name, f"{quick:.0f} µs", f"{median:.0f} µs"] for name, (quick, median) in rows]
    click.echo(markdown.table(["request", "a tenth below", "half below"], lines))


if __name__ == "__main__":
    main()
