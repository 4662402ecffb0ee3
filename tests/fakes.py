"""Stand-ins for sockets: requests, transfers and a journal that tests drive by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.task import Clock

from tidegate.policies.contract import TicketRow
from tidegate.policies.settings import PolicySettings
from tidegate.protocol.ticket import Key, KeyRing
from tidegate.server.admission.client_keys import Clients
from tidegate.server.admission.client_programs import ToolRule, ToolTable
from tidegate.server.admission.gate import Gate
from tidegate.server.admission.gateparts import GateParts, GateTerms
from tidegate.server.admission.line import LineKeeper
from tidegate.server.admission.number_allocator import Numbers
from tidegate.server.admission.passes import PassBook
from tidegate.server.admission.responses import STATUS_PREFIX, RetryResponder
from tidegate.server.admission.rules import Rule, RuleBook
from tidegate.server.admission.wait_status import CalledTickets, WaitStatus
from tidegate.server.files.pages import Pages
from tidegate.server.files.transfer import (
    Admission,
    BodyPlan,
    FileKey,
    Representation,
    TcpState,
    Transfer,
    TransferListener,
)
from tidegate.server.http.answers import Header
from tidegate.server.http.proxies import TrustedProxies
from tidegate.server.http.request import Request
from tidegate.server.store.records import ArrivalRecord, PassRecord

BIG = 10_000_000
START_S = 1_000_000.0


class FakeFactory:
    proxies = TrustedProxies()


class FakeConnection:
    """Remembers what a request was answered; `leave` is the peer closing."""

    factory = FakeFactory()
    is_tls = False
    forwarded = None
    line = ""
    elsewhere = False
    running = False

    def __init__(self, peer_address: str = "192.0.2.1") -> None:
        self.peer_address = peer_address
        self.alive = True
        self.status = 0
        self.fields: dict[str, str] = {}
        self.body = b""
        self.drips: list[bytes] = []
        self.aborted = False
        self.queued = 0

    def queued_bytes(self) -> int:
        return self.queued

    def answer(
        self,
        request: Request,
        status: int,
        headers: Iterable[Header],
        body: bytes,
        *,
        close: bool,
        current: Callable[[], bool] | None = None,
    ) -> None:
        assert self.status == 0, "answered twice"
        if request.dripped not in (0, status):
            return self.abort()
        self.status, self.body = status, body
        for name, value in headers:
            key, text = name.decode().lower(), value.decode("latin-1")
            self.fields[key] = f"{self.fields[key]}\n{text}" if key in self.fields else text
        request.ended(False)

    def drip(self, request: Request, status: int, name: bytes, value: bytes) -> None:
        self.drips.append(value)
        request.dripped = request.dripped or status

    def abort(self, request: Request | None = None) -> None:
        self.aborted = True
        self.alive = False

    def leave(self, request: Request) -> None:
        self.alive = False
        request.ended(True)


class FakeTransfer:
    """A body on its way; the test says how far it is."""

    def __init__(self, listener: TransferListener, total_bytes: int) -> None:
        self._listener = listener
        self.share = listener.share
        self.sent_bytes = 0
        self.total_bytes = total_bytes
        self.blocked = False
        self.paused = False
        self.aborted = ""
        self.over = False
        #: What has not arrived of what was sent.
        self.flying = 0
        #: For how long its peer's window was shut, seconds.
        self.shut = 0.0
        self.lost = self.slow_start = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def abort(self, reason: str) -> None:
        self.aborted = reason
        self.end(False)

    def delivered_bytes(self) -> int:
        return self.sent_bytes if self.over else self.sent_bytes - self.flying

    def flying_bytes(self) -> int:
        return self.flying

    def missing_bytes(self) -> int:
        return self.flying

    def tcp_state(self) -> TcpState:
        return TcpState(self.shut, 0, self.lost, self.slow_start)

    def limit_unsent(self, most_bytes: int) -> None:
        pass

    def share_changed(self) -> None:
        pass

    def send(self, count: int) -> None:
        if self.blocked:
            self._listener.moves()
        self.sent_bytes += count

    def end(self, complete: bool) -> None:
        """What was asked before the last bytes, `may_end`, is asked here as well."""
        if complete and not self.over and not self._listener.may_end(self.finish):
            return
        if not self.over:
            self.over = True
            if complete:
                self.sent_bytes = self.total_bytes
            self._listener.transfer_done(self, complete)

    def finish(self) -> None:
        self.end(True)


@dataclass
class Asked:
    """One request that was given to a gate, and what became of it."""

    request: Request
    connection: FakeConnection
    transfers: list[FakeTransfer] = field(default_factory=list)
    start_fields: dict[str, str] = field(default_factory=dict)

    @property
    def started(self) -> bool:
        return bool(self.transfers)

    @property
    def transfer(self) -> FakeTransfer:
        assert len(self.transfers) == 1
        return self.transfers[0]

    @property
    def token(self) -> str:
        return self.connection.fields.get("tidegate-ticket") or self.start_fields["tidegate-ticket"]

    def leave(self) -> None:
        for transfer in self.transfers:
            transfer.end(False)
        self.connection.leave(self.request)


class FakeJournal:
    """Keeps rows; commits at once unless `hold` is set."""

    def __init__(self) -> None:
        self.rows: dict[int, TicketRow] = {}
        self.waiters: list[Callable[[], None]] = []
        self.hold = False

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        for row in rows:
            self.rows[row.number] = row

    def after_commit(self, callback: Callable[[], None]) -> None:
        if self.hold:
            self.waiters.append(callback)
        else:
            callback()


class FakeLink:
    link_busy = False
    sent_bytes_total = 0
    waiting_networks = 0

    def set_bandwidth(self, bandwidth_bytes_s: float | None) -> None:
        self.bandwidth_bytes_s = bandwidth_bytes_s

    def give_back(self, count: int) -> None:
        self.given_back = getattr(self, "given_back", 0) + count

    def goodput_bytes_s(self) -> float:
        return 0.0


def representation(url_path: str = "/big.iso", size_bytes: int = BIG) -> Representation:
    return Representation(
        path=url_path[1:].encode(),
        url_path=url_path,
        size_bytes=size_bytes,
        mtime_s=1.0,
        etag='"tag"',
        key=FileKey(1, size_bytes, 1, 1),
    )


def admits(
    admission: Admission, request: Request, rep: Representation, part_bytes: int = 0
) -> bool:
    """Whether a body of one write may go without a lease."""
    return admission.admit_small(request, rep, part_bytes or rep.size_bytes)


#: The SHA-256 of every file of a `House`.
DIGEST = bytes(range(32))


class House:
    """A gate with everything around it faked, and short ways to ask it."""

    def __init__(
        self,
        policy: str = "ticket",
        *,
        rules: Sequence[Rule] = (),
        tools: Sequence[ToolRule] = (),
        holds_most: int = 100,
        clock: Clock | None = None,
        journal: FakeJournal | None = None,
        restored: Iterable[TicketRow] = (),
        next_number: int = 1,
        over: Iterable[int] = (),
        **settings: Any,
    ) -> None:
        settings = {"small_below_bytes": 20_000, **settings}
        self.clock = clock or Clock()
        self.link = FakeLink()
        if self.clock.seconds() == 0:
            self.clock.advance(START_S)
        self.journal = journal or FakeJournal()
        self.kept_passes: list[PassRecord] = []
        self.arrivals: list[ArrivalRecord] = []
        self.promises: list[int] = []
        self.keys = KeyRing([Key("k1", b"0123456789abcdef")])
        self.called = CalledTickets(self.clock.seconds)
        self.passes = PassBook(self.keys, self.kept_passes.append)
        self.settings = PolicySettings(**{"slots": 1, "reserve_small": 0, **settings})
        rng = random.Random(1)
        parts = GateParts(
            reactor=self.clock,
            now=self.clock.seconds,
            wall=self.clock.seconds,
            rng=rng,
            keys=self.keys,
            journal=self.journal,
            numbers=Numbers(next_number, over, self.promises.append),
            passes=self.passes,
            waiting=RetryResponder(Pages()),
            line=LineKeeper(self.link, None),
            clients=Clients(1000, self.clock.seconds),
            rules=RuleBook(rules),
            arrived=self.arrivals.append,
            terms=GateTerms(ToolTable(tools), holds_most),
        )
        self.gate = Gate(parts, policy, self.settings)
        #: Where requests enter; a test may put a node of a cluster in front of the gate.
        self.entrance: Admission = self.gate
        self.gate.open(restored)
        self.clock.advance(0)

    def ask(
        self,
        address: str = "192.0.2.1",
        *,
        file: str = "/big.iso",
        size_bytes: int = BIG,
        ranges: tuple[int, int] | None = None,
        agent: str = "tidegate/1",
        token: str | None = None,
        query: str = "",
        **fields: str,
    ) -> Asked:
        """Ask for a file; keyword fields are header fields with `_` for `-`."""
        headers: dict[bytes, bytes] = {b"host": b"localhost", b"user-agent": agent.encode()}
        if agent.startswith("tidegate/"):
            headers[b"tidegate-wait"] = b"ticket"
        if token is not None:
            headers[b"tidegate-ticket"] = token.encode()
        for name, value in fields.items():
            headers[name.replace("_", "-").encode()] = value.encode("latin-1")
        return self.ask_with(address, headers, file, size_bytes, ranges, query)

    def ask_with(
        self,
        address: str,
        headers: Mapping[bytes, bytes],
        file: str,
        size_bytes: int,
        ranges: tuple[int, int] | None,
        query: str,
    ) -> Asked:
        connection = FakeConnection(address)
        target = file + (f"?{query}" if query else "")
        request = Request(connection, b"GET", target.encode(), headers)  # type: ignore[arg-type]
        asked = Asked(request, connection)
        start, stop = ranges or (0, size_bytes)
        plan = BodyPlan(206 if ranges else 200, (), ((start, stop),), stop - start)

        def begin(listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
            transfer = FakeTransfer(listener, plan.body_bytes)
            asked.transfers.append(transfer)
            for name, value in headers:
                key, text = name.decode().lower(), value.decode()
                both = f"{asked.start_fields[key]}\n{text}" if key in asked.start_fields else text
                asked.start_fields[key] = both
            return transfer

        rep = representation(file, size_bytes)
        self.entrance.enter(request, rep, plan, begin)
        self.clock.advance(0)
        return asked

    def watch(self, address: str, token: str, wait_s: int = 20, file: str = "/big.iso") -> Asked:
        """Ask how a ticket stands, as the waiting page does."""
        connection = FakeConnection(address)
        headers = {b"tidegate-ticket": token.encode(), b"prefer": b"wait=%d" % wait_s}
        target = f"{STATUS_PREFIX}{file}".encode()
        request = Request(connection, b"GET", target, headers)  # type: ignore[arg-type]
        status = WaitStatus(
            self.gate,
            lambda: self.keys,
            self.clock.seconds,
            lambda path, size: DIGEST,
            self.called.add,
        )
        status.answer(request)
        self.clock.advance(0)
        return Asked(request, connection)

    def wait(self, seconds: float, step_s: float = 0.25) -> None:
        """Let time pass in small steps, as the reactor would."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
