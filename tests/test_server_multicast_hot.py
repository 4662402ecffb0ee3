"""The switch: together as soon as they are enough, each by itself when its window ends."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.server.multicast.demand import (
    DemandDetector,
    Hold,
    Join,
    Release,
    StartSession,
    Unicast,
)
from tidegate.server.multicast.settings import MulticastSettings

BIG = 1 << 20


def test_the_third_request_starts_a_session_for_all_three():
    hot = DemandDetector(MulticastSettings(hold_share=0))
    assert hot.request("a", "1", BIG, 0.0) == Hold(15.0)
    hot.prepared("a", 0.1)
    assert hot.decide(0.1) == []
    hot.request("a", "2", BIG, 4.0)
    assert hot.decide(4.0) == []
    hot.request("a", "3", BIG, 5.0)
    assert hot.decide(5.0) == [StartSession("a", ("1", "2", "3"))]
    assert hot.held == 0


def test_below_the_threshold_each_goes_on_when_its_own_window_ends():
    hot = DemandDetector(MulticastSettings(hold_share=0))
    hot.request("a", "1", BIG, 0.0)
    hot.prepared("a", 0.0)
    hot.request("a", "2", BIG, 9.0)
    assert hot.decide(9.0) == []
    assert hot.wake_at == 15.0
    assert hot.decide(15.0) == [Release("a", ("1",))]
    assert hot.decide(24.0) == [Release("a", ("2",))]
    assert hot.wake_at == float("inf")


def test_nothing_starts_before_the_hashes_are_known():
    hot = DemandDetector(MulticastSettings(hold_share=0, threshold=2))
    hot.request("a", "1", BIG, 0.0)
    hot.request("a", "2", BIG, 0.0)
    assert hot.decide(0.0) == []
    hot.prepared("a", 1.0)
    assert hot.decide(1.0) == [StartSession("a", ("1", "2"))]


def test_small_objects_and_other_objects_do_not_mix():
    hot = DemandDetector(MulticastSettings(hold_share=0, threshold=2))
    assert hot.request("a", "1", 100, 0.0) == Unicast()
    hot.request("a", "1", BIG, 0.0)
    hot.request("b", "2", BIG, 0.0)
    hot.prepared("a", 0.0)
    hot.prepared("b", 0.0)
    assert hot.decide(0.0) == []


def test_a_running_session_is_offered_at_once_and_later_less_is_enough():
    hot = DemandDetector(MulticastSettings(hold_share=0, threshold=4))
    hot.started("a", 7)
    assert hot.request("a", "1", BIG, 0.0) == Join(7)
    assert hot.request("a", "2", BIG, 1.0) == Join(7)
    hot.ended("a", 7)
    hot.request("a", "3", BIG, 2.0)
    hot.request("a", "4", BIG, 3.0)
    assert hot.decide(3.0) == [StartSession("a", ("3", "4"))]


def test_a_warm_object_cools_down_when_nobody_comes():
    hot = DemandDetector(MulticastSettings(hold_share=0, threshold=4))
    hot.started("a", 7)
    hot.ended("a", 7)
    hot.request("a", "1", BIG, 100.0)
    hot.prepared("a", 100.0)
    hot.request("a", "2", BIG, 101.0)
    assert hot.decide(101.0) == []


def test_the_polls_of_one_client_keep_no_object_warm():
    hot = DemandDetector(MulticastSettings(hold_share=0, threshold=4))
    hot.started("a", 7)
    assert [hot.request("a", name, BIG, 0.0) for name in "12"] == [Join(7), Join(7)]
    hot.ended("a", 7)
    for second in range(0, 60, 5):
        hot.poll("a", "one", f"poll {second}", float(second))
        hot.decide(float(second))
    hot.request("a", "3", BIG, 60.0)
    # Of a warm object two would be enough.
    assert hot.decide(60.0) == []


def test_waiters_with_tickets_count_and_are_told_of_the_session():
    hot = DemandDetector(MulticastSettings(hold_share=0))
    assert hot.poll("a", "q1", "1", 0.0) == Unicast()
    assert hot.poll("a", "q2", "2", 0.0) == Unicast()
    hot.request("a", "3", BIG, 1.0)
    hot.prepared("a", 1.0)
    assert hot.decide(1.0) == [StartSession("a", ("3",))]
    assert hot.queued("a") == 2
    hot.started("a", 9)
    assert hot.poll("a", "q1", "4", 2.0) == Join(9)
    assert hot.queued("a") == hot.waiting == 1


def test_enough_waiters_with_tickets_start_a_session_by_themselves():
    hot = DemandDetector(MulticastSettings(hold_share=0))
    hot.poll("a", "q1", "1", 0.0)
    hot.poll("a", "q2", "2", 1.0)
    hot.poll("a", "q1", "3", 2.0)
    hot.prepared("a", 2.0)
    assert hot.decide(2.0) == []
    assert hot.poll("a", "q3", "4", 3.0) == Hold(18.0)
    assert hot.decide(3.0) == [StartSession("a", ("4",))]


def test_a_waiter_who_does_not_ask_any_more_is_forgotten():
    hot = DemandDetector(MulticastSettings(hold_share=0, threshold=2))
    hot.poll("a", "q1", "1", 0.0)
    assert hot.decide(0.0) == []
    assert hot.wake_at == 30.0
    assert hot.decide(30.0) == []
    assert hot.queued("a") == 0


def test_one_who_leaves_no_longer_counts():
    hot = DemandDetector(MulticastSettings(hold_share=0, threshold=2))
    hot.request("a", "1", BIG, 0.0)
    hot.prepared("a", 0.0)
    hot.forget("a", "1")
    hot.request("a", "2", BIG, 1.0)
    assert hot.decide(1.0) == []


def test_a_client_waits_one_window_in_vain_not_one_for_each_file():
    hot = DemandDetector(MulticastSettings(hold_share=0))
    for number in range(6):
        assert hot.request(f"f{number}", str(number), BIG, 0.5 * number, "c") == Hold(15.0)
    assert sorted(out.key for out in hot.decide(15.0)) == [f"f{number}" for number in range(6)]
    for number in range(6, 40):
        assert hot.request(f"f{number}", str(number), BIG, 15.0 + number, "c") == Unicast()
    assert hot.held == 0
    # Another client, and one that does not say who it is, have their own windows.
    assert hot.request("f1", "x", BIG, 60.0, "d") == Hold(75.0)
    assert hot.request("f1", "y", BIG, 60.0) == Hold(75.0)
    # With it there are enough: it is worth a session, so it is held to be in it.
    hot.prepared("f1", 60.0)
    assert isinstance(hot.request("f1", "z", BIG, 61.0, "c"), Hold)
    assert hot.decide(61.0) == [StartSession("f1", ("x", "y", "z"))]
    # That was worth waiting for: the next file may be, too.
    assert hot.request("f99", "w", BIG, 62.0, "c") == Hold(77.0)


def test_a_client_that_was_away_is_held_again():
    hot = DemandDetector(MulticastSettings(hold_share=0))
    hot.request("a", "1", BIG, 0.0, "c")
    hot.decide(15.0)
    assert hot.request("b", "2", BIG, 60.0, "c") == Unicast()
    assert hot.request("b", "3", BIG, 121.0, "c") == Hold(136.0)


def test_who_joins_a_running_session_has_patience_again():
    hot = DemandDetector(MulticastSettings(hold_share=0))
    hot.request("a", "1", BIG, 0.0, "c")
    hot.decide(15.0)
    hot.started("b", 5)
    assert hot.request("b", "2", BIG, 16.0, "c") == Join(5)
    assert hot.request("d", "3", BIG, 17.0, "c") == Hold(32.0)


BRIEF = MulticastSettings(hold_share=1.0, rate=10.0 * BIG)


def test_a_request_is_held_for_a_share_of_its_pass_and_then_gathers():
    hot = DemandDetector(BRIEF)
    assert hot.request("small", "1", BIG // 8, 0.0) == Hold(0.02)
    assert hot.request("a", "2", BIG, 0.0) == Hold(0.1)
    assert hot.request("huge", "3", 1000 * BIG, 0.0) == Hold(2.0)
    for key in ("small", "a", "huge"):
        hot.prepared(key, 0.01)
    hot.request("a", "4", BIG, 0.06)
    assert hot.decide(0.06) == [StartSession("small", ("1",), 3)]
    assert hot.decide(0.1) == [StartSession("a", ("2", "4"), 3)]
    hot.started("a", 7)
    assert hot.request("a", "5", BIG, 0.2) == Join(7)
    hot.ended("a", 7, never_began=True)
    # In vain, so it is no warmer than before: three are still needed.
    assert hot.request("a", "6", BIG, 0.3) == Hold(0.4)
    assert hot.decide(0.4) == [StartSession("a", ("6",), 3)]


def test_where_the_hashes_are_not_ready_in_time_unicast_comes_first():
    hot = DemandDetector(BRIEF)
    hot.request("a", "1", BIG, 0.0)
    assert hot.decide(0.1) == []
    assert round(hot.wake_at, 6) == 1.1
    assert hot.decide(1.1) == [Release("a", ("1",))]


def test_hashes_that_come_a_little_late_still_make_a_session():
    hot = DemandDetector(BRIEF)
    hot.request("a", "1", BIG, 0.0)
    hot.decide(0.1)
    hot.prepared("a", 0.4)
    assert hot.decide(0.4) == [StartSession("a", ("1",), 3)]


def test_enough_requests_within_the_hold_need_not_gather():
    hot = DemandDetector(BRIEF)
    for number in range(3):
        hot.request("a", str(number), BIG, 0.02 * number)
    hot.prepared("a", 0.05)
    assert hot.decide(0.05) == [StartSession("a", ("0", "1", "2"))]


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.sampled_from("ab"), st.booleans()), min_size=1, max_size=40
    ),
    st.integers(2, 5),
)
@settings(max_examples=80)
def test_every_request_leaves_exactly_once_and_in_time(steps, threshold):
    hot = DemandDetector(MulticastSettings(hold_share=0, threshold=threshold, window_s=10.0))
    arrived: dict[str, float] = {}
    left: dict[str, float] = {}
    now = 0.0

    def settle(until: float) -> None:
        nonlocal now
        while hot.wake_at <= until:
            now = max(now, hot.wake_at)
            note(hot.decide(now))
        now = until
        note(hot.decide(now))

    def note(outcomes) -> None:
        for outcome in outcomes:
            if isinstance(outcome, StartSession):
                assert len(outcome.waiters) >= 2
            for waiter in outcome.waiters:
                assert waiter not in left
                left[waiter] = now

    for number, (gap, key, prepared) in enumerate(steps):
        settle(now + gap)
        arrived[str(number)] = now
        assert isinstance(hot.request(key, str(number), BIG, now), Hold)
        if prepared:
            hot.prepared(key, now)
        note(hot.decide(now))
    settle(now + 11)
    assert arrived.keys() == left.keys()
    assert all(left[name] - arrived[name] <= 10.0 + 1e-6 for name in arrived)
    assert hot.held == 0
