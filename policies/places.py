"""Places out of turn: who may have one, and when a waiting client is told that it starts.

A download that starts before its turn runs for a moment and is then paused, which costs the link
only what keeps it alive. So there are as many such places as cost little together; they go by the
told times (`policies.promises`), and a told time is the forecast of a turn or of a place.
"""

from __future__ import annotations

import math
import random

from policies.base import Hall
from policies.book import WAITING
from policies.overtaking import Overtaking
from policies.pauses import PROBE_S, Pauses
from policies.promises import Promises, due_s
from policies.ranks import ByBytes
from policies.settings import PolicySettings

#: Newcomers that are measured at once, and leases that run just to be kept alive, take no more
#: than these parts of the clients that fill the link (mean in Experiment 2 at 50 %: 1.086 times
#: the lower bound with a tenth for upkeep, 1.067 with this).
_PROBE_PART, _UPKEEP_PART = 0.1, 0.03
#: So many times as many may be paused for the sake of told times.
_OWED_TIMES = 1.5
#: and so many more for each visit, made when it was told, that was in vain.
_VAIN_TIMES = 0.5
#: Who polls is due from this part of its told time.
_NEARLY = 0.9
#: A turn comes no sooner than after this part of its forecast, whatever came of places.
_TURN_AT_LEAST = 0.85


class Places(ByBytes):
    """What a place needs, and what clients are told."""

    def __init__(
        self, settings: PolicySettings, rng: random.Random, hall: Hall | None = None
    ) -> None:
        super().__init__(settings, rng, hall)
        self._pauses = Pauses(settings.max_pause_s, settings.min_run_s)
        for lease in self._order:
            if lease.paused:
                self._pauses.inherit(lease)
        self._overtaking = Overtaking()
        self._promises = Promises()
        #: Whether the latest forecast was of a turn, not of a place out of turn.
        self._in_turn_first = False

    # -- who may have one --------------------------------------------------------------------

    def _out_of_turn(self, row: int, now: float) -> bool:
        """Whether this waiting client may start though others come first: it will be paused.

        As long as that is bearable. One whose speed is unknown is measured, not too many at once;
        one whose told time has come is kept waiting only beyond all bounds.
        """
        capacity = self._capacity
        if not math.isfinite(capacity.rate_bytes_s):
            return False
        owed = self._is_owed(row, now)
        most = self._most_paused()
        if self._pauses.count >= (most * self._owed_times(row) if owed else most):
            return False
        client = self._book.shelf.client[row]
        slow = capacity.recall(client) <= self._slow_bytes_s
        if owed or (slow and not capacity.recall_is_floor(client)):
            return True
        return self._pauses.probes < self._most_probes()

    def _is_owed(self, row: int, now: float) -> bool:
        """Whether the time that this client was told has come: its start, or its return."""
        shelf = self._book.shelf
        if shelf.present[row]:
            return now >= self._due_s(row)
        # The longest time to come back may have cut its return short of its start.
        start_s = shelf.issued_s[row] + _NEARLY * shelf.expected[row]
        told_s = max(shelf.promise_s[row], start_s)
        return shelf.raw[row] > 0.0 and now >= told_s - self.settings.early_tolerance_s

    def _owed_times(self, row: int) -> float:
        """How many times as many as else may be paused for the sake of this one."""
        shelf = self._book.shelf
        # Who has come when it was told, and was sent away again, comes before others.
        vain = 0 if shelf.present[row] else max(0, shelf.polls[row] - shelf.early[row] - 1)
        return _OWED_TIMES + _VAIN_TIMES * vain

    def _due_s(self, row: int) -> float:
        shelf = self._book.shelf
        if shelf.raw[row] == 0.0:
            return math.inf
        return due_s(shelf.number[row], shelf.issued_s[row], shelf.expected[row])

    def _fill(self) -> float:
        """How many clients fill the link."""
        return self._demand() / self._capacity.typical_client_bytes_s

    def _most_probes(self) -> float:
        return max(1.0, _PROBE_PART * self._fill())

    def _most_paused(self) -> float:
        """So many paused leases cost the upkeep that is bearable."""
        settings = self.settings
        return _UPKEEP_PART * self._fill() * settings.max_pause_s / settings.min_run_s

    # -- when ----------------------------------------------------------------------------------

    def _raw_s(self, row: int, now: float) -> float:
        if not math.isfinite(self._capacity.rate_bytes_s):
            return super()._raw_s(row, now)
        forecast_s = self._forecast_s(row, now)
        due_s = self._due_s(row) if self._book.shelf.present[row] else math.inf
        return forecast_s if due_s == math.inf else min(forecast_s, max(0.0, due_s - now))

    def _foresee(self, now: float) -> None:
        if math.isfinite(self._capacity.rate_bytes_s):
            self._check_newcomers(now)
        else:
            super()._foresee(now)

    def _next_raw_s(self, now: float) -> float:
        if not math.isfinite(self._capacity.rate_bytes_s):
            return super()._next_raw_s(now)
        book, shelf = self._book, self._book.shelf
        before = sum(lease.remaining_bytes for lease in self._order) + book.line.total_bytes
        before += sum(shelf.remaining[shelf.rows[number]] for _, number in book.ready)
        in_turn_s = before / self._capacity.rate_bytes_s
        return min(in_turn_s, self._until_place_s(len(book), now))

    def _slot_s(self, raw_s: float) -> float:
        slot_s = super()._slot_s(raw_s)
        if not self._in_turn_first:
            return slot_s
        # Whose turn comes first knows all that is before it; places come and go.
        return max(slot_s, _TURN_AT_LEAST * raw_s)

    def _forecast_s(self, row: int, now: float) -> float:
        """Its turn or a place out of turn, whatever comes first."""
        turn_s = self._until_turn_s(row)
        place_s = self._until_place_s(len(self._book) - 1, now)
        self._in_turn_first = turn_s < place_s
        return min(turn_s, place_s)

    def _until_turn_s(self, row: int) -> float:
        """Bytes before this one at the speed of the link, stretched by those that overtake."""
        book, shelf = self._book, self._book.shelf
        link = self._capacity.rate_bytes_s
        key, number = shelf.key[row], shelf.number[row]
        self._sort()
        before = sum(lease.remaining_bytes for lease in self._order if lease.key < key)
        for entry in book.ready:
            if entry >= (key, number):
                break
            before += shelf.remaining[shelf.rows[entry[1]]]
        shows = 1.0 - self._eta.no_show_fraction
        if shelf.state[row] == WAITING:
            before += int(shows * book.line.bytes_before(key, number))
        overtaking = self._overtaking.rate_below(shelf.remaining[row]) / link
        return before / link / (1.0 - min(0.9, overtaking))

    def _until_place_s(self, before: int, now: float) -> float:
        """When a place out of turn comes, after those who were told a time before."""
        probes_s = PROBE_S * (0.5 + before / self._most_probes())
        beyond = self._pauses.count + before + 1 - self._most_paused()
        if beyond <= 0.0 or not self._order:
            return probes_s
        # A place comes free no faster than the link carries one such download after another.
        held = sum(lease.remaining_bytes for lease in self._order) / len(self._order)
        interval_s = max(held / self._capacity.rate_bytes_s, self._promises.interval_s(now))
        return probes_s + beyond * interval_s
