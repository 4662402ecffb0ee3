"""Who takes most of something scarce, by address and by the networks around it.

What many share (connections, requests that are kept open) must not go to the first who takes it
and keeps it. When it is all taken, the network that has most of it gives its oldest up for a
newcomer of a network that has less, down to the single address. Every operation takes the same few
steps whatever the number of members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

Member = TypeVar("Member")


class _Share(Generic[Member]):
    """One network: how much it has, and the networks in it by how much they have."""

    __slots__ = ("by_count", "count", "inside", "members", "most")

    def __init__(self) -> None:
        self.count = 0
        self.inside: dict[str, _Share[Member]] = {}
        #: Only in the narrowest: in the order of coming.
        self.members: dict[Member, None] = {}
        #: The networks inside by their count; `most` is the highest.
        self.by_count: dict[int, dict[str, None]] = {}
        self.most = 0

    def count_inside(self, key: str, step: int) -> _Share[Member]:
        """One more or less in the network `key`, which is returned."""
        share = self.inside.get(key)
        if share is None:
            share = self.inside[key] = _Share()
        before, after = share.count, share.count + step
        share.count = after
        if before:
            same = self.by_count[before]
            del same[key]
            if not same:
                del self.by_count[before]
        if after:
            self.by_count.setdefault(after, {})[key] = None
        else:
            del self.inside[key]
        if after > self.most:
            self.most = after
        elif before == self.most and before not in self.by_count:
            self.most = after if after in self.by_count else max(self.by_count, default=0)
        return share

    def greediest(self) -> _Share[Member] | None:
        """The network inside that has most."""
        return self.inside[next(iter(self.by_count[self.most]))] if self.most else None


class PrefixShares(Generic[Member]):
    """Members by the prefixes around them, narrow to wide (`proxies.prefixes_of`)."""

    def __init__(self) -> None:
        self._all: _Share[Member] = _Share()
        self._networks: dict[Member, Sequence[str]] = {}

    def __len__(self) -> int:
        return len(self._networks)

    @property
    def networks(self) -> int:
        """Of how many of the widest prefixes there are members."""
        return len(self._all.inside)

    def __contains__(self, member: Member) -> bool:
        return member in self._networks

    def add(self, member: Member, network: Sequence[str]) -> None:
        self._networks[member] = network
        share = self._all
        for key in reversed(network):
            share = share.count_inside(key, 1)
        share.members[member] = None

    def remove(self, member: Member) -> None:
        """Count it no longer; unknown ones are ignored."""
        network = self._networks.pop(member, None)
        if network is None:
            return
        share = self._all
        for key in reversed(network):
            share = share.count_inside(key, -1)
        share.members.pop(member)

    def to_give_up(self, network: Sequence[str]) -> Member | None:
        """The member that should make room for a newcomer from here; None: no network has more.

        The widest networks are compared first; within its own, the newcomer's smaller ones.
        """
        share = self._all
        for key in reversed(network):
            greediest = share.greediest()
            if greediest is None:
                return None
            own = share.inside.get(key)
            # With one more of its own the newcomer must still have less than the other then has.
            if greediest.count - 1 > (own.count if own is not None else 0):
                return _oldest(greediest)
            if own is None:
                return None
            share = own
        return None


def _oldest(share: _Share[Member]) -> Member:
    while (narrower := share.greediest()) is not None:
        share = narrower
    return next(iter(share.members))
