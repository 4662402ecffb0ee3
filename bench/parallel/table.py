"""Makes one table of the lab's runs: our runs and the peers' medians for each scenario."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bench.shared import markdown

PEERS = ("aria2", "axel", "curl")
HEAD = ("scenario", "tidegate (each run)", "waste", *PEERS, "bar")
Row = Mapping[str, Any]


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Lines of Markdown.

    A row is a line of `bench.parallel.lab --json`: scenario, tool, ratios, median, waste, right,
    statuses, bar.
    """
    scenarios: dict[str, list[Row]] = {}
    for row in rows:
        scenarios.setdefault(row["scenario"], []).append(row)
    yield from markdown.head(*HEAD).splitlines()
    for name, tools in scenarios.items():
        peers = [_peer(tools, peer) for peer in PEERS]
        for row in tools:
            kind, _, wish = row["tool"].partition("-")
            if kind == "tidegate":
                label = f"{name}, {wish} connection" if wish == "one" else name
                cells = [label, _ours(row), f"{100 * row['waste']:.1f} %", *peers, _bar(row)]
                yield markdown.row(*cells)


def _ours(row: Row) -> str:
    each = ", ".join(f"{ratio:.3f}" for ratio in row["ratios"])
    text = f"**{row['median']:.2f}** ({each})"
    return text if row["right"] else f"{text}, WRONG"


def _bar(row: Row) -> str:
    if row["bar"] is None:
        return ""
    held = row["median"] <= row["bar"] + 0.0005
    return f"{row['bar']:.2f}" if held else f"{row['bar']:.2f} (missed)"


def _peer(tools: list[Row], peer: str) -> str:
    """The best of a peer's settings with the right file."""
    own = [row for row in tools if row["tool"].partition("-")[0] == peer]
    right = [row["median"] for row in own if row["right"]]
    if right:
        return f"{min(right):.2f}"
    if not own:
        return "–"
    if any(124 in row["statuses"] for row in own):
        return "not done in 120 s"
    return "fails" if all(any(row["statuses"]) for row in own) else "wrong file"
