"""Who leads: a machine's view of the lease in the database, as a state that answers change.

The database alone says who leads (`store.cluster`). A leader that does not renew its lease in time
leads no more, whatever the reason. Its process ends, and the next one begins as a follower. The
database is asked on a thread of its own, so a lease is renewed however busy the reactor is.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from twisted.logger import Logger

from ..http.clock import Reactor, Repeat
from ..store.cluster import Seat, campaign, read_seat, release, renew
from ..store.database import Database, StoreUnavailable

_log = Logger()


class Standing(enum.StrEnum):
    """What a machine is in the cluster."""

    FOLLOWS = "follows"
    LEADS = "leads"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Candidacy:
    """One machine's standing.

    `leader` is the last known leader (epoch 0: there was none). `until_s` is when a leader's lease
    ends, on its own clock.
    """

    standing: Standing = Standing.FOLLOWS
    leader: Seat = field(default_factory=Seat)
    until_s: float = 0.0


def answered(
    state: Candidacy, me: str, seen: Seat, asked_s: float, lease_s: float, *, campaigns: bool = True
) -> Candidacy:
    """The database said who leads. It was asked at `asked_s`, so no lease began earlier.

    A process that does not campaign never leads: a lease that names its machine is of an earlier
    process, and a second one would lead in the same epoch.
    """
    if state.standing is Standing.RETIRED:
        return state
    if state.standing is Standing.LEADS:
        if seen.epoch != state.leader.epoch:
            return replace(state, standing=Standing.RETIRED, leader=seen)
        return replace(state, until_s=asked_s + lease_s)
    if seen.epoch < state.leader.epoch:
        return state
    if campaigns and seen.holder == me and seen.epoch > state.leader.epoch:
        return Candidacy(Standing.LEADS, seen, asked_s + lease_s)
    return replace(state, leader=seen)


def passed(state: Candidacy, now: float) -> Candidacy:
    """Time has passed: a lease that was not renewed is over."""
    if state.standing is Standing.LEADS and now >= state.until_s:
        return replace(state, standing=Standing.RETIRED)
    return state


class AskTuning(NamedTuple):
    """How often the database is asked who leads."""

    #: A lease is renewed, and looked at, this often in its length.
    times: int = 4
    look_most_s: float = 0.25
    #: A leader looks this often whether its lease is over.
    tick_s: float = 0.1


TUNING = AskTuning()


@dataclass(eq=False, repr=False)
class Candidate:
    """A machine's part in the election.

    `changed` hears on the reactor's thread of each new standing and each new leader. One that does
    not `campaign` only follows.
    """

    _reactor: Reactor
    _database: Database
    _name: str
    _place: str
    _lease_s: float
    _changed: Callable[[Candidacy], None]
    campaigns: bool = True
    #: The standing at this moment.
    state: Candidacy = field(default_factory=Candidacy)
    #: Why the database does not answer; empty while it does.
    silence: str = ""
    _guard: threading.Lock = field(default_factory=threading.Lock)
    # Looked up when it is made: `tests.world` waits in virtual time.
    _stopped: threading.Event = field(default_factory=lambda: threading.Event())

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)
        self._timer = Repeat(self._reactor, TUNING.tick_s, self._tick)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()
        self._timer.start()
        self._tick()

    def stop(self) -> None:
        """Ask no more; the thread ends by itself."""
        self._stopped.set()
        self._timer.stop()

    def release(self) -> None:
        """Give the lease back, and ask no more; blocks for a moment."""
        self.stop()
        if self.state.standing is Standing.LEADS:
            try:
                with self._database.begin() as session:
                    release(session, self.state.leader.epoch)
            except StoreUnavailable as fault:
                _log.info("The lease runs out by itself: {fault}", fault=fault)

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = min(TUNING.look_most_s, self._lease_s / TUNING.times)
        while not self._stopped.is_set():
            asked_s = time.monotonic()
            try:
                seen = self._ask()
            except StoreUnavailable as fault:
                self.silence = str(fault)
            else:
                self.silence = ""
                self._handle(seen, asked_s)
            self._stopped.wait(max(0.02, pause_s - (time.monotonic() - asked_s)))

    def _ask(self) -> Seat:
        state = self.state
        with self._database.begin() as session:
            if state.standing is Standing.LEADS:
                return renew(session, state.leader.epoch, self._lease_s)
            if self.campaigns:
                return campaign(session, self._name, self._place, self._lease_s)
            return read_seat(session)

    def _handle(self, seen: Seat, asked_s: float) -> None:
        me, lease_s, campaigns = self._name, self._lease_s, self.campaigns
        self._go_on(lambda state: answered(state, me, seen, asked_s, lease_s, campaigns=campaigns))

    # -- both threads --------------------------------------------------------------------------

    def _tick(self) -> None:
        self._go_on(lambda state: passed(state, time.monotonic()))

    def _go_on(self, event: Callable[[Candidacy], Candidacy]) -> None:
        with self._guard:
            before = self.state
            self.state = after = event(before)
        if (before.standing, before.leader) != (after.standing, after.leader):
            self._reactor.callFromThread(self._changed, after)
