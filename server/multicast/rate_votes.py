"""Elects the rate of a session: one vote for each network, and no veto. Pure.

TFMCC follows its slowest receiver (RFC 4654), so one receiver that lies slows down all others. Here
the rate with the highest benefit for all voters together wins. Receivers with lower wishes are sent
to unicast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..http.prefix_shares import PrefixShares

#: A fifth of the voters never costs more than a tenth of the rate.
_EXPONENT = math.log(1 - 0.1) / math.log(1 - 0.2)
#: Bounds a session's memory, and the time of a count to about 0.1 ms.
MOST_VOTES = 1024


def elect(wishes: Sequence[float]) -> float:
    """Elect one of the wishes, which are shares of the rate; 1: no limit.

    The wish with the highest product of rate and served share ** `_EXPONENT` wins. If k <= n / 2 of
    n voters lie, it is at least (1 - k / n) ** `_EXPONENT` times the lowest honest wish.
    """
    limits = sorted((wish for wish in wishes if wish < 1.0), reverse=True)
    served = len(wishes) - len(limits)
    best, most = 1.0, 0.0
    # In falling order: of equal products the lower rate serves more voters.
    for limit in (1.0, *limits):
        served += limit < 1.0
        share = served / len(wishes)
        product = limit * share**_EXPONENT
        # A rate must suit this share of the voters: a majority that is slower decides.
        if share >= 0.5 and product >= most:
            best, most = limit, product
    return best


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
