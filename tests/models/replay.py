"""Plays the actions of `tests.models.tickets` on the real gate, driver, policy, store and journal.

Each reign is a `House` of its own over one database; its store writes only when the model says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import insert, select
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock

from tests.fakes import BIG, START_S, Asked, FakeTransfer, House
from tests.models.tickets import Life, Queue, in_order
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import TicketRow, TicketState
from tidegate.server.admission.client_programs import ToolRule
from tidegate.server.app.bootstrap import open_memory
from tidegate.server.app.settings import ServerConfig
from tidegate.server.store.cluster import LEASE, campaign
from tidegate.server.store.database import Database
from tidegate.server.store.models import METADATA, TICKETS
from tidegate.server.store.store import TIMES, Store

FILE = "/big.iso"
#: A program that waits inside its request, for as long as it is let.
_HELD = ToolRule(agent="curl", manner="hold", silent_s=3_600.0, drip_s=60.0, drip_lines=1)
#: Over at once: the next machine takes it without a wait.
_LEASE_S = 0.0


class Journal:
    """The real store, which writes a batch when it is told to."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.is_fenced = False
        #: Whether its process is over: what it wrote may arrive, and it hears of nothing.
        self.is_dead = False
        self._clock = Clock()
        self._store = Store(
            database,
            self._clock,
            # They stand for threads.
            maybeDeferred,
            maybeDeferred,
            self._clock.seconds,
            self._fenced,
        )

    def _fenced(self, why: str) -> None:
        self.is_fenced = self.is_dead = True

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        """See `gateparts.TicketJournal`."""
        self._store.keep_tickets(rows)

    def after_commit(self, callback: Callable[[], None]) -> None:
        """See `gateparts.TicketJournal`."""

        def heard() -> None:
            if not self.is_dead:
                callback()

        self._store.after_commit(heard)

    @property
    def lags(self) -> bool:
        """Whether anything is to be written."""
        return self._store.state.pending > 0

    def commit(self) -> None:
        """Write one batch, if there is any."""
        self._clock.advance(TIMES.batch_s)


class Reign:
    """One leader: it reads the journal, promises numbers and decides."""

    def __init__(
        self,
        database: Database,
        config: ServerConfig,
        now_s: float,
        asked: list[tuple[int, Asked]],
    ) -> None:
        self.journal = Journal(database)
        found = open_memory(config, now_s, database).journal
        clock = Clock()
        clock.advance(now_s)
        self.house = House(
            config.policy,
            tools=[_HELD],
            clock=clock,
            journal=self.journal,  # type: ignore[arg-type]
            restored=found.live,
            next_number=found.next_number,
            over=found.over,
            slots=1,
            slots_max=1,
            lease_idle_s=4.0,
            ticket_ttl_s=3_600.0,
            early_polls_free=1_000,
            # Nobody stands back for the crowd of its network.
            network_shares=0,
        )
        #: Its requests with their clients, and those of all reigns.
        self.asked: list[tuple[int, Asked]] = []
        self._all = asked

    def ask(self, client: int, token: str | None, *, here: bool) -> Asked:
        """A client asks for the file, and waits inside its request or comes back."""
        accept = "*/*" if here else "application/json"
        asked = self.house.ask(f"192.0.2.{client + 1}", agent="curl/8", token=token, accept=accept)
        self.asked.append((client, asked))
        self._all.append((client, asked))
        self.settle()
        return asked

    def settle(self) -> None:
        """Let what follows from a decision happen, but no time pass."""
        self.house.gate.leases._pass_time()
        self.house.clock.advance(0.0)

    def body(self, client: int) -> FakeTransfer | None:
        """The body that this client is sent."""
        bodies = [one for who, asked in self.asked if who == client for one in asked.transfers]
        return next((one for one in bodies if not one.over), None)


class Replay:
    """The real thing: `do` an action of the model, and `looks_like` says whether it agrees."""

    def __init__(self, machines: Mapping[str, Database], config: ServerConfig) -> None:
        """`machines` have a connection each with the one database, which is emptied."""
        self._machines = machines
        self._config = config
        self._leads = itertools.cycle(machines)
        #: The ticket of each client.
        self.numbers: list[int] = []
        #: All requests of all reigns.
        self.asked: list[tuple[int, Asked]] = []
        self.stale: Reign | None = None
        with next(iter(machines.values())).engine.begin() as connection:
            for table in reversed(METADATA.sorted_tables):
                connection.execute(table.delete())
            row = {"id": 1, "epoch": 0, "holder": "", "place": "", "expires_s": 0.0}
            connection.execute(insert(LEASE).values(row))
        self.now_s = START_S
        self.reign = self._lead()

    def _lead(self) -> Reign:
        # Of two that decide at once the stale one is the last that led.
        name = next(self._leads)
        database = self._machines[name]
        with database.begin() as session:
            seat = campaign(session, name, f"{name}:1", _LEASE_S, self.now_s)
        assert seat.holder == name
        database.lead(seat.epoch)
        return Reign(database, self._config, self.now_s, self.asked)

    # -- actions -------------------------------------------------------------------------------

    def do(self, action: str, client: int, *, here: bool) -> None:
        """Do it; `here` is of one that is issued."""
        name = action.replace(", ", "_").replace(" ", "_")
        doing = getattr(self, f"do_{name}")
        if action == "issue":
            doing(client, here)
        elif client >= 0:
            doing(client)
        else:
            doing()

    def do_issue(self, client: int, here: bool) -> None:
        queue = self._policy().queue
        number = queue.next_number
        self.reign.ask(client, None, here=here)
        assert queue.next_number == number + 1, "one ticket is issued"
        assert number not in self.numbers, "a number has two owners"
        self.numbers.append(number)

    def do_return(self, client: int) -> None:
        self.reign.ask(client, self.token(client), here=False)

    def do_wait_here(self, client: int) -> None:
        self.reign.ask(client, self.token(client), here=True)

    def do_restore(self, client: int) -> None:
        self.reign.ask(client, self.token(client), here=False)

    def do_replay(self, client: int) -> None:
        token = self.token(client)
        if token is not None:
            asked = self.reign.ask(client, token, here=False)
            assert asked.connection.status == 403

    def do_leave(self, client: int) -> None:
        for who, asked in self.reign.asked:
            if who == client and not asked.started and not asked.connection.status:
                asked.leave()
        self.reign.settle()

    def do_end(self, client: int) -> None:
        leases = self.reign.house.gate.leases
        leases.policy.withdraw(self.numbers[client], leases.now())
        self.reign.settle()

    def do_lose_start(self, client: int) -> None:
        self._body(client).end(False)
        self.reign.settle()

    def do_break_off(self, client: int) -> None:
        body = self._body(client)
        body.send(max(0, BIG // 2 - body.sent_bytes))
        body.end(False)
        self.reign.settle()

    def do_last_bytes(self, client: int) -> None:
        body = self._body(client)
        body.send(BIG - 1 - body.sent_bytes)
        body.end(True)
        self.reign.settle()

    def do_idle_out(self, client: int) -> None:
        house = self.reign.house
        lease = next(
            one.lease for one in house.gate.policy.leases() if one.ticket == self.numbers[client]
        )
        for _ in range(40):
            house.clock.advance(0.25)
            if all(one.lease != lease for one in house.gate.policy.leases()):
                self.now_s = house.clock.seconds()
                return
        raise AssertionError("a lease that nobody uses ends")

    def do_commit(self) -> None:
        self.reign.journal.commit()
        self.reign.settle()

    def do_lead(self) -> None:
        self.reign.journal.is_dead = True
        self.stale = None
        self.reign = self._lead()

    def do_lead_landed(self) -> None:
        self.reign.journal.is_dead = True
        self.reign.journal.commit()
        self.do_lead()

    def do_lead_stale(self) -> None:
        old, self.reign = self.reign, self._lead()
        self.stale = old

    def do_stale_start(self, client: int) -> None:
        """Where it will not, the model's leader does more than ours."""
        assert self.stale is not None
        row = self.stale.house.gate.policy.ticket(self.numbers[client])
        if row is not None and row.state in (TicketState.WAITING, TicketState.READY):
            self.stale.ask(client, self.token(client), here=False)

    def do_stale_commit(self) -> None:
        """Its bodies come to their last bytes, and nothing of it reaches the journal."""
        old = self.stale
        assert old is not None
        for client in range(len(self.numbers)):
            body = old.body(client)
            if body is not None:
                body.send(BIG - 1 - body.sent_bytes)
                body.end(True)
        old.settle()
        lagged = old.journal.lags
        old.journal.commit()
        assert old.journal.is_fenced == lagged
        self.stale = None

    # -- what is seen --------------------------------------------------------------------------

    def _body(self, client: int) -> FakeTransfer:
        body = self.reign.body(client)
        assert body is not None
        return body

    def token(self, client: int) -> str | None:
        """What the client was told last to prove its ticket."""
        heard = [
            asked.start_fields.get("tidegate-ticket")
            or asked.connection.fields.get("tidegate-ticket")
            for who, asked in self.asked
            if who == client
        ]
        return next((token for token in reversed(heard) if token), None)

    def _uses(self, client: int) -> int:
        bodies = [one for who, asked in self.asked if who == client for one in asked.transfers]
        return sum(one.over and one.sent_bytes == one.total_bytes for one in bodies)

    def looks_like(self, state: Queue) -> bool:
        """Whether the real thing is as this state says; a stale leader may do less than there."""
        stale = self.stale
        if stale is not None:
            for client, ticket in enumerate(state.tickets):
                if stale.body(client) is not None and not ticket.stale:
                    return False
        return self.seen() == expected(state)

    def seen(self) -> tuple[Any, ...]:
        """Each ticket in memory, in the journal, whether it is here, its uses; and their order."""
        gate = self.reign.house.gate
        with self.reign.journal.database.engine.connect() as connection:
            rows = connection.execute(
                select(TICKETS.c.number, TICKETS.c.state, TICKETS.c.remaining_bytes)
            ).all()
        journal = {number: _row_of(TicketState(state), left) for number, state, left in rows}
        tickets = tuple(
            (
                self._memory(number),
                journal.get(number, Life.UNKNOWN),
                self._is_here(number),
                self._uses(client),
            )
            for client, number in enumerate(self.numbers)
        )
        order = [self.numbers.index(row.number) for row in gate.policy.tickets()]
        return tickets, order

    def _is_here(self, number: int) -> bool | None:
        """Whether a request waits with it; None where gate and policy do not agree on that."""
        gate, policy = self.reign.house.gate, self._policy()
        row = policy.row(number)
        present = row is not None and bool(policy.queue.table.present[row])
        return present if present == bool(gate.parked.with_ticket(number)) else None

    def _policy(self) -> AdmissionPolicy:
        policy = self.reign.house.gate.policy
        assert isinstance(policy, AdmissionPolicy)
        return policy

    def _memory(self, number: int) -> Life:
        gate = self.reign.house.gate
        row = gate.policy.ticket(number)
        if row is None:
            return Life.OVER if gate.parts.numbers.is_over(number) else Life.UNKNOWN
        if row.state in (TicketState.WAITING, TicketState.READY):
            return Life.QUEUED
        if row.state is not TicketState.STARTED:
            return Life.OVER
        lease = next(one for one in gate.policy.leases() if one.ticket == number)
        if not lease.connections:
            # Whether its client has a byte shows in what idling out brings.
            return Life.LOST
        return Life.ENDING if gate.downloads[lease.lease].ending else Life.STARTED


def expected(state: Queue) -> tuple[Any, ...]:
    """What is to be seen of a state."""
    tickets = tuple(
        (
            Life.LOST if one.memory is Life.BROKEN else one.memory,
            one.journal,
            one.here,
            one.uses,
        )
        for one in state.tickets
    )
    return tickets, in_order(state)


def _row_of(state: TicketState, left: int) -> Life:
    if state in (TicketState.WAITING, TicketState.READY):
        return Life.QUEUED
    return Life.STARTED if state is TicketState.STARTED and left else Life.OVER
