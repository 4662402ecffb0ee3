"""What the clients of several servers saw while these were harmed, and what it says of them.

Clients download again and again, each request at a server of its own choice, with their tickets,
and go on where a body broke off. What they write down is judged afterwards: numbers, owners,
places, bodies at once, and the bytes.
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import enum
import hashlib
import math
import random
import re
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tidegate.policies.contract import ELSEWHERE

MIB = 1024 * 1024
_FAULTS = (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError)
#: A client that hears nothing more for so long tries another server.
_PATIENCE_S = 15.0
#: Tickets of nodes without a leader that were issued within this time may stand in either order.
_ALIKE_S = 1.0
_CODE = re.compile(rb'"(?:code|type)": ?"[^"]*?([a-z-]+)"')


@dataclass(slots=True)
class ClientAnswer:
    """What a client was answered; `body` as far as it came."""

    status: int
    fields: dict[str, str]
    began_s: float = 0.0
    ended_s: float = 0.0
    body: bytearray = field(default_factory=bytearray)
    #: When bytes of it came, seconds.
    came_s: list[float] = field(default_factory=list)


async def fetch(
    url: str,
    file: str,
    fields: dict[str, str],
    limit_s: float = 60.0,
    begun: Callable[[ClientAnswer], None] = lambda answer: None,
) -> ClientAnswer:
    """One request on a connection of its own; `begun` hears of its header.

    Raises OSError or EOFError if it breaks off.
    """
    parts = urlsplit(url)
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=MIB)
        try:
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"GET {file} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = [line.partition(": ") for line in lines[1:] if line]
            answer = ClientAnswer(int(lines[0].split()[1]), {n.lower(): v for n, _, v in pairs})
            answer.began_s = time.monotonic()
            begun(answer)
            left = int(answer.fields["content-length"])
            while left:
                data = await reader.read(min(left, MIB))
                if not data:
                    raise EOFError
                left -= len(data)
                answer.body += data
                answer.came_s.append(time.monotonic())
            answer.ended_s = time.monotonic()
            return answer
        finally:
            writer.transport.abort()


@dataclass(frozen=True, slots=True)
class ReceivedBody:
    """A body that a client received, until it was whole or broke off; `server` is an index.

    `note` says whose it was and which leader started it.
    """

    began_s: float
    ended_s: float
    server: int
    note: str = ""


class Cause(enum.StrEnum):
    """Why a ticket counts before a place that was told without it."""

    LOST = "the client of a download that broke off is back"
    UNLED = "a node without a leader had issued it"
    YOUNGER = "it was issued later"
    UNKNOWN = "nobody knows why"


@dataclass(frozen=True, slots=True)
class ToldPlace:
    """What a waiting client was told: its place, the tickets that this counts, and when it starts.

    `expected_s` and `bound_s` are times on the monotonic clock, `told_s` is when it was told.
    """

    place: int = 0
    before: str = ""
    told_s: float = 0.0
    expected_s: float = math.inf
    bound_s: float = math.inf

    @classmethod
    def of(cls, answer: ClientAnswer) -> ToldPlace:
        """From the fields of a waiting answer."""
        fields, now = answer.fields, time.monotonic()
        return cls(
            int(fields.get("tidegate-place", "0")),
            fields.get("tidegate-before", ""),
            now,
            now + float(fields.get("tidegate-wait-expected", "inf")),
            now + float(fields.get("tidegate-wait-p90", "inf")),
        )


@dataclass(slots=True)
class CrowdHistory:
    """What all clients saw."""

    bodies: list[ReceivedBody] = field(default_factory=list)
    whole: int = 0
    wrong: int = 0
    broken: int = 0
    resumed: int = 0
    begun_anew: int = 0
    unfinished: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    waits: int = 0
    #: By the ticket's number, who was told it.
    owners: dict[int, str] = field(default_factory=dict)
    #: By the ticket's number, when it was issued, in Unix time.
    issued: dict[int, float] = field(default_factory=dict)
    #: By the ticket's number, when a place was told for it first.
    placed: dict[int, float] = field(default_factory=dict)
    #: By the ticket's number, who told it first when, and how long that answer took.
    told: dict[int, str] = field(default_factory=dict)
    two_owners: int = 0
    changed: int = 0
    #: Tickets whose clients have an older place instead.
    exchanged: int = 0
    #: By how much a place grew, and between which times.
    grew: list[tuple[int, float, float]] = field(default_factory=list)
    #: How often a place grew and a later start was told than the bound before.
    past_bound: int = 0
    #: How many clients started before the first bound that they were told, or after it, by whether
    #: their places had grown.
    starts: Counter[str] = field(default_factory=Counter)
    #: By how many tickets of each cause places grew.
    causes: Counter[Cause] = field(default_factory=Counter)
    #: Places that grew by a ticket of no known cause.
    unexplained: int = 0
    #: Tickets whose downloads have begun: clients had a header, or a server says so.
    begun: set[int] = field(default_factory=set)
    longest_s: float = 0.0
    #: Resumes that came after their lease had idled out.
    late: int = 0
    #: How many answers of what kind each server gave in each minute.
    answers: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    #: What happened to whom, and when.
    notes: list[str] = field(default_factory=list)

    def by_server(self) -> list[str]:
        """What each server answered, a line a minute."""
        return [
            f"{minute}:59 server {server} said {what} {count} times"
            for (minute, server, what), count in sorted(self.answers.items())
        ]

    def say(self, note: str) -> None:
        """Note what happened now."""
        self.notes.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {note}")

    def place_grew(self, client: str, number: int, told: ToldPlace, now: ToldPlace) -> None:
        """A ticket was told a place and which tickets that counts; then a later one."""
        self.begun |= {int(one[:-1]) for one in now.before.split() if one[-1] in "+-"}
        causes: dict[int, Cause] = {}
        own_s = self.issued[number]
        for other in sorted(counted_in(now.before) - counted_in(told.before)):
            if other in self.begun:
                causes[other] = Cause.LOST
            elif other >= ELSEWHERE:
                younger = self.issued.get(other, own_s) > own_s + _ALIKE_S
                causes[other] = Cause.YOUNGER if younger else Cause.UNLED
            else:
                causes[other] = Cause.UNKNOWN
        self.causes.update(causes.values())
        self.past_bound += now.expected_s > told.bound_s
        stated = sum(one in (Cause.LOST, Cause.UNLED) for one in causes.values())
        without = now.place - told.place - stated
        self.unexplained += without > 0
        why = ", ".join(
            f"{other} ({self.issued.get(other, own_s) - own_s:+.3f} s): {cause.value}"
            for other, cause in causes.items()
        )
        self.say(
            f"{client}: ticket {number}, {told.place} became {now.place} ({why}); starts in "
            f"{now.expected_s - now.told_s:.0f} s, bound before {told.bound_s - now.told_s:.1f} s"
        )
        if without > 0:
            self.say(f"{client}: ticket {number} counted {told.before!r}, now {now.before!r}")

    def refuse(self, code: str) -> None:
        """A client was sent away for good."""
        self.refused[code] = self.refused.get(code, 0) + 1


def counted_in(before: str) -> set[int]:
    """The tickets that a told place counted, from the field of `tests.machine_server`."""
    return {int(one.rstrip("+")) for one in before.split() if not one.endswith("-")}


def number_of(token: str) -> int:
    """The number of a ticket, from its token."""
    return int.from_bytes(_payload(token)[:8], "big")


def issued_s_of(token: str) -> float:
    """When a ticket was issued, in Unix time, from its token."""
    found: float = struct.unpack_from(">d", _payload(token), 32)[0]
    return found


def _payload(token: str) -> bytes:
    text = token.split(".")[2]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class TicketClient:
    """Downloads again and again, with its ticket, and writes down what it is told.

    Each request goes to one of `urls`; half of the downloads fetch their file in two parts.
    `poll_s` are the shortest and the longest pause between two requests of one who waits.
    """

    def __init__(
        self,
        urls: Sequence[str],
        name: str,
        content: bytes,
        history: CrowdHistory,
        rng: random.Random,
        poll_s: tuple[float, float] = (0.2, 0.6),
    ):
        self._urls = urls
        self._name = name
        self._size = len(content)
        self._digest = hashlib.sha256(content).digest()
        self._history = history
        self._rng = rng
        self._poll_s = poll_s

    async def run(self, until_s: float, end_s: float) -> None:
        """Begin downloads until this time, and finish the last one before `end_s`."""
        turn = 0
        while time.monotonic() < until_s:
            turn += 1
            await self._download(f"{self._name}-{turn}", end_s)

    async def _download(self, client: str, end_s: float) -> None:
        history, rng = self._history, self._rng
        token, tag, told = "", "", ToldPlace()
        first, grew = told, "steady"
        # Its turn has come once: what follows is a resume, for which no place is promised.
        begun = unheard = False
        recent: deque[str] = deque(maxlen=20)
        have = bytearray()
        in_parts = rng.random() < 0.5
        while time.monotonic() < end_s:
            fields = {"Tidegate-Wait": "ticket", "Tidegate-Client": client}
            if token:
                fields["Tidegate-Ticket"] = token
            if have:
                fields |= {"Range": f"bytes={len(have)}-", "If-Range": tag}
            elif in_parts:
                fields["Range"] = f"bytes=0-{self._size // 2}"
            server = rng.randrange(len(self._urls))
            asked_s = time.monotonic()
            seen: list[ClientAnswer] = []
            try:
                await fetch(self._urls[server], "/big.bin", fields, _PATIENCE_S, seen.append)
            except _FAULTS:
                history.broken += 1
                # The answer may have been its turn, and the lease has idled out meanwhile.
                unheard = unheard or not seen
            ended_s = time.monotonic()
            what = "nothing" if not seen else str(seen[0].status)
            if seen and not seen[0].ended_s:
                what += " broken"
            elif seen and seen[0].status == 503 and "tidegate-ticket" not in seen[0].fields:
                what += " without ticket"
            recent.append(f"{time.strftime('%M:%S', time.gmtime())} server {server} {what}")
            history.answers[(time.strftime("%H:%M", time.gmtime()), server, what)] += 1
            if seen and seen[0].status in (200, 206):
                answer = seen[0]
                note = f"{client}, epoch {answer.fields.get('tidegate-epoch')}"
                if answer.came_s:
                    note += f", bytes from {answer.came_s[0]:.2f} to {answer.came_s[-1]:.2f}"
                history.bodies.append(ReceivedBody(answer.began_s, ended_s, server, note))
                if not begun and first.place:
                    late = "late" if answer.began_s > first.bound_s else "in time"
                    history.starts[f"{grew}, {late}"] += 1
                begun = True
                if "tidegate-ticket" in answer.fields:
                    history.begun.add(number_of(answer.fields["tidegate-ticket"]))
                if answer.status == 200:
                    history.begun_anew += bool(have)
                    have.clear()
                else:
                    history.resumed += bool(have)
                tag = answer.fields.get("etag", "")
                have += answer.body
                token = answer.fields.get("tidegate-ticket", token)
                if len(have) >= self._size:
                    history.whole += 1
                    history.wrong += hashlib.sha256(have).digest() != self._digest
                    return
            elif seen and seen[0].ended_s:
                answer = seen[0]
                history.longest_s = max(history.longest_s, answer.began_s - asked_s)
                if answer.status != 503:
                    found = _CODE.search(answer.body)
                    code = f"{answer.status} {found[1].decode() if found else ''}"
                    if (begun or unheard) and answer.status == 403 and token:
                        # It stayed away for longer than its lease: another ticket, then.
                        history.late += 1
                        token, told = "", ToldPlace()
                        first, grew = told, "steady"
                        continue
                    history.refuse(code)
                    history.say(
                        f"{client}: {code}, ticket {token and number_of(token)}; {[*recent]}"
                    )
                    return
                history.waits += 1
                fresh = answer.fields.get("tidegate-ticket", "")
                if fresh:
                    unheard = False
                    if token and not begun and number_of(fresh) != number_of(token):
                        # An older place that was given elsewhere, unheard, is the better one.
                        older_s = issued_s_of(token) - issued_s_of(fresh)
                        history.changed += older_s < 0.0
                        history.exchanged += older_s >= 0.0
                        history.say(
                            f"{client}: {number_of(token)} became {number_of(fresh)}, which is "
                            f"{older_s:.1f} s older"
                        )
                    token = fresh
                    owner = history.owners.setdefault(number_of(token), client)
                    took_s = answer.began_s - asked_s
                    history.told.setdefault(number_of(token), f"{recent[-1]}, {took_s:.2f} s")
                    history.two_owners += owner != client
                    history.issued[number_of(token)] = issued_s_of(token)
                    now = ToldPlace.of(answer)
                    if now.place:
                        history.placed.setdefault(number_of(token), now.told_s)
                    if told.place and now.place > told.place and not begun:
                        grown = now.place - told.place
                        history.grew.append((grown, told.told_s, now.told_s))
                        history.place_grew(client, number_of(fresh), told, now)
                        grew = "grown"
                    if now.place:
                        told = now
                        first = first if first.place else now
                await asyncio.sleep(rng.uniform(*self._poll_s))
                continue
            await asyncio.sleep(rng.uniform(0.05, 0.2))
        history.unfinished += 1


def most_at_once(bodies: Iterable[ReceivedBody]) -> int:
    """The most intervals that overlap at any moment."""
    return max((count for _, count in _counts(bodies)), default=0)


def longest_above(bodies: Iterable[ReceivedBody], most: int) -> float:
    """The longest time for which more than `most` overlapped without a break, in seconds."""
    longest, since_s = 0.0, None
    for at_s, count in _counts(bodies):
        if count > most and since_s is None:
            since_s = at_s
        elif count <= most and since_s is not None:
            longest, since_s = max(longest, at_s - since_s), None
    return longest


def too_many(bodies: Iterable[ReceivedBody], most: int) -> list[ReceivedBody]:
    """Those that were there while there were more than `most` for the longest time."""
    bodies, worst, since_s = list(bodies), (0.0, 0.0, 0.0), None
    for at_s, count in _counts(bodies):
        if count > most and since_s is None:
            since_s = at_s
        elif count <= most and since_s is not None:
            worst, since_s = max(worst, (at_s - since_s, since_s, at_s)), None
    return [one for one in bodies if one.began_s < worst[2] and one.ended_s > worst[1]]


def _counts(bodies: Iterable[ReceivedBody]) -> list[tuple[float, int]]:
    events = [(one.began_s, 1) for one in bodies] + [(one.ended_s, -1) for one in bodies]
    found, now = [], 0
    for at_s, step in sorted(events):
        now += step
        found.append((at_s, now))
    return found


def outside(
    bodies: Iterable[ReceivedBody], spans: dict[int, list[tuple[float, float]]]
) -> list[ReceivedBody]:
    """Those that no span of their server overlaps; spans are in order and do not overlap."""

    def free(one: ReceivedBody) -> bool:
        mine = spans.get(one.server, [])
        index = bisect.bisect_right(mine, (one.ended_s, float("inf")))
        return index == 0 or mine[index - 1][1] <= one.began_s

    return [one for one in bodies if free(one)]
