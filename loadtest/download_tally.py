"""What a load test counts about one download while it goes on. Pure."""

from __future__ import annotations

from ..client.net.retry import FailureReason, Refused, RetryAfter, RetryState
from .tally import Tally


class DownloadTally:
    """Counts the requests, the wait and the end of one download.

    `kind` is small or large. `manner` is `_polite` or `_rude` where both are compared, else empty.
    """

    def __init__(
        self, tally: Tally, visit: RetryState, kind: str, manner: str, began_s: float
    ) -> None:
        self.visit = visit
        self.kind = kind
        self._tally = tally
        self._manner = manner
        self._began_s = began_s
        self._told_until_s: float | None = None
        self._promise: tuple[float, float, float] | None = None
        self._has_ticket = False

    def ask(self, now: float) -> dict[str, str]:
        """The fields of the next request; one before the told time counts as early."""
        # Half a second before the told time is early; below, clocks and the line decide.
        if self._told_until_s is not None and now < self._told_until_s - 0.5:
            self._tally.count("early_polls")
        return dict(self.visit.headers())

    def note_answer(self, now: float, answer: object) -> bool:
        """Count an answer without a body; whether it told the client when to come back."""
        if isinstance(answer, RetryAfter):
            self._tally.count("queued")
            if answer.retry_after_s is not None:
                self._told_until_s = now + answer.retry_after_s
            if answer.ticket is not None and not self._has_ticket:
                self._has_ticket = True
                self._tally.count("tickets_issued")
            if self._promise is None and answer.p90_s is not None:
                expected_s = answer.p90_s if answer.expected_s is None else answer.expected_s
                self._promise = (now, expected_s, answer.p90_s)
            return answer.retry_after_s is not None
        if isinstance(answer, Refused) and answer.reason is FailureReason.NOT_FOUND:
            self._tally.count("not_found")
        elif isinstance(answer, Refused):
            self._tally.count("refused")
            if answer.ticket_fault:
                self._tally.count("tickets_expired")
        return False

    def note_start(self, now: float) -> None:
        wait_s = now - self._began_s
        self._tally.observe(f"wait_{self.kind}", wait_s)
        if self._manner:
            self._tally.observe(f"wait_{self.kind}{self._manner}", wait_s)
        if self._has_ticket:
            self._tally.count("tickets_redeemed")
        if self._promise is not None:
            told_s, expected_s, p90_s = self._promise
            actual_s = now - told_s
            self._tally.count("promises")
            if actual_s <= p90_s:
                self._tally.count("promises_kept")
            # Below this, the error of a told time is the scheduling of this machine.
            if actual_s > 1.0:
                self._tally.observe("eta_error", abs(actual_s - expected_s) / actual_s)

    def note_done(self, now: float, count_bytes: int) -> None:
        self._tally.count("finished")
        self._tally.count("verified_bytes", count_bytes)
        self._tally.observe("session", now - self._began_s)
        self._tally.observe("attempts", float(self.visit.attempts))
