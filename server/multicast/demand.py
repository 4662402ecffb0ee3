"""Detects the objects that many clients want at once: paper E's adaptive switch (3.3 and 3.5).

Unlike the paper it drops no request, and decides at once instead of every 3 s. Laws:

- A capable request is held (at most `window_s` from the first request of its client's visit, see
  `HoldBudget`), or offered a session, or passed on to unicast. It is never refused.
- With `hold_share` it is held for a small share of the file's transfer time. If the requests
  are too few then, their clients get a session that gathers members, and fetch by unicast
  meanwhile.
- When the requests for one object within the window reach the threshold, all of them get one
  session. Clients that wait with a ticket for the object count, too.
- Hysteresis: an object that had a session stays *warm*: half the threshold is enough, until fewer
  requests than that come within a window.

Pure: `wake_at` is the time of the next decision.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .settings import MulticastSettings


@dataclass(slots=True)
class _Visit:
    until: float
    seen: float


class HoldBudget:
    """Limits the holds of each client to one window a visit.

    A client that fetches a folder requests many files. If one was held for a window without a
    session, to hold the next ones as well would add up the windows. A session with the client, or a
    longer absence, starts a new visit. Clients without a name ("") are not limited.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        #: A client that made no request for this time starts a new visit.
        self._forget_s = 4 * window_s
        self._visits: dict[str, _Visit] = {}

    def until(self, client: str, now: float) -> float:
        """The time until which the client may be held; in the past if not at all."""
        if not client:
            return now + self._window_s
        visit = self._visits.get(client)
        if visit is None or now - visit.seen > self._forget_s:
            visit = self._visits[client] = _Visit(now + self._window_s, now)
            # Old visits are removed after this many new ones.
            if len(self._visits) % 1000 == 0:
                self._sweep(now)
        visit.seen = now
        return visit.until

    def session_started(self, client: str) -> None:
        """The client got a session: its next request starts a new visit."""
        self._visits.pop(client, None)

    def _sweep(self, now: float) -> None:
        then = now - self._forget_s
        for client in [name for name, visit in self._visits.items() if visit.seen < then]:
            del self._visits[client]


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the request until `until` at most."""

    until: float


@dataclass(frozen=True, slots=True)
class Join:
    """Offer the running session."""

    session: int


@dataclass(frozen=True, slots=True)
class Unicast:
    """Pass the request on to the gate."""


Decision = Hold | Join | Unicast


@dataclass(frozen=True, slots=True)
class StartSession:
    """Open a session for the object and offer it to these requests.

    It starts when it has `needed` members; 0: now.
    """

    key: str
    waiters: tuple[str, ...]
    needed: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """Pass these requests on to the gate: their window ended."""

    key: str
    waiters: tuple[str, ...]


@dataclass(slots=True)
class _Object:
    #: Held request -> (until, client).
    held: dict[str, tuple[float, str]] = field(default_factory=dict)
    #: Client with a ticket -> its last poll.
    queued: dict[str, float] = field(default_factory=dict)
    arrivals: deque[float] = field(default_factory=deque)
    prepared: bool = False
    session: int | None = None
    warm: bool = False


class DemandDetector:
    """All cohorts of a server. Requests and objects have opaque names.

    Call `decide` after each other call and at `wake_at`.
    """

    def __init__(self, settings: MulticastSettings) -> None:
        self.settings = settings
        self.wake_at = float("inf")
        self._hold_budget = HoldBudget(settings.window_s)
        self._objects: dict[str, _Object] = {}

    @property
    def held(self) -> int:
        return sum(len(item.held) for item in self._objects.values())

    @property
    def waiting(self) -> int:
        """The number of clients that wait with tickets, for all objects."""
        return sum(len(item.queued) for item in self._objects.values())

    def request(
        self, key: str, waiter: str, size_bytes: int, now: float, client: str = ""
    ) -> Decision:
        """Decide on a capable client's request for a whole object; `client` is "" if unknown."""
        if size_bytes < self.settings.least_bytes:
            return Unicast()
        item = self._objects.setdefault(key, _Object())
        self._arrived(item, now)
        if item.session is not None:
            self._hold_budget.session_started(client)
            return Join(item.session)
        until = self._hold_budget.until(client, now)
        if self.settings.hold_share:
            hold_s = self.settings.hold_share * size_bytes / self.settings.rate
            # A shorter hold joins no two requests of one moment, a longer one is felt.
            until = min(until, now + min(max(0.02, hold_s), 2.0))
        item.held[waiter] = (until, client)
        if self._enough(item):
            until = max(until, now)
            item.held[waiter] = (until, client)
            self._wake_for(now)
        elif until <= now:
            del item.held[waiter]
            self._tidy(key, item)
            return Unicast()
        self._wake_for(until)
        return Hold(until)

    def forget(self, key: str, waiter: str) -> None:
        """Remove a held request whose client disconnected."""
        item = self._objects.get(key)
        if item is not None:
            item.held.pop(waiter, None)
            self._tidy(key, item)

    def poll(self, key: str, client: str, waiter: str, now: float) -> Decision:
        """Decide on the poll of a capable client that waits with a ticket for the object.

        A poll counts for two windows. It is held only if a session is about to start with it.
        """
        item = self._objects.setdefault(key, _Object())
        if client not in item.queued:
            self._arrived(item, now)
        item.queued[client] = now
        if item.session is not None:
            del item.queued[client]
            return Join(item.session)
        if not self._enough(item):
            return Unicast()
        del item.queued[client]
        item.held[waiter] = (now + self.settings.window_s, client)
        self._wake_for(now)
        return Hold(now + self.settings.window_s)

    def queued(self, key: str) -> int:
        """The number of clients that wait with tickets for the object."""
        item = self._objects.get(key)
        return len(item.queued) if item is not None else 0

    def prepared(self, key: str, now: float) -> None:
        """The object's block hashes are known: a session can start."""
        item = self._objects.get(key)
        if item is not None:
            item.prepared = True
            if item.held and self._enough(item):
                self._wake_for(now)

    def started(self, key: str, session: int) -> None:
        """A session for the object was started, by demand or by schedule."""
        item = self._objects.setdefault(key, _Object())
        item.session = session
        item.prepared = True

    def ended(self, key: str, session: int, *, never_began: bool = False) -> None:
        """The session ended. `never_began`: it did not gather enough members."""
        item = self._objects.get(key)
        if item is not None and item.session == session:
            item.session = None
            item.warm = item.warm if never_began else True

    def decide(self, now: float) -> list[StartSession | Release]:
        """The decisions that are due. Sets `wake_at`."""
        out: list[StartSession | Release] = []
        window = self.settings.window_s
        self.wake_at = float("inf")
        for key in list(self._objects):
            item = self._objects[key]
            for client, at in list(item.queued.items()):
                if at + 2 * window <= now:
                    del item.queued[client]
            if item.warm and item.session is None:
                item.warm = bool(item.arrivals) and item.arrivals[-1] > now - window
            if item.held and (item.session is not None or self._enough(item)):
                out.append(StartSession(key, tuple(item.held)))
                for _, client in item.held.values():
                    self._hold_budget.session_started(client)
                item.held.clear()
            # Without its block hashes there is no session; they may take longer than the hold.
            hashing_s = 0.0 if item.prepared or not self.settings.hold_share else 1.0
            late = tuple(name for name, (until, _) in item.held.items() if until + hashing_s <= now)
            if late and item.prepared and self.settings.hold_share:
                out.append(StartSession(key, tuple(item.held), self._threshold(item)))
                item.held.clear()
            elif late:
                out.append(Release(key, late))
                for name in late:
                    del item.held[name]
            if item.held:
                self._wake_for(min(until for until, _ in item.held.values()) + hashing_s)
            elif item.queued:
                self._wake_for(min(item.queued.values()) + 2 * window)
            self._tidy(key, item)
        return out

    # --- inside -----------------------------------------------------------------------------

    def _arrived(self, item: _Object, now: float) -> None:
        item.arrivals.append(now)
        while item.arrivals[0] <= now - self.settings.window_s or len(item.arrivals) > 1000:
            item.arrivals.popleft()
        if item.warm and len(item.arrivals) < self._warm_threshold():
            item.warm = item.session is not None

    def _warm_threshold(self) -> int:
        return max(2, -(-self.settings.threshold // 2))

    def _enough(self, item: _Object) -> bool:
        return item.prepared and len(item.held) + len(item.queued) >= self._threshold(item)

    def _threshold(self, item: _Object) -> int:
        threshold = self.settings.threshold
        return min(threshold, self._warm_threshold()) if item.warm else threshold

    def _wake_for(self, at: float) -> None:
        self.wake_at = min(self.wake_at, at)

    def _tidy(self, key: str, item: _Object) -> None:
        if not item.held and not item.queued and item.session is None and not item.warm:
            del self._objects[key]
