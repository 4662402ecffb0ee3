"""What a connection's end says of a mirror, and what mirrors of awkward kinds cost."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from faulty_mirrors import Behaviour, Script, running
from test_client_download import DATA, RATE, SHA, WRONG, Run, one
from virtual_network import VirtualRun

from tidegate.client.api import Options, fetch_blocking
from tidegate.client.fetch.events import Break
from tidegate.client.fetch.faults import Again, Fault, judge_break
from tidegate.client.net.errors import Interrupted, LocalProblem, NetworkProblem
from tidegate.client.net.retry import Failed, GiveUp, Granted, RetryPolicy, RetryState, WaitUntil

__all__ = ["one"]
LARGE = DATA * 4


@pytest.fixture
def virtual(tmp_path: Path) -> VirtualRun:
    return VirtualRun(tmp_path)


def ended(
    served: int = 0, brought: int = 0, answer: int = 0, *, crowded: bool = False, gone: bool = False
) -> Break:
    return Break(served, brought, answer, crowded, gone)


@pytest.mark.parametrize(
    ("one", "single", "cut", "verdict"),
    [
        (ended(), False, None, Fault()),
        (ended(served=3, gone=True), False, None, Fault()),
        (ended(served=1), False, None, Again()),
        (ended(served=9, crowded=True), False, None, Again()),
        (ended(served=1, crowded=True), False, None, Again(single=True)),
        (ended(crowded=True), False, None, Again(single=True)),
        # Asked one at a time already, so the crowd is no excuse.
        (ended(crowded=True), True, None, Fault()),
        (ended(brought=1000, answer=1000), False, None, Fault()),
        (ended(brought=300_000, answer=300_000), False, None, Again()),
        (ended(brought=300_000, answer=300_000), False, 310_000, Again(most_bytes=270_000)),
        (ended(brought=300_000, answer=300_000), False, 5_000_000, Again()),
    ],
)
def test_how_a_connection_ends_says_what_to_do(
    one: Break, single: bool, cut: int | None, verdict: Again | Fault
) -> None:
    assert judge_break(one, single=single, cut_before=cut) == verdict


def test_a_fault_in_the_timer_ends_the_download_in_one_sentence(
    one: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without its timer it would go on with no watch, no peers and no time-outs."""

    def emit(event: str, data: object) -> None:
        if event == "progress":
            raise ValueError("nothing to draw on")

    with (
        running(Behaviour(DATA, rate=RATE / 10)) as mirrors,
        pytest.raises(LocalProblem, match="ValueError: nothing to draw on"),
    ):
        fetch_blocking(
            [mirrors[0].url], one.path, Options(data_folder=one.folder / "data", environ={}), emit
        )
    assert not one.path.exists()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("hasty", [False, True])
def test_servers_that_close_after_each_answer_are_not_at_fault(one: Run, hasty: bool) -> None:
    """`hasty`: what was sent meanwhile lies unread, so the close is a reset."""
    rates = [3e6, 2e6, 1e6]
    behaviours = [Behaviour(DATA, rate=r, close_each=True, hasty=hasty) for r in rates]
    with running(*behaviours) as mirrors:
        result = one.get(*(mirror.url for mirror in mirrors))
    assert one.right()
    assert not [data for event, data in one.events if event == "retry"]
    assert all(source.waited_s == 0 for source in result.sources)
    assert all(source.dropped is None for source in result.sources)


def test_where_no_mirror_has_ranges_the_fastest_answer_is_kept(virtual: VirtualRun) -> None:
    rates = [4e5, 1e5, 4e6, 2e5]
    mirrors = [Script(Behaviour(DATA, rate=rate, ranges=False)) for rate in rates]
    result = virtual.get(*mirrors)
    assert virtual.path.read_bytes() == DATA
    brought = [source.bytes for source in result.sources]
    assert brought.index(max(brought)) == 2
    assert all(mirror.connections == 1 for mirror in mirrors)
    assert result.wasted_bytes < 0.25 * len(DATA)


@pytest.mark.parametrize("kind", [{"ranges": False}, {"ranges": False, "chunked": True}], ids=str)
def test_a_mirror_without_ranges_works_beside_those_that_have_them(
    virtual: VirtualRun, kind: dict[str, bool]
) -> None:
    whole = Script(Behaviour(LARGE, rate=4e6, **kind))  # type: ignore[arg-type]
    parts = [Script(Behaviour(LARGE, rate=2e6)) for _ in range(2)]
    result = virtual.get(whole, *parts)
    assert whole.connections == 1
    assert virtual.path.read_bytes() == LARGE
    assert result.sources[0].bytes > 0.3 * len(LARGE)
    assert result.wasted_bytes < 0.15 * len(LARGE)


def test_a_mirror_that_never_ends_and_tells_no_size_ends_where_another_says(
    virtual: VirtualRun,
) -> None:
    endless = Script(Behaviour(DATA + bytes(20_000_000), rate=2e6, ranges=False, chunked=True))
    virtual.get(endless, Script(Behaviour(DATA, rate=2e6, delay_s=0.1)), until_s=5.0)
    assert virtual.path.read_bytes() == DATA


def test_an_answer_that_would_bring_all_again_is_not_taken(virtual: VirtualRun) -> None:
    """The others are half through before the mirror without ranges says a word."""
    late = Script(Behaviour(DATA, rate=1e6, ranges=False, delay_s=0.3))
    result = virtual.get(*(Script(Behaviour(DATA, rate=2e6)) for _ in range(2)), late)
    assert virtual.path.read_bytes() == DATA
    assert result.wasted_bytes < 0.1 * len(DATA)


def test_when_the_kept_answer_breaks_another_mirror_without_ranges_is_asked(
    virtual: VirtualRun,
) -> None:
    broken = Behaviour(DATA, rate=4e6, ranges=False, reset_after=1_200_000)
    slow = Behaviour(DATA, rate=1e6, ranges=False)
    virtual.get(Script(broken), Script(slow), checksum=SHA)
    assert virtual.path.read_bytes() == DATA


def test_a_liar_without_ranges_is_found_by_the_others(virtual: VirtualRun) -> None:
    honest = Behaviour(LARGE, rate=RATE)
    liar = Behaviour(WRONG * 4, rate=RATE, ranges=False)
    result = virtual.get(Script(honest), Script(liar), Script(honest))
    assert virtual.path.read_bytes() == LARGE
    assert result.culprits == (result.sources[1].url,)


def test_servers_that_stall_on_a_second_request_are_asked_one_at_a_time(
    virtual: VirtualRun,
) -> None:
    """What is sent while a request is being answered is never read."""
    virtual.get(*(Script(Behaviour(DATA, rate=RATE, deaf=True)) for _ in range(3)))
    assert virtual.path.read_bytes() == DATA
    # A client that did not learn would meet the silence with each block.
    retried = [data["url"] for event, data in virtual.events if event == "retry"]
    assert len(retried) == len(set(retried))


def test_an_answer_to_a_later_request_is_no_lie_where_requests_were_crowded(
    virtual: VirtualRun,
) -> None:
    """All mirrors were dropped for sending another part than was asked for."""
    result = virtual.get(*(Script(Behaviour(DATA, rate=RATE, swallows=True)) for _ in range(3)))
    assert virtual.path.read_bytes() == DATA
    assert all(source.dropped is None for source in result.sources)


@pytest.mark.parametrize("told", [False, True])
def test_mirrors_that_keep_back_the_end_of_each_part_leave_it_to_others(
    virtual: VirtualRun, told: bool
) -> None:
    """They were asked again at once, for the last bytes, for ever."""
    scant = [
        Script(Behaviour(DATA, rate=4e6, scant_by=777, scant_told=told, delay_s=0.001))
        for _ in range(2)
    ]
    virtual.get(*scant, Script(Behaviour(DATA, rate=RATE / 4)), until_s=20.0)
    assert virtual.path.read_bytes() == DATA
    assert all(len(mirror.requests) < 60 for mirror in scant)


def test_a_sample_from_a_mirror_that_sends_the_rest_of_the_file_too_is_cut_short(
    virtual: VirtualRun,
) -> None:
    mirrors = [Script(Behaviour(LARGE, rate=RATE, to_the_end=True)) for _ in range(3)]
    result = virtual.get(*mirrors)
    assert virtual.path.read_bytes() == LARGE
    assert result.wasted_bytes < 0.2 * len(LARGE)


def test_a_mirror_that_cuts_every_answer_at_one_place_is_asked_less_and_less(
    virtual: VirtualRun,
) -> None:
    """It takes no ranges, so nothing is gained by asking: it was asked 130 times a second."""
    mirror = Script(Behaviour(DATA, ranges=False, cut_after=len(DATA) // 3))
    with pytest.raises(Interrupted):
        virtual.get(mirror, until_s=4.0)
    assert len(mirror.requests) <= 8
    visit = RetryState(RetryPolicy(jitter=0.0, max_failures=5), Random(1), 0.0)
    pauses = []
    for times in range(1, 5):
        visit.answered(0.0, Granted(None, None))
        pause = visit.answered(0.0, Failed("it broke off", times))
        assert isinstance(pause, WaitUntil)
        pauses.append(pause.at)
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
    assert isinstance(visit.answered(0.0, Failed("it broke off", 5)), GiveUp)


def test_a_mirror_that_cuts_its_answers_is_asked_for_less(virtual: VirtualRun) -> None:
    cutting = Script(Behaviour(DATA, rate=4e6, cut_after=150_000))
    result = virtual.get(cutting, Script(Behaviour(DATA, rate=1e6)))
    assert virtual.path.read_bytes() == DATA
    assert cutting.cuts <= 4
    assert result.sources[0].waited_s == 0
    assert result.sources[0].bytes > 0.5 * len(DATA)


def test_a_broken_off_download_goes_on_where_it_stopped(virtual: VirtualRun) -> None:
    mirror = Script(Behaviour(DATA, rate=6e6, reset_after=800_000))
    with pytest.raises(NetworkProblem):
        virtual.get(mirror, max_failures=1)
    before = mirror.sent
    result = virtual.get(mirror)
    assert result.resumed_bytes >= 700_000
    assert mirror.sent - before <= len(DATA) - 700_000
    assert 'If-Range: "one"' in mirror.requests[-1]
    assert virtual.path.read_bytes() == DATA
