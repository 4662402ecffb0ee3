"""Hashes passwords one at a time, and decides who is next: known clients, then network by network.

A hash takes 64 MiB and a fifth of a second of one core. So strangers wait in a small room, in which
each network has its turn and one that takes most of it gives its oldest place up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from argon2 import PasswordHasher
from twisted.internet.defer import Deferred

from ..control.problems import Problem
from ..http.prefix_shares import PrefixShares

Member = TypeVar("Member")
Off = Callable[[Callable[[], Any]], Awaitable[Any]]
#: See `hash_process.kept_hash`.
KeptHash = Callable[[PasswordHasher, str, str | None], str | None]


class Busy(Problem):
    """More passwords are to be checked at this moment than this server lets wait."""

    def __init__(self) -> None:
        told = "Too many people log in at this moment; try again in a few seconds."
        super().__init__(503, told, code="logins-busy", headers=(("retry-after", "5"),))


def password_hasher() -> PasswordHasher:
    """Argon2id with the library's time and memory (RFC 9106, 4) on one core instead of four."""
    return PasswordHasher(parallelism=1)


@dataclass(frozen=True, slots=True)
class Asker:
    """The client that has a password hashed. `prefixes`: see `proxies.prefixes_of`.

    `begin` is called when the hash is about to start. It may refuse by a Problem.
    """

    prefixes: Sequence[str] = ("operators",)
    is_known: bool = True
    begin: Callable[[], None] = lambda: None


#: Somebody whose right to act was checked before.
OPERATOR = Asker()


class WaitingRoom(Generic[Member]):
    """A bounded number of members. The widest networks take turns; each is in order of coming."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._shares: PrefixShares[Member] = PrefixShares()
        #: The network whose turn is next stands first.
        self._queues: OrderedDict[str, OrderedDict[Member, None]] = OrderedDict()
        self._network_of: dict[Member, str] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def enter(self, member: Member, prefixes: Sequence[str]) -> Member | None:
        """Who has no place now: None, an earlier member, or the newcomer."""
        displaced = None
        if len(self) >= self._most:
            displaced = self._shares.to_give_up(prefixes)
            if displaced is None:
                return member
            self._remove(displaced)
        self._shares.add(member, prefixes)
        self._network_of[member] = prefixes[-1]
        self._queues.setdefault(prefixes[-1], OrderedDict())[member] = None
        return displaced

    def next(self) -> Member | None:
        """The member whose turn it is, who leaves; None when nobody waits."""
        if not self._queues:
            return None
        network, queue = next(iter(self._queues.items()))
        self._queues.move_to_end(network)
        member = next(iter(queue))
        self._remove(member)
        return member

    def _remove(self, member: Member) -> None:
        self._shares.remove(member)
        network = self._network_of.pop(member)
        queue = self._queues[network]
        del queue[member]
        if not queue:
            del self._queues[network]


class Hashing:
    """Has one hash made at a time, by `kept_hash` on a thread (`off`)."""

    #: So the last stranger of the room has a turn within about five seconds.
    WAITING = 20

    def __init__(self, off: Off, kept_hash: KeptHash, hasher: PasswordHasher) -> None:
        self._off = off
        self._kept_hash = kept_hash
        self._hasher = hasher
        self._is_taken = False
        self._is_calling = False
        self._known: WaitingRoom[Deferred[None]] = WaitingRoom(self.WAITING)
        self._strangers: WaitingRoom[Deferred[None]] = WaitingRoom(self.WAITING)

    async def __call__(self, asker: Asker, password: str, known: str | None = None) -> str | None:
        """The hash to keep, in its turn; None where `known` is the hash of another password.

        Raises Busy, and what `asker.begin` raises.
        """
        if self._is_taken:
            await self._turn(asker)
        self._is_taken = True
        try:
            asker.begin()
            kept: str | None = await self._off(
                lambda: self._kept_hash(self._hasher, password, known)
            )
            return kept
        finally:
            self._is_taken = False
            self._call_next()

    def _turn(self, asker: Asker) -> Deferred[None]:
        turn: Deferred[None] = Deferred()
        room = self._known if asker.is_known else self._strangers
        displaced = room.enter(turn, asker.prefixes)
        if displaced is turn:
            raise Busy
        if displaced is not None:
            displaced.errback(Busy())
        return turn

    def _call_next(self) -> None:
        # One that is refused in its turn comes back here before `callback` returns.
        if self._is_calling:
            return
        self._is_calling = True
        while not self._is_taken:
            turn = self._known.next() or self._strangers.next()
            if turn is None:
                break
            turn.callback(None)
        self._is_calling = False
