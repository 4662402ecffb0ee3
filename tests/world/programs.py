"""Clients as docs/clients.md measured them: patience, retries, ranges, resumes, tickets.

A `SimulatedClient` wants one file, checks every byte against the versions that the file had, and
tells `world.Witness` what it hears.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .schedule import Schedule, ScheduledEvent
from .wire import Channel, MemoryNetwork

_HEAD_END = b"\r\n\r\n"
#: Members of what `/-/queue` says, and the fields that say the same.
_FIELDS = {
    "place": "tidegate-place",
    "expected_wait_s": "tidegate-wait-expected",
    "p90_wait_s": "tidegate-wait-p90",
    "expected_done_s": "tidegate-done",
    "p90_done_s": "tidegate-done-p90",
}


@dataclass(frozen=True, slots=True)
class ProgramManner:
    """What a program does: see docs/clients.md. Times in seconds."""

    agent: str
    #: It gives a try up after this time without a byte.
    silent_s: float
    tries: int
    retry_s: float = 1.0
    #: Honours 503 with Retry-After.
    comes_back: bool = False
    resumes: bool = True
    speaks_tickets: bool = False
    browses: bool = False
    #: Connections, each with a range.
    parts: int = 1
    #: Counts bytes of the body, not header lines: dnf, `curl --speed-limit`.
    counts_body: bool = False
    #: Redirects that it follows in a row.
    redirects: int = 0
    #: Asks again on the connection that brought the last whole answer.
    stays: bool = False
    #: While it waits, the script of its page asks how the ticket stands.
    has_script: bool = False


_PATIENT = 1_000
#: What a kernel may hold of the end of a body.
_LAST_BYTES = 64_000
MANNERS: Mapping[str, ProgramManner] = {
    "tidegate": ProgramManner(
        "tidegate/0.9", 60.0, _PATIENT, 2.0, True, speaks_tickets=True, stays=True
    ),
    # The engine itself, see `engine.EngineClient`.
    "get": ProgramManner("tidegate/0.9", math.inf, _PATIENT, 2.0, True, speaks_tickets=True),
    "curl": ProgramManner("curl/7.88.1", math.inf, 1, resumes=False),
    "curl-retry": ProgramManner("curl/7.88.1", math.inf, _PATIENT, 1.0, True),
    "wget": ProgramManner("Wget/1.21.3", 900.0, 20, 2.0),
    "apt": ProgramManner(
        "Debian APT-HTTP/1.3 (2.6.1)", 30.0, 4, 1.0, True, redirects=60, stays=True
    ),
    "pip": ProgramManner(
        "pip/23.2 {}", 15.0, 6, 0.5, True, resumes=False, redirects=30, stays=True
    ),
    "dnf": ProgramManner(
        "libdnf (Fedora Linux 39)", 30.0, 4, 0.1, True, counts_body=True, redirects=6
    ),
    "aria2": ProgramManner("aria2/1.36.0", 60.0, 5, 1.0, parts=4),
    "browser": ProgramManner(
        *("Mozilla/5.0 (X11) Firefox/115.0", 300.0, 3, 5.0, True),
        browses=True,
        stays=True,
        has_script=True,
    ),
    "browser without script": ProgramManner(
        "Mozilla/5.0 (X11) Firefox/115.0", 300.0, 3, 5.0, True, browses=True, stays=True
    ),
    "java": ProgramManner("Java/17.0.9", math.inf, 1, resumes=False),
}
#: Those that go on until they have the file, whatever happens.
PATIENT = frozenset(name for name, manner in MANNERS.items() if manner.tries >= _PATIENT)


@dataclass(slots=True)
class FileVersion:
    """One content of a file. `until_s`: when it was replaced."""

    content: bytes
    since_s: float
    until_s: float = math.inf


def _nothing(answered: bool) -> None:
    """What follows a request of which only the header counts."""


class Witness(Protocol):
    """Hears what clients see."""

    schedule: Schedule
    network: MemoryNetwork

    def versions(self, path: str) -> list[FileVersion]:
        """All contents that a file had."""
        ...

    def client_asks(self, client: SimulatedClient) -> bool:
        """A request leaves; whether its answer is lost on the way."""
        ...

    def client_heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        """An answer's header is here."""

    def client_lost(self, client: SimulatedClient, exchange: HttpExchange) -> None:
        """The server has ended a connection of the client before its answer was whole."""

    def client_nearly_done(self, client: SimulatedClient) -> None:
        """Only the last bytes of the file are missing."""

    def client_took(self, client: SimulatedClient, count: int) -> None:
        """Bytes of the file are here."""

    def client_called(self, client: SimulatedClient) -> None:
        """It was told to fetch its file now."""

    def client_watched(self, client: SimulatedClient, found: Mapping[str, Any]) -> None:
        """It was told how its ticket stands."""

    def client_ended(self, client: SimulatedClient) -> None:
        """It has the file, or has given up."""

    def broken(self, promise: str, text: str) -> None:
        """A promise is broken."""


@dataclass(eq=False, slots=True)
class Segment:
    """A part of the file that one connection fetches; `end` None: to its end."""

    start: int
    end: int | None
    position: int
    exchange: HttpExchange | None = None


class HttpExchange:
    """One request and its answer, on a connection of its own or on one that `stays`."""

    def __init__(
        self,
        client: SimulatedClient,
        segment: Segment,
        request: bytes,
        stays: Channel | None = None,
    ) -> None:
        self.client, self.segment = client, segment
        self.status = 0
        self.fields: dict[str, str] = {}
        self.left: int | None = None
        self.is_file = False
        self._head = b""
        self.over = False
        self.last_s = client.world.schedule.now
        self.begun_s = math.inf
        #: Whether the server may have closed its connection before it heard the request.
        self.on_old = stays is not None
        self.channel: Channel
        if stays is None:
            network = client.world.network
            self.channel = network.connect(client.address, self, client.rate_bytes_s, request)
        else:
            self.channel, stays.peer = stays, self
            stays.write(request)

    def arrived(self, data: bytes) -> None:
        """See `wire.Peer`."""
        if self.over:
            return
        if not self.client.manner.counts_body or self.status:
            self.last_s = self.client.world.schedule.now
        if not self.status:
            self._head += data
            head, found, data = self._head.partition(_HEAD_END)
            if not found:
                return
            self.status, self.fields = read_head(head)
            self.begun_s = self.client.world.schedule.now
            if "content-length" in self.fields:
                self.left = int(self.fields["content-length"])
            self.is_file = self.client.heard(self)
            if self.channel.client_closed:
                return
        if data and self.left is not None:
            if len(data) > self.left:
                self.client.world.broken("Framing", f"{self.client} got more than Content-Length")
            self.left -= len(data)
            if self.is_file:
                self.client.took(self, data)
        if self.left == 0 and not self.over:
            if self.client.manner.stays and self.fields.get("connection") != "close":
                self.over = True
                self.client.keep(self.channel)
            else:
                self.finish()
            self.client.answered(self, whole=True)

    def ended(self) -> None:
        """See `wire.Peer`."""
        self._lost()

    def broken(self) -> None:
        """See `wire.Peer`."""
        self._lost()

    def _lost(self) -> None:
        if not self.over:
            self.client.world.client_lost(self.client, self)
            self.cut_off()

    def cut_off(self) -> None:
        """The way broke, by no doing of the server."""
        if not self.over:
            self.finish()
            self.client.answered(self, whole=False)

    def finish(self, *, reset: bool = False) -> None:
        """Close its connection."""
        if not self.over:
            self.over = True
            self.channel.close(reset=reset)


class IdlePeer:
    """Has a client's connection between two requests."""

    def __init__(self, client: SimulatedClient, channel: Channel) -> None:
        self._client, self._channel = client, channel

    def arrived(self, data: bytes) -> None:
        """See `wire.Peer`."""
        self._client.world.broken("Framing", f"{self._client} got {data[:40]!r} unasked")

    def ended(self) -> None:
        """See `wire.Peer`."""
        self._client.let_go(self._channel)

    def broken(self) -> None:
        """See `wire.Peer`."""
        self._client.let_go(self._channel)


class SideRequest:
    """A request beside a client's download: only its answer's header is of interest.

    `then` hears whether there was an answer.
    """

    def __init__(
        self, client: SimulatedClient, request: bytes, then: Callable[[bool], None] = _nothing
    ) -> None:
        self._client, self._head, self._over = client, b"", False
        self._then = then
        self._of_queue = request.startswith(b"GET /-/queue/")
        network = client.world.network
        self._channel = network.connect(client.address, self, client.rate_bytes_s, request)
        client.beside.append(self._channel)

    def arrived(self, data: bytes) -> None:
        """See `wire.Peer`."""
        if self._over:
            return
        self._head += data
        head, found, body = self._head.partition(_HEAD_END)
        if found:
            status, fields = read_head(head)
            of_queue = fields.get("content-type") == "application/json"
            if of_queue and len(body) < int(fields["content-length"]):
                return
            self._over = True
            said: dict[str, Any] = json.loads(body) if of_queue else {}
            told = {
                name: str(said[member])
                for member, name in _FIELDS.items()
                if said.get(member) is not None
            }
            if of_queue or not self._of_queue:
                # A page whose ticket was used is refused its status, not its file.
                self._client.world.client_heard(self._client, status, {**fields, **told})
            if of_queue:
                self._client.world.client_watched(self._client, said)
            if said.get("state") == "called":
                self._client.called()
            # It reads on for a moment, as a person does who sees it begin twice.
            self._client.world.schedule.after(0.5, self._channel.close)
            if status != 403:
                self._then(True)

    def ended(self) -> None:
        """See `wire.Peer`."""
        self._channel.close()
        self.broken()

    def broken(self) -> None:
        """See `wire.Peer`."""
        if not self._over:
            self._over = True
            self._then(False)


def read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and fields of an answer; names in lower case."""
    lines = head.decode("latin-1").split("\r\n")
    fields: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        name = name.strip().lower()
        # Each cookie has a field of its own.
        before = fields.get(name, "") + "\n" if name == "set-cookie" else ""
        fields[name] = before + value.strip()
    return int(lines[0].split(" ")[1]), fields


@dataclass(slots=True)
class ClientPlan:
    """One client of a world: what it does is fixed before it comes."""

    name: str
    program: str
    address: str
    file: str
    comes_s: float
    rate_bytes_s: float
    #: One of `plan.MISDEEDS`: what it does ...
    misdeed: str = ""
    #: ... so long after it came, or after so many bytes.
    misdeed_s: float = 0.0
    #: How long it goes on after that, `stop reading` only.
    back_s: float = math.inf


class SimulatedClient:
    """Fetches one file as its program does."""

    def __init__(self, world: Witness, plan: ClientPlan) -> None:
        self.world, self.plan = world, plan
        self.name, self.address, self.file = plan.name, plan.address, plan.file
        self.manner = MANNERS[plan.program]
        self.rate_bytes_s = plan.rate_bytes_s
        self.state = "coming"
        self.why = ""
        self.tries_left = self.manner.tries
        #: Where it was redirected to.
        self.target = self.file
        self.redirects_left = self.manner.redirects
        self.ticket: str | None = None
        self.cookies: dict[str, str] = {}
        self.etag: str | None = None
        self.size: int | None = None
        self.segments: list[Segment] = []
        self.candidates: list[FileVersion] = []
        self.body_bytes = 0
        self.asked_s = self.first_byte_s = self.done_s = math.nan
        self.last_status = 0
        #: Starts whose answers never came: the first costs nothing.
        self.starts_lost = 0
        #: A connection of it broke, and the server was not told: it may go on there.
        self.has_vanished = False
        #: An operator has blocked it, or revoked its pass.
        self.turned_away = False
        self.pass_token = ""
        self._nearly_done = False
        self._watches = False
        self._timers: list[ScheduledEvent] = []
        #: Connections of its requests beside its own.
        self.beside: list[Channel] = []
        self._watch: ScheduledEvent | None = None
        #: The connection of its last answer, if it stays.
        self._idle: Channel | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.plan.program})"

    @property
    def over(self) -> bool:
        """Whether it is done or has given up."""
        return self.state in ("done", "failed", "gone")

    @property
    def reads_no_more(self) -> bool:
        """Whether it has stopped reading for ever: only its own time-out ends that."""
        return self.plan.misdeed == "stop reading" and math.isinf(self.plan.back_s)

    @property
    def patient(self) -> bool:
        """Whether it goes on until it has the file."""
        harmless = self.plan.misdeed in ("", "watch")
        return self.plan.program in PATIENT and harmless

    def come(self) -> None:
        """Ask for the first time."""
        self.state = "asking"
        self.asked_s = self.world.schedule.now
        self._afresh()
        self._ask(self.segments[0])
        if self.plan.misdeed not in ("", "ask again"):
            self.world.schedule.after(self.plan.misdeed_s, self._misbehave)
        if not math.isinf(self.manner.silent_s):
            self._watch = self.world.schedule.after(5.0, self._look)

    def _afresh(self) -> None:
        for segment in self.segments:
            if segment.exchange is not None:
                segment.exchange.finish()
        self.segments = [Segment(0, None, 0)]
        self.candidates = list(self.world.versions(self.file))
        self.etag = self.size = None

    def _fields(self, target: str) -> list[str]:
        manner = self.manner
        lines = [
            f"GET {target} HTTP/1.1",
            "Host: files.example",
            f"User-Agent: {manner.agent}",
            "Accept: text/html,*/*;q=0.5" if manner.browses else "Accept: */*",
        ]
        if manner.speaks_tickets:
            lines += ["Tidegate-Wait: ticket", f"Tidegate-Client: {self.name}"]
            if self.ticket is not None:
                lines.append(f"Tidegate-Ticket: {self.ticket}")
        if self.world.network.proxied == "field":
            lines.append(f"X-Forwarded-For: {self.address}")
        if self.pass_token:
            lines.append(f"Tidegate-Pass: {self.pass_token}")
        if self.cookies:
            lines.append("Cookie: " + "; ".join(f"{k}={v}" for k, v in self.cookies.items()))
        return lines

    def _ask(self, segment: Segment) -> None:
        if self.over or segment not in self.segments:
            return
        lines = self._fields(self.target)
        if segment.position or segment.end is not None:
            last = "" if segment.end is None else str(segment.end - 1)
            lines.append(f"Range: bytes={segment.position}-{last}")
            if self.etag is not None:
                lines.append(f"If-Range: {self.etag}")
        stays, self._idle = self._idle, None
        segment.exchange = HttpExchange(
            self, segment, "\r\n".join(lines).encode("latin-1") + _HEAD_END, stays
        )
        if self.world.client_asks(self):
            self._lose_answer(segment.exchange)

    def lose_answer(self) -> None:
        """The answer that it waits for never comes."""
        for segment in self.segments:
            exchange = segment.exchange
            if exchange is not None and not exchange.status:
                # It finds out by itself, and not by a connection that was closed meanwhile.
                exchange.on_old = False
                self._lose_answer(exchange)

    def _lose_answer(self, exchange: HttpExchange) -> None:
        exchange.channel.deaf = True
        self.world.schedule.after(0.5, self._lose, exchange)

    def _lose(self, exchange: HttpExchange) -> None:
        if not exchange.over:
            self.starts_lost += 1
            exchange.finish(reset=True)
            self.answered(exchange, whole=False)

    def keep(self, channel: Channel) -> None:
        """A whole answer came by this connection, which stays."""
        if self._idle is not None:
            self._idle.close()
        self._idle = channel
        channel.peer = IdlePeer(self, channel)

    def let_go(self, channel: Channel) -> None:
        """The server has closed it, or nothing more is wanted."""
        channel.close()
        if self._idle is channel:
            self._idle = None

    # -- answers ----------------------------------------------------------------------------

    def heard(self, exchange: HttpExchange) -> bool:
        """A header is here; whether what follows are bytes of the file."""
        status, fields, segment = exchange.status, exchange.fields, exchange.segment
        self.last_status = status
        self.world.client_heard(self, status, fields)
        if "tidegate-ticket" in fields:
            self.ticket = fields["tidegate-ticket"]
        for cookie in fields.get("set-cookie", "").split("\n"):
            name, _, value = cookie.partition(";")[0].strip().partition("=")
            if not self.manner.browses:
                break
            if value and value != '""':
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)
        if status not in (200, 206):
            return False
        etag = fields.get("etag")
        if status == 206:
            found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", fields.get("content-range", ""))
            if found is None or int(found[1]) != segment.position:
                self.world.broken("Framing", f"{self} asked from {segment.position}, got {fields}")
                return False
            size = int(found[3])
        else:
            size = exchange.left or 0
        if (status == 200 and segment.position) or (self.etag not in (None, etag)):
            # Another content: all begins anew, with this answer if it is whole.
            others = [one for one in self.segments if one is not segment]
            for one in others:
                if one.exchange is not None:
                    one.exchange.finish()
            if status == 206:
                exchange.finish()
                self._afresh()
                self._later(self.manner.retry_s, self.segments[0])
                return False
            segment.start = segment.position = 0
            segment.end = None
            self.segments = [segment]
            self.candidates = list(self.world.versions(self.file))
        if self.etag is None:
            # It may have waited for this answer while the file was replaced.
            self.candidates = list(self.world.versions(self.file))
        self.etag, self.size = etag, size
        self.candidates = [one for one in self.candidates if len(one.content) == size]
        if not self.candidates:
            self.candidates = [
                one for one in self.world.versions(self.file) if len(one.content) == size
            ]
        self.state = "fetching"
        if self.manner.parts > 1 and len(self.segments) == 1 and not segment.position:
            self._split(segment, size)
        return True

    def _split(self, segment: Segment, size: int) -> None:
        step = size // self.manner.parts
        if step < 100_000:
            return
        segment.end = step
        for number in range(1, self.manner.parts):
            end = size if number == self.manner.parts - 1 else step * (number + 1)
            part = Segment(step * number, end, step * number)
            self.segments.append(part)
            self._later(0.05 * number, part)

    def took(self, exchange: HttpExchange, data: bytes) -> None:
        """Bytes of the file."""
        segment = exchange.segment
        if segment not in self.segments:
            # It has begun anew since, with another content.
            return
        if math.isnan(self.first_byte_s):
            self.first_byte_s = self.world.schedule.now
        if segment.end is not None and segment.position + len(data) > segment.end:
            data = data[: segment.end - segment.position]
        at = segment.position
        kept = [one for one in self.candidates if one.content.startswith(data, at)]
        if not kept:
            self.world.broken(
                "RightBytes", f"{self}: bytes {at}+{len(data)} of {self.file} are of no version"
            )
            kept = self.candidates
        self.candidates = kept
        segment.position = at + len(data)
        self.body_bytes += len(data)
        self.world.client_took(self, len(data))
        if not self._nearly_done and (self.size or 0) - self.body_bytes < _LAST_BYTES:
            self._nearly_done = True
            self.world.client_nearly_done(self)
        if segment.end is not None and segment.position == segment.end and exchange.left:
            # This part is whole: the rest is another connection's.
            exchange.finish()
            self.answered(exchange, whole=True)

    def answered(self, exchange: HttpExchange, *, whole: bool) -> None:
        """An answer is over: whole, or cut."""
        if self.over:
            return
        status, segment = exchange.status, exchange.segment
        segment.exchange = None
        if exchange.on_old and not status:
            # The server closed it as the request was on its way: that costs no try.
            self._ask(segment)
            return
        if exchange.is_file and self._is_whole():
            self._end("done")
            return
        if exchange.is_file and (whole or segment.position == segment.end):
            if segment.end is None and segment.position != self.size:
                self.world.broken("RightBytes", f"{self}: a whole answer, but not the whole file")
            return
        if whole and status not in (200, 206):
            self._refused(exchange)
            return
        self._again(segment, self.manner.retry_s, f"cut in {self.state}")

    def _is_whole(self) -> bool:
        if self.size is None:
            return False
        return all(
            one.position == (self.size if one.end is None else one.end) for one in self.segments
        )

    def _refused(self, exchange: HttpExchange) -> None:
        status, fields, segment = exchange.status, exchange.fields, exchange.segment
        if status == 503 and self.manner.comes_back:
            wait = fields.get("retry-after", "5")
            if self.manner.browses:
                wait = fields.get("refresh", wait).partition(";")[0]
            self.state = "waiting"
            if self.manner.has_script and self.ticket is not None and not self._watches:
                self._watches = True
                self._ask_beside("watch")
            if self.manner.speaks_tickets or self.manner.browses:
                # A wait that was told costs no try.
                self._later(float(wait) + 0.05, segment)
            else:
                self._again(segment, float(wait), "503")
            return
        if status == 302 and self.redirects_left > 0:
            self.redirects_left -= 1
            self.target = fields["location"]
            self.state = "waiting"
            self._later(0.05, segment)
            return
        knows_tickets = self.manner.speaks_tickets or self.manner.browses
        if status == 403 and self.ticket is not None and knows_tickets:
            self.ticket = None
            self._again(segment, self.manner.retry_s, "403")
            return
        if status == 416:
            self._afresh()
            self._again(self.segments[0], self.manner.retry_s, "416")
            return
        if status >= 500 and self.manner.tries > 100:
            self._again(segment, 5.0, str(status))
            return
        self._end("failed", f"status {status}")

    def _again(self, segment: Segment, delay_s: float, why: str) -> None:
        # Another try asks for the first address, and follows as many redirects.
        self.target, self.redirects_left = self.file, self.manner.redirects
        self.tries_left -= 1
        if self.tries_left <= 0:
            self._end("failed", why)
            return
        if not self.manner.resumes:
            self._afresh()
            segment = self.segments[0]
        self._later(delay_s, segment)

    def _later(self, delay_s: float, segment: Segment) -> None:
        self._timers.append(self.world.schedule.after(delay_s, self._ask_again, segment))
        del self._timers[:-20]

    def _ask_again(self, segment: Segment) -> None:
        if segment in self.segments and segment.exchange is None:
            self._ask(segment)

    def _look(self) -> None:
        """Its own read time-out."""
        if self.over:
            return
        now = self.world.schedule.now
        for segment in self.segments:
            exchange = segment.exchange
            if exchange is not None and now - exchange.last_s >= self.manner.silent_s:
                exchange.finish(reset=True)
                segment.exchange = None
                self._again(segment, self.manner.retry_s, "silence")
                if self.state == "failed":
                    return
        self._watch = self.world.schedule.after(self.manner.silent_s / 6, self._look)

    # -- misdeeds and the end ---------------------------------------------------------------

    def _misbehave(self) -> None:
        if self.over:
            return
        exchanges = [one.exchange for one in self.segments if one.exchange is not None]
        deed = self.plan.misdeed
        if deed == "stop reading":
            for exchange in exchanges:
                exchange.channel.read_on(False)
            if not math.isinf(self.plan.back_s):
                self.world.schedule.after(self.plan.back_s, self._read_on, exchanges)
        elif deed == "half close":
            for exchange in exchanges:
                exchange.channel.end()
        elif deed in ("ask twice", "ask early", "watch"):
            self._ask_beside(deed)
        elif deed == "drop":
            # The way breaks, and it tries again.
            for exchange in exchanges:
                exchange.channel.close(reset=True)
                exchange.cut_off()
        elif deed == "vanish":
            for exchange in exchanges:
                exchange.channel.vanish()
                exchange.over = True
            if self._idle is not None:
                self._idle.vanish()
                self._idle = None
            self._end("gone", deed)
        else:
            for exchange in exchanges:
                exchange.finish(reset=deed == "reset")
            self._end("gone", deed)

    def _ask_beside(self, deed: str) -> None:
        """Ask beside its own request, or before its time; go on as before."""
        if self.over:
            return
        if deed == "watch":
            if self.ticket is None:
                # A page that says nothing of a ticket asks for none.
                self._watches = False
                return
            lines = [*self._fields(f"/-/queue{self.file}"), "Prefer: wait=20"]
            began_s = self.world.schedule.now

            def watch_on(answered: bool) -> None:
                # What was held for no time is not asked again at once.
                held = answered and self.world.schedule.now > began_s + 1.0
                self.world.schedule.after(0.1 if held else 5.0, self._ask_beside, deed)

            self._beside(lines, watch_on)
            return
        self._beside(self._fields(self.target))
        if deed == "ask early":
            self.world.schedule.after(2.0, self._ask_beside, deed)

    def _beside(self, lines: list[str], then: Callable[[bool], None] = _nothing) -> None:
        SideRequest(self, "\r\n".join(lines).encode("latin-1") + _HEAD_END, then)

    def _use_again(self, tries: int = 8) -> None:
        """Show a ticket that was used, as a second program of the same user does."""

        def again(answered: bool) -> None:
            if not answered and tries:
                self.world.schedule.after(2.0, self._use_again, tries - 1)

        self._beside(self._fields(self.file), again)

    def called(self) -> None:
        """Its turn has come, as the page that watched for it says: it fetches its file now."""
        if not self.over and all(one.exchange is None for one in self.segments):
            self.world.client_called(self)
            self._ask(self.segments[0])

    def _read_on(self, exchanges: list[HttpExchange]) -> None:
        for exchange in exchanges:
            if not exchange.over:
                exchange.channel.read_on(True)

    def _end(self, state: str, why: str = "") -> None:
        self.state, self.why = state, why
        self.done_s = self.world.schedule.now
        for segment in self.segments:
            if segment.exchange is not None:
                segment.exchange.finish()
                segment.exchange = None
        if self._idle is not None:
            self.let_go(self._idle)
        if state == "done" and self.plan.misdeed == "ask again" and self.ticket is not None:
            self.world.schedule.after(self.plan.misdeed_s / 10, self._use_again)
        self.world.client_ended(self)

    def leave(self, why: str) -> None:
        """It goes, and closes what it has open."""
        for channel in self.beside:
            channel.close()
        if not self.over:
            self._end("gone", why)
