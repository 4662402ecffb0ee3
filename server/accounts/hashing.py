"""Hashes passwords one at a time: known clients first, then new clients network by network.

A hash takes 64 MiB and 0.2 s of one core. So new clients wait in a small room with round robin
among networks. When the room is full, the network with most places gives up its oldest one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from argon2 import PasswordHasher
from twisted.internet.defer import Deferred

from ..control.problems import Problem
from ..http.prefix_shares import PrefixShares

Member = TypeVar("Member")
#: Runs a function on a thread.
Off = Callable[[Callable[[], Any]], Awaitable[Any]]
#: See `hash_process.kept_hash`.
KeptHash = Callable[[PasswordHasher, str, str | None], str | None]


class Busy(Problem):
    """The waiting room for password checks is full."""

    def __init__(self) -> None:
        told = "Too many people log in at this moment; try again in a few seconds."
        super().__init__(503, told, code="logins-busy", headers=(("retry-after", "5"),))


def password_hasher() -> PasswordHasher:
    """Argon2id with the library's time and memory (RFC 9106, 4) on one core instead of four."""
    return PasswordHasher(parallelism=1)


@dataclass(frozen=True, slots=True)
class Asker:
    """The client for which a password is hashed; by default an operator who is logged in.

    `prefixes`: see `proxies.prefixes_of`. `begin` is called right before the hash starts. It may
    refuse by raising a Problem.
    """

    prefixes: Sequence[str] = ("operators",)
    is_known: bool = True
    begin: Callable[[], None] = lambda: None


class WaitingRoom(Generic[Member]):
    """A bounded queue: round robin among the widest networks, first come first served in each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._shares: PrefixShares[Member] = PrefixShares()
        #: In the order of coming.
        self._network_of: dict[Member, str] = {}
        #: The networks that wait. The one whose turn is next stands first.
        self._turns: list[str] = []

    def __len__(self) -> int:
        return len(self._shares)

    def enter(self, member: Member, prefixes: Sequence[str]) -> Member | None:
        """Add a member. Returns the one without a place: None, an earlier member, or `member`."""
        displaced = None
        if len(self) >= self._most:
            displaced = self._shares.to_give_up(prefixes)
            if displaced is None:
                return member
            self._remove(displaced)
        self._shares.add(member, prefixes)
        self._network_of[member] = network = prefixes[-1]
        if network not in self._turns:
            self._turns.append(network)
        return displaced

    def next(self) -> Member | None:
        """Remove and return the member whose turn it is; None when the room is empty."""
        if not self._turns:
            return None
        network = self._turns.pop(0)
        self._turns.append(network)
        member = next(one for one, of in self._network_of.items() if of == network)
        self._remove(member)
        return member

    def _remove(self, member: Member) -> None:
        self._shares.remove(member)
        network = self._network_of.pop(member)
        if network not in self._network_of.values():
            self._turns.remove(network)


class OneAtATime:
    """Runs one piece of work at a time on a thread (`off`)."""

    #: At 0.2 s a hash the last new client of the room has its turn within about 5 s.
    WAITING = 20

    def __init__(self, off: Off) -> None:
        self._off = off
        self._is_taken = False
        self._is_calling = False
        self._known: WaitingRoom[Deferred[None]] = WaitingRoom(self.WAITING)
        self._strangers: WaitingRoom[Deferred[None]] = WaitingRoom(self.WAITING)

    async def __call__(self, asker: Asker, work: Callable[[], Any]) -> Any:
        """What `work` gives, when the asker's turn has come.

        Raises Busy, and what `asker.begin` and `work` raise.
        """
        if self._is_taken:
            await self._turn(asker)
        self._is_taken = True
        try:
            asker.begin()
            return await self._off(work)
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
        # An asker that `begin` refuses calls this again before `callback` returns.
        if self._is_calling:
            return
        self._is_calling = True
        while not self._is_taken:
            turn = self._known.next() or self._strangers.next()
            if turn is None:
                break
            turn.callback(None)
        self._is_calling = False


class Hashing:
    """Makes one hash at a time by `kept_hash` on a thread (`off`)."""

    def __init__(self, off: Off, kept_hash: KeptHash, hasher: PasswordHasher) -> None:
        self._turns = OneAtATime(off)
        self._kept_hash = kept_hash
        self._hasher = hasher

    async def __call__(self, asker: Asker, password: str, known: str | None = None) -> str | None:
        """The hash to store, see `hash_process.kept_hash`, when the asker's turn has come.

        Raises Busy, and what `asker.begin` raises.
        """
        kept: str | None = await self._turns(
            asker, lambda: self._kept_hash(self._hasher, password, known)
        )
        return kept
