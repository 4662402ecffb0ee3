"""The laws of the kernel, which no policy can break: `policies.testing` and what else happens.

Crashes, switches of policy, starts that are lost on the way, tickets of others, a fleet's lines.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tidegate.policies.contract import Job, LineSeen
from tidegate.policies.registry import POLICIES, make_policy
from tidegate.policies.testing import CLIENTS, NETWORKS, SIZES, Laws, require

#: Machines that may have a line of their own.
LINES = ("a", "b")
_RATES = st.floats(0.0, 2e6)
_SEEN = st.dictionaries(st.sampled_from(LINES), st.builds(LineSeen, _RATES, _RATES, st.booleans()))


class KernelLaws(Laws):
    """A gate whose process dies, and (`switches`) whose operator changes the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: dict[int, Any] = {}

    @rule(
        client=st.sampled_from(CLIENTS),
        file=st.sampled_from(sorted(SIZES)),
        present=st.booleans(),
        line=st.sampled_from(LINES),
    )
    def ask_at_a_line(self, client: str, file: str, present: bool, line: str) -> None:
        self.ask(client, file, 1.0, 1.0, present, line)

    @rule(client=st.sampled_from(CLIENTS), ticket=st.integers(1, 30))
    def ask_with_any_ticket(self, client: str, ticket: int) -> None:
        self.offer(Job(client, "image", 5_000_000, 5_000_000), ticket)
        self.settle()

    @rule(pick=st.integers(0, 99), times=st.integers(1, 3))
    def lose_a_start(self, pick: int, times: int) -> None:
        """All clients ask, and one of those who must wait loses its start, or several in a row."""
        size = SIZES["disk"]
        for client in CLIENTS:
            self.offer(Job(client, "disk", size, size, network=NETWORKS[client]))
        self.settle()
        if not self.queue:
            return
        ticket = sorted(self.queue)[pick % len(self.queue)]
        owner, file = self.queue[ticket]
        for lease in sorted(self.leases):
            self.policy.release(lease, self.now, False)
            self.forget(lease)
        self.settle()
        for _ in range(times):
            self.offer(Job(owner, file, SIZES[file], SIZES[file], network=NETWORKS[owner]))
            for lease in [lease for lease, of in self.ticket_of.items() if of == ticket]:
                while self.connections[lease]:
                    self.connections[lease] -= 1
                    self.policy.detach(lease, self.now, self.leases[lease].remaining_bytes)
            self.wait(self.settings.lease_idle_s)

    @rule(seen=_SEEN)
    def observe_lines(self, seen: dict[str, LineSeen]) -> None:
        """A fleet tells of the lines that it has just now."""
        carried = sum(line.line_bytes_s for line in seen.values()) or None
        goodput = sum(line.goodput_bytes_s for line in seen.values())
        busy = any(line.busy for line in seen.values())
        self.policy.observe(goodput, busy, self.now, carried, seen)

    @precondition(lambda self: self.switches)
    @rule(name=st.sampled_from(sorted(POLICIES)))
    def switch(self, name: str) -> None:
        self.policy = make_policy(name, self.settings, random.Random(7), previous=self.policy)
        self.settle()

    @rule()
    def crash(self) -> None:
        self.note_journal()
        highest = max(self.ever, default=0) + 10
        name = self.policy.name
        before = [row.number for row in self.policy.tickets()]
        started = {lease.ticket for lease in self.policy.leases()} - {None}
        self.policy = make_policy(name, self.settings, random.Random(9))
        live = [row for row in self.journal.values() if not row.state.is_over]
        self.policy.restore(self.journal.values(), self.now, highest)
        self.ever.add(highest - 1)
        kept = {row.number for row in live} == set(before) | started
        require("tickets are kept", kept, "in the journal")
        # A place is one for each (client, file): a started one gives way to none here.
        self.queue = {row.number: (row.client, row.file) for row in self.policy.tickets()}
        # Some were given to downloads that had begun without one.
        self.ever.update(self.queue)
        require("tickets are kept", {*before, *started} <= set(self.queue), "over a crash")
        self.leases, self.connections, self.paused, self.ticket_of = {}, {}, {}, {}
        self.touched, self.given_back, self.behind = set(), set(), set()
        self.policy.changes()
        self.settle()

    def note_journal(self) -> None:
        for row in self.policy.changes():
            self.journal[row.number] = row

    @invariant()
    def who_waits_here_waits_at_one_line(self) -> None:
        queue = self.policy.queue
        here = {line: list(entries) for line, entries in queue.here_on.items()}
        assert all(entries == sorted(entries) for entries in here.values())
        assert sorted(entry for entries in here.values() for entry in entries) == queue.here
        for line, entries in here.items():
            rows = [queue.table.rows[number] for _, number in entries]
            assert {queue.table.line[row] for row in rows} == {line}
        away = [row for row in queue.table.rows.values() if not queue.table.present[row]]
        assert not any(queue.table.line[row] for row in away), "an absent one comes back to any"

    @invariant()
    def the_laws_keep_their_books(self) -> None:
        for law in (self.policy.crowds, self.policy.slot_use):
            assert list(law.faults()) == []
