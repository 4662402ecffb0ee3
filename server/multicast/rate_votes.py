"""The rate that a session's members agree on: one vote a network, and no veto. Pure.

TFMCC follows its slowest receiver (RFC 4654), so one receiver that lies slows down all others. Here
a rate wins by what it brings all voters together, and voters with lower wishes are left out. A
receiver that is left out is for unicast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..http.prefix_shares import PrefixShares

#: The price of a vote: leaving out this share of the voters ...
_LEFT_OUT = 0.2
#: ... is worth this share of the rate. Then a fifth of the voters never costs more.
_WORTH = 0.1
_EXPONENT = math.log(1 - _WORTH) / math.log(1 - _LEFT_OUT)
#: A rate must suit this share of the voters, so that a slower majority decides.
_LEAST_SERVED = 0.5
#: Bounds what one session remembers, and a count to about 0.1 ms.
MOST_VOTES = 1024


def elect(wishes: Sequence[float]) -> float:
    """The share of the rate that voters agree on, of the shares that each can take; 1: no limit.

    It is the wish with the greatest product of rate and served share ** `_EXPONENT`. Where k of n
    voters lie, k <= n / 2, it is at least the lowest wish of the others times
    (1 - k / n) ** `_EXPONENT`.
    """
    limits = sorted((wish for wish in wishes if wish < 1.0), reverse=True)
    served = len(wishes) - len(limits)
    best, most = 1.0, 0.0
    # The highest rate first: with equal products the lower one serves more voters.
    for limit in (1.0, *limits):
        served += limit < 1.0
        share = served / len(wishes)
        product = limit * share**_EXPONENT
        if share >= _LEAST_SERVED and product >= most:
            best, most = limit, product
    return best


@dataclass(slots=True)
class _Ballot:
    """What a network, an address or a member votes for, and those inside it."""

    vote: float = 1.0
    inside: dict[str, _Ballot] = field(default_factory=dict)


class RateVotes:
    """Members elect the vote of their address, addresses that of their network, and so on.

    So a network has one vote, however many members it has. `count` makes one vote of several: see
    `elect`. Where wishes are guesses, their median is no guess too low.
    """

    def __init__(self, count: Callable[[Sequence[float]], float] = elect) -> None:
        self._count = count
        self._all = _Ballot()
        self._paths: dict[str, tuple[str, ...]] = {}
        self._shares: PrefixShares[str] = PrefixShares()

    @property
    def members(self) -> Sequence[str]:
        """All that have a vote."""
        return list(self._paths)

    @property
    def share(self) -> float:
        """The share of the rate that was elected; 1 without voters."""
        return self._all.vote

    def join(self, member: str, networks: Sequence[str]) -> None:
        """A new voter from these networks, narrow to wide.

        With `MOST_VOTES` the network with the most voters gives its oldest up for one of a network
        with fewer; where there is none, the newcomer has no vote.
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
        """Count this voter no longer; unknown ones are ignored."""
        path = self._paths.pop(member, None)
        if path is not None:
            self._shares.remove(member)
            self._set(path, None)

    def wish(self, member: str, share: float) -> None:
        """This voter can take so much, 1 at most; that of others is ignored."""
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
