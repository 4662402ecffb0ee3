"""How the order of turn counts the downloads of a network that had more than its share.

Shortest first favours short downloads, so an attacker who fetches short files again and again would
always be first. A network of strangers may take `burst_medians` median downloads at once, and from
then on a part of its `network_shares` of what the line carries. Networks that are ahead of that
have one burst together: ten addresses have no ten bursts. A network that takes more has no
advantage from short downloads any more: each of its downloads counts as `least_means` mean ones at
least, or as the network's excess where that is less, to its last byte. Among these the shortest
goes first, and long downloads that have begun keep their guard, so a crowd behind one address loses
little. All networks have a debt together (`policies.crowd_debt`), which is added to any download.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median_low
from typing import NamedTuple

from ..protocol.bounded_table import BoundedTable
from .crowd_debt import CrowdDebt, Owners
from .network_shares import NetworkShares, enclosing


@dataclass(frozen=True, slots=True)
class NetworkOrderTuning:
    """What other values cost: docs/decisions/policies.md, "Networks beyond their share"."""

    #: The part of `network_shares` that a network has before its short downloads count as longer.
    shares_part: float = 0.25
    #: And this many median downloads before that.
    burst_medians: float = 8.0
    #: Downloads of a network beyond its share count as this many mean ones at least.
    least_means: float = 1.25
    #: A network counts as this many median downloads at most in the mean. One visitor who wanted a
    #: file of 940 MB doubled the mean: a crowd lost three times as much.
    most_medians: float = 16.0
    #: No excess is larger than this many mean downloads: a network that had the line for itself all
    #: night is within its share again soon after others have come.
    most_excess_means: float = 16.0
    #: Networks that count in mean and median. Not sensitive: those of any crowd will do.
    remembered: int = 1_000


ORDER = NetworkOrderTuning()


class DownloadSizes:
    """The mean download of each network that asked lately, however often it asks."""

    def __init__(self) -> None:
        #: Of each network: the mean of its downloads, and how many those were.
        self._of: BoundedTable[str, tuple[float, int]] = BoundedTable(ORDER.remembered)
        #: Of these at the last look. A request for a huge file moves the mean, not the median.
        self.mean_bytes = self.median_bytes = 0.0

    def note(self, network: str, size_bytes: int) -> None:
        """A client of this network wants a download."""
        mean, count = self._of.get(network, (0.0, 0))
        self._of[network] = mean + (size_bytes - mean) / (count + 1), count + 1

    def look(self) -> None:
        """Take the mean and the median of all: 0.2 ms for 1 000 networks."""
        if self._of:
            sizes = [mean for mean, _ in self._of.values()]
            self.median_bytes = median_low(sizes)
            most = ORDER.most_medians * self.median_bytes
            self.mean_bytes = fmean([min(size, most) for size in sizes])


class Handicap(NamedTuple):
    """What is counted of a network's downloads beside their own bytes."""

    #: A download counts as this many bytes at least.
    least_bytes: float = 0.0
    #: These are added to it.
    behind_bytes: float = 0.0

    def counted(self, left_bytes: int) -> int:
        """What the order counts for a download that lacks `left_bytes`: less for a shorter one."""
        return int(max(left_bytes, self.least_bytes + left_bytes / 1024) + self.behind_bytes)

    def keeps_guard(self, started_bytes: float) -> bool:
        """Whether one that began with `started_bytes` goes first once its slack is used up."""
        return self.behind_bytes <= 0.0 and started_bytes >= self.least_bytes


NO_HANDICAP = Handicap()


class NetworkOrder:
    """What networks of strangers were given of the line, and what the order makes of it."""

    def __init__(self) -> None:
        self._sizes = DownloadSizes()
        self._shares = NetworkShares()
        self._debt = CrowdDebt()
        self._earned_s: float | None = None
        #: Networks with an excess of more than a median download, at least one.
        self._ahead = 1

    def note(self, network: str, client: str, size_bytes: int) -> None:
        """This client wants a download, as a stranger of that network; empty: it is known."""
        self._sizes.note(enclosing(network or client)[-1], size_bytes)
        if network:
            self._debt.note(network)

    def took(self, network: str, count: int) -> None:
        """Strangers of this network were given `count` bytes."""
        mean = self._sizes.mean_bytes
        self._shares.charge(enclosing(network), count, ORDER.most_excess_means * mean)
        self._debt.took(network, count, mean)

    def earn(
        self, goodput_bytes_s: float, present: int, owners: Owners, shares: int, now: float
    ) -> None:
        """What leaves just now, for `present` downloads, some of `owners`, by `network_shares`."""
        self._sizes.look()
        if self._earned_s is not None:
            earned = goodput_bytes_s * max(0.0, now - self._earned_s)
            median = self._sizes.median_bytes
            own = ORDER.shares_part * shares
            self._shares.earn(earned * own / (present + own) if own else 0.0)
            self._debt.earn(earned, median, now, self._debt.part_beside(owners))
            self._ahead = max(1, self._shares.count_ahead(median))
        self._earned_s = now

    def handicap(self, network: str) -> Handicap:
        """What the order counts of the downloads of this network's strangers."""
        return Handicap(self._least_bytes(network), self._debt.behind_bytes(network))

    def _least_bytes(self, network: str) -> float:
        """What each of them counts as at least; 0 within the network's share."""
        excess = self._shares.excess_bytes(enclosing(network))
        burst = ORDER.burst_medians * self._sizes.median_bytes / self._ahead
        return min(ORDER.least_means * self._sizes.mean_bytes, max(0.0, excess - burst))
