"""What a run has shown: a verdict in a sentence, live beside simulated, and every figure. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..protocol.units import format_rate
from .report import page, table
from .sim.chronology import Chronicle, draw
from .sim.metrics import measure
from .sim.plan import Felt, feel, spell_time, thinnest
from .sim.scenario import Scenario
from .tally import Objective, rows
from .workloads import Workload

#: Figure of a run, the simulator's name for it, and what people call it.
_BOTH = (
    ("mean_visit", "mean_session_s", "a client with all its files, mean"),
    ("p95_visit", "p95_session_s", "95 of 100 clients at the most"),
    ("mean_wait_large", "wait_large_s", "first byte of a large file, mean"),
    ("p95_wait_large", "wait_large_p95_s", "95 of 100 of these at the most"),
    ("mean_wait_small", "wait_small_s", "first byte of a small file, mean"),
    ("p95_wait_small", "wait_small_p95_s", "95 of 100 of these at the most"),
    ("give_up_fraction", "gave_up", "gave up"),
    ("eta_within_p90", "eta_within_p90", "started within the told 90 % bound"),
)


@dataclass(frozen=True, slots=True)
class Simulated:
    """The same clients in virtual time: the figures, what was felt, and the line for a wish."""

    figures: Mapping[str, float]
    felt: Felt
    wish_s: float
    needed: Felt | None
    picture_svg: str = ""


def simulate(workload: Workload, policy: str, bandwidth_bytes_s: float, wish_s: float) -> Simulated:
    """Play the clients of a run in the simulator, and look for the line that they need."""
    scenario = Scenario(policy, slots=30, reserve_small=6, bandwidth_bytes_s=bandwidth_bytes_s)
    seen = Chronicle()
    tally = scenario.simulate(workload, chronicle=seen)
    figures = measure(workload, scenario.conditions(workload), tally)
    picture = draw(seen, bandwidth_bytes_s, f"The same clients under {policy}, simulated")
    felt = feel(workload, 1.0, policy, bandwidth_bytes_s)
    needed = thinnest(workload, 1.0, felt, wish_s, 1.3 * bandwidth_bytes_s)
    return Simulated(figures, felt, wish_s, needed, picture)


def verdict(run: Mapping[str, Any], simulated: Simulated | None) -> str:
    """The first sentence of the page."""
    wanted, missed = run["objectives"], run["missed"]
    figures: Mapping[str, float] = run["figures"]
    untried = sum(Objective.parse(text).untried(figures) for text in wanted)
    if missed:
        text = f"Missed: {len(missed)} of {max(len(wanted), len(missed))} objectives"
    elif untried:
        text = f"Held: {len(wanted) - untried} of {len(wanted)} objectives"
        text += ", the rest untried: nobody had to wait, or wanted such files"
    elif wanted:
        text = f"Held: all {len(wanted)} objectives" if len(wanted) > 1 else "Held: the objective"
    else:
        text = "Done: nothing was asked for"
    finished, failed = figures.get("finished", 0.0), figures.get("failed", 0.0)
    text += f"; {finished:,.0f} downloads, {failed:,.0f} failed"
    if "mean_wait_large" in figures:
        mean = _spelled("mean_wait_large", figures["mean_wait_large"])
        text += f", large files began after {mean} in the mean"
    if simulated is None:
        return f"{text}."
    felt, needed, wish = simulated.felt, simulated.needed, spell_time(simulated.wish_s)
    text += f"; with {format_rate(felt.bandwidth_bytes_s)} such a crowd loses "
    text += f"{spell_time(felt.lost_s)} each under {felt.policy}"
    if needed is None:
        return f"{text}, and no line that was tried brings that below {wish}."
    return f"{text}, and {format_rate(needed.bandwidth_bytes_s)} keep it below {wish}."


def side_by_side(
    live: Mapping[str, float], simulated: Mapping[str, float] | None
) -> list[Sequence[str]]:
    """The figures that both have."""
    found: list[Sequence[str]] = [("", "live", "simulated")]
    for ours, theirs, meaning in _BOTH:
        here = live.get(ours, math.nan)
        there = simulated.get(theirs, math.nan) if simulated is not None else math.nan
        if not (math.isnan(here) and math.isnan(there)):
            found.append((meaning, _spelled(ours, here), _spelled(ours, there)))
    return found


def _spelled(name: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if name.startswith(("give_up", "eta_within")):
        return f"{100 * value:.1f} %"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def verdict_page(run: Mapping[str, Any], simulated: Simulated | None) -> str:
    """One page that needs nothing from anywhere."""
    missed = [f"<li>Missed: {escape(text)}</li>" for text in run["missed"]]
    held = [
        f"<li>Not tried, as nobody had to wait or wanted such files: {escape(text)}</li>"
        if Objective.parse(text).untried(run["figures"])
        else f"<li>Held: {escape(text)}</li>"
        for text in run["objectives"]
        if not any(miss.startswith(text) for miss in run["missed"])
    ]
    described = f"Population {escape(run['workload'])}, seed {run['seed']}"
    if run["time_scale"] != 1.0:
        described += f", {run['time_scale']:g} times as fast as real"
    if run["thin"] != 1.0:
        described += f", one client in {run['thin']:g}"
    described += "."
    figures: list[Sequence[str]] = [("about", "figure", "value", "meaning")]
    figures += [
        (row["group"], row["name"], row["value"], row["meaning"])
        for row in rows(dict(run["figures"]))
    ]
    beside = (
        "The simulator has the same clients, and the server's own policy."
        if simulated is not None
        else "Name what the server's line carries (tidegate loadtest --bandwidth) to have the "
        "simulator beside it."
    )
    picture = f"<figure>{simulated.picture_svg}</figure>" if simulated is not None else ""
    both = side_by_side(run["figures"], simulated.figures if simulated is not None else None)
    return page(
        f"Load test: {run['profile']}",
        f"<p><strong>{escape(verdict(run, simulated))}</strong></p><p>{described}</p>"
        f"<ul>{''.join(missed + held)}</ul><h2>Live and simulated</h2><p>{beside}</p>"
        f"{table(both, 'Live and simulated')}{picture}"
        f"<h2>Every figure</h2>{table(figures, words=True)}",
    )
