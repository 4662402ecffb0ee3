"""Nodes in front of a gate: what clients see is what they see without them, also after faults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

import tests.test_server_gate as gate_tests
from tests.cluster_house import FleetHouse, MemoryTransport, Outlet, join
from tests.crowd_history import number_of
from tests.databases import journal_makers, journals, postgres
from tests.fakes import BIG, FakeConnection, House, admits, representation
from tidegate.policies.contract import ELSEWHERE, Admit, Job, TicketState
from tidegate.protocol.manifest import FileDigests
from tidegate.protocol.ticket import Key, KeyRing, Pass
from tidegate.server.accounts.accounts import digest
from tidegate.server.accounts.sessions import shows_one_of
from tidegate.server.admission.actions import QueueActions
from tidegate.server.admission.leases import TICK_S
from tidegate.server.admission.rules import Rule
from tidegate.server.app.health import Unled, add_node_routes, answer_unled
from tidegate.server.cluster.leader import GATHER_S
from tidegate.server.cluster.link import Link
from tidegate.server.cluster.messages import (
    OLDEST,
    VERSION,
    Ended,
    FromNode,
    Hello,
    Respond,
    decode_from_node,
    encode_frame,
)
from tidegate.server.cluster.node import PATIENCE, NodeHome, RemoteAdmission
from tidegate.server.http.request import Request

__all__ = ["journal_makers", "journals", "postgres"]

CURL = "curl/8.0"


def _plain(function: Callable[..., None]) -> bool:
    return not inspect.signature(function).parameters


#: These look at a client in the very turn of what the gate did; a message takes one more.
_WITHIN_ONE_TURN = frozenset(
    {
        "test_a_replaced_file_begins_its_coverage_anew",
        "test_a_ticket_is_answered_only_once_it_is_safe_in_the_journal",
        "test_an_operator_cancels_withdraws_promotes_and_blocks",
        "test_close_leaves_no_timer_behind",
        "test_copies_of_the_same_bytes_bring_a_download_no_nearer_to_its_end",
        "test_draining_sends_newcomers_away_and_lets_downloads_finish",
    }
)
#: A search of 20 examples, 10 CPU-s each time; `test_no_slot_leaks_where_one_did` plays a few.
_SEARCHES = frozenset({"test_no_slot_leaks_whatever_clients_do"})
_GATE_TESTS = [
    function
    for name, function in sorted(vars(gate_tests).items())
    if name.startswith("test_") and _plain(function) and name not in _WITHIN_ONE_TURN | _SEARCHES
]


@pytest.mark.parametrize("test", _GATE_TESTS, ids=lambda test: str(test.__name__))
def test_the_gate_keeps_its_word_through_nodes(
    test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every test of the gate again, with its requests spread over two nodes."""
    monkeypatch.setattr(gate_tests, "House", FleetHouse)
    test()


def test_the_exceptions_of_the_gate_tests_are_tests() -> None:
    assert set(vars(gate_tests)) >= _WITHIN_ONE_TURN | _SEARCHES
    assert len(_GATE_TESTS) > 30


def test_a_node_that_is_lost_frees_its_slots_and_keeps_its_clients_places() -> None:
    house = FleetHouse(lease_idle_s=2, slots=1)
    house.ask("192.0.2.1")  # on node 1
    parked = house.ask("192.0.2.2", agent=CURL)  # on node 0
    ticket = house.gate.policy.tickets()
    assert [row.client.partition("#")[0] for row in ticket] == ["192.0.2.2"]
    house.links[1].drop()
    house.wait(4)
    assert parked.started
    house.links[0].drop()
    house.wait(0.5)
    assert not house.gate.parked
    assert len(house.nodes) == 0


def test_a_new_leader_keeps_places_and_bodies() -> None:
    house = FleetHouse(slots=2)
    running = [house.ask(f"192.0.2.{n}") for n in (1, 2)]
    waiting = [house.ask(f"192.0.2.{n}") for n in range(3, 9)]
    places = [int(one.connection.fields["tidegate-place"]) for one in waiting]
    assert places == [1, 2, 3, 4, 5, 6]
    _new_leader(house, slots=2)
    house.wait(0.5)
    assert not any(one.transfer.paused or one.transfer.over for one in running)
    again = [
        house.ask(f"192.0.2.{n}", token=one.token)
        for n, one in zip(range(3, 9), waiting, strict=True)
    ]
    assert [int(one.connection.fields["tidegate-place"]) for one in again] == places


def test_no_place_grows_when_the_leader_is_lost_with_its_machine() -> None:
    house = FleetHouse("ticket", machines=True, count=3, slots=2, network_shares=0)
    running = [house.ask_at(n % 3, f"192.{n}.2.1") for n in range(6)]
    assert all(one.started for one in running)
    waiting = [house.ask_at(n % 3, f"193.{n}.2.1") for n in range(8)]
    told = [int(one.connection.fields["tidegate-place"]) for one in waiting]
    assert told == list(range(1, 9))
    house.wait(1)
    _new_leader(house, join_all=False)
    house.links = [join(house.clock, house.leader, node) for node in house.fleet[1:]]
    house.wait(GATHER_S + 0.5)

    # The last ones ask first: nobody before them has started by then.
    for place in range(8, 0, -1):
        index = place - 1
        again = house.ask_at(1 + index % 2, f"193.{index}.2.1", token=waiting[index].token)
        assert again.started or int(again.connection.fields["tidegate-place"]) <= place
    # The downloads that broke off with the machine go first once their clients are back.
    broken = running[0]
    back = house.ask_at(1, "192.0.2.1", token=broken.token)
    assert back.started or back.connection.fields["tidegate-place"] == "1"


def test_what_ran_under_an_earlier_leader_runs_on_under_the_next() -> None:
    old = FleetHouse(slots=2)
    running = [old.ask(f"192.0.2.{n}") for n in (1, 2)]
    waiting = old.ask("192.0.2.3", agent=CURL)
    running[0].transfer.send(1_000)
    for one in running:
        one.request.headers = {}  # a connection lets go of them once the body goes
    old.wait(1)
    _new_leader(old)
    assert len(list(old.gate.policy.tickets())) == 1
    assert len(old.gate.policy.leases()) == 2
    assert [not t.paused and not t.over for one in running for t in one.transfers] == [True, True]
    assert not waiting.started
    left = {view.remaining_bytes for view in old.gate.policy.leases()}
    old.wait(1)
    left = {view.remaining_bytes for view in old.gate.policy.leases()}
    assert left == {BIG - 1_000, BIG}
    running[1].transfer.finish()
    old.wait(30)
    assert waiting.started


def test_a_new_leader_starts_nothing_before_the_last_node_has_told_what_it_runs() -> None:
    # It started the parked one as that node said hello: two bodies had one slot.
    house = FleetHouse("ticket", slots=1)
    running, waiting = house.ask_at(0, "192.0.2.1"), house.ask_at(1, "192.0.2.2", agent=CURL)
    house.wait(1)
    _new_leader(house, join_all=False)
    house.links = [join(house.clock, house.leader, house.fleet[1])]
    house.wait(1.5)
    house.links.append(join(house.clock, house.leader, house.fleet[0]))
    house.wait(0.5)
    assert not running.transfer.paused
    assert not waiting.started
    running.transfer.finish()
    house.wait(0.5)
    assert waiting.started


def test_a_new_visitors_download_keeps_its_slot_under_the_next_leader() -> None:
    # Its cookie came with the answer that runs: the request that the next leader hears had none.
    house = FleetHouse("ticket", slots=1)
    running = house.ask("192.0.2.1", agent="Mozilla/5.0", accept="text/html", cookie="a=b")
    assert "tidegate-visitor=" in running.start_fields["set-cookie"]
    waiting = house.ask("192.0.2.2", agent=CURL)
    house.wait(1)
    _new_leader(house)
    house.wait(0.5)
    assert not running.transfer.paused
    assert not waiting.started


def test_a_body_that_ended_while_nobody_led_has_no_slot_under_the_next_leader() -> None:
    # It was taken for a lost one: it kept a slot for `lease_idle_s`, and places grew by it.
    house = FleetHouse(slots=1)
    running = house.ask("192.0.2.1")
    waiting = house.ask("192.0.2.2")
    assert waiting.connection.fields["tidegate-place"] == "1"
    for link in house.links:
        link.drop()
    house.wait(0.5)
    running.transfer.finish()
    _new_leader(house, slots=1)
    house.wait(0.5)
    assert house.ask("192.0.2.2", token=waiting.token).started


@pytest.mark.parametrize("heard", [False, True])
def test_a_body_whose_end_a_leader_may_not_have_heard_has_no_slot_under_the_next(
    heard: bool,
) -> None:
    # The leader stood still as the body ended, and another one took over.
    house = FleetHouse(slots=1)
    running, waiting = house.ask("192.0.2.1"), house.ask("192.0.2.2")
    if not heard:
        for link in house.links:
            link.transport.far = None
    running.transfer.finish()
    house.wait(0.5)
    for link in house.links:
        link.drop()
    _new_leader(house, slots=1)
    house.wait(0.5)
    assert not house.gate.policy.leases()
    assert house.ask("192.0.2.2", token=waiting.token).started


def test_a_used_ticket_of_an_end_that_is_told_again_is_not_honoured_by_the_next_leader() -> None:
    # The end came as a newcomer's request: it had a place, which its used ticket took up.
    house = FleetHouse(slots=2)
    ended, running = house.ask("192.0.2.2"), house.ask("192.0.2.1")
    ended.transfer.finish()
    house.wait(0.5)
    _new_leader(house, join_all=False, slots=1)
    over = [row for row in house.journal.rows.values() if row.state is TicketState.DONE]
    assert len(over) == 1
    house.gate.parts.numbers.end(over[0].number)
    house.links = [join(house.clock, house.leader, node) for node in house.fleet]
    house.wait(0.5)
    assert not running.transfer.over
    assert [row.client.partition("#")[0] for row in house.gate.policy.tickets()] == []
    running.transfer.finish()
    house.wait(0.5)
    assert house.ask("192.0.2.2", token=ended.token).connection.status == 403


def test_bodies_go_on_under_a_leader_with_fewer_slots_and_their_tickets_end_with_them() -> None:
    # One whose start was not on record was asked to wait, and its ticket waited on for ever.
    house = FleetHouse("ticket", slots=2)
    running = [house.ask(f"192.0.2.{n}") for n in (1, 2)]
    house.ask("192.0.2.3")
    _new_leader(house, slots=1, unstored=2)
    house.wait(0.5)
    assert not any(one.transfer.paused for one in running)
    assert len(house.gate.policy.leases()) == 2
    running[1].transfer.finish()
    house.wait(0.5)
    assert house.journal.rows[2].state is TicketState.DONE
    assert not house.ask("192.0.2.4").started
    running[0].transfer.finish()
    house.wait(0.5)
    assert not house.gate.policy.leases()


def test_new_downloads_wait_for_a_leader_and_are_told_when_it_takes_long() -> None:
    house = FleetHouse(slots=5)
    for link in house.links:
        link.drop()
    house.wait(0.25)
    early = house.ask("192.0.2.1")
    house.wait(PATIENCE.leaderless_s - 1)
    assert (early.started, early.connection.status) == (False, 0)
    _new_leader(house, slots=5)
    assert early.started


def _led_by_nobody(house: FleetHouse) -> None:
    """The leader dies, and no other one comes for long."""
    house.wait(0.5)
    for link in house.links:
        link.drop()
    house.clock.advance(0)
    house.leader.stop()
    # Otherwise its leases would run out, as nobody uses them there.
    house.gate.close()
    house.wait(PATIENCE.leaderless_s + 1)


def test_a_probe_does_not_wait_for_a_leader_that_stands_still() -> None:
    house = FleetHouse(slots=2)
    house.wait(10)
    assert house.fleet[0].fault == ""
    house.leader.stop()
    house.wait(2.25)
    assert house.fleet[0].fault.startswith("The leader says nothing")


@pytest.mark.parametrize(("met", "status"), [(False, 503), (True, 200)])
def test_an_admin_listener_is_ready_once_it_has_met_a_leader(*, met: bool, status: int) -> None:
    connection = FakeConnection()
    seen = Unled("m1", "m0", 3, None, "", met)
    answer_unled(Request(connection, b"GET", b"/-/ready", {}), seen)  # type: ignore[arg-type]
    assert connection.status == status
    assert connection.body.startswith(b"ready\n") == met


def test_a_node_is_ready_once_it_has_met_a_leader() -> None:
    house = FleetHouse(slots=2)
    node = RemoteAdmission(house.clock, Hello("late"), NodeHome(Outlet(), 1))
    node.begin()
    routes: dict[str, Callable[[Request], None]] = {}
    tree = SimpleNamespace(is_deleted=False)
    site: Any = SimpleNamespace(add_route=routes.__setitem__, tree=tree)
    draining: list[str] = []
    add_node_routes(site, node, lambda: bool(draining))

    def ready() -> FakeConnection:
        connection = FakeConnection()
        routes["/-/ready"](Request(connection, b"GET", b"/-/ready", {}))  # type: ignore[arg-type]
        return connection

    early = ready()
    assert (early.status, early.fields["retry-after"]) == (503, "2")
    assert b"no-leader" in early.body
    house.wait(PATIENCE.leaderless_s + 1)
    assert ready().status == 503
    link = join(house.clock, house.leader, node)
    house.wait(0.25)
    assert ready().status == 0
    house.wait(0.25)
    assert [asked.path for asked in house.home.routed] == [b"/-/ready"]
    link.drop()
    house.wait(0.25)
    gone = ready()
    assert (gone.status, gone.body[:13]) == (200, b"ready\nNobody ")
    tree.is_deleted = True
    assert (ready().status, ready().fields["retry-after"]) == (503, "5")
    assert b"folder was deleted" in ready().body
    draining.append("SIGTERM")
    stopping = ready()
    assert (stopping.status, stopping.fields["retry-after"]) == (503, "5")
    assert b"being stopped" in stopping.body


def test_an_admin_page_without_a_leader_is_answered_by_its_own_machine() -> None:
    """Of a leader that stands still, of one that is gone, and not while the next one is there."""
    house = FleetHouse(slots=2)
    clock = house.clock
    unled: list[Request] = []
    hello = Hello("m/admin", serves=False)
    relay = RemoteAdmission(clock, hello, NodeHome(Outlet(), unled=unled.append))
    relay.begin()
    link = join(clock, house.leader, relay)

    def ask() -> FakeConnection:
        connection = FakeConnection()
        relay.administer(Request(connection, b"GET", b"/queue", {}))  # type: ignore[arg-type]
        house.wait(0.25)
        return connection

    house.wait(2)
    assert relay.met_leader
    assert ask().status == 200
    house.home.administer = lambda request: None  # type: ignore[method-assign]
    slow = ask()
    house.wait(3)
    assert (unled, slow.status) == ([], 0)  # a leader that is heard may take its time
    house.leader.stop()
    ask()
    house.wait(2)
    assert len(unled) == 2
    ask()
    assert len(unled) == 3  # at once, now that it is known
    link.drop()
    house.wait(1)
    ask()
    house.wait(0.5)
    assert len(unled) == 3
    house.lead()
    join(clock, house.leader, relay)
    house.wait(3)
    assert len(unled) == 3  # the next leader has it
    relay.stop()


def test_a_machine_that_passes_on_its_admin_page_knows_who_may_send_much() -> None:
    """Strangers at a machine that does not lead could hold all large bodies."""
    house = FleetHouse(slots=2)
    relay = RemoteAdmission(house.clock, Hello("m/admin", serves=False), NodeHome(Outlet()))
    relay.begin()
    join(house.clock, house.leader, relay)
    own = {b"cookie": b"a=b; tidegate-admin=ident.signature"}
    by_tls = {b"cookie": b"a=b; __Host-tidegate-admin=ident.signature"}
    token = {b"authorization": b"bearer  tg-one"}

    def may() -> list[bool]:
        house.wait(0.5)
        return [shows_one_of(fields, relay.proofs) for fields in (own, token, {})]

    assert may() == [True, True, True]  # its pages are not loaded: nobody knows
    house.home.held = frozenset({digest("ident")})
    assert may() == [True, False, False]
    assert shows_one_of(by_tls, relay.proofs)
    house.home.held = frozenset({digest("ident"), digest("tg-one")})
    assert may() == [True, True, False]
    house.home.held = frozenset()
    assert may() == [False, False, False]
    # More than a frame should have: their number alone is bounded.
    house.home.held = frozenset(digest(str(n)) for n in range(1_001))
    assert may() == [True, True, True]
    house.home.held = frozenset({digest("tg-one")})
    assert may() == [False, True, False]
    house.lead()
    house.home.held = None
    join(house.clock, house.leader, relay)
    assert may() == [True, True, True]
    relay.stop()


def test_without_a_leader_newcomers_get_tickets_and_no_large_download_starts() -> None:
    house = FleetHouse(slots=9, reserve_small=1)
    running = [house.ask_at(0, f"192.0.2.{n}") for n in range(3)]
    house.wait(0.5)
    for link in house.links:
        link.drop()
    house.clock.advance(0)
    house.leader.stop()
    house.gate.close()
    house.wait(0.25)
    early = house.ask_at(0, "198.51.100.1")
    parked = house.ask_at(0, "192.0.2.20", agent=CURL)
    house.wait(PATIENCE.leaderless_s - 1)
    assert (early.started, early.connection.status) == (False, 0)
    assert house.fleet[0].fault.endswith("large downloads wait for a leader.")
    house.wait(2)
    assert house.fleet[0].fault.endswith("start when a leader is back.")
    # It has a ticket, and is told no place: which tickets other nodes issued is not known.
    assert (early.connection.status, bool(early.token)) == (503, True)
    assert "tidegate-place" not in early.connection.fields
    # No turn comes that it could miss.
    house.wait(120)
    again = house.ask_at(0, "198.51.100.1", token=early.token)
    assert (again.connection.status, again.token) == (503, early.token)
    assert not house.ask_at(1, "198.51.100.2").started
    assert not parked.started
    assert not parked.connection.status, "it waits on inside its request"
    assert not any(one.transfer.paused for one in running)
    running[0].transfer.finish()
    _new_leader(house)
    house.wait(3)
    assert parked.started
    assert house.ask_at(0, "198.51.100.1", token=early.token).started


@pytest.mark.parametrize("policy", ["reserve", "ticket", "fair", "adaptive"])
def test_small_files_go_on_without_a_leader(policy: str) -> None:
    house = FleetHouse(policy, slots=9, reserve_small=3, slots_max=9, bandwidth_bytes_s=1e6)
    node = house.fleet[0]
    # The last leader had no slot for them.
    house.leader.stop()
    told = next(iter(house.nodes)).terms
    assert told is not None
    full = structs.replace(told, small_below_bytes=1_000, small_free=False)
    house.links[0]._peer.received(house.links[0], [full])
    small, large = representation("/small", 500), representation("/big.iso", BIG)
    assert not node.admit_again(small, 500)
    _led_by_nobody(house)
    assert node.fault.endswith("start when a leader is back.")
    assert node.admit_again(small, 500)
    assert not node.admit_again(large, BIG)


def test_bodies_that_a_leader_had_paused_go_on_without_one() -> None:
    house = FleetHouse(slots=4)
    running = [house.ask_at(n % 2, f"192.0.2.{n}") for n in range(4)]
    for lease in list(house.gate.downloads)[:2]:
        house.gate.leases.pause(lease, house.clock.seconds())
    house.wait(1)
    assert sum(one.transfer.paused for one in running) == 2
    _led_by_nobody(house)
    assert not any(one.transfer.paused for one in running)
    _new_leader(house, slots=2)
    house.wait(3)
    assert not any(one.transfer.paused or one.transfer.over for one in running)


def test_a_node_that_stops_without_a_leader_sends_those_who_wait_away_with_their_tickets() -> None:
    house = FleetHouse(slots=1)
    _led_by_nobody(house)
    parked = house.ask_at(0, "192.0.2.1", agent=CURL)
    house.wait(1)
    assert not parked.connection.status
    house.fleet[0].part()
    house.wait(0.25)
    assert (parked.connection.status, bool(parked.token)) == (503, True)
    late = house.ask_at(0, "192.0.2.2")
    assert late.connection.status == 503


def test_tickets_of_a_node_without_a_leader_have_a_place_by_their_time_at_the_next() -> None:
    house = FleetHouse(slots=2)
    running = [house.ask_at(n, f"192.{n}.2.1") for n in (0, 1)]
    first = house.ask_at(0, "192.3.2.1")
    _led_by_nobody(house)
    newcomers = []
    for n in (4, 5):
        newcomers.append(house.ask_at(n % 2, f"192.{n}.2.1"))
        house.wait(0.5)
    parked = house.ask_at(0, "192.6.2.1", agent=CURL)
    # The ticket that the lost leader gave stays what it is at a node, too.
    house.wait(1)
    again = house.ask_at(0, "192.3.2.1", token=first.token)
    assert (again.connection.status, again.token) == (503, first.token)
    house.wait(1)
    last = house.ask_at(1, "192.7.2.1")
    _new_leader(house, slots=2)
    house.wait(0.5)
    assert not any(one.transfer.over for one in running)
    assert not parked.connection.status, "it waits on inside its request"
    # All were handed over, so nobody's place grows when their clients ask again.
    told = [row.client.partition("#")[0] for row in house.gate.policy.tickets()]
    assert [one for one in told if one not in ("192.0.2.1", "192.1.2.1")] == [
        f"192.{n}.2.1" for n in range(3, 8)
    ]
    youngest = house.ask_at(1, "192.8.2.1")
    back = [
        house.ask_at(n % 2, address, token=one.token)
        for n, (address, one) in enumerate(
            [("192.7.2.1", last), ("192.5.2.1", newcomers[1]), ("192.4.2.1", newcomers[0])]
        )
    ]
    again = house.ask_at(0, "192.8.2.1", token=youngest.token)
    assert (again.connection.status, back[0].connection.status) == (503, 503)
    order = [row.client.partition("#")[0] for row in house.gate.policy.tickets()]
    waits = [address for address in order if address not in ("192.0.2.1", "192.1.2.1")]
    assert waits == [f"192.{n}.2.1" for n in range(3, 9)]
    numbers = [row.number for row in house.gate.policy.tickets()]
    assert len(set(numbers)) == len(numbers)
    # Those numbers are none of a leader's: it goes on with its own.
    assert house.gate.parts.numbers.highest < ELSEWHERE
    assert numbers[-1] < ELSEWHERE


@pytest.mark.parametrize("shows", ["ticket", "pass"])
def test_a_node_without_a_leader_calls_no_proof_forged_whose_key_it_has_not_read(
    shows: str,
) -> None:
    """A client that a new leader answered comes to a node that is cut off from it."""
    house = FleetHouse(slots=1)
    house.ask_at(0, "192.0.2.1")
    _led_by_nobody(house)
    _new_leader(house, slots=1, join_all=False)
    house.gate.use_keys(KeyRing([Key("k2", bytes(32)), Key("k1", b"0123456789abcdef")]))
    join(house.clock, house.leader, house.fleet[1])
    house.wait(GATHER_S + 0.5)
    house.ask_at(1, "192.0.2.3")
    given = house.ask_at(1, "192.0.2.2")
    assert (given.connection.status, given.token.split(".")[1]) == (503, "k2")
    permit = Pass("", "gold", 4.0, "/*", 0.0, 4e9, 9)
    proof = {"token": given.token}
    if shows == "pass":
        proof = {"tidegate_pass": house.gate.parts.passes.issue(permit, 0.0)[0]}
    cut_off = house.ask_at(0, "192.0.2.2", **proof)
    assert (cut_off.connection.status, cut_off.connection.fields["retry-after"]) == (503, "2")
    assert b"no-leader" in cut_off.connection.body
    damaged = house.ask_at(0, "192.0.2.2", token=given.token.replace(".k2.", ".k1."))
    assert b"ticket-forged" in damaged.connection.body
    back = house.ask_at(1, "192.0.2.2", token=given.token)
    assert (back.connection.status, back.token) == (503, given.token)


def test_a_ticket_of_a_lost_leader_that_was_shown_to_a_node_is_handed_over_too() -> None:
    house = FleetHouse(slots=1)
    house.ask_at(0, "192.1.2.1")
    mine = house.ask_at(0, "192.2.2.1")
    _led_by_nobody(house)
    assert house.ask_at(0, "192.2.2.1", token=mine.token).token == mine.token
    (lost,) = [row.number for row in house.journal.rows.values() if row.client[:8] == "192.2.2."]
    # The database went back to an older state.
    _new_leader(house, slots=1, without=lost)
    house.wait(0.5)
    house.ask_at(1, "192.3.2.1")
    order = [row.client.partition("#")[0] for row in house.gate.policy.tickets()]
    assert order[-2:] == ["192.2.2.1", "192.3.2.1"]
    assert house.gate.policy.ticket(lost) is not None


def test_a_ticket_that_lapsed_while_its_client_waited_at_a_node_without_a_leader_is_kept() -> None:
    house = FleetHouse(slots=2, ticket_ttl_s=10.0)
    running = [house.ask_at(1, f"192.0.2.{n}") for n in (1, 2)]
    mine, used = [house.ask_at(n, f"198.51.{n}.1") for n in (0, 1)]
    house.links[0].drop()
    house.wait(PATIENCE.leaderless_s + 1)
    for n, one in enumerate((mine, used)):
        told = house.ask_at(0, f"198.51.{n}.1", token=one.token)
        assert (told.connection.status, told.token) == (503, one.token)
    for one in running:
        one.transfer.finish()
    house.wait(float(used.connection.fields["retry-after"]) - PATIENCE.leaderless_s)
    last = house.ask_at(1, "198.51.1.1", token=used.token)
    assert last.started
    last.transfer.finish()
    house.wait(60)
    ended = house.gate.policy.ticket(number_of(mine.token))
    assert ended is not None
    assert ended.state is TicketState.EXPIRED
    join(house.clock, house.leader, house.fleet[0])
    house.wait(1)
    assert house.ask_at(0, "198.51.0.1", token=mine.token).started
    # A ticket that was used elsewhere meanwhile stays so.
    assert house.ask_at(0, "198.51.1.1", token=used.token).connection.status == 403


def test_a_call_that_no_client_at_a_node_without_a_leader_could_answer_costs_no_place() -> None:
    house = FleetHouse(slots=1, lease_idle_s=8.0)
    running = house.ask_at(1, "192.0.2.1")
    mine = house.ask_at(0, "198.51.100.1")
    house.links[0].drop()
    house.wait(PATIENCE.leaderless_s + 1)
    house.ask_at(0, "198.51.100.1", token=mine.token)
    running.transfer.finish()
    number = number_of(mine.token)
    for _ in range(2):
        # Its waiting page asks at the other node, and is told to come.
        house.wait(20)
        row = house.gate.policy.ticket(number)
        assert row is not None
        job = Job(row.client, row.file, row.size_bytes, row.size_bytes)
        admit = house.gate.policy.offer(job, house.clock.seconds(), number)
        assert isinstance(admit, Admit)
        house.gate.leases.left(house.gate._begin(admit, job, None))
    join(house.clock, house.leader, house.fleet[0])
    house.wait(20)
    assert house.ask_at(0, "198.51.100.1", token=mine.token).started


def test_tickets_are_handed_over_again_where_another_leader_comes_at_once() -> None:
    """The first one had stood still, led no more, and found that out a moment later."""
    house = FleetHouse(slots=1)
    house.ask_at(0, "192.1.2.1")
    mine = house.ask_at(0, "192.2.2.1")
    _led_by_nobody(house)
    house.ask_at(0, "192.2.2.1", token=mine.token)
    number = number_of(mine.token)
    for _ in range(2):
        _new_leader(house, slots=1, without=number)
    house.wait(1)
    assert house.gate.policy.ticket(number) is not None


def test_tickets_of_a_node_without_a_leader_count_with_their_crowds_at_the_next() -> None:
    house = FleetHouse(slots=2)
    for n in (0, 1):
        house.ask_at(n, f"192.0.2.{n}")
    _led_by_nobody(house)
    alone = [house.ask_at(0, f"198.51.100.{n}") for n in range(4)]
    _new_leader(house, slots=2)
    house.wait(0.5)
    rows = {row.number: row for row in house.gate.policy.tickets()}
    taken_up = [row for row in rows.values() if row.number >= ELSEWHERE]
    assert len(taken_up) == sum(not one.started for one in alone) >= 3
    assert {row.network for row in taken_up} == {"198.51.100.0/24"}
    # One network may not have all that comes next: who comes now of it stands back.
    house.ask_at(1, "198.51.100.9")
    house.ask_at(1, "203.0.113.1")
    order = [row.client.partition("#")[0] for row in house.gate.policy.tickets()]
    assert order.index("203.0.113.1") < order.index("198.51.100.9")


def test_a_node_without_a_leader_repeats_the_older_place_that_its_client_shows() -> None:
    """It showed the place of a leader, and was told the younger one that this node had given."""
    house = FleetHouse(slots=1)
    house.ask_at(0, "192.0.2.1")
    older = house.ask_at(0, "192.0.2.2")
    _led_by_nobody(house)
    younger = house.ask_at(1, "192.0.2.2")
    assert number_of(younger.token) >= ELSEWHERE
    again = house.ask_at(1, "192.0.2.2", token=younger.token)
    assert number_of(again.token) == number_of(younger.token)
    shown = house.ask_at(1, "192.0.2.2", token=older.token)
    assert number_of(shown.token) == number_of(older.token)
    assert [one.number for one in house.fleet[1]._degraded.tickets()] == [number_of(older.token)]


def test_who_has_an_older_place_from_a_node_is_not_sent_away_with_the_leaders() -> None:
    """The leader's answer had not reached the node, which gave a place of its own meanwhile."""
    house = FleetHouse(slots=1)
    house.ask_at(0, "192.0.2.1")
    mine = house.ask_at(0, "192.0.2.2")
    row = next(row for row in house.gate.policy.tickets())
    older = house.gate.on_wall_clock(row)._replace(number=ELSEWHERE + 7)
    house.gate.take_up([older._replace(issued_s=older.issued_s - 1.0)])
    assert [row.number for row in house.gate.policy.tickets()] == [ELSEWHERE + 7]
    again = house.ask_at(1, "192.0.2.2", token=mine.token)
    assert (again.connection.status, again.connection.fields["tidegate-place"]) == (503, "1")
    assert again.token != mine.token
    house.ask_at(1, "192.0.2.2", token=again.token)
    assert [row.number for row in house.gate.policy.tickets()] == [ELSEWHERE + 7]


def test_what_only_a_leader_can_judge_waits_for_one() -> None:
    house = FleetHouse(slots=4, rules=[Rule(path="/gold/**", require_class="gold")])
    house.wait(0.5)
    _led_by_nobody(house)
    node = house.fleet[0]
    request = Request(FakeConnection("192.0.2.1"), b"GET", b"/gold/a", {})  # type: ignore[arg-type]
    assert node.turned_away(request, "/gold/a")
    house.wait(0.25)
    assert request.finished
    # A node that has never heard a leader's rules has no keys for tickets either.
    fresh = RemoteAdmission(house.clock, Hello("node-9"), NodeHome(Outlet(), 20_000))
    fresh.begin()
    house.wait(PATIENCE.leaderless_s + 1)
    assert "tidegate-ticket" in house.ask_at(0, "192.0.2.1").connection.fields
    house.fleet[0] = fresh
    unmet = house.ask_at(0, "192.0.2.2").connection
    assert (unmet.status, "tidegate-ticket" in unmet.fields) == (503, False)


def test_a_ticket_that_another_node_issued_without_a_leader_stays_with_its_crowd() -> None:
    """It went before those of its crowd that stand back: their places grew by younger ones."""
    house = FleetHouse(slots=1)
    _led_by_nobody(house)
    token = house.ask_at(0, "192.0.2.1").token
    house.wait(1)
    house.ask_at(1, "192.0.2.1", token=token)
    queue = house.fleet[1]._degraded
    assert queue is not None
    assert [ticket.network for ticket in queue.tickets()] == ["192.0.2.0/24"]


def test_running_bodies_have_their_slots_before_a_new_leader_lets_anybody_else_in() -> None:
    house = FleetHouse(slots=1)
    running = house.ask("192.0.2.1")  # on node 1
    _new_leader(house, join_all=False)
    house.links = [join(house.clock, house.leader, house.fleet[0])]
    newcomer = house.ask_at(0, "192.0.2.9")
    assert not newcomer.started
    house.links.append(join(house.clock, house.leader, house.fleet[1]))
    house.wait(0.25)
    assert not running.transfer.paused
    assert not newcomer.started
    assert newcomer.connection.status == 503


def test_a_body_goes_on_that_an_older_leader_asks_to_wait() -> None:
    house = FleetHouse(slots=1)
    asked = house.ask_at(0, "192.0.2.1")
    [node] = [one for one in house.nodes if one.remote]
    [number] = node.remote
    node.link.send(Respond(number, 503, ((b"Retry-After", b"2"),), b""))
    house.wait(0.25)
    assert not asked.transfer.aborted
    assert not asked.transfer.paused
    node.link.send(Respond(number, 403, (), b""))
    house.wait(0.25)
    assert asked.transfer.aborted == "the queue refused it"


def test_small_files_are_served_without_asking_on_the_leaders_terms() -> None:
    house = FleetHouse(slots=1, small_below_bytes=1_000)
    node = house.fleet[0]
    request = Request(FakeConnection(), b"GET", b"/small.txt", {})  # type: ignore[arg-type]
    small = representation("/small.txt", 10)
    assert admits(node, request, small)
    assert admits(node, request, small)
    house.wait(1)
    assert house.gate.policy.snapshot(house.clock.seconds()).admitted_small_total == 2
    assert admits(node, request, representation("/brief.bin", 5_000))
    house.ask("192.0.2.1")
    house.ask("192.0.2.2")
    house.wait(0.5)
    assert not admits(node, request, representation("/brief.bin", 5_000))
    house.gate.drain()
    house.wait(0.5)
    assert not admits(node, request, small)


def test_rules_reach_the_nodes() -> None:
    house = FleetHouse(
        rules=[Rule(path="/gold/*", require_class="gold"), Rule(path="/x", treat_as="large")]
    )
    node = house.fleet[0]
    request = Request(FakeConnection(), b"GET", b"/gold/a", {})  # type: ignore[arg-type]
    assert not admits(node, request, representation("/gold/a", 10))
    assert admits(node, request, representation("/iron/a", 10))
    refused = house.ask("192.0.2.1", file="/gold/a")
    assert refused.connection.status == 403


def test_what_needs_a_pass_is_judged_by_the_leader_and_begins_anew() -> None:
    house = FleetHouse(rules=[Rule(path="/gold/*", require_class="gold")])
    node = house.fleet[0]
    poor = FakeConnection()
    request = Request(poor, b"HEAD", b"/gold/a", {})  # type: ignore[arg-type]
    assert not node.turned_away(request, "/iron/a")
    assert node.turned_away(request, "/gold/a")
    house.wait(0.25)
    assert poor.status == 403
    now = house.clock.seconds()
    token = house.keys.write_pass(Pass("p1", "gold", 1.0, "/*", now - 1, now + 60, 5))
    rich = FakeConnection()
    headers = {b"tidegate-pass": token.encode()}
    allowed = Request(rich, b"HEAD", b"/gold/a", headers)  # type: ignore[arg-type]
    assert node.turned_away(allowed, "/gold/a")
    house.wait(0.25)
    assert house.begun_again == [allowed]
    assert not node.turned_away(allowed, "/gold/a")
    assert rich.status == 0


def test_somebody_who_is_blocked_is_turned_away_by_every_node() -> None:
    house = FleetHouse()
    QueueActions(house.gate).block("192.0.2.66")
    house.wait(0.5)
    small = representation("/small.txt", 10)
    for node in house.fleet:
        bad, good = FakeConnection("192.0.2.66"), FakeConnection("192.0.2.1")
        request = Request(bad, b"GET", b"/small.txt", {})  # type: ignore[arg-type]
        assert not admits(node, request, small)
        assert node.turned_away(request, "/small.txt")
        # All others are answered at once.
        request = Request(good, b"GET", b"/small.txt", {})  # type: ignore[arg-type]
        assert node.is_plain("/small.txt")
        assert admits(node, request, small)
        assert not node.turned_away(request, "/small.txt")
        house.wait(0.25)
        assert (bad.status, good.status) == (403, 0)
    QueueActions(house.gate).unblock("192.0.2.66")
    house.wait(0.5)
    again = Request(FakeConnection("192.0.2.66"), b"GET", b"/small.txt", {})  # type: ignore[arg-type]
    assert not any(node.turned_away(again, "/small.txt") for node in house.fleet)


def test_a_node_that_does_not_know_who_is_blocked_has_every_request_judged() -> None:
    house = FleetHouse()
    blocked = QueueActions(house.gate)
    for index in range(1_100):
        blocked.block(f"10.{index // 250}.{index % 250}.0/24")
    house.wait(0.5)
    good = Request(FakeConnection("192.0.2.1"), b"GET", b"/small.txt", {})  # type: ignore[arg-type]
    for node in house.fleet:
        assert not node.is_plain("/small.txt")
        assert node.turned_away(good, "/small.txt")


def test_a_route_is_answered_by_the_leader_in_pieces_and_a_client_that_leaves_is_noticed() -> None:
    house = FleetHouse()
    connection = PiecesConnection()
    request = Request(connection, b"GET", b"/-/ready?x=1", {b"accept": b"*/*"})  # type: ignore[arg-type]
    house.fleet[0].ask(request)
    house.wait(0.25)
    [asked] = house.home.routed
    assert (asked.path, asked.query, asked.header(b"accept")) == (b"/-/ready", b"x=1", b"*/*")
    asked.begin(200, [(b"X", b"y")], None)
    asked.write(b"ab")
    asked.write(b"c")
    asked.finish()
    house.wait(0.25)
    assert connection.pieces == [b"begin 200", b"ab", b"c", b"finish"]
    other = Request(FakeConnection(), b"GET", b"/-/wait", {})  # type: ignore[arg-type]
    house.fleet[0].ask(other)
    house.wait(0.25)
    left: list[bool] = []
    house.home.routed[1].on_gone(lambda: left.append(True))
    other.connection.leave(other)  # type: ignore[attr-defined]
    house.wait(0.25)
    assert left == [True]


def test_a_leader_that_goes_in_the_midst_of_its_own_answer_cuts_it() -> None:
    house = FleetHouse()
    connection = PiecesConnection()
    request = Request(connection, b"GET", b"/-/long", {})  # type: ignore[arg-type]
    house.fleet[0].ask(request)
    house.wait(0.25)
    house.home.routed[0].begin(200, [], None)
    house.wait(0.25)
    _new_leader(house)
    assert connection.aborted


def test_digests_come_from_the_leader_or_not_at_all() -> None:
    house = FleetHouse()
    digests = FileDigests(3, b"d" * 32, 2, (b"a" * 32, b"b" * 32))
    house.home.digest = digests
    found: list[FileDigests | None] = []
    cache = house.fleet[0]
    cache.find(representation()).addCallback(found.append)
    house.wait(0.25)
    cache.find(representation()).addCallback(found.append)
    house.links[0].drop()
    house.wait(0.25)
    cache.find(representation()).addCallback(found.append)
    assert found == [digests, None, None]


def test_the_nodes_of_a_machine_are_told_its_whole_cap_and_share_it_by_themselves() -> None:
    house = FleetHouse(slots=4)
    for link in house.links:
        link.drop()
    house.wait(0.25)
    house.lead(bandwidth_bytes_s=1_000_000.0)
    house.wait(0.5)
    assert [outlet.bandwidth_bytes_s for outlet in house.outlets] == [1_000_000.0, 1_000_000.0]


def test_each_machine_brings_its_slots_and_takes_them_along() -> None:
    house = FleetHouse(slots=2, reserve_small=1, machines=True, lease_idle_s=5)

    def slots() -> tuple[int, int]:
        seen = house.gate.snapshot()
        return seen.slots, seen.large_slots

    assert slots() == (4, 2)
    asked = [house.ask(f"192.0.2.{n}") for n in range(3)]
    assert [one.started for one in asked] == [True, True, False]
    # One that was lost for a moment comes back to its slots; one that is away for long does not
    # count, nor does one that said that it leaves.
    house.links[1].drop()
    house.wait(20)
    assert slots() == (4, 2)
    house.wait(20)
    assert slots() == (2, 1)
    house.links[1] = join(house.clock, house.leader, house.fleet[1])
    assert slots() == (4, 2)
    house.fleet[1].part()
    house.wait(0.25)
    assert slots() == (4, 2)
    house.links[1].drop()
    house.wait(0.5)
    assert slots() == (2, 1)
    assert house.gate.settings.slots == 2


def test_to_a_new_leader_belong_the_machines_of_the_one_before_it() -> None:
    house = FleetHouse(machines=True)
    house.lead(join_all=False)
    assert not house.nodes.by_name
    assert house.nodes.counted_machines(house.clock.seconds()) == {"m0", "m1"}
    # A machine that has not come back by then does not count.
    house.wait(31)
    assert house.nodes.counted_machines(house.clock.seconds()) == set()


def test_the_machine_of_a_lost_leader_keeps_its_share_for_a_while_under_the_next() -> None:
    """Its nodes went first, and were forgotten at once: a place of 1 became 5."""
    house = FleetHouse(slots=2, machines=True)
    forgotten: list[str] = []
    house.nodes.watch(lambda node: None, forgotten.append)
    house.links[0].drop()
    house.wait(0.5)
    assert not forgotten, "the next leader must know of it"
    house.leader.stop()
    house.links[1].drop()
    house.clock.advance(0)
    house.lead(join_all=False, lost=["m0/node-0"])
    house.nodes.watch(lambda node: None, forgotten.append)
    house.links[1] = join(house.clock, house.leader, house.fleet[1])
    # Nobody waits for the machine that was lost.
    asked = [house.ask_at(1, f"192.0.2.{n}") for n in range(5)]
    assert [one.started for one in asked] == [True] * 4 + [False]
    assert asked[4].connection.fields["tidegate-place"] == "1"
    house.wait(29)
    assert house.gate.snapshot().slots == 4
    assert not forgotten
    house.wait(2)
    assert house.gate.snapshot().slots == 2
    assert forgotten == ["m0/node-0"], "no later leader waits for it"
    house.wait(40)
    assert forgotten == ["m0/node-0"]
    house.fleet[1].part()
    house.wait(0.25)
    house.links[1].drop()
    house.wait(0.5)
    assert forgotten == ["m0/node-0", "m1/node-0"]


def test_workers_of_one_machine_share_its_slots() -> None:
    house = FleetHouse(slots=2, count=4)
    assert [house.ask(f"192.0.2.{n}").started for n in range(3)] == [True, True, False]


def test_a_node_knows_whose_program_counts_bytes_of_the_body() -> None:
    house = FleetHouse(slots=2)
    for client, agent in (("192.0.2.1", CURL), ("192.0.2.2", "wary/1")):
        share = house.ask(client, agent=agent).transfer.share
        assert share is not None
        assert share.counts_body == (agent == CURL)


def test_a_node_tells_what_has_not_arrived_also_of_bodies_that_are_over() -> None:
    house = FleetHouse(slots=2)
    over, running = (house.ask_at(0, f"192.0.2.{n}").transfer for n in (1, 2))

    def told() -> list[int | None]:
        return [node.told.flying_bytes for node in house.nodes]

    over.send(BIG)
    over.flying = 700_000
    running.send(50_000)
    running.flying = 30_000
    house.wait(0.5)
    assert told() == [730_000, 0]
    over.finish()
    house.wait(0.5)
    assert over.over
    assert told() == [730_000, 0]
    over.flying = 300_000
    house.wait(0.5)
    assert told() == [330_000, 0]
    # A client that never takes the rest is not waited for.
    house.wait(25)
    assert told() == [30_000, 0]


def test_last_bytes_that_got_lost_at_a_node_are_sent_again_without_a_slot() -> None:
    house = FleetHouse(slots=1)
    first = house.ask_at(0, "192.0.2.1")
    token = house.ask_at(0, "192.0.2.2").token
    first.transfer.finish()
    house.wait(4)
    second = house.ask_at(0, "192.0.2.2", token=token)
    second.transfer.send(BIG)
    second.transfer.flying = 1000
    second.transfer.finish()
    house.wait(0.5)
    assert house.ask_at(1, "192.0.2.3").started
    # Its connection breaks with its last bytes on their way.
    again = house.ask_at(1, "192.0.2.2", token=token, ranges=(BIG - 600, BIG))
    assert again.transfer.total_bytes == 600
    again.transfer.end(False)
    house.wait(0.5)
    # No more than was missing, and nothing else.
    more = house.ask_at(0, "192.0.2.2", token=token, ranges=(BIG - 600, BIG))
    assert more.connection.status == 403
    assert house.ask_at(0, "192.0.2.2", token=token, ranges=(BIG - 400, BIG)).started
    # They count as delivered once.
    assert house.gate.parts.popularity.pending("/big.iso") == (3, 2, 2 * BIG)


def test_a_leader_hears_whose_program_reads_slowly() -> None:
    """By its shut window, which a node tells."""
    house = FleetHouse(slots=2)
    body = house.ask_at(0, "192.0.2.1").transfer
    body.blocked = True
    [download] = house.gate.downloads.values()

    def looks(count: int, shut: float) -> float:
        for _ in range(count):
            body.send(10_000)
            body.shut += TICK_S * shut
            house.wait(TICK_S)
        return download.reads_bytes_s

    assert looks(8, 0.5) == 0.0
    assert looks(8, 1.0) == pytest.approx(40_000.0, rel=0.1)
    assert looks(3, 0.5) == 0.0


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame([Hello("x", version=0)]),
        encode_frame([Ended(1)]),
        b"\xc1",
        b"",
    ],
)
def test_a_peer_that_does_not_say_hello_or_is_too_old_is_sent_away(frame: bytes) -> None:
    house = FleetHouse()
    stranger: Link[FromNode] = Link(house.clock, decode_from_node, house.leader.peer)
    stranger.transport = MemoryTransport(house.clock)
    stranger.transport.near = stranger
    stranger.connectionMade()
    stranger.dataReceived(len(frame).to_bytes(4, "big") + frame)
    house.wait(0.25)
    assert stranger.transport.cut
    assert len(house.nodes) == 2


def test_a_node_whose_version_does_not_fit_is_named_once_with_what_to_do() -> None:
    house = FleetHouse()
    with capturedLogs() as logs:
        for _ in range(3):
            stranger: Link[FromNode] = Link(house.clock, decode_from_node, house.leader.peer)
            stranger.transport = MemoryTransport(house.clock)
            stranger.transport.near = stranger
            stranger.connectionMade()
            stranger.stringReceived(encode_frame([Hello("m7/node-0", version=0)]))
    [told] = [formatEvent(event) for event in logs]
    assert told == (
        "Node m7/node-0 was sent away: it speaks version 0 of the cluster's messages, and this "
        f"program {OLDEST} to {VERSION}. Upgrade its machine."
    )


def test_a_frame_without_end_is_not_waited_for() -> None:
    house = FleetHouse(count=1)
    house.links[0].transport.write(b"\xff\xff\xff\xff")
    house.wait(0.25)
    assert len(house.nodes) == 0


def test_a_leader_that_parts_hears_no_node_any_more() -> None:
    house = FleetHouse()
    assert all(node.unheard_s is not None for node in house.fleet)
    done = Deferred.fromCoroutine(house.leader.leave())
    house.wait(0.25)
    assert done.called
    assert all(node.unheard_s is None for node in house.fleet)
    assert not house.nodes.away, "the next leader would wait for them"
    join(house.clock, house.leader, house.fleet[0])
    house.wait(0.25)
    assert house.fleet[0].unheard_s is None


class PiecesConnection(FakeConnection):
    """Remembers an answer in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def begin(self, request: Request, status: int, *rest: object, more: bool) -> None:
        self.pieces.append(b"begin %d" % status)

    def write_body(self, request: Request, data: bytes) -> None:
        self.pieces.append(data)

    def finish(self, request: Request) -> None:
        self.pieces.append(b"finish")
        request.ended(False)


def _new_leader(
    house: FleetHouse,
    *,
    join_all: bool = True,
    without: int | None = None,
    unstored: int | None = None,
    **settings: int,
) -> None:
    """The leader dies and another one takes up its journal; nodes find it.

    It is `without` one ticket, or does not have the start of one (`unstored`).
    """
    for link in house.links:
        link.drop()
    house.clock.advance(0)
    house.leader.stop()
    rows = [
        row if row.number != unstored else row._replace(state=TicketState.WAITING)
        for row in house.journal.rows.values()
        if row.state in (TicketState.WAITING, TicketState.READY, TicketState.STARTED)
        and row.number != without
    ]
    fresh = House(
        clock=house.clock,
        journal=house.journal,
        restored=rows,
        next_number=1_000,
        **{**house.settings.model_dump(exclude_defaults=True), **settings},
    )
    house.gate = fresh.gate
    house.lead(join_all=join_all)
    house.clock.advance(0)
