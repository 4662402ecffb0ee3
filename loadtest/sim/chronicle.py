"""What every client was doing when, and what the link carried: the material of the picture."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


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
