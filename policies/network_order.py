"""How the order of turn counts the downloads of a network that had more than its share.

Shortest first favours short downloads, so an attacker who fetches short files again and again would
always be first. A network of strangers may take `burst_means` mean downloads at once, and `shares`
shares of what the line carries from then on. Networks that are ahead of their shares have that
burst together: ten addresses have no ten bursts. A network that takes more has no advantage from
short downloads any more: each counts as `least_means` mean downloads, or as the network's excess
where that is less. Its long downloads count as what they are, so a crowd behind one address loses
little.

What each constant brings is measured in docs/decisions/policies.md ("Networks beyond their share").
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from .network_shares import NetworkShares, enclosing


@dataclass(frozen=True, slots=True)
class NetworkOrderTuning:
    """A mean is the mean download of all networks."""

    #: Shares of a network before its short downloads count as longer. With 12 one IPv4 costs two
    #: and a half times as much as with 4.
    shares: float = 4.0
    #: And this many means before that. With 4 a company of 20 behind one address is 28 % later than
    #: 20 others beside it; with 12 short files of one IPv4 cost 0.8 of a calm session, not 0.55.
    burst_means: float = 8.0
    #: Downloads of a network beyond its share count as this many means at least. With 1 half of the
    #: crowd would still be longer; with 2 a crowd of 500 behind one address is 10 % later, not 5 %.
    least_means: float = 1.5
    #: No excess is larger than this many means: a network that had the line for itself all night is
    #: within its share again soon after others have come.
    most_excess_means: float = 16.0
    #: Networks of which the mean is remembered. Not sensitive: a mean over any crowd will do.
    remembered: int = 1_000


ORDER = NetworkOrderTuning()


class MeanDownload:
    """The mean size of downloads, in which each network counts once, however often it asks."""

    __slots__ = ("_of", "_sum_bytes")

    def __init__(self) -> None:
        #: Of each network: the mean of its downloads, and how many those were.
        self._of: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._sum_bytes = 0.0

    def note(self, network: str, size_bytes: int) -> None:
        """A client of this network wants a download."""
        mean, count = self._of.pop(network, (0.0, 0))
        self._sum_bytes -= mean
        mean += (size_bytes - mean) / (count + 1)
        self._of[network] = mean, count + 1
        self._sum_bytes += mean
        if len(self._of) > ORDER.remembered:
            self._sum_bytes -= self._of.popitem(last=False)[1][0]

    @property
    def size_bytes(self) -> float:
        """The mean; 0 before the first request."""
        return max(0.0, self._sum_bytes) / len(self._of) if self._of else 0.0


class NetworkOrder:
    """What networks of strangers were given of the line, and what the order makes of it."""

    __slots__ = ("_ahead", "_earned_s", "_mean", "_shares")

    def __init__(self) -> None:
        self._mean = MeanDownload()
        self._shares = NetworkShares()
        self._earned_s: float | None = None
        #: Networks with an excess of more than a mean download, at least one.
        self._ahead = 1

    def note(self, owner: str, size_bytes: int) -> None:
        """A download is wanted: by a stranger of this network, or by this known client."""
        self._mean.note(enclosing(owner)[-1], size_bytes)

    def took(self, network: str, count: int) -> None:
        """Strangers of this network were given `count` bytes."""
        most = ORDER.most_excess_means * self._mean.size_bytes
        self._shares.charge(enclosing(network), count, most)

    def earn(self, goodput_bytes_s: float, present: int, now: float) -> None:
        """What leaves just now, for `present` downloads that run or wait."""
        if self._earned_s is not None:
            earned = goodput_bytes_s * max(0.0, now - self._earned_s)
            self._shares.earn(earned * ORDER.shares / (present + ORDER.shares))
            self._ahead = max(1, self._shares.count_ahead(self._mean.size_bytes))
        self._earned_s = now

    def least_bytes(self, network: str) -> float:
        """What each download of this network's strangers counts as at least; 0 within its share."""
        if not network:
            return 0.0
        excess = self._shares.excess_bytes(enclosing(network))
        if excess <= 0.0:
            return 0.0
        mean = self._mean.size_bytes
        burst = ORDER.burst_means * mean / self._ahead
        return min(ORDER.least_means * mean, max(0.0, excess - burst))
