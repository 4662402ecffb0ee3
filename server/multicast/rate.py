"""The rate of a session: the configured rate, lowered to what its members elect. Pure.

Each member has a wish (`server.multicast.rate_wish`), each network one vote
(`RateVotes`), and there is no veto. The rate is never below a floor. A member that can receive much
less than the elected rate, or less than the floor, is sent to unicast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ...protocol.session import ReceiverReport
from ..http.prefix_shares import PrefixShares
from .rate_wish import TUNING, RateWish

#: A fifth of the voters never costs more than a tenth of the rate.
_EXPONENT = math.log(1 - 0.1) / math.log(1 - 0.2)
#: Bounds a session's memory, and the time of a count to about 0.1 ms.
MOST_VOTES = 1024


def elect(wishes: Sequence[float]) -> float:
    """Elect one of the wishes, which are shares of the rate; 1: no limit.

    TFMCC follows its slowest receiver (RFC 4654), so one receiver that lies slows down all others.
    Here the rate with the highest benefit for all voters together wins.

    The wish with the highest product of rate and served share ** `_EXPONENT` wins. If k <= n / 2 of
    n voters lie, it is at least (1 - k / n) ** `_EXPONENT` times the lowest honest wish.
    """
    served = enumerate(sorted(wishes, reverse=True), 1)
    # A rate must suit half of the voters: a majority that is slower decides.
    least = len(wishes) / 2
    suited = [(rate * (n / len(wishes)) ** _EXPONENT, rate) for n, rate in served if n >= least]
    return max(suited)[1]


@dataclass(slots=True)
class _Ballot:
    """The vote of a network, an address or a member, and the ballots inside it."""

    vote: float = 1.0
    inside: dict[str, _Ballot] = field(default_factory=dict)


class RateVotes:
    """Members elect the vote of their address, addresses the vote of their network, and so on.

    So a network has one vote, however many members it has. `count` makes one vote of several:
    `elect`, or the median where wishes are estimates.
    """

    def __init__(self, count: Callable[[Sequence[float]], float] = elect) -> None:
        self._count = count
        self._all = _Ballot()
        self._paths: dict[str, tuple[str, ...]] = {}
        self._shares: PrefixShares[str] = PrefixShares()

    @property
    def members(self) -> Sequence[str]:
        return list(self._paths)

    @property
    def share(self) -> float:
        """The elected share of the rate; 1 without voters."""
        return self._all.vote

    def join(self, member: str, networks: Sequence[str]) -> None:
        """Add a voter from these networks, narrow to wide.

        Beyond `MOST_VOTES` the network with most voters loses its oldest one to a network with
        fewer. If there is none, the newcomer has no vote.
        """
        if len(self._paths) >= MOST_VOTES:
            oldest = self._shares.to_give_up(networks)
            if oldest is None:
                return
            self.leave(oldest)
        self._shares.add(member, networks)
        self._paths[member] = (*reversed(networks), member)
        self._set(self._paths[member], 1.0)

    def leave(self, member: str) -> None:
        """Remove a voter; unknown ones are ignored."""
        path = self._paths.pop(member, None)
        if path is not None:
            self._shares.remove(member)
            self._set(path, None)

    def wish(self, member: str, share: float) -> None:
        """Set a voter's wish, 1 at most; unknown voters are ignored."""
        path = self._paths.get(member)
        if path is None:
            return
        ballot = self._all
        for key in path:
            ballot = ballot.inside[key]
        if ballot.vote != share:
            self._set(path, share)

    def _set(self, path: Sequence[str], vote: float | None) -> None:
        ballots = [self._all]
        for key in path:
            ballots.append(ballots[-1].inside.setdefault(key, _Ballot()))
        if vote is None:
            # Networks without voters have no vote.
            for key, ballot in zip(reversed(path), reversed(ballots[:-1]), strict=True):
                ballots.pop()
                del ballot.inside[key]
                if ballot.inside:
                    break
        else:
            ballots.pop().vote = vote
        for ballot in reversed(ballots):
            votes = [one.vote for one in ballot.inside.values()]
            ballot.vote = self._count(votes) if votes else 1.0


def shares(left: Sequence[int]) -> list[float]:
    """The sessions' shares of the rate (their sum is 1), by the bytes left in their first passes.

    The session with the fewest bytes left goes first (SRPT); those behind it share a twentieth.
    Sessions whose first pass is over have a full weight for their repair.
    """
    first = min((size, at) for at, size in enumerate(left) if size)[1] if any(left) else -1
    trickle = 0.05 / max(1, sum(1 for size in left if size) - 1)
    weights = [1.0 if not size or at == first else trickle for at, size in enumerate(left)]
    return [weight / sum(weights) for weight in weights]


class RateControl:
    """The rate of one session in bytes per second."""

    def __init__(self, configured_bytes_s: float) -> None:
        self._configured = configured_bytes_s
        #: What members can receive, and what TCP would get on their paths.
        self._limits, self._fair = RateVotes(), RateVotes(median)
        self._wishes: dict[str, RateWish] = {}
        #: The last update of silent members. For a thousand it takes some milliseconds.
        self._looked_at = float("-inf")
        #: Member -> since when the rate has been too high for it.
        self._too_fast_since: dict[str, float] = {}

    @property
    def floor_bytes_s(self) -> float:
        return self._configured * TUNING.floor_share

    @property
    def rate_bytes_s(self) -> float:
        return self._configured * self._share

    @property
    def _share(self) -> float:
        return min(self._limits.share, self._fair.share)

    @property
    def members(self) -> Sequence[str]:
        return list(self._wishes)

    def configure(self, configured_bytes_s: float) -> None:
        """Set the rate that this session may use."""
        if configured_bytes_s != self._configured:
            self._configured = configured_bytes_s
            for member in self._wishes:
                self._vote(member)

    def acceptable(self, declared_bytes_s: float) -> bool:
        """Whether a receiver of that rate can be in the session."""
        return declared_bytes_s >= self.floor_bytes_s

    def join(
        self,
        member: str,
        networks: Sequence[str] = (),
        declared_bytes_s: float = float("inf"),
    ) -> None:
        """Add a voter from these networks, narrow to wide."""
        self._wishes[member] = RateWish(declared_bytes_s)
        self._limits.join(member, networks)
        self._fair.join(member, networks)
        self._vote(member)

    def forget(self, member: str) -> None:
        self._wishes.pop(member, None)
        self._too_fast_since.pop(member, None)
        self._limits.leave(member)
        self._fair.leave(member)

    def report(self, report: ReceiverReport, now: float, rtt_s: float | None = None) -> None:
        """Add a voter's report. `rtt_s` is the age of the last datagram that it saw, if known."""
        wish = self._wishes.get(report.member)
        if wish is None:
            return
        wish.report(report, now, self._share, rtt_s)
        self._vote(report.member)
        if now - self._looked_at < TUNING.faster_every_s:
            return
        self._looked_at = now
        for member, other in self._wishes.items():
            if other.is_less:
                other.others_reported(now)
                self._vote(member)

    def is_too_fast_for(self, member: str, now: float) -> bool:
        """Whether a member that has just reported must use unicast.

        It can receive less than the elected rate: by its declared rate, or for 3 s by its reports.
        Another download on its line, or work on its host, may end until then.
        """
        wish = self._wishes.get(member)
        if wish is None:
            return False
        # A member stays that can receive this share of the rate: repair of the rest costs the
        # others 10 %, no more than a vote may (`elect`).
        bearable = 0.9 * self.rate_bytes_s
        if wish.declared_bytes_s < bearable:
            return True
        if wish.bearable_share(self._configured) * self._configured >= bearable:
            self._too_fast_since.pop(member, None)
            return False
        return now - self._too_fast_since.setdefault(member, now) >= 3.0

    def _vote(self, member: str) -> None:
        wish = self._wishes[member]
        self._limits.wish(member, wish.share(self._configured))
        self._fair.wish(member, wish.fair_share(self._configured))
