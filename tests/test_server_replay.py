"""A ticket that is over is never honoured again, by anybody, also after a restart."""

from __future__ import annotations

import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.fakes import BIG, Asked, House
from tidegate.policies.contract import TicketState
from tidegate.server.admission.actions import QueueActions

PEOPLE = [f"192.0.2.{number}" for number in range(1, 5)]
FILES = ["/big.iso", "/other.iso"]
LIVE = (TicketState.WAITING, TicketState.READY, TicketState.STARTED)


def code(asked: Asked) -> str:
    """The kind of the refusal; empty when it was none."""
    if asked.connection.status != 403:
        return ""
    return str(json.loads(asked.connection.body)["type"]).rpartition("/")[2]


class Replay(RuleBasedStateMachine):
    """Downloads begin, break off before and after the first byte, end, or run out."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House(lease_idle_s=4.0, ticket_ttl_s=20.0)
        #: Every token that anybody was given: whose it is, and for which file.
        self.tokens: dict[str, tuple[str, str]] = {}
        self.running: list[Asked] = []
        self.over: set[int] = set()

    def note(self, asked: Asked, who: str, file: str) -> None:
        fields = {**asked.connection.fields, **asked.start_fields}
        if "tidegate-ticket" in fields:
            self.tokens[fields["tidegate-ticket"]] = who, file
        if asked.started:
            self.running.append(asked)

    def number(self, token: str) -> int:
        who, file = self.tokens[token]
        now = self.house.clock.seconds()
        return self.house.keys.read_ticket(token, who, file, now).number

    @rule(who=st.sampled_from(PEOPLE), file=st.sampled_from(FILES))
    def ask(self, who: str, file: str) -> None:
        self.note(self.house.ask(who, file=file), who, file)

    @rule(data=st.data(), taken=st.sampled_from([0, 1, BIG]))
    def end_a_body(self, data: st.DataObject, taken: int) -> None:
        if self.running:
            asked = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            for transfer in asked.transfers:
                if taken == BIG:
                    transfer.finish()
                else:
                    transfer.send(taken)
                    transfer.end(False)
            self.house.wait(0.25)

    @rule(seconds=st.sampled_from([0.5, 5.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.house.wait(seconds, 0.5)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        rows = list(self.house.gate.policy.tickets())
        if rows:
            QueueActions(self.house.gate).withdraw(data.draw(st.sampled_from(rows)).number)
            self.house.wait(0.25)

    def restart(self) -> None:
        old = self.house
        rows = [row for row in old.journal.rows.values() if row.state in LIVE]
        over = {row.number for row in old.journal.rows.values() if row.state not in LIVE}
        self.house = House(
            clock=old.clock,
            restored=rows,
            over=over,
            next_number=1 + max(old.journal.rows, default=0),
            lease_idle_s=4.0,
            ticket_ttl_s=20.0,
        )
        old.gate.close()
        self.house.journal.rows = {**old.journal.rows, **self.house.journal.rows}
        self.running.clear()

    @rule(data=st.data(), restarted=st.booleans())
    def replay(self, data: st.DataObject, restarted: bool) -> None:
        if not self.tokens:
            return
        if restarted:
            self.restart()
        token = data.draw(st.sampled_from(sorted(self.tokens)))
        who, file = self.tokens[token]
        over = self.number(token) in self.over
        policy = self.house.gate.policy
        row = [one for one in policy.tickets() if one.file == file and who in one.client]
        lease = [one for one in policy.leases() if one.file == file and who in one.client]
        asked = self.house.ask(who, file=file, token=token)
        if over and not row and not lease:
            assert code(asked) in ("ticket-used", "ticket-expired"), asked.connection.body
        self.note(asked, who, file)

    @rule(data=st.data(), who=st.sampled_from(PEOPLE), file=st.sampled_from(FILES))
    def show_anothers(self, data: st.DataObject, who: str, file: str) -> None:
        if not self.tokens:
            return
        token = data.draw(st.sampled_from(sorted(self.tokens)))
        if self.tokens[token] != (who, file):
            before = [row.number for row in self.house.gate.policy.tickets()]
            asked = self.house.ask(who, file=file, token=token)
            assert code(asked), "another address or file"
            assert not asked.started
            assert [row.number for row in self.house.gate.policy.tickets()] == before

    @invariant()
    def what_is_over_stays_over(self) -> None:
        rows = self.house.journal.rows.values()
        policy = self.house.gate.policy
        alive = {view.ticket for view in policy.leases()} | {row.number for row in policy.tickets()}
        assert not alive & self.over
        self.over |= {row.number for row in rows if row.state not in LIVE}
        assert all(row.state not in LIVE for row in rows if row.number in self.over)


TestReplay = Replay.TestCase
TestReplay.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
