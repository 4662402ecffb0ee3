"""The paper's chronology picture as one self-contained SVG: the demand curve above, a bar for each
client below (waiting, connected, paused; dots where it was turned away).

Dense runs are sampled: at most `MOST_BARS` bars, evenly chosen in the order of arrival, and the
title says so.
"""

from __future__ import annotations

import bisect
import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape


class Doing(enum.IntEnum):
    """The state of a client's bar."""

    WAITING = 0
    CONNECTED = 1
    PAUSED = 2


@dataclass(slots=True)
class Lifeline:
    """One client from arrival to departure: when which state began, and its attempts."""

    arrived_s: float
    ended_s: float | None = None
    states: list[tuple[float, Doing]] = field(default_factory=list)
    turned_away_s: list[float] = field(default_factory=list)

    def paused_s(self, until_s: float) -> float:
        """How long its started downloads stood still, up to `until_s` if it is still there."""
        ended_s = until_s if self.ended_s is None else self.ended_s
        changes = [at for at, _ in self.states[1:]] + [ended_s]
        return sum(
            change - at
            for (at, doing), change in zip(self.states, changes, strict=True)
            if doing is Doing.PAUSED
        )


@dataclass(slots=True)
class Chronicle:
    """Written by the engine when asked to; costs time and memory, so only for pictures.

    `served` and `demand` are steps (instant, bytes a second from then on). Demand is what all
    present clients together could take.
    """

    bars: dict[int, Lifeline] = field(default_factory=dict)
    served: list[tuple[float, float]] = field(default_factory=list)
    demand: list[tuple[float, float]] = field(default_factory=list)
    _wanted: float = 0.0

    def stretched(self, times: float, each: float) -> Chronicle:
        """The same of a crowd that comes `times` as slowly, each client for `each` people."""

        def steps(rates: list[tuple[float, float]]) -> list[tuple[float, float]]:
            return [(at * times, rate * each / times) for at, rate in rates]

        bars = {
            client: Lifeline(
                bar.arrived_s * times,
                None if bar.ended_s is None else bar.ended_s * times,
                [(at * times, doing) for at, doing in bar.states],
                [at * times for at in bar.turned_away_s],
            )
            for client, bar in self.bars.items()
        }
        return Chronicle(bars, steps(self.served), steps(self.demand))

    def arrive(self, now: float, client: int, rate_bytes_s: float) -> None:
        self.bars[client] = Lifeline(now, states=[(now, Doing.WAITING)])
        self._wanted += rate_bytes_s
        self.demand.append((now, self._wanted))

    def leave(self, now: float, client: int, rate_bytes_s: float) -> None:
        self.bars[client].ended_s = now
        self._wanted = max(0.0, self._wanted - rate_bytes_s)
        self.demand.append((now, self._wanted))

    def turned_away(self, now: float, client: int) -> None:
        """An attempt was answered by: later."""
        self.bars[client].turned_away_s.append(now)

    def admitted(self, now: float, client: int) -> None:
        self.bars[client].states.append((now, Doing.CONNECTED))

    def carried(self, now: float, client: int, running: bool) -> None:
        self.bars[client].states.append((now, Doing.CONNECTED if running else Doing.PAUSED))

    def ended(self, now: float, client: int) -> None:
        self.bars[client].states.append((now, Doing.WAITING))

    def flow(self, now: float, goodput_bytes_s: float) -> None:
        if self.served and self.served[-1][1] == goodput_bytes_s:
            return
        self.served.append((now, goodput_bytes_s))


MOST_BARS = 400


@dataclass(frozen=True, slots=True)
class Plot:
    """Lengths of the picture in pixels, and its colours. The rest is as the page around it.

    Two pictures beside each other on a page of 1400 pixels can still be read.
    """

    width: int = 600
    text: int = 13
    left: int = 70
    right: int = 16
    top: int = 68
    curve: int = 120
    gap: int = 34
    bars: int = 340
    turned_away: str = "#c43d33"
    served: str = "#5d7183"
    excess: str = "#e79a90"


PLOT = Plot()
_COLOURS = {Doing.WAITING: "#7aa6d8", Doing.CONNECTED: "#3f9b57", Doing.PAUSED: "#e2b23c"}


def draw(
    chronicle: Chronicle, bandwidth_bytes_s: float, title: str, *, until_s: float | None = None
) -> str:
    """The picture. `until_s` fixes the time axis, so that several pictures can be compared."""
    numbers = sorted(chronicle.bars, key=lambda number: chronicle.bars[number].arrived_s)
    if until_s is None:
        until_s = natural_end(chronicle)
    shown = numbers
    if len(numbers) > MOST_BARS:
        shown = [numbers[i * len(numbers) // MOST_BARS] for i in range(MOST_BARS)]
        title += f" ({MOST_BARS} of {len(numbers)} clients)"
    span = PLOT.width - PLOT.left - PLOT.right
    height = PLOT.top + PLOT.curve + PLOT.gap + PLOT.bars + 40

    def x(at: float) -> float:
        return PLOT.left + span * min(max(at, 0.0), until_s) / until_s

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PLOT.width} {height}" '
        f'width="{PLOT.width}" height="{height}" role="img" font-family="system-ui,sans-serif" '
        f'font-size="{PLOT.text}" fill="currentColor"><title>{escape(title)}</title>'
        f'<rect width="{PLOT.width}" height="{height}" fill="Canvas"/>'
        f'<text x="{PLOT.left}" y="18" font-size="15" font-weight="600">{escape(title)}</text>',
        _legend(),
        _curve(chronicle, bandwidth_bytes_s, until_s, span),
    ]
    top = PLOT.top + PLOT.curve + PLOT.gap
    parts.append(_bars([chronicle.bars[number] for number in shown], until_s, top, x))
    parts.append(_axis(until_s, top + PLOT.bars, x))
    parts.append(
        f'<text transform="translate(14 {top + PLOT.bars / 2}) rotate(-90)" text-anchor="middle">'
        "clients, by arrival</text></svg>"
    )
    return "".join(parts)


def natural_end(chronicle: Chronicle) -> float:
    """The end of the axis: all but the last 2 % of the sessions, in whole minutes."""
    ends = sorted(bar.ended_s for bar in chronicle.bars.values() if bar.ended_s is not None)
    if not ends:
        return 60.0
    latest = max(bar.arrived_s for bar in chronicle.bars.values())
    return 60.0 * math.ceil(max(ends[int(0.98 * (len(ends) - 1))], latest) / 60.0 + 1e-9)


def _legend() -> str:
    items = [
        (_COLOURS[Doing.WAITING], "waiting"),
        (_COLOURS[Doing.CONNECTED], "connected"),
        (_COLOURS[Doing.PAUSED], "paused"),
        (PLOT.turned_away, "turned away"),
        (PLOT.served, "demand served"),
        (PLOT.excess, "demand beyond it"),
    ]
    parts = []
    for index, (colour, text) in enumerate(items):
        row, column = divmod(index, 3)
        left, base = PLOT.left + 150 * column, 38 + 19 * row
        parts.append(
            f'<rect x="{left}" y="{base - 10}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{left + 15}" y="{base}">{text}</text>'
        )
    return "".join(parts)


def _value_at(steps: Sequence[tuple[float, float]], at: float) -> float:
    position = bisect.bisect_right(steps, (at, math.inf)) - 1
    return steps[position][1] if position >= 0 else 0.0


def _curve(chronicle: Chronicle, bandwidth_bytes_s: float, until_s: float, span: int) -> str:
    columns = span // 2
    grid = [until_s * (column + 0.5) / columns for column in range(columns)]
    demand = [_value_at(chronicle.demand, at) for at in grid]
    served = [
        min(_value_at(chronicle.served, at), wanted)
        for at, wanted in zip(grid, demand, strict=True)
    ]
    # Far above capacity nothing is to be seen any more: the axis ends at six times it.
    top_value = min(max([*demand, bandwidth_bytes_s]), 6.0 * bandwidth_bytes_s)
    base = PLOT.top + PLOT.curve

    def area(values: Sequence[float], colour: str) -> str:
        points = [f"{PLOT.left},{base}"]
        for column, value in enumerate(values):
            left = PLOT.left + span * column / columns
            right = PLOT.left + span * (column + 1) / columns
            y = base - PLOT.curve * min(value, top_value) / top_value
            points += [f"{left:.1f},{y:.1f}", f"{right:.1f},{y:.1f}"]
        points.append(f"{PLOT.left + span},{base}")
        return f'<polygon points="{" ".join(points)}" fill="{colour}"/>'

    line = base - PLOT.curve * bandwidth_bytes_s / top_value
    return (
        area(demand, PLOT.excess)
        + area(served, PLOT.served)
        + f'<path d="M{PLOT.left} {line:.1f}h{span}" stroke="currentColor" stroke-dasharray="4 3" '
        f'stroke-width=".8"/><text x="{PLOT.left - 6}" y="{line + 4:.1f}" '
        'text-anchor="end">link</text>'
        f'<text x="{PLOT.left - 6}" y="{PLOT.top + 8}" text-anchor="end">{_rate(top_value)}</text>'
        f'<text x="{PLOT.left - 6}" y="{base}" text-anchor="end">0</text>'
    )


def _rate(bytes_s: float) -> str:
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3)):
        if bytes_s >= scale:
            return f"{bytes_s / scale:.3g} {unit}"
    return f"{bytes_s:.0f} B/s"


def _bars(bars: Sequence[Lifeline], until_s: float, top: float, x: Callable[[float], float]) -> str:
    pitch = PLOT.bars / max(1, len(bars))
    thick = max(0.5, 0.8 * pitch)
    paths: dict[Doing, list[str]] = {doing: [] for doing in Doing}
    dots: list[str] = []
    for row, bar in enumerate(bars):
        y = top + pitch * (row + 0.5)
        ends = [at for at, _ in bar.states[1:]]
        ends.append(until_s if bar.ended_s is None else bar.ended_s)
        for (begin, doing), end in zip(bar.states, ends, strict=True):
            left, right = x(begin), x(end)
            if right - left >= 0.15:
                paths[doing].append(f"M{left:.1f} {y:.1f}H{right:.1f}")
        dots += [f"M{x(at):.1f} {y:.1f}h.01" for at in bar.turned_away_s if at <= until_s]
    drawn = "".join(
        f'<path d="{"".join(path)}" stroke="{_COLOURS[doing]}" stroke-width="{thick:.2f}"/>'
        for doing, path in paths.items()
        if path
    )
    if dots:
        drawn += (
            f'<path d="{"".join(dots)}" stroke="{PLOT.turned_away}" stroke-linecap="round" '
            f'stroke-width="{max(0.9, thick):.2f}" opacity=".7"/>'
        )
    return drawn


def _axis(until_s: float, base: float, x: Callable[[float], float]) -> str:
    step = next(
        (s for s in (60, 120, 300, 600, 1200, 3600, 7200) if until_s / s <= 12), until_s / 10
    )
    parts = [f'<path d="M{PLOT.left} {base:.1f}H{PLOT.width - PLOT.right}" stroke="currentColor"/>']
    at = 0.0
    while at <= until_s + 1e-6:
        parts.append(
            f'<path d="M{x(at):.1f} {base:.1f}v4" stroke="currentColor"/>'
            f'<text x="{x(at):.1f}" y="{base + 18:.1f}" text-anchor="middle">'
            f"{at / 60:.0f}</text>"
        )
        at += step
    parts.append(
        f'<text x="{(PLOT.left + PLOT.width - PLOT.right) / 2}" y="{base + 35:.1f}" '
        'text-anchor="middle">minutes</text>'
    )
    return "".join(parts)
