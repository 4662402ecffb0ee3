"""What waiting clients are told: when to return, when they are likely to start, how sure that is.

Who comes back before that return gains nothing: it is told the same again, later each time, and its
next return is later. Work that nobody will ask for must not keep others away: tickets of newcomers
count as far as newcomers come lately, those whose owners are overdue or idled slots away do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from policies.book import READY
from policies.job import Advance, Estimate, Wait
from policies.turns import Turns

#: The queue is laid out anew when time passes and this long has gone by, or when somebody asks
#: and nothing has been laid out for the second of these, seconds.
_FRESH_S, _OLD_S = 0.5, 2.0
#: Clients are told to return after this part of the expected wait: one that comes too early is told
#: again, one that comes too late leaves a slot empty, and one that starts as it comes has been told
#: its time right. With 0.8 and 0.9 (simulated, 30+6, 20 seeds) the mean session on a release day of
#: Pareto sizes is 11.7 and 12.2 s, the median error of told times 17 and 11 %.
_EARLY = 0.9
#: Polite clients may be late by this part of a ready ticket's time to live, and by no more seconds
#: than these: they add a little to what they are told, so as not to come all at once.
_UNPUNCTUAL, _UNPUNCTUAL_S = 0.12, 6.0
#: While many newcomers never return, they are told to come within this part of the longest time.
_CHECK_IN = 0.2
#: Answers to those who ask again and again are kept back up to so many times as long as the first,
#: and no longer than most clients wait for an answer, seconds.
_SLOWEST, _SLOWEST_S = 5, 25.0


class Telling(Turns):
    """Promises to those who wait, and the queue laid out to make them."""

    # -- promises --------------------------------------------------------------------------------

    def _wait(self, row: int, now: float) -> Wait:
        """Promise a return, and remember it."""
        book, shelf = self._book, self._book.shelf
        raw_s = self._raw_s(row, now)
        retry = self._retry_s(raw_s, not shelf.polls[row])
        away = self._away_s(row, raw_s, retry)
        stated = self._eta.state(raw_s, away)
        if shelf.raw[row] == 0.0:
            shelf.raw[row], shelf.away[row] = max(raw_s, 0.25), away
            shelf.expected[row], shelf.bound[row] = stated.expected_s, stated.p90_s
        elif 0.0 <= shelf.bound[row] < now - shelf.issued_s[row]:
            self._eta.broken(shelf.away[row])
            shelf.bound[row] = -1.0
        if not shelf.present[row]:
            retry += self._penalty_s(row)
        shelf.promise_s[row] = now if shelf.present[row] else now + retry
        if not shelf.polls[row] and not shelf.present[row]:
            self._eta.newcomers.told(shelf.number[row], shelf.promise_s[row])
        if shelf.state[row] == READY:
            book.keep_until(row, shelf.promise_s[row] + self.settings.ticket_ttl_s)
        return self._answer(row, retry, stated)

    def _penalty_s(self, row: int) -> float:
        """What the early visits of a ticket add to its next promised return."""
        settings = self.settings
        extra = max(0, self._book.shelf.early[row] - settings.early_polls_free)
        return float(min(settings.early_penalty_max_s, extra * settings.early_penalty_s))

    def _answer(self, row: int, retry: float, stated: Estimate) -> Wait:
        shelf = self._book.shelf
        return Wait(
            retry_after_s=retry,
            ticket=shelf.number[row],
            place=self._book.place(row),
            ready=shelf.state[row] == READY,
            estimate=stated,
        )

    def _slowly(self, wait: Wait, times: int) -> Wait:
        """Keep the answer back, the longer the oftener; never beyond the return that it tells."""
        slowly_s = self.settings.early_answer_s * min(times, _SLOWEST)
        slowly_s = min(slowly_s, _SLOWEST_S, wait.retry_after_s)
        if slowly_s <= 0.0:
            return wait
        return replace(wait, answer_after_s=slowly_s)

    def _wait_on(self, row: int, now: float) -> Wait:
        """Repeat the promise to one that came too early."""
        return self._answer(row, self._book.shelf.promise_s[row] - now, self._stated(row, now))

    def _stated(self, row: int, now: float) -> Estimate:
        """The estimate for a ticket whose promise stands."""
        raw_s = self._raw_s(row, now)
        promised_s = self._book.shelf.promise_s[row] - now
        return self._eta.state(raw_s, self._away_s(row, raw_s, promised_s))

    def _away_s(self, row: int, raw_s: float, retry: float) -> float:
        """When an absent owner should be back if no longest come-back time cut its wait."""
        if self._book.shelf.present[row]:
            return 0.0
        return max(retry, _EARLY * self._slot_s(raw_s))

    def _retry_s(self, raw_s: float, new: bool) -> float:
        """In whole seconds, as it is told (RFC 9110, 10.2.3): an earlier visit gains nothing."""
        settings = self.settings
        if settings.come_back_s is not None:
            return float(max(1, math.ceil(settings.come_back_s)))
        early = _EARLY * self._slot_s(raw_s)
        if new and self._eta.newcomers.doubtful:
            early = min(early, _CHECK_IN * settings.retry_max_s)
        retry = min(settings.retry_max_s, max(settings.retry_min_s, early))
        return float(max(1, math.ceil(retry * (1.0 + settings.retry_jitter * self._rng.random()))))

    def _slot_s(self, raw_s: float) -> float:
        """When a slot is likely to be there for a client that waits elsewhere."""
        return self._eta.slot_s(raw_s)

    # -- the queue laid out ----------------------------------------------------------------------

    def _raw_s(self, row: int, now: float) -> float:
        """The scheduled wait of a ticket, before calibration."""
        self._lay_out(now, _OLD_S)
        return self._eta.raw_s(self._book.place(row), now)

    def advance(self, now: float) -> Advance:
        """See `AdmissionPolicy.advance`."""
        step = super().advance(now)
        # Here, as time passes, so that hardly any offer has to pay for it.
        if len(self._book):
            self._foresee(now)
        return step

    def _foresee(self, now: float) -> None:
        """Keep up to date what times are told from."""
        self._lay_out(now)

    def _next_raw_s(self, now: float) -> float:
        """The scheduled wait of whoever comes next."""
        self._lay_out(now)
        return self._eta.raw_s(len(self._book) + 1, now)

    def _lay_out(self, now: float, fresh_s: float = _FRESH_S) -> None:
        if self._eta.stale(now, fresh_s):
            book = self._book
            large = [lease for lease in self._leases.values() if lease.large]
            total = book.line.total_bytes
            count = len(book.line)
            self._check_newcomers(now)
            self._eta.lay_out(now, self.large_cap, large, self._ahead(now), count, total)

    def _check_newcomers(self, now: float) -> None:
        self._eta.newcomers.check(now - self._unpunctual_s())

    def _unpunctual_s(self) -> float:
        return min(_UNPUNCTUAL_S, _UNPUNCTUAL * self.settings.ticket_ttl_s)

    def _ahead(self, now: float) -> Iterator[tuple[float, float]]:
        """Bytes of all tickets in the order of turn, and how likely their owners still come."""
        book, shelf, idlers = self._book, self._book.shelf, self.hall.idlers
        shows = self._eta.newcomers.shows
        late_s = now - self._unpunctual_s()
        ready = (number for _, number in book.ready)
        for number in chain(ready, book.line):
            row = shelf.rows[number]
            there = 1.0
            if idlers.times(shelf.client[row]):
                # It will hardly use the slot.
                there = 0.0
            elif not shelf.present[row]:
                # One from an earlier run was told its return there.
                told = shelf.raw[row] > 0.0
                if told and shelf.promise_s[row] < late_s:
                    there = 0.0
                elif not shelf.polls[row]:
                    there = shows
            yield shelf.remaining[row], there
