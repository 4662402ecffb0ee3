from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Admit, Estimate, Job, Reason, Refuse, TicketState, Wait
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

LARGE = 1_000_000


def job(client: str, *, present: bool = False, weight: float = 1.0, size: int = LARGE) -> Job:
    return Job(client, f"file-{size}", size, size, weight=weight, present=present)


def make(**changes: Any) -> AdmissionPolicy:
    fields: dict[str, Any] = {"slots": 1, "reserve_small": 0, **changes}
    return make_policy("ticket", PolicySettings.model_validate(fields), random.Random(1))


def admit(policy: AdmissionPolicy, who: Job, now: float, ticket: int | None = None) -> Admit:
    answer = policy.offer(who, now, ticket)
    assert isinstance(answer, Admit), answer
    return answer


def wait(policy: AdmissionPolicy, who: Job, now: float, ticket: int | None = None) -> Wait:
    answer = policy.offer(who, now, ticket)
    assert isinstance(answer, Wait), answer
    return answer


def refused(policy: AdmissionPolicy, who: Job, now: float, ticket: int | None = None) -> Reason:
    answer = policy.offer(who, now, ticket)
    assert isinstance(answer, Refuse), answer
    return answer.reason


def test_those_who_wait_get_numbers_and_places_in_order() -> None:
    policy = make()
    admit(policy, job("a"), 0.0)
    places = [wait(policy, job(client), 1.0) for client in "bcd"]
    assert [answer.place for answer in places] == [1, 2, 3]
    assert [answer.ticket for answer in places] == [2, 3, 4]
    assert [row.client for row in policy.tickets()] == ["b", "c", "d"]
    for answer in places:
        assert answer.estimate is not None
        assert answer.estimate.p90_s >= answer.estimate.expected_s > 0
        assert answer.retry_after_s > 0


def test_a_retry_without_its_ticket_finds_its_old_place_and_never_gets_a_second() -> None:
    policy = make()
    admit(policy, job("a"), 0.0)
    first = wait(policy, job("b"), 0.0)
    wait(policy, job("c"), 0.0)
    again = wait(policy, job("b"), 400.0)
    assert (again.ticket, again.place) == (first.ticket, 1)
    assert policy.snapshot(400.0).tickets_issued_total == 3


@pytest.mark.parametrize("name", ["ticket", "reserve", "fcfs"])
def test_a_body_on_its_way_has_a_slot_whatever_the_slots_are(name: str) -> None:
    settings = {"slots": 1, "reserve_small": 0}
    policy = make_policy(name, PolicySettings.model_validate(settings), random.Random(1))

    def running(client: str) -> Job:
        return replace(job(client, present=True), running=True)

    admit(policy, job("a"), 0.0)
    others = {client: policy.offer(job(client), 0.0) for client in "bcd"}
    answers = [admit(policy, running(client), 1.0) for client in "bce"]
    if name == "ticket":
        # Those with a ticket use it.
        tickets = [one.ticket for one in others.values() if isinstance(one, Wait)]
        assert [one.ticket for one in answers] == [*tickets[:2], None]
    assert policy.snapshot(1.0).large_active == 4
    for answer in answers:
        assert not isinstance(policy.offer(job("d"), 2.0), Admit)
        policy.release(answer.lease, 2.0, True)


def test_clients_at_the_door_are_called_in_turn_the_instant_a_slot_is_free() -> None:
    policy = make()
    running = admit(policy, job("a"), 0.0)
    tickets = [wait(policy, job(client, present=True), 0.0).ticket for client in "bc"]
    assert policy.advance(1.0).call == ()
    policy.release(running.lease, 10.0, True)
    assert policy.advance(10.0).call == (tickets[0],)
    assert policy.advance(10.0).call == (tickets[0],), "told again until acted upon"
    wait(policy, job("new", present=True), 10.0)
    wait(policy, job("c", present=True), 10.0)
    second = admit(policy, job("b", present=True), 10.0, tickets[0])
    assert second.ticket == tickets[0]
    assert policy.advance(10.0).call == ()


def test_a_ready_ticket_that_nobody_claims_makes_room_after_its_promised_return() -> None:
    policy = make(ready_list=1, ticket_ttl_s=30.0, come_back_s=100.0)
    running = admit(policy, job("a"), 0.0)
    ghost = wait(policy, job("b"), 0.0)
    wait(policy, job("c"), 0.0)
    policy.release(running.lease, 1.0, True)
    assert policy.advance(129.0).expired == ()
    assert policy.advance(130.0).expired == (ghost.ticket,)
    assert refused(policy, job("b"), 131.0, ghost.ticket) is Reason.TICKET_EXPIRED
    assert policy.snapshot(131.0).no_show_fraction > 0
    admit(policy, job("c"), 131.0)


def test_a_ghost_that_is_late_holds_nobody_up() -> None:
    policy = make(slots=2, ready_list=2, ready_grow_s=1e3, ticket_ttl_s=100.0, come_back_s=10.0)
    running = [admit(policy, job(name), 0.0) for name in "ab"]
    for ghost in range(2):
        wait(policy, job(f"ghost{ghost}"), 0.0)
    wait(policy, job("comes"), 0.0)
    policy.advance(0.0)
    for lease in running:
        policy.release(lease.lease, 5.0, True)
    policy.advance(14.0)
    assert not wait(policy, job("comes"), 14.0).ready, "the ghosts are due at 10 s, and may be late"
    policy.advance(16.0)
    admit(policy, job("comes"), 24.0)
    assert policy.snapshot(24.0).ready == 2


def test_the_ready_list_grows_by_the_no_shows_and_scales_with_the_slots() -> None:
    policy = make(slots=30, retry_min_s=0.1, come_back_s=1.0, ticket_ttl_s=1.0)
    assert policy.snapshot(0.0).ready_target == 30
    for client in range(30):
        admit(policy, job(f"r{client}"), 0.0)
    for client in range(60):
        wait(policy, job(f"g{client}"), 0.0)
    policy.advance(10.0)
    seen = policy.snapshot(10.0)
    assert 0.5 < seen.no_show_fraction < 0.9
    assert seen.ready_target == 30 / (1 - seen.no_show_fraction) // 1 + 1


def test_the_ready_list_grows_by_a_quarter_while_a_slot_is_free_and_shrinks_by_a_quarter() -> None:
    fields = {"ticket_ttl_s": 1e4, "come_back_s": 1e3, "slot_use_fraction": 0.0}
    policy = make(slots=2, ready_list=16, ready_grow_s=10.0, **fields)
    running = [admit(policy, job(name), 0.0) for name in "ab"]
    for client in range(60):
        wait(policy, job(f"c{client}"), 0.0)

    def targets(first_s: float) -> list[int]:
        found = []
        for step in range(4):
            policy.advance(first_s + 10.0 * step)
            found.append(policy.snapshot(first_s + 10.0 * step).ready_target)
        return found

    policy.advance(0.0)
    policy.release(running[0].lease, 1.0, True)
    assert targets(10.0) == [20, 25, 31, 38]
    admit(policy, job("c0"), 45.0)
    assert targets(50.0) == [32, 28, 25, 22]


def test_those_whose_turn_comes_sooner_than_they_can_be_told_to_come_are_ready() -> None:
    """Downloads of 0.2 s: by the time that one is back 15 turns have come."""
    policy = make(slots=1, retry_min_s=3.0, retry_jitter=0.0)
    admit(policy, job("runs", size=100_000), 0.0)
    for client in range(40):
        wait(policy, job(f"c{client}", size=100_000), 0.0)
    policy.advance(1.0)
    assert 10 <= policy.snapshot(1.0).ready_target <= 20


def test_rapid_polling_starts_nothing_early_is_counted_and_moves_the_return() -> None:
    policy = make(come_back_s=100.0, early_polls_free=0, early_penalty_s=5.0)
    running = admit(policy, job("a"), 0.0)
    wait(policy, job("rude"), 0.0)
    policy.release(running.lease, 1.0, True)
    for second in range(2, 12):
        answer = wait(policy, job("rude"), float(second))
    assert answer.retry_after_s == 100.0 + 15.0 - 11.0, "the penalty is bounded"
    assert answer.ready
    assert policy.snapshot(12.0).early_polls_total == 10
    admit(policy, job("rude"), 115.0)


def test_forgiven_early_visits_move_no_later_return_either() -> None:
    policy = make(come_back_s=10.0, early_polls_free=2, early_penalty_s=5.0)
    admit(policy, job("a"), 0.0)
    wait(policy, job("hasty"), 0.0)
    for early_s in (2.0, 4.0):
        assert wait(policy, job("hasty"), early_s).retry_after_s == 10.0 - early_s
    assert wait(policy, job("hasty"), 10.0).retry_after_s == 10.0
    wait(policy, job("hasty"), 12.0)
    assert wait(policy, job("hasty"), 25.0).retry_after_s == 15.0, "the third was one too many"


def test_bytes_still_on_their_way_do_not_lengthen_the_time_a_lost_download_keeps_its_slot() -> None:
    """It broke off at 2 s. The last of its bytes left 18 s later, nearly none of them arrived."""
    policy = make(lease_idle_s=20.0)
    lease = admit(policy, job("hangs-up"), 0.0).lease
    wait(policy, job("next", present=True), 0.0)
    policy.detach(lease, 2.0, None)
    policy.detach(lease, 20.0, LARGE)
    admit(policy, job("hangs-up"), 20.5)
    policy.detach(lease, 20.6, LARGE)
    assert policy.advance(20.7).call, "it has been away for nearly all its time"


def test_a_ready_ticket_lasts_until_the_return_that_an_early_visit_moved() -> None:
    policy = make(ticket_ttl_s=10.0, early_polls_free=0, early_penalty_s=15.0)
    admit(policy, job("a"), 0.0)
    number = wait(policy, job("b"), 0.0).ticket
    policy.advance(0.0)
    row = policy.ticket(number or 0)
    assert row is not None
    assert row.state is TicketState.READY
    told = wait(policy, job("b"), 0.5, number)
    back_s = 0.5 + told.retry_after_s + 0.9 * policy.settings.ticket_ttl_s
    policy.advance(back_s)
    assert not isinstance(policy.offer(job("b"), back_s, number), Refuse)


def test_a_visit_or_two_before_time_is_forgiven_when_a_slot_is_free() -> None:
    policy = make(come_back_s=100.0)
    running = admit(policy, job("a"), 0.0)
    wait(policy, job("b"), 0.0)
    assert wait(policy, job("b"), 10.0).retry_after_s == 90.0
    policy.release(running.lease, 20.0, True)
    admit(policy, job("b"), 20.0)


def test_a_preferred_ticket_enters_at_its_share_of_the_queue() -> None:
    policy = make(ready_list=1)
    admit(policy, job("a"), 0.0)
    for client in range(41):
        wait(policy, job(f"c{client}"), 0.0)
    gold = wait(policy, job("gold", weight=4.0), 0.0)
    assert gold.place == 12
    plain = wait(policy, job("plain"), 0.0)
    assert plain.place == 43
    # A pass shown later moves the same ticket.
    better = wait(policy, job("plain", weight=8.0), 500.0)
    assert better.ticket == plain.ticket
    assert better.place is not None
    assert better.place < 10


def test_tickets_of_one_client_are_bounded() -> None:
    policy = make(tickets_per_client=2)
    admit(policy, job("a"), 0.0)
    wait(policy, job("b", size=LARGE), 0.0)
    wait(policy, job("b", size=LARGE + 1), 0.0)
    assert refused(policy, job("b", size=LARGE + 2), 0.0) is Reason.TOO_MANY_TICKETS


def test_a_full_book_asks_to_come_back_without_a_ticket() -> None:
    policy = make(tickets_max=1)
    admit(policy, job("a"), 0.0)
    wait(policy, job("b"), 0.0)
    assert wait(policy, job("c"), 0.0).ticket is None


def test_used_and_foreign_tickets_are_refused_with_the_reason() -> None:
    policy = make()
    running = admit(policy, job("a"), 0.0)
    other = wait(policy, job("b"), 0.0)
    ticket = policy.ticket_of(running.lease)
    assert ticket is not None
    assert refused(policy, job("c"), 0.0, other.ticket) is Reason.TICKET_FOREIGN
    policy.release(running.lease, 1.0, True)
    assert refused(policy, job("a"), 2.0, ticket) is Reason.TICKET_USED
    assert refused(policy, job("a"), 2.0, 999) is Reason.TICKET_EXPIRED
    assert policy.snapshot(2.0).refused_total == 3


def test_a_client_that_leaves_the_door_keeps_its_place_one_that_leaves_loses_it() -> None:
    policy = make(ticket_ttl_s=30.0)
    running = admit(policy, job("a"), 0.0)
    first = wait(policy, job("b", present=True), 0.0)
    second = wait(policy, job("c", present=True), 0.0)
    assert first.ticket is not None
    assert second.ticket is not None
    policy.absent(first.ticket, 5.0)
    policy.release(running.lease, 20.0, True)
    assert policy.advance(20.0).call == (second.ticket,)
    policy.withdraw(second.ticket, 20.0)
    policy.withdraw(second.ticket, 20.0)
    row = policy.ticket(second.ticket)
    assert row is not None
    assert row.state is TicketState.WITHDRAWN
    admit(policy, job("b"), 21.0)


def test_an_operator_moves_a_ticket_to_the_head() -> None:
    policy = make(ready_list=2)
    running = admit(policy, job("a"), 0.0)
    tickets = [wait(policy, job(client, present=True), 0.0).ticket for client in "bcde"]
    assert tickets[3] is not None
    assert tickets[1] is not None
    assert policy.promote(tickets[3], 1.0)
    assert policy.promote(tickets[1], 1.0)
    assert not policy.promote(99, 1.0)
    after_restart = make(ready_list=2)
    after_restart.restore(policy.tickets(), 1.5, 100)
    ready = [row.client for row in after_restart.tickets() if row.state is TicketState.READY]
    assert ready == ["b", "c", "e"], "ready still, in the order of their numbers"
    policy.release(running.lease, 2.0, True)
    assert policy.advance(2.0).call == (tickets[1],)


def test_a_promoted_ticket_lasts_as_long_as_an_earlier_server_may_have_told_its_return() -> None:
    old = make()
    admit(old, job("a"), 0.0)
    number = wait(old, job("b"), 0.0).ticket or 0
    old.advance(0.0)
    row = old.ticket(number)
    assert row is not None
    policy = make(ticket_ttl_s=10.0)
    policy.restore([row], 0.0, number + 1)
    assert policy.promote(number, 5.0)
    assert policy.advance(20.0).expired == ()
    assert not isinstance(policy.offer(job("b"), 21.0, number), Refuse)


def test_the_journal_gives_each_change_once_and_restores_every_place() -> None:
    policy = make(ready_list=1)
    assert policy.changes() == []
    running = admit(policy, job("a"), 0.0)
    for client in "bcd":
        wait(policy, job(client), 1.0)
    rows = {row.number: row for row in policy.changes()}
    assert rows[1].state is TicketState.STARTED
    assert [rows[number].client for number in (2, 3, 4)] == ["b", "c", "d"]
    assert policy.changes() == []

    after_crash = make(ready_list=1)
    after_crash.restore(rows.values(), 5.0, 100)
    assert [row.client for row in after_crash.tickets()] == ["a", "b", "c", "d"]
    again = admit(after_crash, job("a"), 5.0)
    assert again.ticket == policy.ticket_of(running.lease)
    assert wait(after_crash, job("b"), 6.0).place == 1
    assert wait(after_crash, job("new"), 6.0).ticket == 100


def test_no_place_grows_by_lost_downloads_that_nobody_asks_for_however_many_servers_end() -> None:
    """A second server took them for tickets of clients that wait."""
    policy = make(slots=3)
    policy.changes()
    for client in "abc":
        admit(policy, job(client), 0.0)
    for client in "def":
        wait(policy, job(client), 1.0)
    journal = {row.number: row for row in policy.changes()}
    for second in (2.0, 3.0, 4.0):
        policy = make(slots=3)
        policy.changes()
        policy.restore(journal.values(), second, 100)
        assert [policy.place(number) for number in (4, 5, 6)] == [1, 2, 3]
        journal |= {row.number: row for row in policy.changes()}
    # One is back, and waits: it counts, and at the next server, too.
    policy.close(True)
    assert wait(policy, job("a"), 5.0).place == 1
    assert policy.place(5) == 3
    journal |= {row.number: row for row in policy.changes()}
    after = make(slots=3)
    after.restore(journal.values(), 6.0, 100)
    assert [after.place(number) for number in (1, 4, 5, 6)] == [1, 2, 3, 4]


@pytest.mark.parametrize("shares", [0, 16])
def test_a_lost_download_is_kept_as_long_as_a_ticket_is_good_however_many_servers_end(
    shares: int,
) -> None:
    """Leaders that changed within that time kept each for ever: 700 in an hour of kills."""
    policy = make(slots=2, ticket_ttl_s=60.0, network_shares=shares)
    policy.changes()
    for client in "ab":
        admit(policy, job(client), 0.0)
    gone = wait(policy, job("c"), 0.0).ticket
    journal = {row.number: row for row in policy.changes() if row.number != gone}
    # They may have run for hours.
    for second in (7_200.0, 7_220.0, 7_240.0, 7_255.0):
        policy = make(slots=2, ticket_ttl_s=60.0, network_shares=shares)
        policy.changes()
        policy.restore(journal.values(), second, 100)
        assert policy.advance(second + 4.0).expired == ()
        journal |= {row.number: row for row in policy.changes()}
        # A database that was lost is told the same.
        assert {row.number: row for row in policy.changes(everything=True)} == journal
    admit(policy, job("a"), 7_259.5, 1)
    assert policy.advance(7_260.0).expired == (2,)
    journal |= {row.number: row for row in policy.changes()}
    assert [row.number for row in journal.values() if not row.state.is_over] == [1]
    assert journal[1].state is TicketState.STARTED
    assert not journal[1].stands_back


def test_a_ticket_that_the_journal_lost_comes_back_to_its_place() -> None:
    policy = make(ready_list=1)
    policy.changes()
    admit(policy, job("a"), 0.0)
    for client in "bcd":
        wait(policy, job(client), 1.0)
    rows = {row.number: row for row in policy.changes()}
    lost = rows.pop(3)
    after_crash = make(ready_list=1)
    after_crash.restore(rows.values(), 5.0, 100)
    after_crash.restore([lost], 6.0, 100)
    assert [row.client for row in after_crash.tickets()] == ["a", "b", "c", "d"]


def test_taking_over_keeps_every_place_and_plain_policies_serve_tickets_first() -> None:
    old = make(slots=2, reserve_small=1)
    running = admit(old, job("a"), 0.0)
    waiting = [wait(old, job(client, present=True), 0.0).ticket for client in "bc"]
    settings = PolicySettings(slots=2, reserve_small=1)
    plain = make_policy("reserve", settings, random.Random(1), previous=old)
    assert [row.number for row in plain.tickets()] == waiting
    plain.release(running.lease, 1.0, True)
    assert isinstance(plain.offer(job("pushy"), 1.0), Wait)
    assert plain.advance(1.0).call == (waiting[0],)
    admit(plain, job("b", present=True), 1.0, waiting[0])
    back = make_policy("ticket", settings, random.Random(1), previous=plain)
    assert wait(back, job("c", present=True), 2.0).ticket == waiting[1]


def test_a_small_download_keeps_no_slot_once_its_connection_is_gone() -> None:
    """Someone who takes a part of a small file leaves nothing behind for others to wait for."""
    policy = make(slots=2, reserve_small=1)
    part = admit(policy, job("a", size=100), 0.0)
    policy.detach(part.lease, 0.0, 50)
    assert policy.advance(0.0).idled_out == (part.lease,)
    assert policy.leases() == []


def test_a_large_download_keeps_its_slot_for_a_resume() -> None:
    policy = make(lease_idle_s=20.0)
    first = admit(policy, job("a"), 0.0)
    policy.detach(first.lease, 0.0, LARGE // 2)
    assert policy.advance(19.0).idled_out == ()
    assert policy.advance(20.0).idled_out == (first.lease,)


def test_a_small_job_that_finds_every_slot_taken_is_next_before_all_large_ones() -> None:
    policy = make()
    first = admit(policy, job("a"), 0.0)
    large = wait(policy, job("b", present=True), 1.0)
    small = wait(policy, job("c", present=True, size=1_000), 2.0)
    assert large.place == 1
    assert small.place == 1
    assert small.ticket is not None
    policy.release(first.lease, 3.0, True)
    assert policy.advance(3.0).call == (small.ticket,)
    second = admit(policy, job("c", present=True, size=1_000), 3.0, small.ticket)
    assert policy.advance(3.0).call == ()
    policy.release(second.lease, 4.0, True)
    assert policy.advance(4.0).call == (large.ticket,)


def test_a_small_job_that_waits_elsewhere_finds_a_slot_at_its_return() -> None:
    policy = make(slots=2, reserve_small=0)
    leases = [admit(policy, job(client), 0.0) for client in "ab"]
    small = wait(policy, job("c", size=1_000), 1.0)
    returns = 1.0 + small.retry_after_s
    policy.release(leases[0].lease, returns - 0.3, True)
    wait(policy, job("d"), returns - 0.2)
    admit(policy, job("c", size=1_000), returns, small.ticket)


def small_ones_due(policy: AdmissionPolicy, count: int) -> tuple[float, int | None]:
    """When they all are due at once, as good as; and the ticket of the last of them."""
    answers = [wait(policy, job(f"s{number}", size=1_000), 1.0) for number in range(count)]
    returns = {answer.retry_after_s for answer in answers}
    assert max(returns) - min(returns) <= 0.5
    return 1.0 + max(returns), answers[-1].ticket


def test_one_slot_is_enough_for_several_small_ones_who_come_for_a_moment_each() -> None:
    policy = make(slots=2, reserve_small=1)
    admit(policy, job("a"), 0.0)
    small = admit(policy, job("b", size=1_000), 0.0)
    returns, last = small_ones_due(policy, 4)
    policy.release(small.lease, returns - 0.3, True)
    admit(policy, job("s3", size=1_000), returns, last)


def test_small_ones_who_are_due_keep_no_large_slot_empty_beside_the_reserved_one() -> None:
    policy = make(slots=3, reserve_small=1)
    large = [admit(policy, job(client), 0.0) for client in "ab"]
    small = admit(policy, job("c", size=1_000), 0.0)
    returns, _ = small_ones_due(policy, 3)
    waiting = wait(policy, job("d", present=True), 1.0)
    for lease in (large[0], small):
        policy.release(lease.lease, returns - 0.3, True)
    assert policy.advance(returns - 0.3).call == (waiting.ticket,)


def test_a_wheel_does_not_wait_behind_images_unless_told_so() -> None:
    policy = make_policy("ticket", PolicySettings(), random.Random(1))
    for number in range(40):
        policy.offer(job(f"c{number}", size=3_000_000_000), 0.0)
    assert isinstance(policy.offer(job("asks", size=300_000), 0.0), Wait)
    admit(policy, job("asks", size=100_000), 0.0)


def lost_start(policy: AdmissionPolicy, now: float) -> int:
    """The start of b, who waited, is lost on the way; its number."""
    first = admit(policy, job("a"), now)
    ticket = wait(policy, job("b"), now).ticket
    assert ticket is not None
    policy.release(first.lease, now, True)
    second = admit(policy, job("b"), now + 60.0, ticket)
    policy.detach(second.lease, now + 60.0, LARGE)
    policy.advance(now + 60.0)
    return ticket


def test_a_ticket_whose_start_was_lost_on_the_way_keeps_its_place() -> None:
    policy = make(lease_idle_s=20.0, ticket_ttl_s=60.0)
    ticket = lost_start(policy, 0.0)
    later = [wait(policy, job(client), 61.0) for client in "cd"]
    policy.advance(64.0)
    row = policy.ticket(ticket)
    assert row is not None
    assert row.state is TicketState.STARTED, "it may still be resumed"
    policy.changes()
    advance = policy.advance(65.0)
    assert len(advance.idled_out) == 1
    assert policy.leases() == []
    assert [row.number for row in policy.tickets()] == [ticket, later[0].ticket, later[1].ticket]
    assert TicketState.READY in [row.state for row in policy.changes() if row.number == ticket]
    # It has its time to live again, and keeps its slot for half as long, as it wasted one.
    policy.advance(120.0)
    again = admit(policy, job("b"), 120.0, ticket)
    assert again.ticket == ticket
    policy.detach(again.lease, 120.0, LARGE)
    assert policy.advance(122.5).idled_out == (again.lease,)
    assert policy.place(ticket) is None
    assert refused(policy, job("b"), 123.0, ticket) is Reason.TICKET_EXPIRED


def test_a_restart_gives_a_ticket_back_once_more_and_no_more() -> None:
    """The journal does not say that it was given back: a kill breaks off every start anyway."""
    before = make(lease_idle_s=20.0, ticket_ttl_s=60.0)
    ticket = lost_start(before, 0.0)
    before.advance(65.0)
    row = before.ticket(ticket)
    assert row is not None
    policy = make(lease_idle_s=20.0, ticket_ttl_s=60.0)
    policy.restore([row], 70.0, 100)
    for now, place in ((71.0, 1), (101.0, None)):
        started = admit(policy, job("b"), now, ticket)
        policy.detach(started.lease, now, LARGE)
        assert policy.advance(now + 20.0).idled_out == (started.lease,)
        assert policy.place(ticket) == place


@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("state", [TicketState.READY, TicketState.WAITING])
def test_a_restart_ends_no_ticket_before_the_return_that_its_client_was_told(
    state: TicketState, switched: bool
) -> None:
    """The journal does not have the return: seed 5032 of the simulated worlds lost three places."""
    fields = {"slots": 1, "ready_list": 1, "ticket_ttl_s": 40.0, "come_back_s": 100.0}
    before = make(**fields)
    admit(before, job("a"), 0.0)
    asked = "b"
    ticket = wait(before, job("b"), 1.0).ticket
    if state is TicketState.WAITING:
        asked = "c"
        ticket = wait(before, job("c"), 1.0).ticket
    assert ticket is not None
    row = before.ticket(ticket)
    assert row is not None
    assert row.state is state
    policy = make(**fields)
    policy.restore([row], 10.0, 100)
    if switched:
        policy = make_policy("ticket", policy.settings, random.Random(1), previous=policy)
    for now in (10.5, 51.0, 100.0):
        assert policy.advance(now).expired == ()
    assert admit(policy, job(asked), 101.0, ticket).ticket == ticket
    left = make(**fields)
    left.restore([row], 10.0, 100)
    left.advance(10.5)
    assert left.advance(151.0).expired == (ticket,)


@pytest.mark.parametrize("early", [False, True])
def test_a_ticket_given_back_lasts_from_the_return_that_its_client_was_told(early: bool) -> None:
    """Its page waited and was called sooner, but did not hear of it."""
    policy = make(slots=1, lease_idle_s=4.0, ticket_ttl_s=5.0, retry_min_s=30.0, early_polls_free=0)
    first = admit(policy, job("a"), 0.0)
    told = wait(policy, job("b"), 0.0)
    assert told.ticket is not None
    policy.present(told.ticket, 1.0)
    policy.release(first.lease, 2.0, True)
    lost = admit(policy, job("b", present=True), 2.0, told.ticket)
    policy.detach(lost.lease, 2.0, LARGE)
    assert policy.advance(6.0).idled_out == (lost.lease,)
    assert policy.advance(told.retry_after_s - 1.0).expired == ()
    admit(policy, job("b"), 7.0 if early else told.retry_after_s, told.ticket)
    assert policy.snapshot(60.0).early_polls_total == 0


def test_a_ticket_given_back_runs_out_like_any_other() -> None:
    policy = make(lease_idle_s=20.0, ticket_ttl_s=60.0)
    ticket = lost_start(policy, 0.0)
    assert policy.advance(65.0).expired == ()
    assert policy.advance(124.9).expired == ()
    assert policy.advance(125.1).expired == (ticket,)


def test_a_ticket_given_back_after_a_restart_runs_out_as_well() -> None:
    """Its client has come back since: no earlier server told it a later return."""
    before = make(ticket_ttl_s=60.0)
    admit(before, job("a"), 0.0)
    ticket = wait(before, job("b"), 1.0).ticket
    assert ticket is not None
    row = before.ticket(ticket)
    assert row is not None
    policy = make(lease_idle_s=20.0, ticket_ttl_s=60.0)
    policy.restore([row], 10.0, 100)
    started = admit(policy, job("b"), 11.0, ticket)
    policy.detach(started.lease, 11.0, LARGE)
    assert policy.advance(31.0).idled_out == (started.lease,)
    assert policy.place(ticket) == 1
    assert policy.advance(90.9).expired == ()
    assert policy.advance(91.1).expired == (ticket,)


def test_a_ticket_is_used_up_by_the_first_byte_and_not_given_to_who_never_waited() -> None:
    policy = make(lease_idle_s=20.0)
    ticket = lost_start(policy, 0.0)
    lease = policy.leases()[0].lease
    # It had a byte, even if the file was replaced since and all of it is wanted again.
    policy.progress(lease, 60.0, LARGE - 1, 1.0)
    policy.progress(lease, 60.0, LARGE, 1.0)
    policy.advance(90.0)
    assert refused(policy, job("b"), 90.0, ticket) is Reason.TICKET_EXPIRED
    never_waited = admit(policy, job("e", weight=4.0), 90.0)
    assert never_waited.ticket is not None
    policy.detach(never_waited.lease, 90.0, LARGE)
    assert policy.advance(120.0).idled_out == (never_waited.lease,)
    assert not policy.anybody_waits()


def test_a_small_jobs_start_that_was_lost_is_not_lost_either() -> None:
    policy = make()
    first = admit(policy, job("a"), 0.0)
    ticket = wait(policy, job("c", size=1_000), 1.0).ticket
    policy.release(first.lease, 2.0, True)
    small = admit(policy, job("c", size=1_000), 2.0, ticket)
    policy.detach(small.lease, 2.0, 1_000)
    # As for a large one, its slot is kept for a moment: it may have been called.
    kept = admit(policy, job("c", size=1_000), 3.0, ticket)
    assert kept.joined
    assert kept.lease == small.lease
    policy.detach(small.lease, 3.0, 1_000)
    policy.advance(60.0)
    assert [(row.number, row.state) for row in policy.tickets()] == [(ticket, TicketState.READY)]
    assert admit(policy, job("c", size=1_000), 61.0, ticket).ticket == ticket


def one_due_before_another(*, came_back: bool) -> tuple[AdmissionPolicy, Wait, Wait]:
    """Two ready tickets of a hundred seconds each, the first due in ten, one slot free at 70 s."""
    come_back_s = 10.0 if came_back else 80.0
    policy = make(
        slots=2,
        slot_use_fraction=0.0,
        retry_jitter=0.0,
        ticket_ttl_s=300.0,
        come_back_s=come_back_s,
    )
    running = admit(policy, job("a", size=LARGE), 0.0)
    admit(policy, job("b", size=100 * LARGE), 0.0)
    first = wait(policy, job("c", size=100 * LARGE), 0.0)
    second = wait(policy, job("d", size=100 * LARGE), 0.0)
    policy.advance(1.0)
    if came_back:
        first = wait(policy, job("c", size=100 * LARGE), 70.0)
    policy.advance(70.0)
    policy.release(running.lease, 70.0, True)
    policy.advance(70.0)
    return policy, first, second


def test_a_slot_is_left_to_one_before_who_came_back_and_is_due_within_a_twentieth() -> None:
    policy, first, second = one_due_before_another(came_back=True)
    # The first is due at 80 s: at 74 s nobody is, at 76 s it is.
    wait(policy, job("d", size=100 * LARGE), 76.0, second.ticket)
    admit(policy, job("c", size=100 * LARGE), 80.0, first.ticket)


def test_a_slot_is_not_left_to_one_who_is_due_later_or_does_not_come() -> None:
    for at_s in (74.0, 81.0):
        policy, _, second = one_due_before_another(came_back=True)
        admit(policy, job("d", size=100 * LARGE), at_s, second.ticket)


def test_a_slot_is_left_only_for_half_a_second_to_one_who_never_came_back() -> None:
    policy, _, second = one_due_before_another(came_back=False)
    admit(policy, job("d", size=100 * LARGE), 76.0, second.ticket)


def test_one_at_the_door_does_not_wait_for_one_who_is_due_in_some_seconds() -> None:
    policy, _, second = one_due_before_another(came_back=True)
    admit(policy, job("d", size=100 * LARGE, present=True), 76.0, second.ticket)


def test_who_comes_back_is_told_the_rest_by_the_schedule_not_by_what_came_of_first_waits() -> None:
    """Short waits were three times as long when nobody waited long: that is not for ever."""
    policy = make(retry_jitter=0.0, slot_use_fraction=0.0)
    for number in range(100):
        policy.estimator.started(10.0, 9.0, Estimate(10.0, 20.0), 30.0, 30.0, 30.0 + number)
    running = admit(policy, job("a", size=100 * LARGE), 0.0)
    policy.progress(running.lease, 0.0, 10 * LARGE, float(LARGE))
    first = wait(policy, job("b"), 0.0)
    assert first.retry_after_s == pytest.approx(27.0, rel=0.1)
    # Such a download takes as long again.
    policy.progress(running.lease, 27.0, 10 * LARGE, float(LARGE))
    again = wait(policy, job("b"), first.retry_after_s, first.ticket)
    assert again.retry_after_s == pytest.approx(9.0, rel=0.1)
    assert wait(policy, job("c"), first.retry_after_s).retry_after_s > 25.0


def test_a_small_job_is_told_when_the_first_large_one_ends_where_these_have_every_slot() -> None:
    policy = make()
    lease = admit(policy, job("a"), 0.0).lease
    policy.progress(lease, 0.0, LARGE, 10_000.0)
    policy.advance(0.0)
    told = wait(policy, job("b", size=1_000), 1.0).estimate
    assert told is not None
    assert 70.0 < told.expected_s <= told.p90_s


def test_no_bound_is_told_before_the_return_that_is_told_with_it() -> None:
    policy = make(slot_use_fraction=0.0)
    lease = admit(policy, job("a"), 0.0).lease
    policy.progress(lease, 0.0, LARGE, LARGE)
    policy.advance(0.0)
    first = wait(policy, job("b", size=1_000), 0.5)
    # The download slows down.
    for step in range(1, 9):
        policy.progress(lease, step / 2, LARGE - 10_000 * step, 10_000.0)
        policy.advance(step / 2)
    later = wait(policy, job("b", size=1_000), 5.0, first.ticket)
    assert later.estimate is not None
    assert 20.0 < later.retry_after_s <= later.estimate.p90_s + 1.0
