"""Which objects many want at once: paper E's adaptive switch, without its dropped requests.

Laws:

- A capable request is either held (at most `window_s`, from the first request of its client's
  visit; `server.multicast.hold_budget`), or given a session, or let go to unicast. It is never
  refused here and never asked to come again.
- With `hold_s_per_byte` it is held for a small share of what the file takes. Too few by
  then gather in a session that has yet to begin, and fetch by unicast meanwhile: a window in
  vain costs nearly nothing.
- As soon as the wishes for one object within the window reach the threshold, all held requests of
  the object leave together, into one session. Clients that wait elsewhere with a ticket for the
  same object count as wishes too.
- Hysteresis: an object that had a session stays *warm*: about half the threshold is enough, until
  fewer than that came within a window.

Pure: `now` comes in, the time of the next decision goes out. Paper E: 3.3 and 3.5; its periodic
check (every 3 s) is `check_every_s`, 0 decides at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .hold_budget import Patience

#: Hashing a file that nobody asked for before may take longer than the brief hold; without hashes
#: there is no session, and its first clients would be lost to it.
_HASHING_S = 1.0


@dataclass(frozen=True, slots=True)
class DemandSettings:
    """When to switch. Paper E: threshold 2 to 4, window 15 s, check every 3 s."""

    threshold: int = 3
    window_s: float = 15.0
    check_every_s: float = 0.0
    #: Objects below this are faster answered than offered.
    least_bytes: int = 64 * 1024
    #: A request is held for so long a byte, within these bounds; then its client fetches by
    #: unicast while the cohort gathers. 0: it is held for the whole window.
    hold_s_per_byte: float = 0.0
    least_hold_s: float = 0.02
    most_hold_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the request; `until` is when it goes on by unicast at the latest."""

    until: float


@dataclass(frozen=True, slots=True)
class Join:
    """Offer the session that runs."""

    session: int


@dataclass(frozen=True, slots=True)
class Unicast:
    """Answer as if multicast did not exist."""


Decision = Hold | Join | Unicast


@dataclass(frozen=True, slots=True)
class StartSession:
    """Begin a session for the object and offer it to these."""

    key: str
    waiters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """Held for long enough: offer them a session that begins when `needed` want the object."""

    key: str
    waiters: tuple[str, ...]
    needed: int


@dataclass(frozen=True, slots=True)
class Release:
    """The window of these ended: let them go on by unicast."""

    key: str
    waiters: tuple[str, ...]


@dataclass(slots=True)
class _Object:
    #: Who is held: until when, and for which client.
    held: dict[str, tuple[float, str]] = field(default_factory=dict)
    queued: dict[str, float] = field(default_factory=dict)
    arrivals: deque[float] = field(default_factory=deque)
    prepared: bool = False
    session: int | None = None
    warm: bool = False


class DemandDetector:
    """All cohorts of a server. Waiters and objects are named by opaque strings.

    The caller's obligation: after each call, and when `wake_at` comes, ask `decide`.
    """

    def __init__(self, settings: DemandSettings) -> None:
        self.settings = settings
        self.wake_at = float("inf")
        self._patience = Patience(settings.window_s)
        self._objects: dict[str, _Object] = {}

    @property
    def held(self) -> int:
        """How many requests are being held."""
        return sum(len(item.held) for item in self._objects.values())

    @property
    def waiting(self) -> int:
        """How many wait with tickets, for all objects."""
        return sum(len(item.queued) for item in self._objects.values())

    def request(
        self, key: str, waiter: str, size_bytes: int, now: float, client: str = ""
    ) -> Decision:
        """A capable client asks for the whole object; `client` says who, "" if that is unknown."""
        if size_bytes < self.settings.least_bytes:
            return Unicast()
        item = self._objects.setdefault(key, _Object())
        self._arrived(item, now)
        if item.session is not None:
            self._patience.rewarded(client)
            return Join(item.session)
        until = self._patience.until(client, now)
        if self.settings.hold_s_per_byte:
            hold_s = max(self.settings.least_hold_s, self.settings.hold_s_per_byte * size_bytes)
            until = min(until, now + min(hold_s, self.settings.most_hold_s))
        item.held[waiter] = (until, client)
        if self._enough(item):
            until = max(until, self._next_check(now))
            item.held[waiter] = (until, client)
            self._wake_for(self._next_check(now))
        elif until <= now:
            del item.held[waiter]
            self._tidy(key, item)
            return Unicast()
        self._wake_for(until)
        return Hold(until)

    def forget(self, key: str, waiter: str) -> None:
        """A held client left."""
        item = self._objects.get(key)
        if item is not None:
            item.held.pop(waiter, None)
            self._tidy(key, item)

    def poll(self, key: str, client: str, waiter: str, now: float) -> Decision:
        """A capable client that waits with a ticket for the object asks again, as `waiter`.

        Call at each of its polls; one counts as a wish for two windows. It is held only if a
        session is about to start with it; else its turn by unicast comes first.
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
        self._wake_for(self._next_check(now))
        return Hold(now + self.settings.window_s)

    def queued(self, key: str) -> int:
        """How many wait with tickets for the object and have asked lately."""
        item = self._objects.get(key)
        return len(item.queued) if item is not None else 0

    def prepared(self, key: str, now: float) -> None:
        """The object's block hashes are known: a session could start at any time."""
        item = self._objects.get(key)
        if item is not None:
            item.prepared = True
            if item.held and self._enough(item):
                self._wake_for(self._next_check(now))

    def started(self, key: str, session: int) -> None:
        """A session for the object runs (also one that was scheduled)."""
        item = self._objects.setdefault(key, _Object())
        item.session = session
        item.prepared = True

    def ended(self, key: str, session: int, *, vain: bool = False) -> None:
        """The session takes nobody any more; `vain`: it never began."""
        item = self._objects.get(key)
        if item is not None and item.session == session:
            item.session = None
            item.warm = item.warm if vain else True

    def decide(self, now: float) -> list[StartSession | Gather | Release]:
        """What is due now; sets `wake_at`."""
        out: list[StartSession | Gather | Release] = []
        window = self.settings.window_s
        self.wake_at = float("inf")
        for key in list(self._objects):
            item = self._objects[key]
            for client, at in list(item.queued.items()):
                if at + 2 * window <= now:
                    del item.queued[client]
            if item.warm and item.session is None:
                item.warm = bool(item.arrivals) and item.arrivals[-1] > now - window
            ripe = item.held and self._enough(item) and self._next_check(now) <= now
            if item.held and (item.session is not None or ripe):
                out.append(StartSession(key, tuple(item.held)))
                for _, client in item.held.values():
                    self._patience.rewarded(client)
                item.held.clear()
            patience_s = self._patience_s(item)
            late = tuple(
                name for name, (until, _) in item.held.items() if until + patience_s <= now
            )
            if late and item.prepared and self.settings.hold_s_per_byte:
                out.append(Gather(key, tuple(item.held), self._threshold(item)))
                item.held.clear()
            elif late:
                out.append(Release(key, late))
                for name in late:
                    del item.held[name]
            if item.held:
                self._wake_for(min(until for until, _ in item.held.values()) + patience_s)
                if self._enough(item):
                    self._wake_for(self._next_check(now))
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

    def _patience_s(self, item: _Object) -> float:
        """How much longer than a brief hold requests wait for the block hashes of a new object."""
        return 0.0 if item.prepared or not self.settings.hold_s_per_byte else _HASHING_S

    def _threshold(self, item: _Object) -> int:
        threshold = self.settings.threshold
        return min(threshold, self._warm_threshold()) if item.warm else threshold

    def _next_check(self, now: float) -> float:
        every = self.settings.check_every_s
        return now if every <= 0 else -(-now // every) * every

    def _wake_for(self, at: float) -> None:
        self.wake_at = min(self.wake_at, at)

    def _tidy(self, key: str, item: _Object) -> None:
        if not item.held and not item.queued and item.session is None and not item.warm:
            del self._objects[key]
