"""What networks that download again and again had together beyond their part of the line.

Each network has shares of its own (`policies.network_order`), so an attacker with many networks
would have many times these. But honest visitors download once: the n-th download of a network
counts by 1 - 1/n. Bytes counted so are charged to one account of all networks, which earns a part
of what leaves the server. Its *debt* is added to the rank of each download, again by 1 - 1/n.

So crowds stand behind others only while they have more than their part together, and by as much as
they have more. Shortest first still holds among them: a crowd of honest people loses little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol.bounded_table import BoundedTable
from .network_shares import REMEMBERED, enclosing

#: What strangers of each /16 or /32 have running or waiting, and in how many networks.
Owners = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CrowdDebtTuning:
    """What other values cost: docs/decisions/policies.md, "One account of networks that return"."""

    #: The part of the line that many networks earn together at least.
    part: float = 0.25
    #: The part of a few networks that hold no more of all that is present than people do.
    part_of_people: float = 0.45
    #: As many networks are few; of twice as many half of the difference counts.
    few: float = 10.0
    #: The part of one network alone, which its own shares bound too.
    part_alone: float = 0.65
    #: Downloads of a network that do not count: one visitor's.
    free: float = 1.0
    #: The same for a /16 or a /32, times the root of the number of its networks: honest ones visit
    #: once, but an attacker who downloads once from each of 65 536 pays for most of it.
    free_wide: float = 3.0
    #: A network's downloads count half after this time.
    half_life_s: float = 300.0
    #: Crowds may be this many median downloads ahead together before they have a debt.
    burst_medians: float = 8.0
    #: No debt is larger than this many mean downloads.
    most_means: float = 32.0


CROWD_DEBT = CrowdDebtTuning()


@dataclass(slots=True)
class _Record:
    """The downloads of one prefix as they counted at `at_s`, and of how many networks they are."""

    downloads: float
    networks: float
    charged_bytes: float
    at_s: float


class CrowdDebt:
    """The account of all networks of strangers. Sizes are bytes."""

    def __init__(self) -> None:
        self._debt_bytes = self._now = 0.0
        #: The prefix without a download for longest is first.
        self._records: BoundedTable[str, _Record] = BoundedTable(REMEMBERED)
        #: The sum of what networks were charged, the sum of its squares, and their time.
        self._charged, self._squares, self._sums_at_s = 0.0, 0.0, 0.0

    def note(self, network: str) -> None:
        """A stranger of this network wants a download."""
        path = enclosing(network)
        first = 1.0
        for key in dict.fromkeys((path[0], path[-1])):
            record = self._decayed(key) or _Record(0.0, 0.0, 0.0, self._now)
            record.networks += first
            record.downloads += 1.0
            first = 1.0 / max(1.0, record.downloads)
            self._records[key] = record

    def took(self, network: str, count: int, mean_bytes: float) -> None:
        """A stranger of this network was given `count` bytes."""
        charged = self._part(network) * count
        if charged <= 0.0:
            return
        self._debt_bytes = min(CROWD_DEBT.most_means * mean_bytes, self._debt_bytes + charged)
        record = self._decayed(network) or _Record(0.0, 0.0, 0.0, self._now)
        left = 0.5 ** ((self._now - self._sums_at_s) / CROWD_DEBT.half_life_s)
        self._charged = left * self._charged + charged
        grown = charged * (2.0 * record.charged_bytes + charged)
        self._squares = left * left * self._squares + grown
        self._sums_at_s = self._now
        record.charged_bytes += charged

    def earn(
        self, sent_bytes: float, median_bytes: float, now: float, together: float = CROWD_DEBT.part
    ) -> None:
        """This much left since the last call; many networks have the part `together` of it."""
        self._now = now
        part = together + (CROWD_DEBT.part_alone - together) * self.concentration
        least = -CROWD_DEBT.burst_medians * median_bytes
        self._debt_bytes = max(least, self._debt_bytes - part * sent_bytes)

    def part_beside(self, owners: Owners) -> float:
        """What many networks earn together while `owners` have these downloads.

        The first of each is a visitor's. People behind a few addresses are rarely half of all that
        is present, but an attacker holds hundreds of connections or networks.
        """
        repeated = sum(downloads - 1 for downloads, _ in owners)
        others = 1.0 - repeated / max(1, sum(downloads for downloads, _ in owners))
        squares = sum((downloads - networks) ** 2 for downloads, networks in owners)
        at_once = _concentration(repeated, squares)
        few = min(1.0, CROWD_DEBT.few * min(at_once, self.concentration))
        people = max(CROWD_DEBT.part, min(CROWD_DEBT.part_of_people, others))
        return CROWD_DEBT.part + few * (people - CROWD_DEBT.part)

    @property
    def concentration(self) -> float:
        """1 if one network had all that was charged, 1/n if n networks had the same."""
        return _concentration(self._charged, self._squares)

    def behind_bytes(self, network: str) -> float:
        """What is added to the rank of this network's downloads."""
        return self._part(network) * self._debt_bytes if self._debt_bytes > 0.0 else 0.0

    def _part(self, network: str) -> float:
        """How much of a download of this network counts, from 0 to 1."""
        path = enclosing(network)
        wide = self._part_of(path[-1], CROWD_DEBT.free_wide, 0.5)
        return max(wide, self._part_of(path[0], CROWD_DEBT.free, 0.0))

    def _part_of(self, key: str, free: float, power: float) -> float:
        record = self._decayed(key)
        free *= record.networks**power if record else 1.0
        return 1.0 - free / record.downloads if record and record.downloads > free else 0.0

    def _decayed(self, key: str) -> _Record | None:
        record = self._records.get(key)
        if record is not None and record.at_s < self._now:
            left = 0.5 ** ((self._now - record.at_s) / CROWD_DEBT.half_life_s)
            record.downloads *= left
            record.networks *= left
            record.charged_bytes *= left
            record.at_s = self._now
        return record


def _concentration(total: float, squares: float) -> float:
    return min(1.0, squares / total**2) if total >= 1.0 else 1.0
