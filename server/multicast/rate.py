"""How fast a session may send: the configured rate, bent to what its members agree on. Pure.

Each member has a wish (`server.multicast.rate_wish`), each network one vote
(`server.multicast.rate_votes`). A member that can take much less than what was elected is for
unicast. Never below the floor: receivers that cannot even take that are for unicast, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...protocol.session_report import ReceiverReport
from .rate_votes import RateVotes
from .rate_wish import RateSettings, RateWish

#: What the files that wait for another one get together, beside the one that is sent.
_TRICKLE = 0.05
#: A member that can take this share of the rate may stay: repair of the rest costs the others no
#: more than a vote may.
_NEARLY = 0.9
#: A member that can take less stays this long: the start of a download on the same line, or other
#: work on its host, may be over by then.
_PATIENCE_S = 3.0


def shares(left: Sequence[int]) -> list[float]:
    """How sessions share the rate, by what the first pass of each has left in bytes; 1 in all.

    The one that has least left goes first, and the others trickle: two files at once would both
    end when the second of them does. Those whose first pass is over repair beside it.
    """
    first = min((size, at) for at, size in enumerate(left) if size)[1] if any(left) else -1
    trickle = _TRICKLE / max(1, sum(1 for size in left if size) - 1)
    weights = [1.0 if not size or at == first else trickle for at, size in enumerate(left)]
    return [weight / sum(weights) for weight in weights]


class RateControl:
    """The rate of one session in bytes per second."""

    def __init__(
        self,
        configured_bytes_s: float,
        settings: RateSettings | None = None,
        datagram_bytes: int = 1500,
    ) -> None:
        self._datagram_bytes = datagram_bytes
        self._settings = settings or RateSettings()
        self._configured = configured_bytes_s
        #: What members can take, and what TCP would get on their ways.
        self._limits, self._fair = RateVotes(), RateVotes(median)
        self._wishes: dict[str, RateWish] = {}
        #: When all were last looked at: with a thousand that takes some milliseconds.
        self._looked_at = float("-inf")
        #: Since when the rate has been too high for a member, by its own reports.
        self._too_fast_since: dict[str, float] = {}

    @property
    def floor_bytes_s(self) -> float:
        """The least this session goes down to."""
        return self._configured * self._settings.floor_share

    @property
    def rate_bytes_s(self) -> float:
        """What to send at now."""
        return self._configured * self._share

    @property
    def _share(self) -> float:
        return min(self._limits.share, self._fair.share)

    @property
    def members(self) -> Sequence[str]:
        """All that have a word."""
        return list(self._wishes)

    def configure(self, configured_bytes_s: float) -> None:
        """The share of the line this session may use changed."""
        if configured_bytes_s != self._configured:
            self._configured = configured_bytes_s
            for member in self._wishes:
                self._vote(member)

    def acceptable(self, declared_bytes_s: float) -> bool:
        """Whether a receiver of that rate can be in the session at all."""
        return declared_bytes_s >= self.floor_bytes_s

    def join(
        self,
        member: str,
        networks: Sequence[str] = (),
        declared_bytes_s: float = float("inf"),
    ) -> None:
        """A receiver from these networks, narrow to wide, has a word from now on."""
        self._wishes[member] = RateWish(self._settings, self._datagram_bytes, declared_bytes_s)
        self._limits.join(member, networks)
        self._fair.join(member, networks)
        self._vote(member)

    def forget(self, member: str) -> None:
        """The receiver is gone."""
        self._wishes.pop(member, None)
        self._too_fast_since.pop(member, None)
        self._limits.leave(member)
        self._fair.leave(member)

    def report(self, report: ReceiverReport, now: float, rtt_s: float | None = None) -> None:
        """A member tells how many datagrams there were so far, and how many it got.

        `rtt_s`: how long ago the last one it saw was sent; None if nobody knows.
        """
        wish = self._wishes.get(report.member)
        if wish is None:
            return
        wish.report(report, now, self._share, rtt_s)
        self._vote(report.member)
        if now - self._looked_at < self._settings.faster_every_s:
            return
        self._looked_at = now
        for member, other in self._wishes.items():
            if other.is_less:
                other.others_reported(now)
                self._vote(member)

    def is_too_fast_for(self, member: str, now: float) -> bool:
        """Whether a member that has just reported is for unicast.

        It can take less than the others have elected: what it declared, or what it has reported for
        some time.
        """
        wish = self._wishes.get(member)
        if wish is None:
            return False
        bearable = _NEARLY * self.rate_bytes_s
        if wish.declared_bytes_s < bearable:
            return True
        if wish.bearable_share(self._configured) * self._configured >= bearable:
            self._too_fast_since.pop(member, None)
            return False
        return now - self._too_fast_since.setdefault(member, now) >= _PATIENCE_S

    def _vote(self, member: str) -> None:
        wish = self._wishes[member]
        self._limits.wish(member, wish.share(self._configured))
        self._fair.wish(member, wish.fair_share(self._configured))
