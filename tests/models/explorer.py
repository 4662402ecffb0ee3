"""Explores every state of a model, breadth first: the shortest way to a fault is found first.

States are hashable values. States that differ only in the names of equal parts should be one value
(symmetry reduction): that is for the model, which sorts these parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
#: An action's name and the state that it leads to.
Step = tuple[str, State]


class Fault(Exception):
    """An action, or a state, that the model forbids; the message says why."""


class CounterExample(AssertionError):
    """A way from the start to a fault: `way` are the actions."""

    def __init__(self, fault: Fault, way: tuple[str, ...]) -> None:
        super().__init__("\n".join((*way, f"=> {fault}")))
        self.fault, self.way = fault, way


@dataclass(frozen=True, slots=True)
class Explored(Generic[State]):
    """All states with the steps from each, in the order in which they were found."""

    steps: dict[State, tuple[Step[State], ...]]

    @property
    def transitions(self) -> int:
        """How many steps there are in all."""
        return sum(map(len, self.steps.values()))


def explore(
    start: State,
    steps: Callable[[State], Iterable[Step[State]]],
    check: Callable[[State], None] = lambda state: None,
) -> Explored[State]:
    """Visit all that can be reached from `start`.

    `steps` lists what may happen in a state; it and `check` raise `Fault` where the model is
    broken. Raises `CounterExample`.
    """
    came: dict[State, tuple[str, State] | None] = {start: None}
    out: dict[State, tuple[Step[State], ...]] = {}
    queue = [start]
    for state in queue:
        found: list[Step[State]] = []
        try:
            check(state)
            for step in steps(state):
                found.append(step)
                action, after = step
                if after not in came:
                    came[after] = (action, state)
                    queue.append(after)
        except Fault as fault:
            raise CounterExample(fault, _way(came, state)) from None
        out[state] = tuple(found)
    return Explored(out)


def _way(came: dict[State, tuple[str, State] | None], state: State) -> tuple[str, ...]:
    way: list[str] = []
    step = came[state]
    while step is not None:
        way.append(step[0])
        step = came[step[1]]
    return tuple(reversed(way))
