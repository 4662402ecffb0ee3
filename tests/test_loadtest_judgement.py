"""What a load test says of a run: its counts, and the first sentence of its page."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tidegate.client.net.retry import FailureReason, Refused, RetryAfter, RetryPolicy, RetryState
from tidegate.loadtest.tally import DownloadTally, Tally
from tidegate.loadtest.verdict import side_by_side, verdict, verdict_page


def run(
    objectives: tuple[str, ...] = (), missed: tuple[str, ...] = (), **figures: float
) -> dict[str, Any]:
    """What Locust leaves of a run."""
    return {
        "profile": "ci",
        "workload": "exp2",
        "seed": 1,
        "time_scale": 1.0,
        "thin": 1.0,
        "objectives": list(objectives),
        "missed": list(missed),
        "figures": {"finished": 9.0, "failed": 0.0, **figures},
    }


SMALL, FAILED, TOLD = "p95_wait_small<2s", "failed_fraction<1%", "eta_within_p90>80%"


@pytest.mark.parametrize(
    ("found", "first"),
    [
        (run((SMALL, FAILED)), "Held: all 2 objectives; 9 downloads, 0 failed."),
        (run((SMALL,)), "Held: the objective; 9 downloads, 0 failed."),
        (run(), "Done: nothing was asked for; 9 downloads, 0 failed."),
        (run((SMALL, FAILED), (f"{SMALL}: measured 3",)), "Missed: 1 of 2 objectives; "),
        (run((), ("no download finished",)), "Missed: 1 of 1 objectives; "),
        (
            run((SMALL, TOLD), promises=0.0, queued=0.0),
            "Held: 1 of 2 objectives, the rest untried: nobody had to wait, or wanted such files; ",
        ),
        (
            run((SMALL, TOLD), (f"{SMALL}: measured 3",), promises=0.0, queued=0.0),
            "Missed: 1 of 2 objectives; ",
        ),
    ],
)
def test_the_first_sentence_says_what_was_held(found: dict[str, Any], first: str) -> None:
    said = verdict(found, None)
    assert said.startswith(first)
    page = verdict_page(found, None)
    for text in found["missed"]:
        assert f"<li>Missed: {text}</li>".replace("<2s", "&lt;2s") in page
    untried = page.count("<li>Not tried")
    assert page.count("<li>") == len(found["objectives"]) or not found["objectives"]
    assert untried == (TOLD in found["objectives"])


def download(manner: str = "", manners: RetryPolicy | None = None) -> tuple[Tally, DownloadTally]:
    tally, visit = Tally(), RetryState(manners or RetryPolicy(), Random(0), 0.0)
    return tally, DownloadTally(tally, visit, "large", manner, 0.0)


def test_a_poll_before_the_told_time_is_early() -> None:
    tally, one = download()
    one.ask(0.0)
    assert one.note_answer(0.1, RetryAfter(10.0, "t"))
    one.ask(9.7)
    assert tally.counters["early_polls"] == 0, "within the half second that clocks differ by"
    one.ask(9.5)
    one.ask(3.0)
    assert tally.counters["early_polls"] == 2
    assert one.note_answer(10.0, RetryAfter(5.0, "t"))
    one.ask(15.0)
    assert tally.counters["early_polls"] == 2, "what was told last counts"


@pytest.mark.parametrize(("started_s", "kept"), [(11.9, 1), (12.1, 0)])
def test_the_first_promise_is_kept_or_not(started_s: float, kept: int) -> None:
    tally, one = download("_rude")
    one.note_answer(2.0, RetryAfter(5.0, "t", expected_s=8.0, p90_s=10.0))
    one.note_answer(7.0, RetryAfter(90.0, "t", expected_s=90.0, p90_s=99.0))
    one.note_start(started_s)
    one.note_done(20.0, 1_000)
    figures = tally.figures()
    assert (figures["promises"], figures["promises_kept"]) == (1, kept)
    assert figures["mean_eta_error"] == pytest.approx((started_s - 10.0) / (started_s - 2.0))
    assert figures["mean_wait_large_rude"] == figures["mean_wait_large"] == started_s
    assert (figures["tickets_issued"], figures["tickets_redeemed"]) == (1, 1)
    assert (figures["finished"], figures["verified_bytes"]) == (1, 1_000)


def test_a_refusal_is_counted_as_what_it_is() -> None:
    tally, one = download()
    assert not one.note_answer(1.0, Refused(FailureReason.NOT_FOUND, "none"))
    assert not one.note_answer(1.0, Refused(FailureReason.REFUSED, "old", ticket_fault=True))
    assert not one.note_answer(1.0, RetryAfter(None))
    counted = {name: tally.counters[name] for name in ("not_found", "refused", "tickets_expired")}
    assert counted == {"not_found": 1, "refused": 1, "tickets_expired": 1}


def test_a_start_without_a_ticket_redeems_none() -> None:
    tally, one = download()
    one.note_start(1.0)
    assert tally.counters["tickets_redeemed"] == 0


def test_figures_without_a_simulated_twin_are_shown() -> None:
    figures = {"mean_visit": 3.0}
    assert side_by_side(figures, None)[1][1:] == ("3.00 s", "–")
    assert side_by_side(figures, {"mean_session_s": 12.0})[1][1:] == ("3.00 s", "12 s")
