"""A failing world made smaller, and its story as a picture."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator
from typing import Any

from .plan import WorldPlan
from .world import World, run_plan

_WIDE, _ROW, _LEFT = 1100, 18, 190
_COLOURS = {"2": "#2a9d5c", "4": "#c0392b", "5": "#d9a441"}


def shrunk(plan: WorldPlan, runs: int = 80) -> World:
    """The smallest world found in so many runs that breaks the same promise; runs it, with story.

    It leaves out halves, then quarters and single ones, of faults and clients.
    """
    smallest = run_plan(plan, story=True)
    if not smallest.broken_promises:
        return smallest
    promise = smallest.broken_promises[0].promise
    # A world that keeps it until then runs on for longer than all before it took.
    until_s = 1.5 * smallest.schedule.now + 30.0
    best = plan
    while runs > 0:
        for candidate in _smaller(best):
            runs -= 1
            world = run_plan(candidate, story=True, until_s=until_s)
            if world.broken_promises and world.broken_promises[0].promise == promise:
                best, smallest = candidate, world
                break
            if runs <= 0:
                break
        else:
            break
    return smallest


def _smaller(plan: WorldPlan) -> Iterator[WorldPlan]:
    for name in ("faults", "clients"):
        parts = getattr(plan, name)
        step = len(parts)
        while step:
            for start in range(0, len(parts), step):
                rest = (*parts[:start], *parts[start + step :])
                if rest or name == "faults":
                    changes: dict[str, Any] = {name: rest}
                    yield dataclasses.replace(plan, **changes)
            step //= 2
    if plan.cold:
        yield dataclasses.replace(plan, cold=0.0)
    if any(one.misdeed for one in plan.clients):
        clients = tuple(dataclasses.replace(one, misdeed="") for one in plan.clients)
        yield dataclasses.replace(plan, clients=clients)


def told(world: World) -> str:
    """What the world was, what happened, and what broke."""
    plan = world.plan
    lines = [
        f"seed {plan.seed}: {plan.policy}, a line of {plan.line_bytes_s:.0f} bytes/s, "
        f"{'known' if plan.knows_line else 'unknown'}, {len(plan.clients)} clients, "
        f"{len(plan.faults)} faults",
        *(f"  {name} = {value}" for name, value in plan.settings.items()),
        *world.history,
        f"history {world.digest()[:16]}",
        *map(str, world.broken_promises),
    ]
    return "\n".join(lines)


def picture(world: World) -> str:
    """A timeline as SVG: a row a client, a dot an answer, a line an event of the whole world."""
    end_s = max(1.0, min(world.schedule.now, _last_s(world) + 5.0))
    rows = {str(client): number for number, client in enumerate(world.clients)}
    height = _ROW * (len(rows) + 4)

    def x(at_s: float) -> float:
        return _LEFT + (_WIDE - _LEFT - 20) * at_s / end_s

    parts = []
    for line in world.history:
        at_s, text = float(line[:10]), line[12:]
        if at_s > end_s:
            continue
        client = next((name for name in rows if text.startswith(f"{name} ")), None)
        label = f"<title>{html.escape(f'{at_s:.2f} s {text}')}</title>"
        if client is not None:
            word = text.removeprefix(client).split()
            colour = _COLOURS.get(word[1][:1], "#777") if word[0] == "hears" else "#222"
            y = _ROW * (rows[client] + 2)
            parts.append(
                f'<circle cx="{x(at_s):.1f}" cy="{y}" r="4" fill="{colour}">{label}</circle>'
            )
        else:
            colour = "#c0392b" if text.startswith("BROKEN") else "#88a"
            parts.append(
                f'<path d="M{x(at_s):.1f} {_ROW}V{height - _ROW}" stroke="{colour}">{label}</path>'
            )
    names = [
        f'<text x="4" y="{_ROW * (row + 2) + 4}">{html.escape(name)}</text>'
        for name, row in rows.items()
    ]
    ticks = [
        f'<text x="{x(end_s * part / 5):.0f}" y="{height - 4}">{end_s * part / 5:.0f} s</text>'
        for part in range(6)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDE}" height="{height}" '
        f'font-family="sans-serif" font-size="12">{"".join((*parts, *names, *ticks))}</svg>\n'
    )


def _last_s(world: World) -> float:
    if world.broken_promises:
        return world.broken_promises[0].at_s
    return max((one.done_s for one in world.clients if one.over), default=0.0)
