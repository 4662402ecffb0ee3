"""What the strangers of one network may have of slots and turns."""

from __future__ import annotations

import itertools
import random

import pytest

from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import ELSEWHERE, Admit, Job, TicketRow, TicketState, Wait
from tidegate.policies.laws import crowds as policy_crowds
from tidegate.policies.laws.crowds import CROWDS, CrowdTuning
from tidegate.policies.leases import Lease
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings
from tidegate.policies.state import AdmissionState

SIZE = 10_000_000
CROWD = ("192.0.2.7", "192.0.2.0/24")


def job(number: int, *, crowd: bool, known: bool = False, present: bool = True) -> Job:
    network = CROWD if crowd else (f"10.0.{number}.1", f"10.0.{number}.0/24")
    name = f"{'a' if crowd else 'h'}{number}"
    return Job(name, "/f", SIZE, SIZE, present=present, network=network, known=known)


def server(name: str = "ticket", **settings: int) -> AdmissionPolicy:
    given = {"slots": 8, "reserve_small": 0, "network_shares": 16, **settings}
    policy = make_policy(name, PolicySettings.model_validate(given), random.Random(1))
    return policy


def is_of_crowd(policy: AdmissionPolicy, ticket: int) -> bool:
    """Whether this waiting ticket counts with the crowd."""
    table = policy.queue.table
    row = table.rows[ticket]
    return table.network[row] == CROWD[1]


class Counted:
    """Crowds beside a queue, with tickets and leases that are counted."""

    def __init__(self, slots: int) -> None:
        self.state = AdmissionState()
        self.crowds, self.queue = self.state.crowds, self.state.queue
        self.crowds.configure(lambda: slots, 16)
        self.asked = 0

    def _job(self, network: str) -> Job:
        self.asked += 1
        return Job(f"c{self.asked}", "/f", SIZE, SIZE, network=(network,))

    def ticket(self, network: str, *, back: bool = False) -> int:
        row = self.queue.issue(self._job(network), SIZE, 0.0)
        if back:
            self.queue.stand_back(row)
        return row

    def lease(self, network: str) -> Lease:
        lease = self.state.pool.open(self._job(network), 0.0, None, True)
        lease.network = network
        self.crowds.count(lease, 1)
        return lease

    def loses(self, lease: Lease, *, slotless: bool = True) -> None:
        self.crowds.count(lease, -1)
        lease.slotless = slotless
        self.crowds.count(lease, 1)


def fill(policy: AdmissionPolicy, count: int, now: float, first: int = 0, **of: bool) -> None:
    for number in range(first, first + count):
        policy.offer(job(number, **of), now)


def run(policy: AdmissionPolicy, steps: int, now: float = 1.0) -> list[str]:
    """End the oldest lease and let those who are called start, so many times; who started."""
    jobs = {}
    for row in policy.tickets():
        crowd = row.client[0] == "a"
        jobs[row.number] = job(int(row.client[1:]), crowd=crowd)
    started = []
    for _ in range(steps):
        policy.release(min(lease.lease for lease in policy.leases()), now, True)
        for number in policy.advance(now).call:
            assert isinstance(policy.offer(jobs[number], now, number), Admit)
            started.append(jobs[number].client)
        now += 1.0
    return started


def test_a_crowd_has_half_of_the_slots_while_others_wait() -> None:
    policy = server()
    fill(policy, 40, 0.0, crowd=True)
    fill(policy, 40, 0.5, crowd=False)
    run(policy, 8)
    for _ in range(20):
        run(policy, 1)
        held = sum(lease.client[0] == "a" for lease in policy.leases())
        assert held == 4


def test_the_slots_are_all_its_own_when_nobody_else_waits() -> None:
    policy = server()
    fill(policy, 40, 0.0, crowd=True)
    assert run(policy, 30) == [f"a{number}" for number in range(8, 38)]


def test_order_is_strict_within_a_crowd_and_among_the_others() -> None:
    policy = server()
    for number in range(60):
        policy.offer(job(number, crowd=bool(number % 3)), 0.1 * number)
    started = run(policy, 50, 10.0)
    for kind in "ah":
        own = [client for client in started if client[0] == kind]
        assert own == sorted(own, key=lambda client: int(client[1:]))


@pytest.mark.parametrize("seed", range(12))
def test_nobody_of_a_crowd_is_told_a_place_before_one_of_it_who_came_first(seed: int) -> None:
    drawn = random.Random(seed)
    policy = server(slots=drawn.choice([2, 4, 8]), lease_idle_s=2)
    jobs: dict[int, Job] = {}
    now = 0.0
    kinds = ["crowd", "crowd", "other", "end", "lost", "called", "polls"]
    for number in range(200):
        what, leases = drawn.choice(kinds), list(policy.leases())
        if what in ("crowd", "other"):
            # Those here may be called past those who are away and not due.
            asked = job(number, crowd=what == "crowd", present=what == "other")
            decision = policy.offer(asked, now)
            if isinstance(decision, Wait) and decision.ticket is not None:
                jobs[decision.ticket] = asked
        elif what == "end" and leases:
            policy.release(drawn.choice(leases).lease, now, True)
        elif what == "lost" and leases:
            policy.detach(drawn.choice(leases).lease, now, SIZE)
        elif what == "called":
            now += drawn.uniform(0.0, 4.0)
            for ticket in policy.advance(now).call:
                if ticket in jobs and isinstance(policy.offer(jobs[ticket], now, ticket), Admit):
                    del jobs[ticket]
        elif what == "polls":
            # From the last to the first, so that a start meanwhile only helps the law.
            last = None
            for ticket in sorted(jobs, reverse=True):
                decision = policy.offer(jobs[ticket], now, ticket)
                if isinstance(decision, Admit):
                    del jobs[ticket]
                elif isinstance(decision, Wait) and is_of_crowd(policy, ticket):
                    assert decision.place is not None
                    assert last is None or decision.place <= last[0], (last, ticket, decision)
                    last = decision.place, ticket


def test_a_network_within_its_part_changes_nothing_in_the_order() -> None:
    policy = server()
    for number in range(60):
        policy.offer(job(number, crowd=number % 4 == 0), 0.1 * number)
    started = run(policy, 50, 10.0)
    assert [int(client[1:]) for client in started] == list(range(8, 58))


def test_who_is_known_does_not_stand_back() -> None:
    policy = server()
    fill(policy, 20, 0.0, crowd=True)
    back = policy.offer(job(30, crowd=True), 0.0)
    fill(policy, 5, 0.0, crowd=False)
    first = policy.offer(job(31, crowd=True, known=True), 0.0)
    assert isinstance(back, Wait)
    assert isinstance(first, Wait)
    assert back.ticket is not None
    assert first.place is not None
    assert first.place < (policy.place(back.ticket) or 0)
    # One that has earned its share since comes to the place of its number.
    forward = policy.offer(job(30, crowd=True, known=True), 1.0)
    assert isinstance(forward, Wait)
    assert forward.place is not None
    assert forward.place < first.place


def test_without_shares_the_order_is_that_of_numbers() -> None:
    policy = server(network_shares=0)
    fill(policy, 40, 0.0, crowd=True)
    fill(policy, 40, 0.5, crowd=False)
    assert run(policy, 20) == [f"a{number}" for number in range(8, 28)]


def test_a_switch_of_policy_lets_everybody_come_forward() -> None:
    policy = server()
    fill(policy, 40, 0.0, crowd=True)
    fair = make_policy("fair", policy.settings, random.Random(1), previous=policy)
    fair.advance(1.0)
    rows = [fair.row(ticket.number) for ticket in fair.tickets()]
    assert len(rows) == 32
    assert not any(row is None or fair.queue.stands_back(row) for row in rows)
    again = make_policy("ticket", policy.settings, random.Random(1), previous=fair)
    assert len(list(again.tickets())) == 32


@pytest.mark.parametrize("names", [("ticket", "fair"), ("fair", "ticket")])
@pytest.mark.parametrize("begun", [False, True])
def test_a_download_that_began_under_another_policy_counts_once(
    names: tuple[str, str], begun: bool
) -> None:
    old = server(names[0])
    old.advance(0.0)
    started = old.offer(job(1, crowd=True), 0.1)
    assert isinstance(started, Admit)
    new = make_policy(names[1], old.settings, random.Random(1), previous=old)
    if begun:
        new.advance(0.2)
    assert [*new.crowds.faults(), *new.slot_use.faults()] == []
    new.release(started.lease, 0.3, True)
    new.advance(0.4)
    assert [*new.crowds.faults(), *new.slot_use.faults()] == []
    assert new.crowds.in_front(CROWD[1]) == 0


@pytest.mark.parametrize("name", ["reserve", "fcfs"])
def test_without_tickets_a_full_crowd_gives_way_to_who_has_asked(name: str) -> None:
    policy = server(name)
    fill(policy, 8, 0.0, crowd=True)
    assert isinstance(policy.offer(job(0, crowd=False), 1.0), Wait)
    policy.release(1, 2.0, True)
    assert isinstance(policy.offer(job(20, crowd=True), 2.0), Wait)
    assert isinstance(policy.offer(job(0, crowd=False), 3.0), Admit)
    # Nobody else has asked for long: it may have all slots.
    policy.release(2, 4.0, True)
    assert isinstance(policy.offer(job(21, crowd=True), 100.0), Admit)


@pytest.mark.parametrize("name", ["reserve", "fcfs"])
def test_without_tickets_networks_that_owe_do_not_wait_for_each_other(name: str) -> None:
    """Two networks whose first starts got lost: each gave way to the other for ever."""
    policy = server(name, slots=1, lease_idle_s=4)
    for number, now in ((0, 0.0), (1, 4.0)):
        started = policy.offer(job(number, crowd=False), now)
        assert isinstance(started, Admit)
        if not number:
            assert isinstance(policy.offer(job(1, crowd=False), now), Wait)
        policy.detach(started.lease, now, SIZE)
        policy.advance(now + 4.0)
    assert not policy.leases()
    assert isinstance(policy.offer(job(0, crowd=False), 8.0), Admit)


@pytest.mark.parametrize("seed", range(6))
def test_places_told_before_a_restart_grow_by_the_downloads_that_broke_off_at_most(
    seed: int,
) -> None:
    drawn = random.Random(seed)
    policy, now = server(), 0.0
    policy.changes()
    journal: dict[int, TicketRow] = {}
    for number in range(150):
        now += drawn.uniform(0.0, 1.0)
        crowd, known = drawn.random() < 0.7, drawn.random() < 0.1
        policy.offer(job(number, crowd=crowd, known=known), now)
        if drawn.random() < 0.4:
            policy.release(drawn.choice(list(policy.leases())).lease, now, True)
        for ticket in policy.advance(now).call:
            row = policy.ticket(ticket)
            assert row is not None
            client = row.client
            policy.offer(job(int(client[1:]), crowd=client[0] == "a"), now, ticket)
        journal |= {row.number: row for row in policy.changes()}
    places = {row.number: policy.place(row.number) for row in policy.tickets()}
    assert sum(row.stands_back for row in policy.tickets()) > 5
    after = server()
    after.restore(journal.values(), now, 1_000)
    running = sum(row.state is TicketState.STARTED for row in journal.values())
    for ticket, place in places.items():
        assert (after.place(ticket) or 0) <= (place or 0) + running
    # And the crowd has what it had: one who comes now goes before those that stand back.
    honest = after.offer(job(500, crowd=False), now)
    assert isinstance(honest, Wait)
    assert (honest.place or 0) < len(list(after.tickets())) - 5


def test_a_ticket_that_a_node_gave_is_in_front_and_counts_with_its_crowd() -> None:
    policy = server()
    fill(policy, 8, 0.0, crowd=False)
    theirs = TicketRow(ELSEWHERE + 5, "a100", "/f", SIZE, SIZE, 1.0, 0.5, TicketState.WAITING, 0.5)
    rows = [theirs._replace(number=ELSEWHERE + n, client=f"a{100 + n}") for n in range(4)]
    policy.restore([row._replace(network=CROWD[-1]) for row in rows], 1.0, 1)
    assert policy.crowds.in_front(CROWD[-1]) == 4
    # That is half of the slots, so who comes next of it stands back behind all others.
    fill(policy, 1, 2.0, 200, crowd=True)
    fill(policy, 2, 3.0, 300, crowd=False)
    order = [row.client for row in policy.tickets()]
    assert order == ["a100", "a101", "a102", "a103", "h300", "h301", "a200"]
    policy.withdraw(ELSEWHERE, 4.0)
    policy.advance(4.0)
    order = [row.client for row in policy.tickets()]
    assert order == ["a101", "a102", "a103", "a200", "h300", "h301"]
    assert policy.ticket(ELSEWHERE) is not None
    assert policy.crowds.in_front(CROWD[-1]) == 4, "the next one has its place in front"


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_tickets_of_a_node_without_a_leader_keep_their_order_in_whatever_order_they_come(
    order: tuple[int, ...],
) -> None:
    """The first that came was in front, and older ones of its crowd stood back behind it."""
    policy = server(slots=2)
    rows = [
        TicketRow(ELSEWHERE + n, f"a{n}", "/f", SIZE, SIZE, 1.0, 1.0 + n, TicketState.WAITING, 1.0)
        for n in range(4)
    ]
    for n in order:
        policy.restore([rows[n]._replace(network=CROWD[-1])], 9.0, 1, proven=True)
    told = [policy.offer(job(n, crowd=True), 9.0 + n, ELSEWHERE + n) for n in (0, 1, 3)]
    assert [type(one) for one in told] == [Admit, Admit, Wait]
    assert policy.place(ELSEWHERE + 3) == 2


def test_tickets_of_nodes_without_a_leader_stand_back_in_the_order_of_their_times() -> None:
    """The sum for those that stand back had no digits left: they stood in the order of numbers."""
    policy = server()
    fill(policy, 20, 0.0, crowd=True)
    fill(policy, 2, 1.0, 100, crowd=False)
    row = TicketRow(0, "", "/f", SIZE, SIZE, 1.0, 0.0, TicketState.WAITING, 2.0)
    times = {ELSEWHERE + 60 - n: 5.0 + n for n in range(60)}
    rows = [row._replace(number=n, client=f"a{n}", issued_s=at) for n, at in times.items()]
    policy.restore([one._replace(network=CROWD[-1]) for one in rows], 70.0, 1, proven=True)
    came = [row for row in policy.tickets() if row.number >= ELSEWHERE]
    assert all(row.stands_back for row in came)
    assert [row.number for row in came] == list(times)


def test_a_lost_start_comes_back_before_younger_ready_ones_of_its_crowd() -> None:
    """Where these stand back it waited behind all of them: in a run of kills, 38."""
    before = server(ready_list=40)
    fill(before, 20, 0.0, crowd=True, present=False)
    policy = server(ready_list=1, lease_idle_s=20, ticket_ttl_s=600)
    policy.restore(before.tickets(), 1.0, 100)
    policy.advance(1.0)
    first, number = [row.number for row in policy.tickets() if not row.stands_back], 14
    started = [policy.offer(job(one - 1, crowd=True), 9.0, one) for one in (*first, number)]
    lost = started[-1]
    assert isinstance(lost, Admit)
    policy.detach(lost.lease, 9.0, SIZE)
    told = [row.number for row in policy.tickets()]
    assert policy.advance(19.0).idled_out == (lost.lease,)
    assert [row.stands_back for row in policy.tickets()] == [True] * 8
    assert [row.number for row in policy.tickets()] == sorted([*told, number])


def test_tickets_of_a_node_without_a_leader_put_nobody_of_their_crowd_further_back() -> None:
    """They went before all of it that stood back, however old."""
    policy = server()
    fill(policy, 20, 0.0, crowd=True)
    fill(policy, 2, 1.0, 100, crowd=False)
    places = {row.number: policy.place(row.number) for row in policy.tickets()}
    assert any(row.stands_back for row in policy.tickets())
    row = TicketRow(ELSEWHERE, "a300", "/f", SIZE, SIZE, 1.0, 2.0, TicketState.WAITING, 2.0)
    row = row._replace(network=CROWD[-1])
    policy.restore([row], 3.0, 1, proven=True)
    assert [row.client for row in policy.tickets()][-1] == "a300"
    assert {number: policy.place(number) for number in places} == places
    # One that is older than those that stand back is in front of these.
    older = row._replace(number=ELSEWHERE + 1, client="a301", issued_s=-1.0)
    policy.restore([older], 3.0, 1, proven=True)
    order = [row.client for row in policy.tickets()]
    assert order.index("a301") < min(order.index(one) for one in order if one.startswith("a1"))


def test_the_older_of_two_places_that_leader_and_node_gave_one_client_stays() -> None:
    policy = server()
    fill(policy, 40, 0.0, crowd=False)
    mine = next(row for row in policy.tickets() if row.client == "h35")
    theirs = mine._replace(number=ELSEWHERE + 5, issued_s=-1.0)
    # Its owner has asked with it again: it was told.
    policy.offer(job(35, crowd=False), 1.0, mine.number)
    policy.restore([theirs], 2.0, 1)
    assert policy.ticket(theirs.number) is None
    other = next(row for row in policy.tickets() if row.client == "h36")
    before = policy.place(other.number) or 0
    policy.restore([other._replace(number=ELSEWHERE + 6, issued_s=-1.0)], 2.0, 1)
    assert policy.holds("h36", "/f")
    assert 0 < (policy.place(ELSEWHERE + 6) or 0) < before
    ended = policy.ticket(other.number)
    assert ended is not None
    assert ended.state is TicketState.WITHDRAWN
    assert sum(row.client == "h36" for row in policy.tickets()) == 1


def test_ten_crowds_share_the_part_of_one() -> None:
    counted = Counted(slots=40)
    for network in "abcdefghij":
        counted.ticket(network, back=True)
    assert counted.crowds.part() == 2
    assert not counted.crowds.is_full("a", 0.0)
    counted.lease("a")
    counted.lease("a")
    assert counted.crowds.is_full("a", 0.0)


def test_crowds_are_counted_by_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(slots=8)
    crowds = counted.crowds
    networks = ("10.1.1.0/24", "10.1.2.0/24", "10.1.2.0/24", "10.2.0.0/24")
    rows = [counted.ticket(network) for network in networks]
    lease = counted.lease(networks[-1])
    counted.lease(networks[0])
    assert crowds.of_owners() == [(4, 2), (2, 1)]
    counted.loses(lease)
    crowds.count(lease, -1)
    counted.queue.end(rows[3], TicketState.WITHDRAWN, 0.0)
    assert crowds.of_owners() == [(4, 2)]
    counted.lease("10.3.0.0/24")
    assert crowds.of_owners() == [(4, 2), (1, 1)], "one without a ticket counts as well"
    monkeypatch.setattr(policy_crowds, "CROWDS", CrowdTuning(counted=1))
    assert crowds.of_owners() == [(2, 1)], "thousands are not counted at a look"


def test_what_a_crowd_wastes_is_held_against_it_for_a_while() -> None:
    counted = Counted(slots=8)
    crowds, leases = counted.crowds, [counted.lease("a") for _ in range(3)]
    assert not crowds.is_full("a", 0.0)
    counted.loses(leases[0])
    crowds.wastes_slot("a", 0.0)
    # Two have a slot; of four, one is lost and one was wasted.
    assert crowds.is_full("a", 0.0)
    assert not crowds.is_full("a", 600.0)
    counted.loses(leases[0], slotless=False)
    assert crowds.in_front("a") == 3


def test_adaptive_has_the_order_of_the_policy_that_it_runs() -> None:
    settings = PolicySettings(slots=2, reserve_small=0, slots_max=2, bandwidth_bytes_s=1e6)
    orders = []
    for name in ("fair", "adaptive"):
        policy = make_policy(name, settings, random.Random(1))
        for number, size in enumerate((9, 8, 7, 3, 5, 4, 6)):
            policy.offer(Job(f"c{number}", "/f", size * SIZE, size * SIZE), 0.0)
        orders.append([row.size_bytes for row in policy.tickets()])
    assert orders[0] == orders[1] != sorted(orders[1], key=lambda size: -size)


@pytest.mark.parametrize(
    ("other_is_due", "still_run", "starts"),
    [(True, 0, True), (False, 1, True), (True, 1, False)],
    ids=["nothing runs", "nobody else is due", "a slot is kept for another network"],
)
def test_a_crowd_that_wasted_slots_leaves_them_to_others_only(
    other_is_due: bool, still_run: int, starts: bool
) -> None:
    """Its tickets in front are away, and those behind wait inside their requests."""
    policy = server(slots=4)
    fill(policy, 4, 0.0, crowd=False)
    fill(policy, 2, 1.0, crowd=True, present=False)
    fill(policy, int(other_is_due), 1.5, first=9, crowd=False, present=False)
    fill(policy, 3, 2.0, first=2, crowd=True)
    for _ in range(3):
        policy.crowds.wastes_slot(CROWD[1], 2.0)
    for lease in list(policy.leases())[still_run:]:
        policy.release(lease.lease, 3.0, True)
    called = [number for at in (3.0, 3.2, 4.0, 5.0, 6.0) for number in policy.advance(at).call]
    assert bool(called) == starts


def test_a_crowd_that_does_not_use_its_slots_gets_no_more_though_nobody_else_waits() -> None:
    """Else the next to come found all slots in its hands: 10 % for one /48 that stands still."""
    policy = server()
    fill(policy, 1, 0.0, crowd=True)
    for _ in range(4):
        policy.crowds.wastes_slot(CROWD[1], 0.0)
    assert isinstance(policy.offer(job(1, crowd=True), 0.0), Wait)
    assert isinstance(policy.offer(job(2, crowd=False), 0.0), Admit)


def test_a_crowd_owes_until_a_client_of_a_network_that_does_not_uses_a_slot() -> None:
    counted = Counted(slots=8)
    crowds, queue = counted.crowds, counted.queue
    # The first was given its number elsewhere, and came before the second.
    row = TicketRow(ELSEWHERE + 1, "e", "/f", SIZE, SIZE, 1.0, -1.0, TicketState.WAITING, 0.0)
    queue.restore(row._replace(network="a"), 0.0, 9.0, lambda size: True)
    first, second = queue.table.rows[ELSEWHERE + 1], counted.ticket("a")
    assert not queue.stands_back(first)
    crowds.owe("a")
    crowds.owe("b")
    assert all(queue.stands_back(row) for row in (first, second))
    crowds.repay("b")
    crowds.time_passes(0.0)
    assert crowds.in_front("a") == 0
    crowds.repay("c")
    crowds.time_passes(0.0)
    assert crowds.in_front("a") == 2
    assert not any(queue.stands_back(row) for row in (first, second))


def test_a_crowd_comes_forward_behind_many_that_may_not() -> None:
    counted = Counted(slots=80)
    crowds = counted.crowds
    for number in range(CROWDS.most_at_once):
        counted.ticket(f"owes {number}")
        crowds.owe(f"owes {number}")
    counted.ticket("free", back=True)
    came = []
    for _ in range(2):
        crowds.time_passes(0.0)
        came.append(crowds.in_front("free"))
    assert came == [0, 1]
    assert [*crowds.faults()] == []
