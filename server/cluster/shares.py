"""One cap on the line, several processes that send: who may send how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: What every process may send at the least, as a part of an even share, so that one that was idle
#: can show that it has something to send.
_FLOOR = 0.1
#: How much more than it sends a process may take that is not held back.
_ROOM = 1.25


@dataclass(frozen=True, slots=True)
class Demand:
    """What a node sends, whether its part of the cap holds it back, and its running bodies."""

    goodput_bytes_s: float
    held_back: bool
    bodies: int


def divide(bandwidth_bytes_s: float, nodes: Mapping[str, Demand]) -> dict[str, float]:
    """Each node's part of the cap; the parts add up to it.

    Who is not held back keeps what it sends and a little more; the rest goes to those who are, by
    their running bodies: so the downloads of all nodes share the line as those of one would.
    """
    if not nodes:
        return {}
    floor = bandwidth_bytes_s / len(nodes) * _FLOOR
    room = {name: max(floor, one.goodput_bytes_s * _ROOM) for name, one in nodes.items()}
    takers = {name: max(1, one.bodies) for name, one in nodes.items() if one.held_back}
    parts = {name: floor if name in takers else room[name] for name in nodes}
    excess = sum(parts.values()) / bandwidth_bytes_s
    if excess > 1.0:
        return {name: part / excess for name, part in parts.items()}
    left = bandwidth_bytes_s - sum(parts.values())
    weights = takers or dict.fromkeys(nodes, 1)
    whole = sum(weights.values())
    for name, weight in weights.items():
        parts[name] += left * weight / whole
    return parts
