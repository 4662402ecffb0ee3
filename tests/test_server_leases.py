"""How the lease manager looks after many downloads without holding up anybody else."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pytest
from twisted.logger import LogLevel, capturedLogs

from tests.fakes import BIG, Asked, FakeTransfer, House, representation
from tidegate.policies.contract import Job, TicketState
from tidegate.policies.driver import PolicyDriver
from tidegate.server.admission.downloads import DOWNLOADS, LeasedDownload
from tidegate.server.admission.leases import LEASES, TICK_S
from tidegate.server.files.transfer import BodyPlan


def crowd(count: int) -> tuple[House, list[Asked]]:
    house = House(slots=count)
    asked = [house.ask(f"10.0.{n >> 8}.{n & 255}") for n in range(count)]
    assert all(one.started for one in asked)
    return house, asked


def left(house: House) -> list[int]:
    return [view.remaining_bytes for view in house.gate.policy.leases()]


def test_each_of_many_downloads_is_measured_within_two_ticks() -> None:
    house, asked = crowd(350)
    for number, one in enumerate(asked):
        one.transfer.send(1000 + number)
    house.wait(2 * TICK_S, 0.01)
    assert left(house) == [BIG - 1000 - number for number in range(350)]


def test_a_tick_asks_each_of_many_downloads_once_and_a_few_in_one_go() -> None:
    """Looking at 2 000 downloads in one go kept small files waiting for 30 ms, at each tick."""
    house, asked = crowd(350)
    times: list[float] = []
    for one in asked:

        def delivered(transfer: FakeTransfer = one.transfer) -> int:
            times.append(house.clock.seconds())
            return transfer.sent_bytes

        one.transfer.delivered_bytes = delivered  # type: ignore[method-assign]
        one.transfer.flying_bytes = delivered  # type: ignore[method-assign]
    house.wait(TICK_S + 0.1, 0.001)
    assert len(times) == len(asked)
    assert max(Counter(times).values()) <= LEASES.at_once


def test_hundreds_are_paused_and_resumed_a_few_in_one_go_in_their_order() -> None:
    """With 2 000 running, pauses and resumes of one decision made the longest turns."""
    house, asked = crowd(350)
    leases, moves = house.gate.leases, list[tuple[int, str, float]]()
    for number, one in enumerate(asked):

        def pause(number: int = number) -> None:
            moves.append((number, "pause", house.clock.seconds()))

        def resume(number: int = number) -> None:
            moves.append((number, "resume", house.clock.seconds()))

        one.transfer.pause, one.transfer.resume = pause, resume  # type: ignore[method-assign]
    for lease in tuple(leases.downloads):
        leases.pause(lease, house.clock.seconds())
    leases.resume(next(reversed(leases.downloads)), house.clock.seconds())
    assert sum(one.still for one in leases.downloads.values()) == 350, "none is measured"
    house.wait(0.2, 0.001)
    assert [move[:2] for move in moves] == [(n, "pause") for n in range(349)] + [(349, "resume")]
    assert max(Counter(at_s for _, _, at_s in moves).values()) <= LEASES.at_once
    assert sum(one.still for one in leases.downloads.values()) == 349


def test_a_fault_in_one_download_leaves_the_others_measured() -> None:
    house, asked = crowd(60)

    def broken() -> int:
        raise RuntimeError("boom")

    asked[0].transfer.delivered_bytes = broken  # type: ignore[method-assign]
    with capturedLogs() as logged:
        for sent in (1000, 1000):
            for one in asked[1:]:
                one.transfer.send(sent)
            house.wait(2 * TICK_S, 0.01)
    assert left(house) == [BIG, *[BIG - 2000] * 59]
    assert [event for event in logged if event["log_level"] is LogLevel.critical]


def test_a_download_that_stands_still_is_asked_rarely_and_found_when_it_moves() -> None:
    house, asked = crowd(3)
    asks = [0, 0, 0]
    for number, one in enumerate(asked):

        def delivered(number: int = number, one: Asked = one) -> int:
            asks[number] += 1
            return one.transfer.sent_bytes

        one.transfer.delivered_bytes = delivered  # type: ignore[method-assign]
    asked[2].transfer.blocked = True
    span_s = 20.0
    for _ in range(round((DOWNLOADS.still_s + span_s) / TICK_S)):
        asked[0].transfer.send(1000)
        house.wait(TICK_S)
    assert asks[0] >= span_s / TICK_S
    assert asks[1] <= DOWNLOADS.still_s / TICK_S + span_s / DOWNLOADS.seldom_s + 2
    assert asks[2] <= DOWNLOADS.still_s / TICK_S + 2
    # Its socket tells when its peer takes bytes again.
    asked[2].transfer.send(500_000)
    house.wait(2 * TICK_S)
    assert left(house)[2] == BIG - 500_000
    asked[1].transfer.send(500_000)
    for _ in range(round(DOWNLOADS.seldom_s / TICK_S) + 1):
        if left(house)[1] < BIG:
            break
        house.wait(TICK_S)
    view = house.gate.policy.leases()[1]
    assert view.remaining_bytes == BIG - 500_000
    assert view.rate_bytes_s > 0


def test_what_moves_without_a_word_from_its_socket_is_found_all_the_same() -> None:
    house, asked = crowd(1)
    transfer = asked[0].transfer
    transfer.send(900_000)
    transfer.flying, transfer.blocked = 800_000, True
    house.wait(100.0)
    transfer.flying = 0
    house.wait(DOWNLOADS.rarely_s + TICK_S)
    assert left(house) == [BIG - 900_000]


def test_a_paused_download_of_which_nothing_moves_is_asked_rarely() -> None:
    house, asked = crowd(3)
    leases, transfers = house.gate.leases, [one.transfer for one in asked]
    asks = [0, 0, 0]
    for number, transfer in enumerate(transfers):

        def delivered(number: int = number, transfer: FakeTransfer = transfer) -> int:
            asks[number] += 1
            return transfer.sent_bytes - transfer.flying

        transfer.sent_bytes = transfer.flying = 64_000
        transfer.delivered_bytes = delivered  # type: ignore[method-assign]
    house.wait(1.0)
    for lease in tuple(leases.downloads):
        leases.pause(lease, house.clock.seconds())
    # One has all that is under way, the next takes nothing, the last takes it slowly.
    transfers[0].flying = 0
    asks[:] = [0, 0, 0]
    span_s = 60.0
    for _ in range(round(span_s / TICK_S)):
        transfers[2].flying -= 200
        house.wait(TICK_S)
    assert max(asks[:2]) <= 2 * DOWNLOADS.still_s / TICK_S + 4 * span_s / DOWNLOADS.rarely_s
    assert asks[2] >= span_s / TICK_S - 1
    for lease in tuple(leases.downloads):
        leases.resume(lease, house.clock.seconds())
    for transfer in transfers:
        transfer.send(1_000)
        transfer.flying = 0
    house.wait(2 * TICK_S)
    assert left(house) == [BIG - 65_000] * 3


def test_a_download_that_a_request_joins_is_looked_at_at_once() -> None:
    house, asked = crowd(1)
    asked[0].transfer.blocked = True
    house.wait(100.0)
    second = house.ask("10.0.0.0")
    second.transfer.send(3_000)
    house.wait(2 * TICK_S)
    view = house.gate.policy.leases()[0]
    assert view.connections == 2
    assert view.rate_bytes_s > 0


def test_a_process_that_is_late_leaves_more_in_sockets() -> None:
    """Beside busy programs a line stood idle between two turns, and clients cannot catch up."""
    house, asked = crowd(1)
    transfer, bounds = asked[0].transfer, [0]
    transfer.limit_unsent = bounds.append  # type: ignore[method-assign]

    def last_for(late_s: float, seconds: float) -> int:
        for _ in range(round(seconds / (TICK_S + late_s))):
            transfer.send(round(1e6 * (TICK_S + late_s)))
            house.clock.advance(TICK_S + late_s)
        return bounds[-1]

    assert last_for(0.0, 10.0) == pytest.approx(250_000, rel=0.01)
    assert last_for(0.1, 2.0) == pytest.approx(350_000, rel=0.05)
    # However late it was.
    assert last_for(1.0, 10.0) == pytest.approx(500_000, rel=0.05)
    assert last_for(0.0, 10.0) == pytest.approx(250_000, rel=0.05)


def test_a_paused_download_that_goes_on_is_looked_at_at_once() -> None:
    house, asked = crowd(1)
    house.wait(DOWNLOADS.still_s + 1.0)
    leases = house.gate.leases
    download = next(iter(leases.downloads.values()))
    leases.pause(download.lease, house.clock.seconds())
    leases.resume(download.lease, house.clock.seconds())
    asked[0].transfer.send(9_000)
    house.wait(2 * TICK_S)
    assert left(house) == [BIG - 9_000]


def test_what_nobody_waits_for_is_decided_together_and_what_somebody_waits_for_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(slots=3, reserve_small=1)
    for number in (1, 2):
        assert house.ask(f"10.0.0.{number}").started
    house.wait(1.0)
    passes: list[float] = []
    settle = PolicyDriver.settle

    def watched(driver: PolicyDriver, now: float) -> float | None:
        passes.append(now)
        return settle(driver, now)

    monkeypatch.setattr(PolicyDriver, "settle", watched)
    for _ in range(20):
        house.ask("10.0.0.1").transfer.end(False)
        house.clock.advance(0)
    assert not passes
    house.clock.advance(0.02)
    assert len(passes) == 1
    passes.clear()
    house.ask("10.0.0.1").transfer.end(False)
    assert house.ask("10.0.0.3").connection.status == 503
    house.clock.advance(0)
    assert not passes, "who is told to come back has changed nothing"
    house.ask("10.0.0.2").transfer.finish()
    house.clock.advance(0)
    assert passes, "somebody waits"


def test_visits_that_change_nothing_for_anybody_here_settle_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(slots=2, reserve_small=1)
    running = house.ask("10.0.0.1")
    assert running.started
    house.wait(1.0)
    passes: list[float] = []
    settle = PolicyDriver.settle

    def watched(driver: PolicyDriver, now: float) -> float | None:
        passes.append(now)
        return settle(driver, now)

    monkeypatch.setattr(PolicyDriver, "settle", watched)
    assert house.ask("10.0.0.2").connection.status == 503
    house.clock.advance(0.02)
    assert not passes
    held = house.ask("10.0.0.3", agent="curl/8")
    assert held.connection.status == 0
    passes.clear()
    assert house.ask("10.0.0.4").connection.status == 503
    house.clock.advance(0.02)
    assert len(passes) == 1, "one is here who may be called"
    running.transfer.finish()
    house.clock.advance(0)
    assert held.started


def test_what_the_journal_has_already_is_not_written_again_at_the_start() -> None:
    """A hundred thousand rows would keep the first client of a new leader waiting."""
    before = House(slots=1)
    for n in range(20):
        before.ask(f"192.0.2.{n}")
    before.clock.advance(1)
    rows = [row for row in before.journal.rows.values() if row.state is TicketState.WAITING]
    assert len(rows) > 10
    after = House(slots=1, restored=rows, next_number=1_000_000, clock=before.clock)
    written = set(after.journal.rows)
    # Those that are ready now, and no others.
    states = {row.number: row.state for row in after.gate.policy.tickets()}
    assert written == {n for n, state in states.items() if state is not TicketState.WAITING}
    assert len(written) < len(rows)


def test_the_end_of_one_connection_asks_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(slots=1, connections_per_lease=64)
    asked = [house.ask("10.0.0.1") for _ in range(64)]
    assert all(one.started for one in asked)
    house.wait(2 * TICK_S)
    asks = 0

    def delivered(one: Asked) -> int:
        nonlocal asks
        asks += 1
        return one.transfer.sent_bytes

    for one in asked[1:]:
        monkeypatch.setattr(one.transfer, "delivered_bytes", lambda one=one: delivered(one))
    asked[0].transfer.finish()
    assert asks == 0


def test_what_is_under_way_to_those_who_stand_still_is_counted_and_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house, asked = crowd(4)
    line = house.gate.parts.line
    seen: list[tuple[int, int]] = []
    tick = line.tick

    def watched(now: float, downloads: Collection[LeasedDownload], asleep_bytes: int) -> None:
        seen.append((len(downloads), asleep_bytes))
        tick(now, downloads, asleep_bytes)

    monkeypatch.setattr(line, "tick", watched)
    for one in asked:
        one.transfer.sent_bytes = 1000
        monkeypatch.setattr(one.transfer, "delivered_bytes", lambda: 400)
    house.wait(DOWNLOADS.still_s + 1.0)
    assert seen[-1] == (0, 4 * 600)
    asked[0].transfer.finish()
    house.wait(TICK_S)
    assert seen[-1] == (0, 3 * 600)
    house.wait(DOWNLOADS.rarely_s)
    assert set(seen[-round(DOWNLOADS.rarely_s / TICK_S) :]) == {(0, 3 * 600)}, (
        "nor when they are due"
    )


def test_thousands_that_are_due_at_once_are_asked_a_few_in_each_turn() -> None:
    """Small files go in between: the turns of 9 000 were long, and each file may come upon one."""
    count = 600
    house, asked = crowd(count)
    asks: list[int] = []

    def delivered() -> int:
        asks[-1] += 1
        return 0

    asks.append(0)
    for one in asked:
        one.transfer.delivered_bytes = delivered  # type: ignore[method-assign]
    house.wait(2 * DOWNLOADS.still_s)
    asks.clear()
    for _ in range(round(DOWNLOADS.rarely_s / 0.001)):
        asks.append(0)
        house.clock.advance(0.001)
    assert count <= sum(asks) <= 4 * count
    assert max(asks) <= 25
    # They were measured over a tick, so they are due over one, and take turns in another.
    first = next(number for number, found in enumerate(asks) if found)
    assert sum(asks[first : first + round(3 * TICK_S / 0.001)]) == count


def test_nothing_is_signed_or_journalled_while_nobody_waits() -> None:
    house = House()
    first = house.ask("192.0.2.1")
    assert "tidegate-ticket" not in first.start_fields
    house.journal.hold = True
    first.transfer.finish()
    assert first.transfer.over, "its end waits for no disk"
    house.wait(1)
    assert house.journal.rows == {}
    # The slot is free at once.
    assert house.ask("192.0.2.2").started


def test_last_bytes_that_got_lost_are_sent_again_without_a_slot() -> None:
    """Once its socket had taken all, its ticket was used: 403, and a wait from the end."""
    house = House()
    first = house.ask("192.0.2.1")
    token = house.ask("192.0.2.2").token
    first.transfer.end(True)
    house.wait(0.0)
    second = house.ask("192.0.2.2", token=token)
    second.transfer.send(BIG)
    second.transfer.flying = 1000
    second.transfer.end(True)
    third = house.ask("192.0.2.3")
    assert third.started
    # Its connection breaks with its last bytes on their way.
    again = house.ask("192.0.2.2", token=token, ranges=(BIG - 600, BIG))
    assert again.transfer.total_bytes == 600
    assert set(house.gate.downloads) == {view.lease for view in house.gate.policy.leases()}
    assert len(house.gate.downloads) == 1
    again.transfer.end(False)
    # No more than was missing, and nothing else.
    assert house.ask("192.0.2.2", token=token, ranges=(BIG - 600, BIG)).connection.status == 403
    assert house.ask("192.0.2.2", token=token).connection.status == 403
    assert house.ask("192.0.2.2", token=token, ranges=(BIG - 400, BIG)).started


def test_last_bytes_of_another_content_are_not_sent_again() -> None:
    house = House()
    first = house.ask("192.0.2.1")
    first.transfer.send(BIG)
    first.transfer.flying = 1000
    (download,) = house.gate.downloads.values()
    first.transfer.end(True)
    job = Job(download.client, "/big.iso", BIG, 600)
    plan = BodyPlan(206, (), ((BIG - 600, BIG),), 600)
    here, replaced = representation(), replace(representation(), etag='"replaced"')
    assert house.gate.leases.with_missing(job, replaced, plan) is None
    assert house.gate.leases.with_missing(job, here, plan) is download


def test_a_database_that_was_lost_is_told_of_running_downloads_too() -> None:
    house = House()
    first = house.ask("192.0.2.1")
    token = house.ask("192.0.2.2").token
    house.ask("192.0.2.3")
    first.transfer.end(True)
    house.ask("192.0.2.2", token=token)
    states = {row.number: row.state for row in house.gate.leases.live_tickets()}
    assert states == {2: TicketState.STARTED, 3: TicketState.READY}


def test_last_bytes_that_arrived_are_not_sent_again() -> None:
    house = House()
    asked = house.ask("192.0.2.1")
    token = house.ask("192.0.2.2").token
    asked.transfer.end(True)
    second = house.ask("192.0.2.2", token=token)
    second.transfer.flying = 1000
    second.transfer.end(True)
    second.transfer.flying = 0
    assert house.ask("192.0.2.2", token=token, ranges=(BIG - 600, BIG)).connection.status == 403
    second.transfer.flying = 1000
    house.wait(house.settings.lease_idle_s)
    assert house.ask("192.0.2.2", token=token, ranges=(BIG - 600, BIG)).connection.status == 403


def test_a_download_that_is_over_leaves_nothing_to_the_garbage_collector() -> None:
    """Each was in a cycle: half an hour of churn left 40 MB, as full collections are rare."""
    house = House(slots=1)
    one = house.ask("192.0.2.1")
    gc.disable()
    try:
        transfer = weakref.ref(one.transfer)
        one.transfer.end(True)
        house.wait(1.0, TICK_S)
        assert one.transfers.pop().over
        assert transfer() is None
    finally:
        gc.enable()
