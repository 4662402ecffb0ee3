"""What Tidegate promises, watched while a world runs: one oracle a promise.

Each names the document and the sentence that it holds; `test_world` finds every sentence in its
document. An oracle sees what clients see, or what an operator could look at. It knows no fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.policies.contract import BRIEF_BYTES, ELSEWHERE
from tidegate.policies.queue.tickets import READY
from tidegate.server.http.proxies import block_of
from tidegate.server.store.journal import read_journal

from .programs import HttpExchange, SimulatedClient

if TYPE_CHECKING:
    from tidegate.server.admission.gate import Gate
    from tidegate.server.store.store import Store

    from .world import World

#: The line may idle for this time while a client's turn waits.
IDLE_S = 8.0
#: A line that carries less than this part of what it can is idle.
_IDLE_PART = 0.02
#: A small file's first byte is here within this time beside trips and transmission.
SMALL_S = 10.0


class Oracle:
    """Watches one promise. `sentence` stands in `document`, blanks aside."""

    document: ClassVar[str] = ""
    sentence: ClassVar[str] = ""
    #: Whether it needs no excuse: what breaks it is a fault, in whatever world (`--sure`).
    sure: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def name(self) -> str:
        """For a report."""
        return type(self).__name__

    def broken(self, text: str) -> None:
        """The promise is broken."""
        self.world.broken(self.name, text)

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        """A client has an answer's header."""

    def lost(self, client: SimulatedClient, exchange: HttpExchange) -> None:
        """The server has ended a client's connection before its answer was whole."""

    def took(self, client: SimulatedClient, count: int) -> None:
        """A client has bytes of its file."""

    def called(self, client: SimulatedClient) -> None:
        """A client was told that its turn has come."""

    def watched(self, client: SimulatedClient, found: Mapping[str, Any]) -> None:
        """A client was told how its ticket stands (`/-/queue`)."""

    def ended(self, client: SimulatedClient) -> None:
        """A client is done, failed or gone."""

    def operated(self, request: str, status: int, found: Any) -> None:
        """The operator has an answer; status 0: the connection broke."""

    def changed(self, path: str, body: Mapping[str, Any], status: int, found: Any) -> None:
        """The same of what was to change something."""

    def visited(self, line: str, status: int) -> None:
        """A visitor of the site has an answer; status 0: the connection broke."""

    def logged(self, level: str, text: str) -> None:
        """The server has logged a warning or worse."""

    def dies(self) -> None:
        """The server is killed now."""

    def stopped(self) -> None:
        """The server has stopped, as it was asked to."""

    def tick(self) -> None:
        """A second has passed."""

    def settled(self) -> None:
        """After the last fault, and all that could end has ended."""

    def has_gone(self) -> bool:
        """Whether nothing is left of the clients that have left."""
        return True

    def at_the_end(self) -> None:
        """All clients have left, and all has gone or should have."""


class RightBytes(Oracle):
    """Clients tell of wrong bytes by this name (`SimulatedClient.took`)."""

    document = "README.md"
    sentence = "resumes after any interruption."
    sure = True


class Framing(Oracle):
    """Clients tell of it by this name."""

    document = "PROTOCOL.md"
    sentence = "All of HTTP here is HTTP/1.1 (RFC 9110, 9112)."
    sure = True


class NoFaultIsLogged(Oracle):
    """Neither a traceback nor one of the server's own laws."""

    document = "docs/operations.md"
    sentence = "a fault of ours in one download's body or timer"
    sure = True

    #: What the server says of faults that the world made.
    _EXPECTED = (
        "The database does not take writes",
        "The database did not take the last",
        "was removed or replaced",
        "was cut or overwritten",
        "answers without a commit",
        "says nothing; its connection is cut",
        "This machine leads no more: ",
        "The old certificate goes on",
    )
    #: A stop waits for the last writes for this time, or until two have failed.
    _CLOSE_S = 15.0
    #: A stop waits so long for a slow one.
    _SLOW_S = 5.0

    def logged(self, level: str, text: str) -> None:
        if level != "warn" and not any(one in text for one in self._EXPECTED):
            self.broken(text)
        world, now = self.world, self.world.schedule.now
        ill_s = world.database_full_until_s
        if now > world.stop_asked_s + self._SLOW_S:
            # Two writes took longer than a stop waits for.
            ill_s = max(ill_s, world.database_slow_until_s)
        if "did not take the last" in text and ill_s < now - self._CLOSE_S:
            self.broken(text)


class SlotsAreKept(Oracle):
    """What clients receive at once; a connection that the server cannot know to be over counts."""

    document = "docs/policies.md"
    sentence = "first come, first served in a fixed number of slots"

    #: What a paused download takes in 20 s at most.
    _KEPT_ALIVE_BYTES = 25_000
    _RECORD_BYTES = 16_384

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: Those that started beside doubted leases run on when these are doubted no more.
        self._beside = 0
        #: What each client had at the last two looks, and when the last one was.
        self._had: tuple[dict[SimulatedClient, int], ...] = ({}, {})
        self._looked_s = -math.inf

    def tick(self) -> None:
        gate = self.world.gate
        if gate is None:
            return
        seen = gate.snapshot()
        beyond = seen.large_active - seen.large_slots - seen.slotless
        self._beside = max(self.world.doubted, min(self._beside, beyond))
        if seen.link_bound or self.world.caused_since(self.world.schedule.now - 60.0):
            return
        if self.world.schedule.now >= self._looked_s + 10.0:
            self._looked_s = self.world.schedule.now
            had = {one: one.body_bytes for one in self.world.clients}
            self._had = (self._had[1], had)
        receiving, slow = set(), 0
        leased = {one.address for one in gate.downloads.values()}
        for client in self.world.clients:
            for one in client.segments:
                exchange = one.exchange
                if exchange is not None and exchange.is_file and not exchange.over:
                    end = exchange.channel.server
                    # What the kernels have takes no slot any more.
                    left = (exchange.left or 0) - (end.queued_bytes() if end is not None else 0)
                    left -= exchange.channel.unread_bytes
                    # A client cannot read a record of TLS in part.
                    left -= self._RECORD_BYTES if self.world.plan.is_secure else 0
                    big = (client.size or 0) >= 256_000 and left > 0
                    # Its last part left in one write, so its slot is another's already; or it
                    # stands still without a slot since a leader was lost, and is kept alive.
                    brief = int(exchange.fields.get("content-length", "0")) <= BRIEF_BYTES
                    taken = client.body_bytes - self._had[0].get(client, 0)
                    if block_of(client.address) not in leased and (
                        brief or taken < self._KEPT_ALIVE_BYTES
                    ):
                        continue
                    if big and end is not None and not end.closed:
                        if exchange.begun_s < self.world.switched_s:
                            # It goes on under a policy or settings that would not start it.
                            return
                        if (client.name, client.file) not in receiving:
                            # It may have had no slot, and takes its share again.
                            slow += client.rate_bytes_s < self.world.network.wire.rate_bytes_s
                        receiving.add((client.name, client.file))
        most = seen.large_slots + max(seen.slotless, slow) + self._beside
        if len(receiving) > most:
            self.broken(f"{len(receiving)} downloads run, {most} may: {sorted(receiving)}")


class NumbersBelongToOne(Oracle):
    """A number has one owner for ever, across restarts and lost journals."""

    document = "docs/operations.md"
    sentence = "no number is issued twice"
    sure = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._owner: dict[int, tuple[str, str]] = {}

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        number = self.world.number_of(client, fields)
        if number is None:
            return
        # Programs of one address and User-Agent are one; here each has an address of its own.
        owner = self._owner.setdefault(number, (client.name, client.file))
        if owner != (client.name, client.file):
            self.broken(f"number {number} of {owner} is given to {client} for {client.file}")


class TicketsKeepTheirNumbers(Oracle):
    """Who asks again with its ticket has its number, until the ticket is used or refused."""

    document = "README.md"
    sentence = "`SIGTERM` lets running downloads end, and tickets survive a restart."

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._number: dict[SimulatedClient, int] = {}
        self._refused: set[SimulatedClient] = set()

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        if status in (403, 404, 410):
            self._number.pop(client, None)
            if client.plan.program == "get":
                # It goes on by parts, and a ticket is used with each.
                self._refused.add(client)
            return
        if not client.manner.speaks_tickets or client in self._refused:
            return
        if self.world.receives(client):
            return
        if client.over or client.plan.misdeed in ("ask twice", "ask early"):
            # Its ticket is used once two requests together have brought all.
            return
        number = self.world.number_of(client, fields)
        if number is None:
            return
        known = self._number.setdefault(client, number)
        if number < known and self.world.journal_lost_s > 0.0:
            # An older journal has an older place of the same client.
            self._number[client] = number
        elif known != number:
            self.broken(f"{client} had ticket {known}, and now {number}")
        if status in (200, 206) and client.file == "/SMALL.txt":
            # One that breaks is begun anew.
            del self._number[client]


class TicketsSurvive(Oracle):
    """A ticket that a client was told of is there after a restart, as its journal has it."""

    document = "docs/operations.md"
    sentence = "kept: a ticket is in the journal before its client gets it"

    #: A failed write is tried again within this time, seconds.
    _AGAIN_S = 15.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: The ticket of each client that waits, when it was told, and when it may be over.
        self._told: dict[SimulatedClient, tuple[int, float, float]] = {}
        self._lives = 1
        #: The life whose last changes were not written, as the server said.
        self._unwritten = 0
        #: What the server that was killed knew, if it had nothing more to write.
        self._known: list[int] = []

    def dies(self) -> None:
        self._known = []
        life, gate = self.world.life, self.world.gate
        if gate is None or life is None:
            return
        store = life.service.store
        if store.state.ok and not store.state.pending and store._flying is None:
            self._known = _on_record(gate)

    def stopped(self) -> None:
        life = self.world.life
        self._known = [] if life is None else _on_record(life.service.gate)

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        number = self.world.number_of(client, fields)
        self._told.pop(client, None)
        if status == 503 and number is not None:
            now = self.world.schedule.now
            self._told[client] = number, now, now + float(fields.get("retry-after", "0"))

    def logged(self, level: str, text: str) -> None:
        if "did not take the last" in text:
            self._unwritten = self.world.lives

    def ended(self, client: SimulatedClient) -> None:
        self._told.pop(client, None)

    def tick(self) -> None:
        world, gate = self.world, self.world.gate
        now = world.schedule.now
        if gate is None or world.lives == self._lives:
            return
        self._lives = world.lives
        known, self._known = self._known, []
        stopped_s = world.stopped_s
        if world.journal_lost_s < stopped_s and self._unwritten < world.lives - 1:
            for number in known:
                if gate.policy.ticket(number) is None:
                    self.broken(f"ticket {number} was on record, and is gone after a restart")
        away_s = world.database_full_until_s + self._AGAIN_S
        if world.was_killed:
            away_s = max(away_s, world.database_slow_until_s + self._AGAIN_S)
        if away_s > stopped_s or world.journal_lost_s >= stopped_s or world.has_fault("withdraw"):
            return
        if self._unwritten == world.lives - 1:
            return
        for client, (number, told_s, until_s) in self._told.items():
            if client.starts_lost or client.turned_away or told_s <= world.journal_lost_s:
                continue
            if told_s < stopped_s and until_s > now and gate.policy.ticket(number) is None:
                self.broken(f"ticket {number} of {client} was told at {told_s:.3f} s and is gone")


class TheJournalAgrees(Oracle):
    """A journal with nothing left to write has the tickets that its server has, and no others."""

    document = "docs/operations.md"
    sentence = "kept: a ticket is in the journal before its client gets it"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: What the journal had when it was read last, in which life, and after how much work.
        self._kept: set[int] = set()
        self._read = (0, 0)

    def dies(self) -> None:
        self._look()

    def tick(self) -> None:
        self._look()

    def _look(self) -> None:
        life, gate = self.world.life, self.world.gate
        if life is None or gate is None:
            return
        store = life.service.store
        if not store.state.ok or store.state.pending or store._flying is not None:
            return
        read = self.world.lives, self.world.works_total
        if read != self._read or self.world.plan.machines:
            # Reading it costs as much as 20 ms of a world.
            self._kept, self._read = _in_journal(store), read
        kept = self._kept
        here = {row.number for row in gate.leases.live_tickets()}
        ending = here - set(_on_record(gate))
        if here - kept - ending:
            self.broken(f"tickets {sorted(here - kept - ending)} are not in the journal")
        if kept - here:
            self.broken(f"tickets {sorted(kept - here)} are over, and live in the journal")


class NoTicketIsOfTheFuture(Oracle):
    """Whatever the wall clock did: a ticket was issued before now."""

    document = "docs/operations.md"
    sentence = "go on, as far as clients still wait | kept while the server runs"

    def tick(self) -> None:
        gate = self.world.gate
        if gate is None:
            return
        for row in gate.policy.tickets():
            if row.issued_s > gate.now():
                self.broken(f"ticket {row.number} was issued in the future")
                return


class TicketsLast(Oracle):
    """Who comes back with its ticket when it was told to is not refused for it."""

    document = "docs/policies.md"
    sentence = "A ready ticket lasts `ticket_ttl_s` from the promised return."

    #: What a client's kernel holds, and what is told of it late.
    _ON_THE_WAY_BYTES = 256 * 1024

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: Until when the ticket of a client that waits is good, and when it was told so.
        self._until_s: dict[SimulatedClient, float] = {}
        self._told_s: dict[SimulatedClient, float] = {}
        #: The last life of the server that knows this return.
        self._known_to: dict[SimulatedClient, float] = {}
        #: The life of the server in which a client with a ticket had an answer of its file first.
        self._began: dict[SimulatedClient, int] = {}
        #: What it has had of its file.
        self._had: dict[SimulatedClient, int] = {}
        self._called: set[SimulatedClient] = set()

    def took(self, client: SimulatedClient, count: int) -> None:
        self._had[client] = self._had.get(client, 0) + count

    def watched(self, client: SimulatedClient, found: Mapping[str, Any]) -> None:
        if found["state"] == "called":
            if client in self._called:
                # A start that came to nothing is given back once.
                self._until_s.pop(client, None)
            self._called.add(client)

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        if client.plan.misdeed in ("ask twice", "ask early"):
            # Its requests may have several tickets.
            return
        if status == 200 and "etag" not in fields:
            # It watches its ticket.
            return
        world = self.world
        if world.receives(client):
            return
        now = world.schedule.now
        until_s = self._until_s.pop(client, -math.inf)
        ticket = "tidegate-ticket" in fields or "tidegate-ticket=" in fields.get("location", "")
        lasts_s = world.gate.settings.ticket_ttl_s if world.gate is not None else 0.0
        if status in (302, 503) and ticket:
            self._until_s[client] = now + float(fields.get("retry-after", "0")) + lasts_s
            self._told_s[client] = now
            # An answer does not wait for an ill database: the next server may not know of it.
            ill_s = max(world.database_slow_until_s, world.database_full_until_s)
            self._known_to[client] = world.lives if now < ill_s + 1.0 else math.inf
        taken_out = world.has_fault("withdraw") or client.starts_lost > 1
        taken_out = taken_out or client.turned_away
        # An older journal has the download that it lost before that, and keeps it from then on.
        older = world.journal_lost_s >= self._told_s.get(client, math.inf)
        taken_out = taken_out or (older and client in self._had)
        if status in (200, 206) and ticket:
            self._began.setdefault(client, world.lives)
        elif status == 403 and self._began.pop(client, world.lives) < world.lives:
            ended = any(map(world.has_fault, ("cut", "lose answer", "cancel", "lose journal")))
            # Its ticket was on record as used before its last bytes left (docs/operations.md).
            left = world.plan.files[client.file] - self._had.get(client, 0)
            ended = ended or left <= world.plan.buffer_bytes + self._ON_THE_WAY_BYTES
            # It told the server that it wanted no more of it, before another one failed it.
            ended = ended or (client.plan.program == "get" and bool(world.plan.others))
            until_s = until_s if ended else world.started_s + lasts_s
        taken_out = taken_out or self._known_to.get(client, math.inf) < world.lives
        if status == 403 and now < until_s and not taken_out:
            self.broken(f"{client} came {until_s - now:.1f} s before its ticket ends: 403")

    def ended(self, client: SimulatedClient) -> None:
        self._began.pop(client, None)


class LastBytesComeAgain(Oracle):
    """A client that asks for bytes of its download again, soon after it had others, gets them."""

    document = "docs/operations.md"
    sentence = "and they are sent again without a slot"

    #: What ends a download, or forgets it; the kernel goes on sending for a killed process.
    _ENDS = (
        *("cancel", "withdraw", "block", "pass", "policy", "settings", "replace", "overwrite"),
        "kill process",
        # It was whole by its report, and its slot is another's 5 s later (docs/gate.md).
        "kill mover",
    )

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: When a client had bytes of its file last, the life of the server that sent them, and how
        #: many in all.
        self._took: dict[SimulatedClient, tuple[float, int, int]] = {}

    def took(self, client: SimulatedClient, count: int) -> None:
        _, life, had = self._took.get(client, (0.0, 0, 0))
        self._took[client] = self.world.schedule.now, life, had + count

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        took_s, life, had = self._took.get(client, (-math.inf, 0, 0))
        world = self.world
        if status in (200, 206):
            self._took[client] = took_s, world.lives, had
        if had < 0.5 * world.plan.files[client.file]:
            # One that has had nearly nothing keeps its slot for less.
            return
        if status != 403 or life != world.lives or any(map(world.has_fault, self._ENDS)):
            return
        if client.over or client.plan.misdeed not in ("", "watch", "drop"):
            return
        # What it had last was on its way for a while: the server may have sent it before that.
        way_s = 2.0 + 10 * world.plan.latency_s
        # It lay in the server's buffer before that, for as long as its client takes for that much.
        way_s += world.plan.buffer_bytes * (took_s - client.first_byte_s) / had
        if world.schedule.now < took_s - way_s + world.plan.settings["admission.lease_idle_s"]:
            self.broken(f"{client} asks for more of its file, and is refused")


class TheLostComeFirst(Oracle):
    """A ticket that its token proves stands before all younger ones."""

    document = "docs/operations.md"
    sentence = "one that comes back stands before all younger tickets"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: Tickets that have started: a journal that was not written has them before all others.
        self._started: set[int | None] = set()

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        if status in (200, 206):
            self._started.add(self.world.number_of(client, fields))

    def tick(self) -> None:
        world, gate = self.world, self.world.gate
        # Elsewhere the order is not that of numbers, or has more causes.
        if gate is None or gate.policy.name != "ticket" or world.is_crowded:
            return
        if any(map(world.has_fault, ("promote", "policy", "settings", "lose answer", "cut"))):
            return
        # Those that began while nobody waited were told none.
        self._started.update(lease.ticket for lease in gate.policy.leases())
        oldest, since_s = 0, -math.inf
        table = gate.policy.queue.table
        for row in gate.policy.tickets():
            small = row.size_bytes < gate.settings.small_below_bytes
            # One that was called and did not come stands behind.
            wasted = table.given_back[table.rows[row.number]]
            if small or wasted or row.number in world.started_tickets | self._started:
                continue
            if row.weight != 1.0 or row.stands_back:
                # A pass moves its client ahead, and a slot that its network wasted puts it behind.
                continue
            # A node without a leader issues numbers that say nothing of the order.
            given_here = oldest < ELSEWHERE or row.issued_s < since_s
            if row.number < oldest and given_here:
                self.broken(f"ticket {row.number} stands behind {oldest}")
                return
            oldest, since_s = row.number, row.issued_s


class TheDatabaseIsTriedAgain(Oracle):
    """What a database did not take is written once it takes it."""

    document = "docs/operations.md"
    sentence = "kept in memory and tried again, and by tokens"

    #: The longest pause between two tries, the first one, and what a write of a slow one takes.
    _PAUSE_S, _FIRST_S, _SLOW_S = 15.0, 0.5, 4.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: Since when it is ill, and has something to write.
        self._ill_s = self._owes_s = math.inf

    def logged(self, level: str, text: str) -> None:
        if "The database does not take writes" in text and not self.world.plan.machines:
            self._ill_s = self.world.schedule.now

    def tick(self) -> None:
        world = self.world
        if world.life is None or not world.running:
            return
        state, now = world.life.service.store.state, world.schedule.now
        if state.ok:
            self._ill_s = self._owes_s = math.inf
            return
        self._owes_s = min(self._owes_s, now) if state.pending else math.inf
        # In a cluster it is seen to be ill up to a second later.
        known_s = 1.0 if world.plan.machines else 0.0
        self._ill_s = min(self._ill_s, now)
        write_s = world.plan.write_s + known_s
        since_s = max(world.database_full_until_s, world.started_s, world.still_until_s)
        since_s = max(since_s, world.database_slow_until_s + self._SLOW_S) + write_s
        # Each pause is as long as all before it together, and the first one.
        pause_s = min(self._PAUSE_S, max(0.0, since_s - self._ill_s) + self._FIRST_S)
        if now > max(since_s, self._owes_s) + pause_s + write_s + 0.1:
            self.broken(f"{state.pending} changes wait since the database works: {state.reason}")


class OperatorsAreAnswered(Oracle):
    """Pages and API answer, whatever ails the server."""

    document = "docs/operations.md"
    sentence = "`/-/ready` and the pages say so"

    def operated(self, request: str, status: int, found: Any) -> None:
        ailing = status == 503 and (isinstance(found, Mapping) or "/api/" not in request)
        # A machine without a leader has no pages (docs/cluster.md).
        unled = status == 503 and self.world.plan.machines > 1
        if status >= 500 and not ailing and not unled:
            self.broken(f"the operator is answered {status} to {request}: {found}")
        if not status and not self.world.caused_since(self.world.schedule.now - 30.0):
            self.broken(f"the operator has no answer to {request}")


class OperatorsChangesStay(Oracle):
    """A policy or settings that were answered are in force, and so after a restart."""

    document = "docs/operations.md"
    sentence = "All other answers mean that it is stored"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._number = 0
        self._since_s = 0.0

    def changed(self, path: str, body: Mapping[str, Any], status: int, found: Any) -> None:
        if path == "/settings" and status == 200:
            # What was stored may be lost while its answer is on its way.
            on_its_way_s = 2 * self.world.plan.latency_s
            self._number, self._since_s = found["number"], self.world.schedule.now - on_its_way_s

    def tick(self) -> None:
        world = self.world
        if world.life is None or not world.running or world.journal_lost_s >= self._since_s:
            return
        current = world.life.service.admin.server.revisions.current
        if current.number < self._number:
            self.broken(f"revision {self._number} was stored, and {current.number} is in force")


class ReadersAreNotCut(Oracle):
    """A download whose client reads is cut for a stated cause only."""

    document = "docs/configuration.md"
    sentence = "A client that reads slower than this on average is cut off."

    def lost(self, client: SimulatedClient, exchange: HttpExchange) -> None:
        if not exchange.is_file or client.plan.misdeed not in ("", "watch"):
            return
        if not self.world.caused_since(exchange.begun_s - 5.0):
            self.broken(f"{client} reads, and is cut off {exchange.left} bytes before the end")


class ReadersKeepTheirSlots(Oracle):
    """A download takes its share of a slot as long as its client is no slower than the line."""

    document = "docs/policies.md"
    sentence = "One that takes less goes on, but its slot goes to the next."

    def tick(self) -> None:
        world, gate = self.world, self.world.gate
        if gate is None or gate.snapshot().link_bound:
            return
        # A crowd gives back what was lent to it.
        slotless = [lease for lease, held in gate.policy.pool.slotless.items() if not held.lent]
        if not slotless:
            return
        ends = ("policy", "settings", "lose answer", "cut", "line", "kill mover", "lose reports")
        # Its client comes back for the file as it is then, and takes nothing meanwhile.
        changes = ("replace", "overwrite", "delete")
        # A process that does not run sends nothing, and its leader goes on without it.
        processes = ("stall process", "kill process", "lose machine", "stop machine", "cut off")
        if any(map(world.has_fault, (*ends, *changes, *processes))):
            return
        if world.plan.machines > 1 and world.plan.knows_line:
            # Each is told that it has a line of its own, and all have one together.
            return
        # A server's buffer is sent anew once a trip and its answer have passed.
        carried_bytes_s = world.plan.buffer_bytes / (2 * world.plan.latency_s)
        for client in world.clients:
            slow = min(client.rate_bytes_s, carried_bytes_s) < world.network.wire.rate_bytes_s
            if client.state != "fetching" or slow or client.plan.misdeed:
                continue
            for lease in slotless:
                download = gate.downloads.get(lease)
                if download is not None and download.address == block_of(client.address):
                    self.broken(f"{client} reads all it gets, and has lost its slot")
                    return


class HeldClientsHear(Oracle):
    """A program that is held in its request has a line before it would give up."""

    document = "PROTOCOL.md"
    sentence = "held: 8 s silent, then a line every 8 s"

    _PROGRAMS = frozenset({"curl", "curl-retry", "wget", "aria2"})
    #: 8 s, and what a full line or a slow server may add.
    _SILENT_S = 15.0
    #: Before that a network beyond its share waits for the line (`files.request_queue`).
    _SHARE_S = 20.0

    def tick(self) -> None:
        world = self.world
        since_s = world.schedule.now - self._SILENT_S - world.is_crowded * self._SHARE_S
        if world.gate is None or world.caused_since(since_s) or world.still_until_s > since_s:
            return
        if world.answers_wait or world.plan.proxied or world.plan.mover:
            # A proxy passes no part of a header on.
            return
        for client in world.clients:
            if client.plan.program not in self._PROGRAMS or client.over:
                continue
            for one in client.segments:
                exchange = one.exchange
                if exchange is None or exchange.status or exchange.last_s > since_s:
                    continue
                channel = exchange.channel
                if channel.reads and not channel.lost and not channel.client_closed:
                    self.broken(f"{client} is held and hears nothing since {since_s:.0f} s")
                    return


class PlacesNeverRise(Oracle):
    """A place that is told grows only after a restart, or as the operator changes the policy.

    This is said of Fair. Other policies have more causes.
    """

    document = "docs/policies.md"
    sentence = "The place that a client is shown is the order of told starts. It never rises."

    #: Faults that change no place but by a restart.
    _RESTARTS: ClassVar[set[str]] = {"kill", "kill again", "restart", "stall", "wall", "touch"}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._told: dict[SimulatedClient, tuple[int, float]] = {}
        #: Tickets with which clients have asked since the server started, and when that was.
        self._asked: set[int] = set()
        self._asked_since_s = -math.inf

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        now = self.world.schedule.now
        if self._asked_since_s != self.world.started_s:
            self._asked_since_s = self.world.started_s
            self._asked.clear()
        number = self.world.number_of(client, fields)
        if number is not None:
            self._asked.add(number)
        if "tidegate-place" not in fields:
            self._told.pop(client, None)
            return
        place = int(fields["tidegate-place"])
        before = self._told.get(client)
        self._told[client] = place, now
        if before is None or not client.manner.speaks_tickets:
            return
        if client.plan.misdeed in ("ask twice", "ask early"):
            # Some of its answers are kept back, and younger ones come before them.
            return
        if place <= before[0]:
            return
        world = self.world
        # Tickets of which a new server knows nothing come back by their tokens.
        excused = max(world.started_s, world.switched_s) >= before[1]
        excused = excused or world.journal_lost_s > 0.0
        if world.policy_name != "fair":
            # There it is the order of turn. Small files and lost starts go first, also those of an
            # earlier life as their clients come back, and so does what stood back for its network.
            excused = excused or world.lives > 1
            excused = excused or world.caused_since(before[1]) + world.lost_since(before[1]) > 0
            excused = excused or world.is_crowded or world.waits_for_small(before[1])
        if not excused or (self._judges_restart(before[1]) and place > before[0] + self._back()):
            self.broken(f"{client} was told place {before[0]}, and now {place}")

    def _judges_restart(self, since_s: float) -> bool:
        """Whether nothing but a restart since then excuses it."""
        world = self.world
        return (
            world.has_only(self._RESTARTS)
            and since_s > world.switched_s
            and not world.is_crowded
            and not world.waits_for_small(-math.inf)
            and world.policy_name in ("fair", "ticket")
            and world.plan.settings["admission.slots"] == 1
        )

    def _back(self) -> int:
        """How many downloads have ended with a server and were asked for since."""
        return len(self.world.started_tickets & self._asked)


class TurnsAreLeft(Oracle):
    """No ticket starts while an older one is due whose client comes back as it was told."""

    document = "docs/policies.md"
    sentence = "its turn to those before it who are due within a tenth of its download's time."

    #: All are due for this time around their return, however short downloads are.
    _DUE_S = 0.5
    #: What an operator or a client changed before that has other causes.
    _CALM_S = 5.0

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        world, gate = self.world, self.world.gate
        number = self.world.number_of(client, fields)
        if gate is None or number is None or status not in (200, 206) or "etag" not in fields:
            return
        # With one slot, and by numbers alone, it is known who is before whom.
        alone = gate.settings.slots == 1 and gate.policy.name == "ticket" and world.lives == 1
        if not alone or world.is_crowded or client.body_bytes or client.file == "/SMALL.txt":
            return
        if any(map(world.has_fault, ("promote", "policy", "settings", "pass"))):
            return
        way_s = world.plan.latency_s + world.plan.buffer_bytes / world.network.wire.rate_bytes_s
        now = gate.now()
        if world.caused_since(world.schedule.now - self._CALM_S) or way_s >= self._DUE_S:
            return
        table = gate.policy.queue.table
        for row in gate.policy.queue.table.rows.values():
            older = table.number[row] < number and table.state[row] == READY
            small = table.size[row] < gate.settings.small_below_bytes
            # Called before its time, it may stand behind.
            if not older or small or table.present[row] or table.given_back[row]:
                continue
            if now - self._DUE_S <= table.promise_s[row] <= now - way_s + self._DUE_S:
                due_s = table.promise_s[row] - now
                self.broken(f"{client} starts, and ticket {table.number[row]} is due in {due_s} s")
                return


class MirrorsFollow(Oracle):
    """Readers of a mirror see a published version, and the newest once faults are over."""

    document = "docs/mirrors.md"
    sentence = "A reader of a mirror sees the old version or the new one, never a mixture."
    sure = True

    #: Two rounds of a mirror that had a trouble, and what its requests wait for.
    _FOLLOWS_S = 180.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen = 0

    def tick(self) -> None:
        channel = self.world.channel
        if channel is not None and channel.version != self._seen:
            self._seen = channel.version
            if channel.live() != channel.trees[self._seen]:
                self.broken(f"the mirror's files are not those of version {self._seen}")

    def settled(self) -> None:
        channel, world = self.world.channel, self.world
        if channel is None:
            return
        since_s = max(channel.published_s, world.started_s, world.plan.last_fault_s)
        # While others want the line, a policy without tickets may let none of its requests in.
        since_s = max([since_s, *(one.done_s for one in world.clients if one.over)])
        newest = max(channel.trees)
        if any(map(world.hides, world.clients)):
            # An operator's draw hides its files, too.
            return
        if world.schedule.now > since_s + self._FOLLOWS_S and channel.version != newest:
            self.broken(f"the mirror has version {channel.version}, {newest} is published")


class NobodyWaitsForEver(Oracle):
    """A patient client has the whole file, or a stated error, once faults are over."""

    document = "README.md"
    sentence = "A download that cannot start now gets a signed ticket, a place and an honest time."

    def settled(self) -> None:
        gate = self.world.gate
        if gate is not None and gate.closed:
            # The operator's opening was lost with the journal.
            return
        for client in self.world.clients:
            if self.world.hides(client):
                # An operator's draw opens it once the clock, which was set back, is there.
                continue
            if not client.over and not client.reads_no_more:
                self.broken(
                    f"{client} is {client.state} since {client.plan.comes_s:.0f} s, "
                    f"{client.body_bytes} bytes, last status {client.last_status}"
                )
                return

    def ended(self, client: SimulatedClient) -> None:
        if client.patient and client.state == "failed" and not self.world.excuses(client):
            self.broken(f"{client} has failed: {client.why}")
        # One that has a single try is held until its turn, and begins then.
        held = client.plan.program == "curl" and not client.plan.misdeed
        # One that has its header has begun: then its file may be written over.
        lost = client.state == "failed" and math.isnan(client.first_byte_s)
        lost = lost and client.last_status != 200
        held = held and not self.world.hides(client)
        if held and lost and self.world.is_harmless:
            self.broken(f"{client} was held and has no byte: {client.why}")


class LineIsUsed(Oracle):
    """The line does not idle for long while a request is parked for its turn."""

    document = "docs/policies.md"
    sentence = "so the line stays full while one download follows another."

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sent_bytes = 0
        self._idle_s = 0.0

    def tick(self) -> None:
        world = self.world
        wire = world.network.wire
        sent, self._sent_bytes = wire.sent_bytes - self._sent_bytes, wire.sent_bytes
        gate = world.gate
        since_s = world.schedule.now - 2.0
        disturbed = world.caused_since(since_s) or world.still_until_s > since_s
        if gate is None or gate.closed or disturbed:
            self._idle_s = 0.0
            return
        waits = any(
            one.ticket is not None
            and (end := getattr(one.visit.request.connection, "socket", None)) is not None
            and not end.line.lost
            and not end.line.client_closed
            for one in gate.parked
        )
        # A slot is kept for a client that has lost its connection.
        waits = waits and all(one.deliveries for one in gate.downloads.values())
        if waits and sent < _IDLE_PART * wire.rate_bytes_s and not world.somebody_stalls():
            self._idle_s += 1.0
        else:
            self._idle_s = 0.0
        if self._idle_s > IDLE_S:
            self.broken(
                f"for {self._idle_s:.0f} s nothing was sent, and {len(gate.parked)} requests wait"
            )


class RunningDownloadsMove(Oracle):
    """A download that its client could take is not frozen: bytes come, be it a few."""

    document = "docs/policies.md"
    sentence = "shortest remaining first; started ones may pause, never silent"

    #: "up to every 28 s"; a share of 6 % of a slow line may be late.
    _SILENT_S = 90.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[object, tuple[int, float]] = {}

    def tick(self) -> None:
        world = self.world
        now = world.schedule.now
        if world.gate is None or world.caused_since(now - 2.0):
            self._seen.clear()
            return
        for client in world.clients:
            if client.state != "fetching":
                continue
            for one in client.segments:
                exchange = one.exchange
                if exchange is None or not exchange.is_file or exchange.over:
                    continue
                channel = exchange.channel
                if channel.lost or not channel.reads or channel.client_closed:
                    continue
                count, since_s = self._seen.get(exchange, (-1, now))
                if one.position != count:
                    self._seen[exchange] = one.position, now
                elif now - since_s > self._SILENT_S:
                    self.broken(f"{client} has had no byte for {self._SILENT_S:.0f} s")
                    self._seen.pop(exchange)


class SmallFilesComeAtOnce(Oracle):
    """A small file never waits behind a large one."""

    document = "README.md"
    sentence = "**Small things never wait behind big ones.**"

    def ended(self, client: SimulatedClient) -> None:
        world = self.world
        if client.file != "/SMALL.txt" or client.state != "done" or client.plan.misdeed:
            return
        if not world.keeps_room_for_small:
            return
        size = client.size or 0
        took_s = client.done_s - client.asked_s
        # The line is shared with those that run, by the connection.
        share_s = size * (len(world.clients) + 1) / world.network.wire.rate_bytes_s
        bound_s = SMALL_S + 20 * world.plan.latency_s + share_s + size / client.rate_bytes_s
        if took_s > bound_s and not world.caused_since(client.asked_s - 30.0):
            self.broken(f"{client} needed {took_s:.1f} s for {size} bytes")


class NothingStays(Oracle):
    """After the last client nothing is parked, leased, counted or open."""

    document = "docs/operations.md"
    sentence = "The server recovers without an operator unless a row says otherwise."

    #: Timers of a server without clients: sweeps, samples, looks at files.
    _TIMERS = 40
    #: What one connection may have of timers, open files and leases at most.
    _EACH = 4

    def tick(self) -> None:
        world, gate = self.world, self.world.gate
        if gate is None or world.life is None:
            return
        if any(one.visit.request.finished for one in gate.parked):
            self.broken("a request is parked whose client is gone")
        most = self._TIMERS + self._EACH * (len(world.network.sockets) + len(gate.downloads))
        for reactor in world.life.reactors():
            if len(reactor.calls) > most:
                self.broken(f"{len(reactor.calls)} timers run, {most} are enough")

    @staticmethod
    def _tables(gate: Gate) -> dict[str, int]:
        """What is kept by client, ticket, file or network of those who wait or run."""
        parked, leases = gate.parked, gate.leases
        return {
            "parked by client": len(parked._by_client),
            "parked by network": parked.how_many_networks(),
            "parked by ticket": parked.placed,
            "of a file": len(leases._of_file),
            "networks": len(leases._networks),
            "looked at": len(leases._rounds.awake) + len(leases._rounds._asleep),
            "slowed": gate._slowed,
        }

    def _left(self) -> dict[str, int]:
        world, gate = self.world, self.world.gate
        if gate is None or world.life is None:
            return {}
        service = world.life.service
        left = {
            "parked": len(gate.parked),
            "downloads": len(gate.downloads),
            "leases": len(gate.policy.leases()),
            "connections": sum(len(one.connections) for one in world.life.factories()),
            "sockets": len(world.network.connections),
            **world.life.left(),
            **self._tables(gate),
            "timers": max(0, *(len(one.calls) - self._TIMERS for one in world.life.reactors()), 0),
            "store": service.store.state.pending,
        }
        return {name: count for name, count in left.items() if count}

    def _open(self) -> list[str]:
        earlier = self.world.files_of_earlier_lives
        found = self.world.open_files().items()
        # The folder for which operators draw is no client's.
        files = [name for one, name in found if one not in earlier and "/later" not in name]
        # Each process keeps those that were asked for last.
        processes = len(tuple(self.world.life.reactors())) if self.world.life is not None else 1
        return files if len(files) > processes * len(self.world.files) else []

    def has_gone(self) -> bool:
        return self.world.gate is not None and not self._left() and not self._open()

    def at_the_end(self) -> None:
        gate = self.world.gate
        if gate is None:
            return
        found = self._left()
        if found:
            self.broken(str(found))
        seen = gate.snapshot()
        if seen.large_active or seen.small_active or seen.paused:
            self.broken(f"slots stay taken: {seen}")
        files = self._open()
        if files:
            self.broken(f"open files: {sorted(files)}")


class TheLoopRests(Oracle):
    """An event that the server does nothing about does not come again and again."""

    document = "docs/operations.md"
    sentence = "The server recovers without an operator unless a row says otherwise."
    sure = True

    #: In a second. In 9 102 s of 86 worlds it was 65 at most. A loop that spins has 600 and more.
    _MOST = 400

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._turns = 0

    def tick(self) -> None:
        turns = self.world.network.idle_turns
        if turns - self._turns > self._MOST:
            self.broken(f"the loop spins: {turns - self._turns} turns in a second did nothing")
        self._turns = turns


class WaitsAreFinite(Oracle):
    """Told times are numbers that a program can use."""

    document = "PROTOCOL.md"
    sentence = "seconds until the start in nine cases of ten"

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        for name in ("retry-after", "tidegate-wait-expected", "tidegate-wait-p90"):
            value = fields.get(name)
            if value is None:
                continue
            number = float(value)
            if not 0 <= number < 1e6 or math.isnan(number):
                self.broken(f"{client} is told {name}: {value}")
        # Whole seconds, rounded up. A client that asks early is told to come later.
        bound_s = float(fields.get("tidegate-wait-p90", "inf")) + 1.0
        early = client.plan.misdeed in ("ask early", "ask twice")
        # One whose answer was lost asks again before the return that it was not told.
        early = early or client.starts_lost > 0
        if status == 503 and not early and float(fields.get("retry-after", "0")) > bound_s:
            self.broken(f"{client} is told to come after its bound: {fields}")
        if "tidegate-place" in fields and int(fields["tidegate-place"]) < 1:
            self.broken(f"{client} is told place {fields['tidegate-place']}")


class ToldStartsAreKept(Oracle):
    """The first bound that a client was told for its start; `kept` of `judged` in all.

    Nine of ten is said of many: waits of one world have one cause. `python -m tests.world` sums
    those of all its worlds.
    """

    document = "PROTOCOL.md"
    sentence = "seconds until the start in nine cases of ten"

    field: ClassVar[str] = "tidegate-wait-p90"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: When a client was told first, and until when it was to be so.
        self._told: dict[SimulatedClient, tuple[float, float]] = {}
        self.kept = self.judged = 0

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        now = self.world.schedule.now
        if self.field in fields:
            self._told.setdefault(client, (now, now + float(fields[self.field])))
        elif status in (200, 206) and "etag" in fields:
            self.started(client)

    def started(self, client: SimulatedClient) -> None:
        """It has its answer."""
        self.judge(client)

    def judge(self, client: SimulatedClient) -> None:
        """What it was told has come."""
        told_s, until_s = self._told.get(client, (math.inf, 0.0))
        if told_s < math.inf:
            self._told[client] = math.inf, 0.0
            undisturbed = self.world.keeps_times or not self.world.caused_since(told_s)
            if undisturbed and not client.plan.misdeed:
                self.judged += 1
                self.kept += self.world.schedule.now <= until_s + 4 * self.world.plan.latency_s


class ToldEndsAreKept(ToldStartsAreKept):
    """The same of the last byte."""

    sentence = "seconds until the last byte in nine cases of ten"
    field = "tidegate-done-p90"

    def started(self, client: SimulatedClient) -> None:
        """Its end is what counts."""

    def ended(self, client: SimulatedClient) -> None:
        if client.state == "done":
            self.judge(client)


class StatusAgrees(Oracle):
    """What `/-/queue` says of a ticket is what its client gets."""

    document = "PROTOCOL.md"
    sentence = "`done`: every byte was delivered"

    #: An answer may be under way for this time, beside trips.
    _LATE_S = 20.0

    def watched(self, client: SimulatedClient, found: Mapping[str, Any]) -> None:
        state = found["state"]
        if state not in ("waiting", "ready", "called", "started", "done", "over"):
            self.broken(f"{client} is told state {state}")
        place = found.get("place")
        # A place is known once its client has asked a server under this policy.
        shown = self.world.policy_name not in ("reserve", "fcfs")
        shown = shown and self.world.lives == 1 and self.world.switched_s == -math.inf
        if state in ("waiting", "ready") and (shown if place is None else place < 1):
            self.broken(f"{client} waits without a place: {found}")
        if found.get("p90_wait_s", math.inf) < found.get("expected_wait_s", 0.0):
            self.broken(f"{client} is told a bound below what is expected: {found}")
        if self.world.caused_since(self.world.schedule.now - self._LATE_S):
            return
        # The header of a small file may be under way with all of it.
        size = client.size or len(self.world.versions(client.file)[-1].content)
        under_way = sum(
            one.exchange.channel.buffer_bytes + one.exchange.channel.receive_bytes
            for one in client.segments
            if one.exchange is not None
        )
        # A gate takes what a kernel had for 5 s as delivered (docs/gate.md): a break loses it.
        unknown = self.world.plan.mover and client.plan.misdeed == "drop"
        # Another request of the same program may have fetched it.
        unknown = unknown or client.plan.misdeed in ("ask twice", "ask early")
        if state == "done" and not unknown and client.body_bytes + under_way < size:
            self.broken(f"{client} is told that it has all: {client.body_bytes} of {size} bytes")


class RefusalsAreStated(Oracle):
    """No answer is a fault of the server, and each refusal says when to come back."""

    document = "PROTOCOL.md"
    sentence = "whole seconds; a visit before that gains nothing"

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        if status == 500:
            self.broken(f"{client} is answered 500")
        if status == 503 and "retry-after" not in fields:
            self.broken(f"{client} is answered 503 without Retry-After: {fields}")
        if status not in (200, 206, 302, 400, 403, 404, 416, 500, 503):
            self.broken(f"{client} is answered {status}")

    def visited(self, line: str, status: int) -> None:
        if status in (500, 502):
            self.broken(f"a visitor is answered {status} of {line}")
        if not status and not self.world.caused_since(self.world.schedule.now - 30.0):
            self.broken(f"a visitor has no answer to {line}")


class UsedTicketsStayUsed(Oracle):
    """A ticket whose every byte was delivered starts no second download."""

    document = "docs/operations.md"
    sentence = "a used ticket is not honoured again"

    #: A node waits so long at most before its last bytes leave, for its leader to have the end.
    _ENDS_S = 0.5
    #: A gate hears of an end within 5 s, and has it on record after a slow write (docs/gate.md).
    _HEARD_S = 10.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: Whose they were, and since when they are used.
        self._used: dict[int, tuple[str, float]] = {}
        #: The first ticket of each client.
        self._first: dict[SimulatedClient, int] = {}
        #: The life of the server that it began in, and when: the next one, or other processes,
        #: cannot know what of it the client had then.
        self._starts: dict[SimulatedClient, tuple[int, float]] = {}

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        now = self.world.schedule.now
        if status in (200, 206) and "etag" in fields:
            self._starts.setdefault(client, (self.world.lives, now))
        number = self.world.number_of(client, fields)
        if number is None or client.plan.misdeed in ("ask twice", "ask early"):
            # Of two requests one may join the download of the other, and end later.
            return
        if client.starts_lost or client.has_vanished:
            # A download goes on as long as its kernel knows nothing of a lost connection.
            return
        if status in (200, 206):
            first = self._first.setdefault(client, number)
            # Who shows a used ticket again is not served under another number either.
            shows = client.plan.misdeed == "ask again" and client.manner.speaks_tickets
            for one in {number, first if shows else number}:
                name, since_s = self._used.get(one, ("", -math.inf))
                unknown = self._unknown(since_s, since_s) or self._is_unheard(since_s)
                if since_s > self.world.journal_lost_s and not unknown:
                    self.broken(f"{client} starts with ticket {one}, used by {name}")

    def _unknown(self, since_s: float, until_s: float) -> bool:
        """Whether what was sent then may be known to a process alone that was lost just after."""
        return any(
            since_s - self._ENDS_S < moment_s < until_s + self._ENDS_S
            and ("machine" in text or text == "the mover is killed")
            for moment_s, text in self.world.causes
        )

    def ended(self, client: SimulatedClient) -> None:
        world, now = self.world, self.world.schedule.now
        # The last bytes wait for a slow database no longer than any answer.
        ill_s = max(world.database_slow_until_s, world.database_full_until_s)
        life, began_s = self._starts.get(client, (0, now))
        known = life == world.lives and not client.has_vanished and not world.receives(client)
        # A part that ends before its answer leaves bytes that no acknowledgement told of.
        known = known and len(client.segments) == 1
        known = known and not self._unknown(began_s, now)
        # What a mover or a kernel sends while no server runs is not known to the next one.
        known = known and world.gate is not None
        if client.state == "done" and known and now > ill_s + 1.0:
            self._used[self._first.get(client, 0)] = client.name, now

    def _is_unheard(self, since_s: float) -> bool:
        """Whether a gate may still wait for a report of what was sent then, which was lost."""
        lost = self.world.has_fault("lose reports")
        return lost and self.world.schedule.now < since_s + self._HEARD_S

    def stopped(self) -> None:
        self._forget_unheard()

    def _forget_unheard(self) -> None:
        """What a mover has sent just now is on no record yet."""
        since_s = self.world.schedule.now - self._HEARD_S
        if self.world.plan.mover:
            self._used = {n: one for n, one in self._used.items() if one[1] < since_s}

    def dies(self) -> None:
        self._forget_unheard()
        used = {n for n, (_, at_s) in self._used.items() if at_s > self.world.journal_lost_s}
        life = self.world.life
        again = used & _in_journal(life.service.store) if life is not None else set()
        if again:
            self.broken(f"tickets {sorted(again)} were used, and live in the journal at a kill")


class CalledIsKept(Oracle):
    """A client that was called starts if it comes at once."""

    document = "PROTOCOL.md"
    sentence = "`called`: its slot is kept for it, fetch the file now"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: When a client was called first; nothing once it has come. A second slot is kept for less.
        self._called_s: dict[SimulatedClient, float | None] = {}

    def called(self, client: SimulatedClient) -> None:
        self._called_s.setdefault(client, self.world.schedule.now)

    def heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        world, called_s = self.world, self._called_s.get(client)
        if called_s is None or world.schedule.now < called_s + 2 * world.plan.latency_s:
            # A request that left after the call has no answer yet.
            return
        self._called_s[client] = None
        # A node may not know yet of the leader that called.
        disturbed = world.caused_since(called_s) or world.still_until_s > called_s
        # An operator's draw may hide it again as the clock is set back.
        disturbed = disturbed or world.gate is None or world.hides(client)
        # A slot that is not used is kept for a quarter of that time. The call waits for a write.
        way_s = world.plan.write_s + 5 * world.plan.latency_s
        # A mover fills its kernel's buffers: the call waits in a queue on the line.
        way_s += 1.0 if world.plan.mover else 0.0
        disturbed = disturbed or way_s > 0.25 * world.plan.settings["admission.lease_idle_s"]
        # Its own first request is not over for the server yet.
        dropped_s = client.plan.comes_s + client.plan.misdeed_s
        disturbed = disturbed or (client.plan.misdeed == "drop" and dropped_s >= called_s)
        # What a cut has held back arrives a moment after it.
        if status == 503 and not disturbed and world.cut_until_s + 1.0 < called_s:
            self.broken(f"{client} was called at {called_s:.3f} s, came, and is to wait")


def _in_journal(store: Store) -> set[int]:
    """Tickets that a restart would take up."""
    with store._database.engine.connect() as connection:
        return {row.number for row in read_journal(connection).live}


def _on_record(gate: Gate) -> list[int]:
    """Live tickets of which the journal does not say already that they are used."""
    ending = [one for one in gate.downloads.values() if one.ending and one.deliveries]
    used = {gate.policy.ticket_of(one.lease) for one in ending}
    return [row.number for row in gate.leases.live_tickets() if row.number not in used]


def all_oracles(world: World) -> list[Oracle]:
    """One of each."""
    return [one(world) for one in ORACLES]


ORACLES: tuple[type[Oracle], ...] = (
    RightBytes,
    Framing,
    NoFaultIsLogged,
    SlotsAreKept,
    NumbersBelongToOne,
    TicketsKeepTheirNumbers,
    TicketsSurvive,
    TheJournalAgrees,
    NoTicketIsOfTheFuture,
    TicketsLast,
    LastBytesComeAgain,
    TheLostComeFirst,
    TheDatabaseIsTriedAgain,
    OperatorsAreAnswered,
    OperatorsChangesStay,
    ReadersAreNotCut,
    ReadersKeepTheirSlots,
    HeldClientsHear,
    PlacesNeverRise,
    TurnsAreLeft,
    MirrorsFollow,
    NobodyWaitsForEver,
    LineIsUsed,
    RunningDownloadsMove,
    SmallFilesComeAtOnce,
    NothingStays,
    TheLoopRests,
    WaitsAreFinite,
    ToldStartsAreKept,
    ToldEndsAreKept,
    StatusAgrees,
    RefusalsAreStated,
    UsedTicketsStayUsed,
    CalledIsKept,
)
