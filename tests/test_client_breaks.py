"""What a connection's end says of a mirror, and what mirrors of awkward kinds cost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from faulty_mirrors import Behaviour, running
from test_client_download import DATA, RATE, SHA, WRONG, Run, one

from client.api import Options, build, fetch_blocking, finish, open_network, read_urls
from client.fetch.breaks import Again, Break, Fault, judge
from client.net.errors import LocalProblem
from client.net.retry import Failed, GiveUp, Granted, RetryPolicy, RetryState, WaitUntil

__all__ = ["one"]
LARGE = DATA * 4


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
    assert judge(one, single=single, cut_before=cut) == verdict


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


def test_where_no_mirror_has_ranges_the_fastest_answer_is_kept(one: Run) -> None:
    rates = [4e5, 1e5, 4e6, 2e5]
    with running(*(Behaviour(DATA, rate=rate, ranges=False) for rate in rates)) as mirrors:
        result = one.get(*(mirror.url for mirror in mirrors))
    assert one.right()
    brought = [source.bytes for source in result.sources]
    assert brought.index(max(brought)) == 2
    assert all(mirror.connections == 1 for mirror in mirrors)
    assert result.wasted_bytes < 0.25 * len(DATA)


@pytest.mark.parametrize("kind", [{"ranges": False}, {"ranges": False, "chunked": True}], ids=str)
def test_a_mirror_without_ranges_works_beside_those_that_have_them(
    one: Run, kind: dict[str, bool]
) -> None:
    whole = Behaviour(LARGE, rate=4e6, **kind)  # type: ignore[arg-type]
    with running(whole, Behaviour(LARGE, rate=2e6), Behaviour(LARGE, rate=2e6)) as mirrors:
        result = one.get(*(mirror.url for mirror in mirrors))
        assert mirrors[0].connections == 1
    assert one.path.read_bytes() == LARGE
    assert result.sources[0].bytes > 0.3 * len(LARGE)
    assert result.wasted_bytes < 0.15 * len(LARGE)


def test_an_answer_that_would_bring_all_again_is_not_taken(one: Run) -> None:
    """The others are half through before the mirror without ranges says a word."""
    late = Behaviour(DATA, rate=1e6, ranges=False, delay_s=0.3)
    with running(Behaviour(DATA, rate=2e6), Behaviour(DATA, rate=2e6), late) as mirrors:
        result = one.get(*(mirror.url for mirror in mirrors))
    assert one.right()
    assert result.wasted_bytes < 0.1 * len(DATA)


def test_when_the_kept_answer_breaks_another_mirror_without_ranges_is_asked(one: Run) -> None:
    broken = Behaviour(DATA, rate=4e6, ranges=False, reset_after=1_200_000)
    with running(broken, Behaviour(DATA, rate=1e6, ranges=False)) as mirrors:
        one.get(*(mirror.url for mirror in mirrors), checksum=SHA)
    assert one.right()


def test_a_liar_without_ranges_is_found_by_the_others(one: Run) -> None:
    honest = Behaviour(LARGE, rate=RATE)
    with running(honest, Behaviour(WRONG * 4, rate=RATE, ranges=False), honest) as mirrors:
        result = one.get(*(mirror.url for mirror in mirrors))
    assert one.path.read_bytes() == LARGE
    assert result.culprits == (mirrors[1].url,)


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


def test_servers_that_stall_on_a_second_request_are_asked_one_at_a_time(one: Run) -> None:
    """What is sent while a request is being answered is never read."""
    with running(*(Behaviour(DATA, rate=RATE, deaf=True) for _ in range(3))) as mirrors:
        one.get(*(mirror.url for mirror in mirrors))
    assert one.right()
    # A machine that stands still for a second makes any mirror seem silent once; a client that did
    # not learn would meet the silence with each block.
    retried = [data["url"] for event, data in one.events if event == "retry"]
    assert len(retried) == len(set(retried))


def test_an_answer_to_a_later_request_is_no_lie_where_requests_were_crowded(one: Run) -> None:
    """All mirrors were dropped for sending another part than was asked for."""
    with running(*(Behaviour(DATA, rate=RATE, swallows=True) for _ in range(3))) as mirrors:
        result = one.get(*(mirror.url for mirror in mirrors))
    assert one.right()
    assert all(source.dropped is None for source in result.sources)


def test_a_mirror_that_cuts_every_answer_at_one_place_is_asked_less_and_less(
    tmp_path: Path,
) -> None:
    """It takes no ranges, so nothing is gained by asking: it was asked 130 times a second."""

    async def bring(url: str) -> None:
        options = Options(data_folder=tmp_path / "data")
        network = open_network(options)
        try:
            download = build(network, read_urls([url]), tmp_path / "out", options)
            await asyncio.wait_for(finish(download), 4)
        finally:
            await network.close()

    with running(Behaviour(DATA, ranges=False, cut_after=len(DATA) // 3)) as (mirror,):
        with pytest.raises(TimeoutError):
            asyncio.run(bring(mirror.url))
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


def test_a_mirror_that_cuts_its_answers_is_asked_for_less(one: Run) -> None:
    cutting = Behaviour(DATA, rate=4e6, cut_after=150_000)
    with running(cutting, Behaviour(DATA, rate=1e6)) as (first, second):
        result = one.get(first.url, second.url)
        cuts = first.cuts
    assert one.right()
    assert cuts <= 4
    assert result.sources[0].waited_s == 0
    assert result.sources[0].bytes > 0.5 * len(DATA)
