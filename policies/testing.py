"""The laws of admission as a test that any policy must pass (needs hypothesis).

    from tidegate.policies.testing import check_laws

    def test_laws() -> None:
        check_laws("mine")

It uses the policy at random, in some seconds. A failure (`LawBroken`) names the law and says what
the author of the policy should do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .admission import ADMISSION
from .contract import Admit, Estimate, Job, Reason, Refuse, TicketState, Wait
from .registry import make_policy
from .settings import SMALL_BELOW_BYTES as SMALL
from .settings import PolicySettings

#: Each law, and what the author of a policy does where it is broken.
LAWS: Mapping[str, str] = MappingProxyType(
    {
        "a download has one lease": "Do not change `admission.pool`.",
        "slots are kept": "`may_start` and `call` must not exceed `admission.large_room`.",
        "who is called may start": "`call` named a ticket that `may_start` or `stands_aside` "
        "refuses at the same moment: let them ask the same question.",
        "tickets are kept": "Do not change `admission.queue`, but for `set_key`.",
        "places follow the order": "`rank` must depend on its argument only.",
        "told times are finite": "`forecast` must give seconds of 0 or more, and `at_least_s` "
        "no more than `wait_s`.",
        "settling ends": "`wake_s` must lie ahead. `preempt` and `call` must answer "
        "nothing once nothing changes any more.",
        "pauses alternate": "`preempt` must pause only what runs and resume only what is paused.",
        "paused downloads go on": "Nothing runs and the line is idle: `preempt` must resume what "
        "is paused. Where the line becomes unknown, it must resume everything.",
    }
)
#: More wishes to be woken than a policy has in 30 s.
WAKES = 10_000
#: A paused download goes on within this time on an idle line, seconds.
LIVENESS_S = 30.0
CLIENTS = [f"c{number}" for number in range(8)]
#: Five of them are strangers of one network.
CROWD = ("192.0.2.1", "192.0.2.0/24")
NETWORKS = {client: CROWD if number < 5 else () for number, client in enumerate(CLIENTS)}
SIZES = {"tiny": 500, "page": SMALL - 1, "archive": SMALL, "image": 5_000_000, "disk": 900_000_000}
#: What the line carries: not looked for, known, unknown.
_LINE = st.sampled_from([None, 1e6, math.inf])
SETTINGS: dict[str, Any] = {
    "slots": 3,
    "reserve_small": 1,
    "slots_max": 5,
    "connections_per_lease": 2,
    "lease_idle_s": 5.0,
    "ticket_ttl_s": 20.0,
    "tickets_per_client": 3,
    "retry_max_s": 40.0,
    "bandwidth_bytes_s": 1_000_000.0,
}


class LawBroken(AssertionError):
    """A policy breaks a law; the text names it and says what to do."""


def _is_sound(told: Estimate) -> bool:
    """Whether a bound lies behind what is expected, and an end behind its start."""
    end = told.done or told
    later = told.expected_s <= end.expected_s and told.p90_s <= end.p90_s
    return later and told.expected_s <= told.p90_s and end.expected_s <= end.p90_s


def require(law: str, holds: object, found: object = "") -> None:
    """Raise LawBroken unless the law holds."""
    if not holds:
        raise LawBroken(f"broken: {law}{f' ({found})' if found else ''}. {LAWS[law]}")


class Laws(RuleBasedStateMachine):
    """A gate that does everything a gate may do, and keeps its own account."""

    start_with: ClassVar[str] = "ticket"
    #: Whether it gives way to other policies on the way.
    switches: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        #: Leases beyond the slots, as some of these were doubted when they started.
        self.beside = self.large_beside = 0
        self.settings = PolicySettings(**SETTINGS)
        self.policy = make_policy(self.start_with, self.settings, random.Random(5))
        self.policy.changes()
        self.leases: dict[int, Job] = {}
        self.connections: dict[int, int] = {}
        self.paused: dict[int, float] = {}
        self.queue: dict[int, tuple[str, str]] = {}
        self.ever: set[int] = set()
        #: Leases of tickets that had waited, those that took a byte, and tickets given back.
        self.ticket_of: dict[int, int] = {}
        self.touched: set[int] = set()
        #: What only takes what others leave.
        self.behind: set[int] = set()
        self.given_back: set[int] = set()

    @initialize(configured=st.booleans())
    def the_line(self, configured: bool) -> None:
        """An operator says what the line carries, or not."""
        if not configured:
            self.settings = PolicySettings(**{**SETTINGS, "bandwidth_bytes_s": None})
            self.policy = make_policy(self.start_with, self.settings, random.Random(5))
            self.policy.changes()

    def offer(self, job: Job, ticket: int | None = None) -> None:
        answer = self.policy.offer(job, self.now, ticket)
        if isinstance(answer, Admit):
            if answer.joined:
                require("a download has one lease", self.leases[answer.lease].client == job.client)
                self.connections[answer.lease] += 1
            else:
                require("a download has one lease", answer.lease not in self.leases)
                self.leases[answer.lease] = job
                self.connections[answer.lease] = 1
                if answer.ticket is not None:
                    self.know(answer.ticket, job)
                    if self.queue.pop(answer.ticket, None) is not None:
                        self.ticket_of[answer.lease] = answer.ticket
            most = self.settings.connections_per_lease
            require("a download has one lease", self.connections[answer.lease] <= most)
        elif isinstance(answer, Wait):
            require("told times are finite", 0 < answer.retry_after_s < math.inf)
            if answer.ticket is not None:
                self.know(answer.ticket, job)
                self.queue[answer.ticket] = (job.client, job.file)
                told = answer.estimate
                require("places follow the order", answer.place is not None)
                require("told times are finite", told and _is_sound(told), told)
        else:
            assert isinstance(answer, Refuse)
            if answer.reason is Reason.TOO_MANY_TICKETS:
                held = [owner for owner, _ in self.queue.values() if owner == job.client]
                require("tickets are kept", len(held) >= self.settings.tickets_per_client)

    def know(self, ticket: int, job: Job) -> None:
        if ticket not in self.ever:
            require("tickets are kept", ticket > max(self.ever, default=0), "numbers grow")
            self.ever.add(ticket)
        elif ticket in self.queue:
            require("tickets are kept", self.queue[ticket] == (job.client, job.file), ticket)

    @rule(
        client=st.sampled_from(CLIENTS),
        file=st.sampled_from(sorted(SIZES)),
        part=st.sampled_from([1.0, 0.5]),
        weight=st.sampled_from([1.0, 1.0, 4.0]),
        present=st.booleans(),
    )
    def ask(
        self, client: str, file: str, part: float, weight: float, present: bool, line: str = ""
    ) -> None:
        size = SIZES[file]
        wants = int(size * part)
        network = NETWORKS[client]
        self.offer(
            Job(client, file, size, wants, weight, present=present, network=network, line=line)
        )
        self.settle()

    @rule()
    def small_at_once(self) -> None:
        seen = self.policy.snapshot(self.now)
        free = len(self.leases) - seen.slotless - seen.doubted < seen.slots
        require("slots are kept", self.policy.admit_small(1, self.now) == free)

    @rule(passed=st.floats(0.0, 30.0))
    def wait(self, passed: float) -> None:
        until = self.now + passed
        for _ in range(WAKES):
            wake = self.settle()
            if wake is None or wake > until:
                break
            self.now = max(self.now, wake)
        else:
            raise LawBroken(f"broken: settling ends ({wake}). {LAWS['settling ends']}")
        self.now = until
        self.settle()

    @precondition(lambda self: self.leases)
    @rule(pick=st.integers(0, 99), done=st.booleans())
    def end(self, pick: int, done: bool) -> None:
        lease = sorted(self.leases)[pick % len(self.leases)]
        self.policy.release(lease, self.now, done)
        self.forget(lease)
        self.settle()

    @precondition(lambda self: any(self.connections.values()))
    @rule(pick=st.integers(0, 99), part=st.floats(0.0, 1.0))
    def lose_a_connection(self, pick: int, part: float) -> None:
        open_ones = sorted(lease for lease, count in self.connections.items() if count)
        lease = open_ones[pick % len(open_ones)]
        self.connections[lease] -= 1
        self.policy.detach(lease, self.now, self.take(lease, part))
        self.settle()

    @precondition(lambda self: self.leases)
    # A rate is 0, or whole bytes by seconds: sums of the inverse of the least float are infinite.
    @rule(
        pick=st.integers(0, 99),
        part=st.floats(0.0, 1.0),
        rate=st.just(0.0) | st.floats(1e-3, 1e7),
    )
    def progress(self, pick: int, part: float, rate: float) -> None:
        lease = sorted(self.leases)[pick % len(self.leases)]
        self.policy.progress(lease, self.now, self.take(lease, part), rate)

    def take(self, lease: int, part: float) -> int:
        wanted = self.leases[lease].remaining_bytes
        left = int(wanted * part)
        if left < wanted:
            self.touched.add(lease)
        return left

    @rule(goodput=st.floats(0.0, 2e6), busy=st.booleans(), line_bytes_s=_LINE)
    def observe(self, goodput: float, busy: bool, line_bytes_s: float | None = None) -> None:
        self.policy.observe(goodput, busy, self.now, line_bytes_s)

    @rule(line_bytes_s=st.sampled_from([math.inf, 1e6]))
    def the_line_is_idle(self, line_bytes_s: float) -> None:
        """Nothing leaves for a while; what the line carries is unknown, or known."""
        silent = {lease for lease in self.paused if self.connections[lease]}
        until_s = self.now + LIVENESS_S
        while silent and self.now < until_s:
            self.policy.observe(0.0, False, self.now, line_bytes_s)
            self.settle()
            silent &= self.paused.keys()
            if line_bytes_s < math.inf and self.runs():
                return
            self.now += 1.0
        require("paused downloads go on", not silent, f"leases {sorted(silent)}")

    @rule(line_bytes_s=st.sampled_from([math.inf, 1e6]))
    def the_line_fills_and_empties(self, line_bytes_s: float) -> None:
        """All clients ask for a long download, all that run fill the line, and then nothing leaves.

        A policy that pauses does so here.
        """
        size = SIZES["disk"]
        for client in CLIENTS:
            network = NETWORKS[client]
            self.offer(Job(client, "disk", size, size, network=network, present=True))
        for _ in range(8):
            self.settle()
            running = [lease for lease in self.leases if lease not in self.paused]
            for lease in running:
                left = self.take(lease, 1.0)
                self.policy.progress(lease, self.now, left, 1e6)
            self.policy.observe(1e6, True, self.now, 1e6)
            self.now += 0.5
        self.settle()
        self.the_line_is_idle(line_bytes_s)

    def runs(self) -> bool:
        """Whether a download with a connection is not paused."""
        return any(count and lease not in self.paused for lease, count in self.connections.items())

    @precondition(lambda self: self.queue)
    @rule(
        pick=st.integers(0, 99), how=st.sampled_from(["withdraw", "present", "absent", "promote"])
    )
    def steer(self, pick: int, how: str) -> None:
        ticket = sorted(self.queue)[pick % len(self.queue)]
        if how == "withdraw":
            self.policy.withdraw(ticket, self.now)
            del self.queue[ticket]
        elif how == "present":
            self.policy.present(ticket, self.now)
        elif how == "absent":
            self.policy.absent(ticket, self.now)
        else:
            require("tickets are kept", self.policy.promote(ticket, self.now), "promoted")
            first = next(iter(self.policy.tickets()))
            require("places follow the order", first.state is TicketState.READY, "promoted")
        self.settle()

    def forget(self, lease: int) -> None:
        del self.leases[lease], self.connections[lease]
        self.paused.pop(lease, None)
        self.ticket_of.pop(lease, None)
        self.touched.discard(lease)
        self.behind.discard(lease)

    def idled_out(self, lease: int) -> None:
        """A ticket comes back once, and only if its owner had waited and has not one byte."""
        ticket, job = self.ticket_of.get(lease), self.leases[lease]
        if ticket is not None and lease not in self.touched and ticket not in self.given_back:
            self.given_back.add(ticket)
            self.queue[ticket] = (job.client, job.file)
        self.forget(lease)

    def settle(self) -> float | None:
        for _ in range(50):
            advance = self.policy.advance(self.now)
            self.note_beside()
            for lease in advance.behind:
                alternates = lease in self.leases and lease not in self.behind
                require("pauses alternate", alternates, lease)
                self.behind.add(lease)
            for lease in advance.ahead:
                require("pauses alternate", lease in self.behind, lease)
                self.behind.remove(lease)
            for lease in advance.pause:
                alternates = lease in self.leases and lease not in self.paused
                require("pauses alternate", alternates, lease)
                self.paused[lease] = self.now
            for lease in advance.resume:
                require("pauses alternate", lease in self.paused, lease)
                del self.paused[lease]
            for lease in advance.idled_out:
                require("a download has one lease", self.connections[lease] == 0, "idled out")
                self.idled_out(lease)
            for ticket in advance.expired:
                require("tickets are kept", ticket in self.queue, "expired")
                del self.queue[ticket]
            if not advance.call:
                return advance.wake_at
            for ticket in advance.call:
                owner, file = self.queue[ticket]
                left = self.policy.ticket(ticket)
                assert left is not None
                network = NETWORKS[owner]
                table = self.policy.queue.table
                line = table.line[table.rows[ticket]]
                size, wants = SIZES[file], left.remaining_bytes
                job = Job(owner, file, size, wants, present=True, network=network, line=line)
                answer = self.policy.offer(job, self.now, ticket)
                if isinstance(answer, Wait):
                    # One of its network, called just before, has what slots the network wasted.
                    row = self.policy.row(ticket)
                    wastes = row is not None and not self.policy.crowds.weighs(row, self.now)
                    require("who is called may start", wastes, left)
                    continue
                require("who is called may start", isinstance(answer, Admit), left)
                assert isinstance(answer, Admit)
                self.leases[answer.lease], self.connections[answer.lease] = job, 1
                self.ticket_of[answer.lease] = ticket
                del self.queue[ticket]
        raise LawBroken(f"broken: settling ends. {LAWS['settling ends']}")

    @invariant()
    def slots_are_kept(self) -> None:
        seen = self.policy.snapshot(self.now)
        views = self.policy.leases()
        connections = {view.lease: view.connections for view in views}
        require("a download has one lease", connections == self.connections)
        large = sum(view.large for view in views)
        counted = (seen.large_active, seen.small_active) == (large, len(views) - large)
        require("slots are kept", counted)
        require("pauses alternate", seen.paused == len(self.paused))
        limit = max(self.settings.slots, self.settings.slots_max)
        require("slots are kept", seen.slots <= limit, seen.slots)
        most, most_large = self.note_beside()
        if not self.switches:
            require("slots are kept", len(views) <= most + self.beside, len(views))
            require("slots are kept", large <= most_large + self.large_beside, large)

    def note_beside(self) -> tuple[int, int]:
        """Downloads beside the slots, as some were doubted when these started; the slots.

        They outlive the doubt, also where slots for small ones are still free.
        """
        pool, hooks = self.policy.pool, self.policy.policy
        doubted, slotless = pool.doubted, len(pool.slotless)
        most, most_large = hooks.slots() + slotless, hooks.large_slots() + slotless
        self.beside = max(doubted, min(self.beside, len(pool) - most))
        self.large_beside = max(doubted, min(self.large_beside, pool.large_active - most_large))
        return most, most_large

    @invariant()
    def tickets_are_kept_in_order(self) -> None:
        rows = list(self.policy.tickets())
        kept = {row.number: (row.client, row.file) for row in rows} == self.queue
        require("tickets are kept", kept and self.policy.anybody_waits() == bool(rows))
        running = [(job.client, job.file) for job in self.leases.values()]
        one_each = len({*self.queue.values(), *running}) == len(self.queue) + len(running)
        require("a download has one lease", one_each, "or a ticket")
        queue = self.policy.queue
        back = [queue.stands_back(queue.table.rows[row.number]) for row in rows]
        require("places follow the order", back == sorted(back), "who stands aside is behind")
        for part in (back.index(True) if True in back else len(back), len(back)):
            states = [row.state for row in rows[:part]]
            ordered = sorted(states, key=[TicketState.READY, TicketState.WAITING].index)
            require("places follow the order", states == ordered, states)
            rows = rows[part:]
        rows = list(self.policy.tickets())
        for place, row in enumerate(rows, start=1):
            told = queue.place(queue.table.rows[row.number])
            require("places follow the order", told == place, f"{told} for {place}")
            estimate = self.policy.estimate(row.number, self.now)
            assert estimate is not None
            bound_s = min(estimate.p90_s, ADMISSION.longest * self.settings.retry_max_s)
            finite = estimate.expected_s > 0 and estimate.p90_s <= bound_s and _is_sound(estimate)
            require("told times are finite", finite, estimate)
        keys = [queue.table.key[queue.table.rows[number]] for number in queue.line]
        require("places follow the order", keys == sorted(keys))


def check_laws(name: str, *, examples: int = 30, laws: type[Laws] = Laws) -> None:
    """Use the policy called `name` at random; raises LawBroken where it breaks one of `laws`."""

    class Case(laws):  # type: ignore[misc, valid-type]
        start_with = name

    case = Case.TestCase
    # Finding the shortest way to a broken law takes minutes; the law says enough.
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        # One law is told, also where another is broken elsewhere.
        report_multiple_bugs=False,
        # A busy machine breaks no law.
        suppress_health_check=(HealthCheck.too_slow,),
    )
    case().runTest()
