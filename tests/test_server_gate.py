"""The gate: each decision becomes the right HTTP, and nothing is lost or leaked on the way."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs

from tests import fakes
from tests.databases import journal_makers, journals, postgres
from tests.fakes import BIG, DIGEST, START_S, Asked, FakeTransfer, House, admits, representation
from tidegate.policies.contract import ELSEWHERE, TicketRow, TicketState
from tidegate.policies.settings import PolicySettings
from tidegate.protocol.ticket import Key, KeyRing, Pass, Ticket
from tidegate.server.admission.actions import QueueActions
from tidegate.server.admission.client_programs import ToolRule
from tidegate.server.admission.rules import Rule
from tidegate.server.files.transfer import TransferListener
from tidegate.server.http.request import Request

__all__ = ["journal_makers", "journals", "postgres"]

COMES_BACK = ToolRule(agent="^wrk", manner="come-back")
CURL = "curl/8.0"
BROWSER = {"agent": "Mozilla/5.0 Firefox/140.0", "accept": "text/html,*/*;q=0.8"}


def leases(house: House) -> int:
    return len(house.gate.policy.leases())


def test_a_free_slot_starts_the_download_with_its_lease_fields() -> None:
    house = House()
    first = house.ask()
    assert first.started
    assert first.start_fields["tidegate-lease-connections"] == "8"
    # Its place has to outlive a crash once somebody waits, who would else come before it.
    house.ask("192.0.2.2")
    assert house.journal.rows[1].state is TicketState.STARTED
    assert house.ask().start_fields["tidegate-ticket"].startswith("t2.")


def runs_with_ticket(house: House) -> tuple[Asked, str]:
    """A download that runs while somebody waits, and the token that it has since."""
    first = house.ask("192.0.2.1")
    house.ask("192.0.2.99")
    second = house.ask("192.0.2.1")
    second.leave()
    return first, second.token


def test_a_busy_server_tells_place_time_and_ticket() -> None:
    house = House()
    house.ask("192.0.2.1")
    second = house.ask("192.0.2.2")
    assert not second.started
    answer = second.connection
    assert answer.status == 503
    assert int(answer.fields["retry-after"]) >= 1
    assert answer.fields["tidegate-place"] == "1"
    assert answer.fields["tidegate-status"] in ("waiting", "ready")
    assert answer.fields["cache-control"] == "no-store"
    document = json.loads(answer.body)
    assert answer.fields["content-type"] == "application/problem+json"
    assert document["type"].endswith("/waiting")
    assert document["status"] == 503
    assert document["ticket"] == answer.fields["tidegate-ticket"]
    assert document["place"] == 1
    assert document["retry_after_s"] == int(answer.fields["retry-after"])
    assert int(answer.fields["tidegate-wait-expected"]) >= document["expected_wait_s"]


def test_one_request_of_a_ticket_is_parked_while_answers_wait_for_the_journal() -> None:
    house = House(tools=[ToolRule(agent="curl", manner="hold", silent_s=60.0)])
    house.ask("192.0.2.9")
    token = house.ask().connection.fields["tidegate-ticket"]
    house.journal.hold = True
    house.ask(token=token)
    house.ask(agent="curl/8", token=token)
    house.clock.pump([0.25] * 8)
    assert len(house.gate.parked) == 1
    # Where none of them keeps its place the first one is parked.
    alone = House()
    alone.ask("192.0.2.9")
    alone.journal.hold = True
    alone.ask()
    alone.clock.pump([0.25] * 8)
    assert len(alone.gate.parked) == 1


def test_a_ticket_is_answered_only_once_it_is_safe_in_the_journal() -> None:
    house = House()
    house.ask("192.0.2.1")
    house.journal.hold = True
    second = house.ask("192.0.2.2")
    assert second.connection.status == 0
    assert house.journal.rows[2].state in (TicketState.WAITING, TicketState.READY)
    house.journal.waiters.pop()()
    assert second.connection.status == 503


def test_the_ticket_admits_when_the_slot_is_free_and_once_only() -> None:
    house = House()
    first = house.ask("192.0.2.1")
    second = house.ask("192.0.2.2")
    first.transfer.finish()
    house.wait(30)
    again = house.ask("192.0.2.2", token=second.token)
    assert again.started
    again.transfer.finish()
    house.wait(1)
    replay = house.ask("192.0.2.2", token=again.token)
    assert replay.connection.status == 403
    assert json.loads(replay.connection.body)["type"].endswith("/ticket-used")
    assert leases(house) == 0


def test_a_retry_without_its_ticket_finds_its_old_place() -> None:
    house = House()
    house.ask("192.0.2.1")
    places = [house.ask(f"192.0.2.{n}") for n in (2, 3, 4)]
    back = house.ask("192.0.2.2")
    assert back.connection.fields["tidegate-place"] == "1"
    assert [asked.connection.fields["tidegate-place"] for asked in places] == ["1", "2", "3"]


@pytest.mark.parametrize("way", ["header", "query", "cookie"])
def test_a_ticket_counts_in_header_query_and_cookie(way: str) -> None:
    house = House()
    first = house.ask("192.0.2.1")
    token = house.ask("192.0.2.2").token
    first.transfer.finish()
    house.wait(30)
    if way == "header":
        again = house.ask("192.0.2.2", token=token)
    elif way == "query":
        again = house.ask("192.0.2.2", query=f"a=1&tidegate-ticket={token}")
    else:
        again = house.ask("192.0.2.2", cookie=f"x=y; tidegate-ticket={token}; z=1")
        assert "Max-Age=0" in again.start_fields["set-cookie"]
    assert again.started


def test_a_poll_is_given_its_token_back_and_one_of_the_newest_key_after_a_change() -> None:
    house = House()
    house.gate.close_doors(True)
    token = house.ask("192.0.2.2").token

    def poll(ranges: tuple[int, int] | None = None, **fields: str) -> str:
        house.wait(30)
        asked = house.ask("192.0.2.2", token=token, ranges=ranges, **fields)
        assert asked.connection.status == 503
        return asked.token

    assert poll() == token
    less = poll((0, 5), tidegate_remaining="5")
    read = house.keys.read_ticket(less, "192.0.2.2", "/big.iso", house.clock.seconds())
    assert read.remaining_bytes == 5
    keys = [Key("k2", b"fedcba9876543210"), Key("k1", b"0123456789abcdef")]
    house.gate.parts.keys = KeyRing(keys)
    assert poll().startswith("t2.k2.")


def test_a_foreign_forged_or_old_ticket_is_refused_with_the_reason() -> None:
    house = House()
    house.ask("192.0.2.1")
    token = house.ask("192.0.2.2").token
    for address, file, text, code in (
        ("192.0.2.3", "/big.iso", token, "ticket-foreign"),
        ("192.0.2.2", "/other.iso", token, "ticket-foreign"),
        ("192.0.2.2", "/big.iso", token[:-2] + "xx", "ticket-forged"),
        ("192.0.2.2", "/big.iso", "x" * 5000, "ticket-forged"),
    ):
        asked = house.ask(address, file=file, token=text)
        assert asked.connection.status == 403
        assert json.loads(asked.connection.body)["type"].endswith("/" + code)
    house.clock.advance(8 * 86400)
    late = house.ask("192.0.2.2", token=token)
    assert json.loads(late.connection.body)["type"].endswith("/ticket-expired")


def test_a_clock_that_is_set_makes_no_waiting_ticket_too_old() -> None:
    house, ahead = House(slots=1), [0.0]
    house.gate.parts.wall = lambda: house.clock.seconds() + ahead[0]
    house.ask("192.0.2.1")
    first, gone = house.ask("192.0.2.2"), house.ask("192.0.2.3")
    number = house.keys.read_ticket(gone.token, "192.0.2.3", "/big.iso", 0.0).number
    house.gate.policy.withdraw(number, house.clock.seconds())
    ahead[0] = 20 * 86_400.0
    house.clock.advance(1.0)
    again = house.ask("192.0.2.2", token=first.token)
    assert (again.connection.status, again.connection.fields["tidegate-place"]) == (503, "1")
    late = house.ask("192.0.2.3", token=gone.token)
    assert json.loads(late.connection.body)["type"].endswith("/ticket-expired")
    ahead[0] = 0.0
    assert house.ask("192.0.2.2", token=again.token).connection.fields["tidegate-place"] == "1"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80))
def test_garbage_in_any_form_of_a_ticket_never_crashes(garbage: bytes) -> None:
    house = House()
    house.ask("192.0.2.9")
    text = garbage.decode("latin-1")
    for asked in (
        house.ask(token=None, tidegate_ticket=text),
        house.ask(cookie=f"tidegate-ticket={text}"),
        house.ask(query="tidegate-ticket=" + quote(garbage)),
        house.ask(tidegate_pass=text),
        house.ask(tidegate_remaining=text),
    ):
        assert asked.connection.status in (403, 503)


def test_a_browser_with_a_bad_cookie_forgets_it_and_asks_again() -> None:
    house = House()
    asked = house.ask(cookie="tidegate-ticket=t1.bad", **BROWSER)
    assert asked.connection.status == 403
    assert asked.connection.fields["refresh"] == "3; url=/big.iso"
    assert "Max-Age=0" in asked.connection.fields["set-cookie"]


def test_a_browser_gets_the_waiting_page_in_its_language() -> None:
    house = House()
    house.ask("192.0.2.1")
    house.ask("192.0.2.2")
    asked = house.ask("192.0.2.3", accept_language="de-CH, en;q=0.5", **BROWSER)
    answer = asked.connection
    assert answer.status == 503
    page = answer.body.decode()
    assert '<html lang="de" dir="ltr">' in page
    assert "Sie sind Nummer 2 in der Warteschlange" in page
    token = answer.fields["tidegate-ticket"]
    refresh = answer.fields["refresh"]
    assert refresh.endswith(f"; url=/big.iso?tidegate-ticket={token}")
    assert f"tidegate-ticket={token}; Path=/big.iso;" in answer.fields["set-cookie"]
    assert "HttpOnly" in answer.fields["set-cookie"]
    assert re.findall(r"<script[^>]*>", page) == re.findall(
        r'<script src="/-/static/waiting\.js[^"]*" defer>', page
    ), "no script but our own file"


def test_the_waiting_page_escapes_the_name_of_the_file() -> None:
    house = House()
    house.ask("192.0.2.1")
    path = "/%3Cscript%3Ealert(1)%3C/script%3E"
    asked = house.ask("192.0.2.2", file=path, **BROWSER)
    assert b"<script>" not in asked.connection.body
    assert b"alert(1)<" not in asked.connection.body


def test_tools_that_cannot_wait_are_held_and_called_in_order() -> None:
    house = House()
    first = house.ask("192.0.2.1", agent=CURL)
    second = house.ask("192.0.2.2", agent=CURL)
    third = house.ask("192.0.2.3", agent="Wget/1.21", accept="*/*")
    wget2 = house.ask("192.0.2.4", agent="wget2/2.1", accept="text/html,*/*;q=0.8")
    assert [asked.started for asked in (first, second, third, wget2)] == [True] + [False] * 3
    assert {asked.connection.status for asked in (second, third, wget2)} == {0}
    assert len(house.gate.parked) == 3
    for asked, following in ((first, second), (second, third), (third, wget2)):
        asked.transfer.finish()
        house.wait(1)
        assert following.started
    assert len(house.gate.parked) == 0


def test_a_server_that_is_being_stopped_sends_no_waiting_page_on_its_way() -> None:
    house = House(slot_use_fraction=0.0)
    house.ask("192.0.2.1")
    waiting = house.ask("192.0.2.2")
    assert house.watch("192.0.2.2", waiting.token, wait_s=0).connection.status == 200
    house.gate.drain()
    asked = house.watch("192.0.2.2", waiting.token)
    assert asked.connection.status == 503
    assert json.loads(asked.connection.body)["type"].endswith("closed")


def test_a_held_tool_hears_nothing_at_first_and_then_a_line_now_and_then() -> None:
    tool = ToolRule(agent="^slow/", manner="hold", silent_s=20, drip_s=5, drip_lines=5)
    house = House(tools=[tool], slot_use_fraction=0.0)
    house.ask("192.0.2.1")
    house.ask("192.0.2.3")
    held = house.ask("192.0.2.2", agent="slow/1")
    house.wait(19)
    assert held.connection.drips == []
    house.wait(2)
    (told,) = held.connection.drips
    assert told.startswith(b"place 2, done in about ")
    # The one before it leaves.
    QueueActions(house.gate).withdraw(2)
    house.wait(10)
    assert held.connection.drips[1:] == [b"place 1"] * 2
    house.wait(10)
    assert held.connection.drips[3] == b"place 1"
    assert held.connection.drips[4].startswith(b"place 1, done in about ")
    house.wait(5)
    assert held.connection.aborted
    assert len(house.gate.parked) == 0
    back = house.ask("192.0.2.2", agent="slow/1")
    assert back.connection.status == 0
    assert [row.number for row in house.gate.policy.tickets()] == [3]


def test_a_line_that_cannot_be_told_costs_no_other_line_and_no_place() -> None:
    tool = ToolRule(agent="^slow/", manner="hold", silent_s=20, drip_s=5, drip_lines=3)
    house = House(tools=[tool], slot_use_fraction=0.0)
    first = house.ask("192.0.2.1")
    held = house.ask("192.0.2.2", agent="slow/1")

    def broken(ticket: int) -> float:
        raise RuntimeError("boom")

    real, house.gate.estimate = house.gate.estimate, broken  # type: ignore[method-assign]
    with capturedLogs() as logged:
        house.wait(21)
    assert [event["log_level"] for event in logged] == [LogLevel.critical]
    house.gate.estimate = real  # type: ignore[method-assign]
    house.wait(5)
    assert len(held.connection.drips) == 1
    first.transfer.finish()
    house.wait(1)
    assert held.started


def test_a_held_client_that_leaves_keeps_its_place_but_is_not_called() -> None:
    house = House()
    first = house.ask("192.0.2.1", agent=CURL)
    second = house.ask("192.0.2.2", agent=CURL)
    third = house.ask("192.0.2.3", agent=CURL)
    second.leave()
    first.transfer.finish()
    house.wait(200)
    assert not second.started
    assert third.started


def test_holds_are_bounded_in_all_and_for_each_client() -> None:
    house = House(holds_most=100, tickets_per_client=100)
    house.ask("192.0.2.1", agent=CURL)
    greedy = [house.ask("192.0.2.2", agent=CURL, file=f"/{n}") for n in range(65)]
    assert [asked.connection.status for asked in greedy] == [*[0] * 64, 503]
    house = House(holds_most=3)
    house.ask("192.0.2.1", agent=CURL)
    greedy = [house.ask("192.0.2.2", agent=CURL, file=f"/{n}") for n in range(2)]
    assert house.ask("192.0.2.3", agent=CURL).connection.status == 0
    # Its oldest makes room for somebody else, and keeps its place.
    assert house.ask("192.0.2.4", agent=CURL).connection.status == 0
    assert [asked.connection.status for asked in greedy] == [503, 0]
    assert greedy[0].connection.fields["tidegate-place"] == "1"
    assert house.ask("192.0.2.5", agent=CURL).connection.status == 503


def test_a_ticket_aware_client_is_never_held() -> None:
    house = House()
    house.ask("192.0.2.1")
    assert house.ask("192.0.2.2", agent=CURL, tidegate_wait="ticket").connection.status == 503
    assert house.ask("192.0.2.3", agent="tidegate/0.1").connection.status == 503
    asks_json = {"agent": CURL, "accept": "application/json"}
    assert house.ask("192.0.2.4", **asks_json).connection.status == 503


def test_a_program_that_nobody_measured_is_held_unless_it_reads_answers() -> None:
    house = House()
    first = house.ask("192.0.2.1")
    held = house.ask("192.0.2.2", agent="NewTool/1")
    told = house.ask("192.0.2.3", agent="NewTool/1", accept="application/json").connection
    assert told.status == 503
    assert int(told.fields["retry-after"]) >= 1
    first.transfer.send(5_000_000)
    house.wait(9)
    assert held.connection.drips, "many programs give up after 10 s of silence"
    first.transfer.finish()
    house.wait(1)
    assert held.started


def test_without_tickets_a_held_tool_is_offered_again_and_again() -> None:
    house = House("fcfs", busy_retry_s=5)
    first = house.ask("192.0.2.1", agent=CURL)
    second = house.ask("192.0.2.2", agent=CURL)
    house.wait(7)
    assert not second.started
    first.transfer.finish()
    house.wait(6)
    assert second.started


def test_parallel_ranges_ride_on_one_lease_and_end_it_together() -> None:
    house = House()
    half = BIG // 2
    one = house.ask("192.0.2.1", ranges=(0, half))
    two = house.ask("192.0.2.1", ranges=(half, BIG))
    assert one.started
    assert two.started
    assert leases(house) == 1
    two.transfer.finish()
    house.wait(1)
    assert leases(house) == 1
    one.transfer.finish()
    house.wait(1)
    assert leases(house) == 0
    assert house.gate.policy.snapshot(house.clock.seconds()).completed_total == 1


def test_a_broken_connection_resumes_on_its_lease() -> None:
    house = House()
    first = house.ask("192.0.2.1")
    house.ask("192.0.2.2")
    first.transfer.send(4_000_000)
    first.leave()
    house.wait(5)
    back = house.ask("192.0.2.1", ranges=(4_000_000, BIG))
    assert back.started
    assert leases(house) == 1
    back.transfer.finish()
    house.wait(1)
    assert leases(house) == 0


def test_an_idle_lease_gives_its_slot_back() -> None:
    house = House(lease_idle_s=10)
    first = house.ask("192.0.2.1", agent=CURL)
    second = house.ask("192.0.2.2", agent=CURL)
    first.transfer.send(2_000_000)
    first.leave()
    house.wait(9)
    assert not second.started
    house.wait(3)
    assert second.started
    assert first.transfer.over


def test_a_resume_after_a_restart_wants_only_the_rest() -> None:
    house = House()
    resumed = house.ask(ranges=(9_000_000, BIG))
    resumed.transfer.finish()
    house.wait(1)
    assert leases(house) == 0
    told = house.ask(file="/other", ranges=(100, 200), tidegate_remaining="100")
    told.transfer.finish()
    house.wait(1)
    assert leases(house) == 0


def test_a_lease_does_not_idle_while_bytes_of_it_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    # A range of one write: its client asks for the next one when it has this one.
    class InOneWrite(FakeTransfer):
        def __init__(self, listener: TransferListener, total_bytes: int) -> None:
            super().__init__(listener, total_bytes)
            self.sent_bytes = total_bytes
            self.finish()

    monkeypatch.setattr(fakes, "FakeTransfer", InOneWrite)
    house = House(lease_idle_s=8, slots=1)
    first = house.ask(ranges=(0, 1_000))
    first.connection.queued = 1_000
    lease = house.gate.policy.leases()[0].lease
    for _ in range(16):
        house.wait(0.5)
        first.connection.queued -= 50
    second = house.ask(ranges=(1_000, 2_000))
    assert [view.lease for view in house.gate.policy.leases()] == [lease]
    # One that takes its bytes far too slowly keeps its slot no longer for that.
    second.connection.queued = 1_000
    for _ in range(100):
        house.wait(0.5)
        second.connection.queued -= 1
    assert not house.gate.policy.leases()


def test_more_connections_than_a_lease_may_have_are_refused_or_held() -> None:
    house = House(connections_per_lease=2)
    ones = [house.ask(agent=CURL, ranges=(n, n + 10)) for n in range(3)]
    assert [asked.started for asked in ones] == [True, True, False]
    ones[0].transfer.finish()
    house.wait(6)
    assert ones[2].started
    refused = house.ask(agent=CURL, tidegate_wait="ticket", ranges=(7, 9))
    assert refused.connection.status == 503
    assert "retry-after" in refused.connection.fields


def test_the_line_is_shared_by_networks_however_many_downloads_each_wants() -> None:
    house = House(slots=2)
    running = [house.ask(f"192.0.2.{number}", agent=CURL) for number in (1, 2)]
    parked = [house.ask(f"192.0.2.{number}", agent=CURL) for number in (3, 4)]
    house.wait(1)
    # Once for those that run, once for those that wait.
    assert house.link.waiting_networks == 2
    parked.append(house.ask("198.51.100.1", agent=CURL))
    house.wait(1)
    assert house.link.waiting_networks == 3
    for one in running:
        one.transfer.finish()
    for one in parked:
        one.leave()
    house.wait(60)
    assert house.link.waiting_networks == 0


def test_connections_beyond_the_lease_take_over_in_turn_when_one_ends() -> None:
    house = House(connections_per_lease=2)
    asked = [house.ask(agent="wrk", ranges=(n, n + 10)) for n in range(5)]
    assert [one.started for one in asked] == [True, True, False, False, False]
    asked[1].transfer.finish()
    house.wait(0.25)
    assert [one.started for one in asked] == [True, True, True, False, False]
    asked[0].transfer.finish()
    asked[2].transfer.finish()
    house.wait(0.25)
    assert all(one.started for one in asked)
    assert len(house.gate.parked) == 0
    assert leases(house) == 1


@pytest.mark.parametrize("fields", [{"tidegate_wait": "ticket"}, {"accept": "application/json"}])
def test_who_reads_answers_is_told_at_once_that_it_has_enough_connections(
    fields: dict[str, str],
) -> None:
    house = House(connections_per_lease=1)
    house.ask(agent="x")
    refused = house.ask(agent="x", **fields)
    assert refused.connection.status == 503
    assert json.loads(refused.connection.body)["type"].endswith("/too-many-connections")


def test_a_connection_too_many_is_told_so_in_the_end_and_may_leave_before() -> None:
    house = House(connections_per_lease=1, tools=[COMES_BACK])
    house.ask(agent="wrk")
    waits, leaves = house.ask(agent="wrk"), house.ask(agent="wrk")
    house.wait(10)
    leaves.leave()
    house.wait(5)
    assert waits.connection.status == 0
    house.wait(6)
    assert waits.connection.status == 503
    assert json.loads(waits.connection.body)["type"].endswith("/too-many-connections")
    assert len(house.gate.parked) == 0


def test_when_the_download_is_whole_one_that_was_too_many_asks_like_anybody_else() -> None:
    house = House(connections_per_lease=1, tools=[COMES_BACK])
    first = house.ask(agent="wrk")
    house.ask("192.0.2.9")
    more = house.ask(agent="wrk")
    first.transfer.finish()
    house.wait(0.25)
    assert not more.started
    assert more.connection.status == 503
    assert more.token


def test_who_asks_again_and_again_gets_its_answers_late() -> None:
    house = House(come_back_s=60.0, early_polls_free=1, early_answer_s=3.0, slot_use_fraction=0.0)
    house.ask("192.0.2.1")
    house.ask("192.0.2.2")
    assert house.ask("192.0.2.2").connection.status == 503, "once is forgiven"
    late, gone = house.ask("192.0.2.2"), house.ask("192.0.2.2")
    house.wait(2.0)
    assert late.connection.status == 0
    gone.leave()
    house.wait(1.5)
    assert late.connection.status == 503
    assert late.connection.fields["retry-after"] == "58", "61 s after it asked, less the delay"
    assert gone.connection.status == 0
    house.wait(70.0)
    assert house.ask("192.0.2.2").connection.status == 503, "on time: answered at once"


def test_small_files_pass_the_fast_way_unless_something_speaks_against_it() -> None:
    house = House(rules=[Rule(path="/secret/*", require_class="gold")], slots=2, reserve_small=1)
    asked = house.ask()
    small = representation("/SHA256SUMS", 100)
    assert admits(house.gate, asked.request, small)
    assert not admits(house.gate, asked.request, representation("/big", BIG))
    assert not admits(house.gate, asked.request, representation("/secret/x", 100))


def test_small_files_are_served_while_the_server_waits_for_its_downloads() -> None:
    house = House(slots=2, reserve_small=1)
    asked = house.ask()
    small, wheel = representation("/SHA256SUMS", 100), representation("/wheel.whl", 30_000)
    assert house.gate.free_for_small() == (True, False)
    house.gate.drain()
    assert admits(house.gate, asked.request, small)
    assert house.gate.free_for_small() == (True, False)
    asked.leave()
    house.wait(60)
    assert house.gate.free_for_small() == (True, False)
    assert not admits(house.gate, asked.request, wheel)


def test_a_body_of_one_write_needs_no_lease_while_nobody_waits_and_a_slot_is_free() -> None:
    house = House(slots=2, reserve_small=1)
    wheel = representation("/wheel.whl", 30_000)
    first = house.ask(file="/wheel.whl", size_bytes=30_000)
    assert first.started, "the only slot for large ones"
    assert not admits(house.gate, first.request, wheel), "no slot is free"
    first.transfer.finish()
    house.wait(0.5)
    counted = house.gate.policy.snapshot(house.clock.seconds())
    assert admits(house.gate, first.request, wheel)
    after = house.gate.policy.snapshot(house.clock.seconds())
    assert after.admitted_large_total == counted.admitted_large_total + 1
    assert after.large_active == 0
    assert not house.gate.downloads
    running = house.ask("192.0.2.2")
    waiting = house.ask("192.0.2.3")
    assert waiting.connection.status == 503
    running.transfer.finish()
    house.wait(0.5)
    assert not admits(house.gate, first.request, wheel), "nobody overtakes one who waits"


def test_a_ticket_or_pass_is_judged_also_where_a_body_of_one_write_could_go() -> None:
    house = House(slots=2, reserve_small=1)
    wheel = representation("/wheel.whl", 30_000)
    for headers, query in (
        ({b"tidegate-ticket": b"forged"}, b""),
        ({b"tidegate-pass": b"forged"}, b""),
        ({b"cookie": b"tidegate-ticket=forged"}, b""),
        ({}, b"?tidegate-ticket=forged"),
    ):
        asked = house.ask("192.0.2.9", file="/other")
        asked.transfer.finish()
        house.wait(0.5)
        plain = asked.request
        assert admits(house.gate, plain, wheel)
        proving = Request(plain.connection, b"GET", b"/wheel.whl" + query, headers)
        assert not admits(house.gate, proving, wheel)


def test_a_part_needs_no_lease_while_nobody_is_held_back_for_others() -> None:
    house = House(slots=3, reserve_small=1)
    asked = house.ask(file="/other")
    big, other = representation("/big", BIG), representation("/other", BIG)
    whole = representation("/whole", 200_000)
    assert admits(house.gate, asked.request, whole)
    assert admits(house.gate, asked.request, big, 4096)
    assert not admits(house.gate, asked.request, other, 4096), "it may be a part of what runs"
    connection = asked.request.connection

    def as_another(fields: dict[bytes, bytes]) -> Request:
        return Request(connection, b"GET", b"/other", fields)

    assert admits(house.gate, as_another({b"user-agent": b"zsync/0.6"}), other, 4096)
    proof = {b"user-agent": b"zsync/0.6", b"tidegate-client": b"a" * 32}
    assert not admits(house.gate, as_another(proof), other, 4096), "its name is another"
    (download,) = house.gate.downloads.values()
    pool = house.gate.policy.pool
    pool.pause(pool.leases[download.lease], house.clock.seconds())
    assert not admits(house.gate, asked.request, big, 4096), "one is paused, so the line is full"
    assert not admits(house.gate, asked.request, whole)
    assert admits(house.gate, asked.request, representation("/brief", 100_000))
    pool.resume(pool.leases[download.lease])
    assert admits(house.gate, asked.request, big, 4096)
    asked.transfer.finish()
    house.wait(0.5)
    assert admits(house.gate, asked.request, other, 4096)
    assert house.gate.parts.popularity.pending("/big") == (0, 0, 2 * 4096), "a part is no download"


def test_a_download_is_complete_when_its_lease_delivered_the_whole_file() -> None:
    house = House()
    counts = house.gate.parts.popularity
    broken = house.ask()
    broken.transfer.send(BIG // 2)
    broken.transfer.end(False)
    assert counts.pending("/big.iso")[:2] == (1, 0), "half of it is no download"
    resumed = house.ask(ranges=(BIG // 2, BIG))
    resumed.transfer.finish()
    house.wait(0.5)
    assert counts.pending("/big.iso")[:2] == (1, 1), "a resume of the same lease is summed"
    part = house.ask(ranges=(0, BIG // 2))
    part.transfer.finish()
    house.wait(0.5)
    assert counts.pending("/big.iso")[:2] == (2, 1), "a part that was all one asked for"


def test_a_file_that_leaves_in_one_write_is_begun_and_complete_at_once() -> None:
    house = House(slots=3, reserve_small=1)
    asked, wheel = house.ask(file="/other"), representation("/wheel.whl", 9_000)
    assert admits(house.gate, asked.request, wheel)
    assert admits(house.gate, asked.request, wheel, 4_000)
    assert house.gate.parts.popularity.pending("/wheel.whl") == (1, 1, 13_000)


def test_only_the_blocked_are_judged_and_nobody_else_is_slower() -> None:
    house = House(slots=3, reserve_small=1)
    small = representation("/SHA256SUMS", 100)
    here, there = house.ask("192.0.2.1"), house.ask("192.0.2.2")
    house.gate.reception.blocked.add("192.0.2.1/32")
    assert not admits(house.gate, here.request, small)
    assert admits(house.gate, there.request, small)


def test_rules_hide_require_a_class_and_count_sizes() -> None:
    house = House(
        rules=[
            Rule(path="/gold/", require_class="gold"),
            Rule(path="/later.iso", hidden_until="1970-01-12T13:46:50Z"),  # type: ignore[arg-type]
            Rule(path="/notes.pdf", treat_as="small"),
        ],
        slots=2,
        reserve_small=1,
    )
    assert house.ask(file="/later.iso").connection.status == 404
    assert not house.gate.is_plain("/later.iso")
    house.wait(11)
    assert house.gate.is_plain("/later.iso")
    assert house.ask(file="/later.iso").started
    assert house.ask("192.0.2.2", file="/notes.pdf").started
    refused = house.ask("192.0.2.3", file="/gold/a")
    assert refused.connection.status == 403
    assert json.loads(refused.connection.body)["type"].endswith("/pass-required")


def issue_pass(house: House, **more: object) -> str:
    terms = Pass("", "gold", 4.0, "/*", START_S, START_S + 3600, 1)
    token, _ = house.passes.issue(replace(terms, **more), START_S)  # type: ignore[arg-type]
    return token


def test_a_pass_opens_what_requires_it_and_moves_faster() -> None:
    house = House(rules=[Rule(path="/gold/", require_class="gold")])
    token = issue_pass(house, max_uses=9)
    first = house.ask("192.0.2.1", file="/gold/a", tidegate_pass=token)
    assert first.started
    for n in range(2, 42):
        house.ask(f"192.0.2.{n}")
    special = house.ask("192.0.2.200", tidegate_pass=token)
    assert int(special.connection.fields["tidegate-place"]) < 20
    polled = house.ask("192.0.2.200", token=special.token)
    assert polled.connection.status == 503


def test_a_waiting_ticket_knows_its_class_whatever_the_weights_are() -> None:
    """Two classes may have one weight; what a weight is of cannot be guessed."""
    house = House()
    house.ask("192.0.2.1")
    for address, word in (("192.0.2.2", "gold"), ("192.0.2.3", "press"), ("192.0.2.4", "")):
        fields = {}
        if word:
            fields["tidegate_pass"] = issue_pass(house, priority_class=word)
        house.ask(address, **fields)

    def classes(of: House) -> dict[str, str]:
        return {row.client.split("#")[0]: row.priority_class for row in of.gate.policy.tickets()}

    told = {"192.0.2.2": "gold", "192.0.2.3": "press", "192.0.2.4": ""}
    assert classes(house) == told
    after = House(restored=house.journal.rows.values(), next_number=100, clock=house.clock)
    assert {who: classes(after)[who] for who in told} == told
    late = issue_pass(house, priority_class="press", weight=9.0)
    house.ask("192.0.2.4", tidegate_pass=late)
    assert classes(house)["192.0.2.4"] == "press"


def test_a_pass_counts_downloads_and_not_visits() -> None:
    house = House()
    token = issue_pass(house)
    house.ask("192.0.2.1")
    assert house.ask("192.0.2.2", tidegate_pass=token).connection.status == 503
    assert house.ask("192.0.2.2", tidegate_pass=token).connection.status == 503
    assert [record.uses for record in house.kept_passes] == [1]
    other = house.ask("192.0.2.3", tidegate_pass=token)
    assert other.connection.status == 403
    assert json.loads(other.connection.body)["type"].endswith("/pass-used")


def test_revoked_foreign_and_expired_passes_are_refused() -> None:
    house = House()
    serial = house.passes.keys.read_pass(token := issue_pass(house), START_S).serial
    assert house.passes.revoke(serial)
    for text, code in (
        (token, "pass-revoked"),
        (issue_pass(house, path="/elsewhere/*"), "pass-path"),
        (issue_pass(house, expires_s=START_S - 1), "pass-expired"),
        (issue_pass(house, not_before_s=START_S + 60), "pass-early"),
        ("p1.nonsense", "pass-forged"),
    ):
        asked = house.ask(tidegate_pass=text)
        assert asked.connection.status == 403
        assert json.loads(asked.connection.body)["type"].endswith("/" + code)


def test_tickets_keep_their_places_over_a_crash() -> None:
    before = House()
    before.ask("192.0.2.1")
    tokens = [before.ask(f"192.0.2.{n}").token for n in (2, 3, 4)]
    rows = list(before.journal.rows.values())
    after = House(restored=rows, next_number=1_000_000, clock=before.clock)
    started = [row for row in rows if row.state is TicketState.STARTED]
    assert len(started) == 1
    assert set(after.journal.rows) <= {1, 2}, "what the journal has is not written to it again"
    assert after.ask("192.0.2.1").started
    back = [after.ask(f"192.0.2.{n}", token=tokens[n - 2]) for n in (4, 3, 2)]
    assert [asked.connection.fields["tidegate-place"] for asked in back] == ["3", "2", "1"]
    new = after.ask("192.0.2.5")
    assert (
        after.keys.read_ticket(new.token, "192.0.2.5", "/big.iso", after.clock.seconds()).number
        >= 1_000_000
    )


def test_a_ticket_that_the_journal_lost_gets_its_place_back() -> None:
    before = House()
    before.ask("192.0.2.1")
    lost = before.ask("192.0.2.2")
    kept = before.ask("192.0.2.3")
    rows = [row for row in before.journal.rows.values() if row.number != 2]
    after = House(restored=rows, next_number=1_000_000, clock=before.clock)
    assert after.ask("192.0.2.1").started
    newcomer = after.ask("192.0.2.9")
    assert newcomer.connection.fields["tidegate-place"] == "2"
    back = after.ask("192.0.2.2", token=lost.token)
    assert back.connection.fields["tidegate-place"] == "1"
    third = after.ask("192.0.2.3", token=kept.token)
    assert third.connection.fields["tidegate-place"] == "2"


def test_a_ticket_that_the_journal_lost_is_ready_if_a_younger_one_is() -> None:
    before = House()
    before.ask("192.0.2.1")
    before.ask("192.0.2.2")
    before.ask("192.0.2.3")
    rows = [row for row in before.journal.rows.values() if row.number == 3]
    after = House(restored=rows, next_number=1_000_000, clock=before.clock)
    after.wait(1)
    lost = before.gate.policy.ticket(2)
    assert lost is not None
    lost = lost._replace(stands_back=False)
    after.gate.take_up([lost, lost._replace(number=4, client="192.0.2.4#c4")])
    states = {row.number: row.state for row in after.gate.policy.tickets()}
    ready, waiting = TicketState.READY, TicketState.WAITING
    assert states == {2: ready, 3: ready, 4: waiting}


def test_a_used_ticket_stays_used_over_a_crash() -> None:
    before = House()
    first, token = runs_with_ticket(before)
    first.transfer.finish()
    before.wait(1)
    done = [row for row in before.journal.rows.values() if row.state is TicketState.DONE]
    assert [row.number for row in done] == [1]
    after = House(over=[1], next_number=1_000_000, clock=before.clock)
    replay = after.ask("192.0.2.1", token=token)
    assert replay.connection.status == 403


def test_a_download_begins_while_its_ticket_is_on_its_way_to_the_journal() -> None:
    """What a killed server would have to know by then is that it is used, and that waits."""
    house = House(next_number=2)
    before = house.ask("192.0.2.9")
    token = house.ask("192.0.2.1").token
    before.transfer.finish()
    house.wait(1)
    house.journal.hold = True
    first = house.ask("192.0.2.1", token=token)
    assert first.started
    assert not house.journal.waiters
    # Killed before the journal has it: the token is all that is left, and it gets its place back.
    after = House(next_number=1_000_002, clock=house.clock)
    again = after.ask("192.0.2.1", token=first.token)
    assert again.started
    again.transfer.finish()
    after.wait(1)
    assert after.ask("192.0.2.1", token=first.token).connection.status == 403


def test_a_poll_is_told_the_token_that_it_shows_although_two_clocks_differ_each_time() -> None:
    """Signed anew each time it cost twice as much, and was proven anew at the next visit."""
    house = House(early_polls_free=100)
    jitter = itertools.cycle((0.0, 3e-7, -5e-7, 1e-3))
    house.gate.parts.wall = lambda: house.clock.seconds() + 1e9 + next(jitter)
    assert house.ask("192.0.2.1").started
    token = house.ask("192.0.2.2").token
    for _ in range(8):
        house.clock.advance(0.1)
        poll = house.ask("192.0.2.2", token=token)
        assert poll.connection.status == 503
        assert poll.token == token
    # What it says of the wish has changed: it is another one.
    again = house.ask("192.0.2.2", token=token, ranges=(0, 9), tidegate_remaining="1000")
    assert again.token != token


def test_the_last_bytes_wait_until_the_journal_has_the_ticket_as_used() -> None:
    house = House()
    asked, _ = runs_with_ticket(house)
    asked.transfer.send(1000)
    house.journal.hold = True
    asked.transfer.finish()
    house.wait(0.25)
    assert not asked.transfer.over
    row = house.journal.rows[1]
    assert (row.state, row.remaining_bytes) == (TicketState.STARTED, 0)
    house.journal.waiters.pop()()
    house.wait(0.25)
    assert asked.transfer.over
    house.wait(1)
    assert house.journal.rows[1].state is TicketState.DONE


def test_a_download_that_breaks_off_in_its_last_bytes_keeps_its_ticket() -> None:
    house = House(lease_idle_s=10.0)
    asked, _ = runs_with_ticket(house)
    house.journal.hold = True
    asked.transfer.finish()
    asked.transfer.end(False)
    row = house.journal.rows[1]
    assert (row.state, row.remaining_bytes) == (TicketState.STARTED, BIG)


def test_only_the_last_of_several_bodies_waits_for_the_journal() -> None:
    house = House(connections_per_lease=4)
    first = house.ask("192.0.2.1", ranges=(0, BIG // 2))
    house.ask("192.0.2.99")
    house.journal.hold = True
    second = house.ask("192.0.2.1", ranges=(BIG // 2, BIG))
    whole = house.ask("192.0.2.1", token=second.token)
    first.transfer.finish()
    house.wait(0.25)
    assert first.transfer.over
    assert house.journal.rows[1].remaining_bytes > 0
    whole.transfer.end(False)
    second.transfer.finish()
    house.wait(0.25)
    assert not second.transfer.over
    assert house.journal.rows[1].remaining_bytes == 0


def test_numbers_are_promised_to_the_store_before_they_are_given() -> None:
    house = House(next_number=5)
    house.ask("192.0.2.1")
    house.ask("192.0.2.2")
    assert house.promises[-1] > 1_000_000


def test_a_restarted_server_tells_a_place_once_the_client_asks_for_the_file() -> None:
    """Under Fair a place is the order of told starts, and a server that starts has told none."""
    settings = {"slots": 1, "slots_max": 1, "bandwidth_bytes_s": 1_000_000.0}
    before = House("fair", **settings)
    asked = [before.ask(f"192.0.2.{n}") for n in range(1, 7)]
    rows = [before.gate.on_wall_clock(row) for row in before.gate.policy.tickets()]
    house = House("fair", restored=rows, next_number=100, **settings)

    def place() -> object:
        return json.loads(house.watch("192.0.2.6", asked[5].token, 0).connection.body)["place"]

    assert place() is None
    again = [house.ask(f"192.0.2.{n}", token=asked[n - 1].token) for n in range(2, 7)]
    assert again[-1].connection.fields["tidegate-place"] == str(place())


def test_a_switch_of_policy_drops_nobody() -> None:
    house = House()
    running = house.ask("192.0.2.1", agent=CURL)
    held = [house.ask(f"192.0.2.{n}", agent=CURL) for n in (2, 3)]
    told = house.ask("192.0.2.4")
    for name in ("fcfs", "reserve", "ticket"):
        house.gate.apply(name, PolicySettings(slots=1, reserve_small=0))
        house.wait(1)
    assert not running.transfer.over
    running.transfer.finish()
    house.wait(1)
    assert held[0].started
    held[0].transfer.finish()
    house.wait(1)
    assert held[1].started
    held[1].transfer.finish()
    house.wait(30)
    assert house.ask("192.0.2.4", token=told.token).started


def test_more_slots_start_those_who_are_held_at_once() -> None:
    house = House()
    house.ask("192.0.2.1", agent=CURL)
    held = [house.ask(f"192.0.2.{n}", agent=CURL) for n in (2, 3)]
    house.gate.apply("ticket", PolicySettings(slots=3, reserve_small=0))
    house.wait(1)
    assert all(asked.started for asked in held)


def test_draining_sends_newcomers_away_and_lets_downloads_finish() -> None:
    house = House()
    running = house.ask("192.0.2.1", ranges=(0, 100))
    held = house.ask("192.0.2.2", agent=CURL)
    house.gate.drain()
    assert held.connection.status == 503
    assert "tidegate-ticket" in held.connection.fields
    late = house.ask("192.0.2.3")
    assert late.connection.status == 503
    told = json.loads(late.connection.body)
    assert told["type"].endswith("/closed")
    assert "place" not in told["detail"], "it has none"
    back = house.ask("192.0.2.2", token=held.connection.fields["tidegate-ticket"])
    assert "your place is kept" in json.loads(back.connection.body)["detail"]
    assert house.ask("192.0.2.1", ranges=(100, 200)).started
    assert not running.transfer.over


def test_nobody_is_called_while_the_server_waits_for_its_downloads() -> None:
    house = House()
    running = house.ask("192.0.2.1")
    for number in range(2, 8):
        house.ask(f"192.0.2.{number}")
    house.ask("192.0.2.8", agent=CURL)
    house.gate.drain()
    running.transfer.finish()
    house.wait(1)
    assert [row.number for row in house.gate.policy.tickets()] == [2, 3, 4, 5, 6, 7, 8]


def test_close_leaves_no_timer_behind() -> None:
    house = House()
    house.ask("192.0.2.1")
    house.ask("192.0.2.2", agent=CURL)
    house.gate.close()
    assert house.clock.getDelayedCalls() == []


def test_an_operator_cancels_withdraws_promotes_and_blocks() -> None:
    house = House()
    desk = QueueActions(house.gate)
    running = house.ask("192.0.2.1")
    tokens = [house.ask(f"192.0.2.{n}").token for n in (2, 3, 4)]
    assert desk.promote(4)
    assert house.ask("192.0.2.4", token=tokens[2]).connection.fields["tidegate-place"] == "1"
    assert desk.withdraw(2)
    assert not desk.withdraw(2)
    assert not desk.promote(99)
    [view] = house.gate.policy.leases()
    assert desk.cancel(view.lease, "the operator says so")
    assert not desk.cancel(view.lease, "again")
    assert running.transfer.aborted == "the operator says so"
    assert leases(house) == 0
    desk.block("192.0.2.3")
    assert house.ask("192.0.2.3").connection.status == 403
    assert [row.number for row in house.gate.policy.tickets()] == [4]
    desk.unblock("192.0.2.3")
    assert house.ask("192.0.2.3").connection.status == 503


def test_a_replaced_file_begins_its_coverage_anew() -> None:
    house = House()
    first = house.ask(ranges=(0, BIG // 2))
    download = next(iter(house.gate.downloads.values()))
    first.transfer.finish()
    assert download.coverage.total == BIG // 2
    download.renew(replace(representation(), etag='"new"'), BIG)
    assert download.coverage.total == 0


def test_copies_of_the_same_bytes_bring_a_download_no_nearer_to_its_end() -> None:
    """Forty connections with the same bytes counted forty times, so it was first for ever."""
    house = House()
    copies = [house.ask(), house.ask(), house.ask(ranges=(BIG // 4, BIG))]
    download = next(iter(house.gate.downloads.values()))
    for copy in copies:
        copy.transfer.sent_bytes = copy.transfer.acked_bytes = BIG // 2
    assert len(download.deliveries) == len(copies)
    assert download.remaining_bytes() == BIG - 3 * BIG // 4
    download.measure(1.0)
    assert download.left_bytes == BIG - 3 * BIG // 4
    assert not download.about_to_complete()
    assert download.planned_bytes == 2 * BIG + BIG - BIG // 4
    copies[1].transfer.abort("its client went")
    copies[2].transfer.finish()
    assert download.planned_bytes == BIG == sum(d.planned_bytes for d in download.deliveries)
    copies[0].transfer.finish()
    assert (download.planned_bytes, len(download.deliveries)) == (0, 0)


def test_a_signed_ticket_with_a_number_never_issued_is_taken_up_and_not_reissued() -> None:
    house = House()
    house.ask("192.0.2.1")
    token = house.keys.write_ticket(
        Ticket(77, "192.0.2.2", "v0", "/big.iso", BIG, BIG, 1.0, house.clock.seconds())
    )
    assert house.ask("192.0.2.2", token=token).connection.status == 503
    numbers = {row.number for row in house.gate.policy.tickets()}
    assert 77 in numbers


#: What clients do, one step after the other: which kind of step, and which client.
steps_of_clients = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), max_size=40)


@settings(max_examples=3)
@given(steps_of_clients)
@example(
    # One of three of a network is paused for the others.
    list(zip(map(int, "42456461363230130"), map(int, "43552434345030352"), strict=True))
)
@example(
    # Who gave way to others of its network goes on without a slot after ten seconds.
    [
        (0, 0), (6, 0), (5, 0), (0, 0), (6, 0), (0, 0), (3, 0), (4, 0), (0, 2), (3, 0), (0, 4),
        *[(0, 0)] * 10, (3, 4), (0, 0), (0, 0), (0, 0), (3, 4),
    ]
)  # fmt: skip
def test_no_slot_leaks_where_one_did(steps: list[tuple[int, int]]) -> None:
    """What leaked slots once, and a few more: through nodes, too."""
    leak_no_slot(steps)


@settings(max_examples=20)
@given(steps_of_clients)
def test_no_slot_leaks_whatever_clients_do(steps: list[tuple[int, int]]) -> None:
    leak_no_slot(steps)


def leak_no_slot(steps: list[tuple[int, int]]) -> None:
    house = House(slots=2, reserve_small=0, lease_idle_s=5, ticket_ttl_s=20, slot_use_fraction=0.0)
    live: list[object] = []
    for what, who in steps:
        if what <= 2:
            agent = CURL if what == 0 else "tidegate/1"
            live.append(house.ask(f"192.0.2.{who}", agent=agent))
        elif what == 3:
            house.wait(who + 1)
        elif live:
            asked = live.pop(who % len(live))
            started = [one for one in asked.transfers if not one.over]  # type: ignore[attr-defined]
            if what == 4 and started:
                started[0].finish()
            elif not asked.request.finished:  # type: ignore[attr-defined]
                asked.leave()  # type: ignore[attr-defined]
        seen = house.gate.policy.snapshot(house.clock.seconds())
        assert leases(house) - seen.slotless <= 2
        running = sum(len(download.deliveries) for download in house.gate.downloads.values())
        assert running == sum(view.connections for view in house.gate.policy.leases())
    for asked in live:
        asked.leave()  # type: ignore[attr-defined]
    house.wait(400)
    assert leases(house) == 0
    assert len(house.gate.parked) == 0
    assert house.gate.downloads == {}


@pytest.mark.parametrize("policy", ["ticket", "fair"])
def test_a_page_that_watches_hears_of_its_turn_at_once_and_finds_its_slot(policy: str) -> None:
    house = House(policy, slots=1, slots_max=1, bandwidth_bytes_s=1_000_000.0)
    first = house.ask("192.0.2.1")
    page = house.ask("192.0.2.2", **BROWSER)
    house.wait(2.1)
    watch = house.watch("192.0.2.2", page.token)
    assert watch.connection.status == 0
    # A later client that waits inside its request does not overtake it.
    later = house.ask("192.0.2.3", agent=CURL)
    first.transfer.finish()
    house.clock.advance(0.1)
    assert json.loads(watch.connection.body)["state"] == "called"
    assert watch.connection.fields["preference-applied"] == "wait=20"
    house.wait(1)
    assert not later.started
    mine = house.ask("192.0.2.2", **BROWSER, token=page.token)
    assert mine.started
    again = house.watch("192.0.2.2", page.token)
    assert json.loads(again.connection.body)["state"] == "started"
    mine.transfer.finish()
    house.clock.advance(0.1)
    assert later.started


def test_a_ticket_from_elsewhere_stays_behind_older_ones_where_a_lost_start_is_younger() -> None:
    house = House("ticket", slots=1, slots_max=1)

    def row(number: int, state: TicketState, issued_s: float) -> TicketRow:
        client = f"192.0.2.1#{number}"
        return TicketRow(number, client, "/big.iso", BIG, BIG, 1.0, issued_s, state, issued_s)

    house.wait(10)
    waiting = [row(number, TicketState.WAITING, number / 10) for number in range(1, 41)]
    for one in [*waiting, row(50, TicketState.STARTED, 7.0)]:
        house.gate.leases.restore(one)
    house.gate.take_up([row(ELSEWHERE + 5, TicketState.WAITING, 6.0)])
    house.gate.take_up([row(ELSEWHERE + 6, TicketState.WAITING, 0.35)])
    house.clock.advance(0.3)
    # The lost start has no place.
    assert house.gate.policy.place(ELSEWHERE + 6) == 4
    assert house.gate.policy.place(ELSEWHERE + 5) == 42


def test_a_called_client_goes_before_requests_that_wait_for_the_line_once() -> None:
    house = House("ticket", slots=1, slots_max=1, lease_idle_s=20.0)
    first = house.ask("192.0.2.1")
    page, other = house.ask("192.0.2.2", **BROWSER), house.ask("192.0.2.3", **BROWSER)

    def comes(token: str, method: bytes = b"GET") -> Request:
        fields = {b"cookie": b"a=b; tidegate-ticket=" + token.encode()}
        return Request(fakes.FakeConnection("192.0.2.2"), method, b"/big.iso", fields)  # type: ignore[arg-type]

    house.watch("192.0.2.2", page.token)
    assert not house.called.take(comes(page.token))
    first.transfer.finish()
    house.clock.advance(0.1)
    assert not house.called.take(comes(other.token))
    assert not house.called.take(comes(page.token, b"HEAD"))
    assert house.called.take(comes(page.token))
    assert not house.called.take(comes(page.token))
    house.watch("192.0.2.2", page.token, wait_s=0)
    house.wait(20)
    assert not house.called.take(comes(page.token))


def test_a_page_is_told_whether_a_visit_before_its_time_would_start() -> None:
    house = House(slots=1, slots_max=1)
    first = house.ask("192.0.2.1")
    page = house.ask("192.0.2.2", **BROWSER)
    house.wait(2.1)

    def told() -> tuple[str, bool]:
        answer = json.loads(house.watch("192.0.2.2", page.token, 0).connection.body)
        return answer["state"], answer["free"]

    assert told() == ("ready", False)
    first.transfer.finish()
    house.clock.advance(0.1)
    assert told() == ("ready", True)


def near_its_turn(agent: str = BROWSER["agent"], **fields: str) -> tuple[House, Asked, Asked]:
    """A download that is done in a second, and one that has its page and asks again."""
    house = House("fair", slots=1, slots_max=1, bandwidth_bytes_s=1_000_000.0)
    first = house.ask("192.0.2.1", size_bytes=5_000_000)
    page = house.ask("192.0.2.2", agent=agent, size_bytes=3_000_000, **fields)
    # It is shorter, so its turn may come at any moment.
    house.wait(2.1)
    assert page.connection.status == 503
    for _ in range(4 * int(page.connection.fields["retry-after"])):
        first.transfer.send(240_000)
        house.wait(0.25)
    back = {"agent": agent, "size_bytes": 3_000_000, "token": page.token, **fields}
    return house, first, house.ask("192.0.2.2", **back)


ACCEPTS = {"accept": BROWSER["accept"]}


def test_a_browser_that_comes_back_waits_in_its_request_while_its_turn_is_near() -> None:
    """It had begun ahead of its turn, and stood still behind those that were called first."""
    house, first, browser = near_its_turn(**ACCEPTS)
    assert browser.connection.status == 0
    assert not browser.started
    later = house.ask("192.0.2.3", agent=CURL, size_bytes=3_000_000)
    first.transfer.finish()
    house.clock.advance(0.1)
    assert browser.started
    assert not later.started


def test_a_new_browser_whose_turn_comes_within_two_seconds_waits_in_its_request() -> None:
    """120 fast browsers took 1.5 times as long as without admission: 3 s at a page each."""
    house = House("fair", slots=1, slots_max=1, bandwidth_bytes_s=1_000_000.0)
    first = house.ask("192.0.2.1", size_bytes=5_000_000)
    browser = house.ask("192.0.2.2", size_bytes=3_000_000, **BROWSER)
    house.wait(1.5)
    assert browser.connection.status == 0
    first.transfer.finish()
    house.clock.advance(0.1)
    assert browser.started


def test_a_browser_whose_turn_does_not_come_gets_its_page_after_eight_seconds() -> None:
    house, first, browser = near_its_turn(**ACCEPTS)
    house.wait(7)
    assert browser.connection.status == 0
    house.wait(1.5)
    assert browser.connection.status == 503
    assert browser.connection.fields["tidegate-place"] == "1"
    assert int(browser.connection.fields["retry-after"]) >= 1
    assert len(house.gate.parked) == 0
    # It is away now, and has its place when it comes back.
    first.transfer.finish()
    house.wait(3)
    assert house.ask("192.0.2.2", size_bytes=3_000_000, token=browser.token, **BROWSER).started


def test_a_browser_that_leaves_while_its_turn_is_near_keeps_its_place() -> None:
    house, first, browser = near_its_turn(**ACCEPTS)
    browser.leave()
    first.transfer.finish()
    house.wait(0.5)
    assert len(house.gate.parked) == 0
    assert leases(house) == 0
    assert house.ask("192.0.2.2", size_bytes=3_000_000, **BROWSER).started


def test_who_reads_answers_is_held_near_its_turn_only_if_it_says_so() -> None:
    assert near_its_turn("own/1", tidegate_wait="ticket")[2].connection.status == 503
    house, first, back = near_its_turn("own/1", tidegate_wait="turn")
    assert back.connection.status == 0
    first.transfer.finish()
    house.clock.advance(0.1)
    assert back.started


def test_nobody_is_held_near_a_turn_while_the_doors_are_closed() -> None:
    house, _, browser = near_its_turn(**ACCEPTS)
    browser.leave()
    page = house.ask("192.0.2.5", size_bytes=2_000_000, **BROWSER)
    house.wait(2.1)
    token = page.token
    house.gate.close_doors(True)
    house.wait(3)
    back = house.ask("192.0.2.5", size_bytes=2_000_000, token=token, **BROWSER)
    assert back.connection.status == 503


def test_a_page_may_watch_for_as_long_as_every_proxy_bears_silence() -> None:
    house = House()
    house.gate.close_doors(True)
    page = house.ask("192.0.2.2", **BROWSER)
    watch = house.watch("192.0.2.2", page.token, 3600)
    house.wait(24)
    assert watch.connection.status == 0
    house.wait(1.5)
    assert watch.connection.status == 200
    assert watch.connection.fields["preference-applied"] == "wait=25"


def test_a_ready_page_is_told_of_a_free_slot_unless_the_doors_are_closed() -> None:
    house = House()
    first = house.ask("192.0.2.1")
    page = house.ask("192.0.2.2", **BROWSER)
    first.transfer.finish()
    house.clock.advance(0.1)
    ready = stands(house, page)
    assert (ready["state"], ready["free"]) == ("ready", True)
    house.gate.close_doors(True)
    closed = stands(house, page)
    assert (closed["state"], closed["free"]) == ("ready", False)


def test_a_page_hears_that_its_download_is_done_and_how_to_check_it() -> None:
    house = House()
    first = house.ask("192.0.2.1")
    page = house.ask("192.0.2.2", **BROWSER)
    first.transfer.finish()
    house.clock.advance(0.1)
    mine = house.ask("192.0.2.2", **BROWSER, token=page.token)
    known = {"size_bytes": BIG, "sha256": DIGEST.hex()}
    started = stands(house, page)
    assert 0.0 < started.pop("expected_done_s") <= started.pop("p90_done_s")
    assert started == {"state": "started", **known}
    mine.transfer.finish()
    house.clock.advance(0.1)
    assert stands(house, page) == {"state": "done", **known}


def test_a_ticket_that_was_withdrawn_is_over_and_not_done() -> None:
    house = House()
    house.ask("192.0.2.1")
    page = house.ask("192.0.2.2", **BROWSER)
    number = house.keys.read_ticket(
        page.token, "192.0.2.2", "/big.iso", house.clock.seconds()
    ).number
    house.gate.policy.withdraw(number, house.gate.now())
    assert stands(house, page) == {"state": "over"}


def stands(house: House, page: Asked) -> Any:
    """How the ticket of this page stands, asked without waiting."""
    assert page.token is not None
    return json.loads(house.watch("192.0.2.2", page.token, wait_s=0).connection.body)


def test_a_page_that_watches_and_goes_keeps_the_return_that_it_was_told() -> None:
    house = House("ticket", slots=1, ticket_ttl_s=5.0, come_back_s=60.0)
    house.ask("192.0.2.1").transfer.send(5_000_000)
    others = [house.ask(f"192.0.3.{n}") for n in range(4)]
    page = house.ask("192.0.2.2", **BROWSER)
    watch = house.watch("192.0.2.2", page.token, 4)
    house.wait(4.25)
    status = json.loads(watch.connection.body)
    assert (status["state"], status["place"]) == ("waiting", 5)
    house.watch("192.0.2.2", page.token).leave()
    for other in others:
        QueueActions(house.gate).withdraw(_number(house, other))
    house.wait(50)
    row = house.gate.policy.ticket(_number(house, page))
    assert row is not None
    assert row.state is TicketState.READY
    assert row.early_polls == 0
    assert len(house.gate.parked) == 0


def _number(house: House, asked: Asked) -> int:
    return house.keys.read_ticket(
        asked.token, asked.request.client_address, "/big.iso", house.clock.seconds()
    ).number


def test_pages_that_watch_have_bounds_and_end_with_their_ticket() -> None:
    house = House("ticket", slots=1)
    house.ask("192.0.2.1")
    page = house.ask("192.0.2.2", **BROWSER)
    held = [house.watch("192.0.2.2", page.token) for _ in range(4)]
    assert [one.connection.status for one in held] == [0, 0, 0, 200]
    assert "preference-applied" not in held[3].connection.fields
    # Nothing is held that did not ask for it, and no forged ticket.
    assert house.watch("192.0.2.2", page.token, 0).connection.status == 200
    assert house.watch("192.0.2.2", page.token[:-2] + "xx").connection.status == 403
    # The page itself comes: the place is told anew, and those that watched are answered.
    house.ask("192.0.2.2", **BROWSER, token=page.token)
    assert [one.connection.status for one in held] == [200] * 4
    last = house.watch("192.0.2.2", page.token)
    assert QueueActions(house.gate).withdraw(_number(house, page))
    assert last.connection.status == 403
    assert len(house.gate.parked) == 0
