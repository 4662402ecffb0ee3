"""The cap on what leaves the server, shared fairly: deficit round robin among downloads.

Each tick adds `rate * elapsed` to a budget, and the ring is served one quantum at a time until the
budget is spent. A quantum goes to a *share*: all connections of one download take turns in it. Many
connections get no more than one. A sender whose socket is full leaves its share until the
socket is writable again. So slow clients keep what they can take and the others share the rest:
max-min fairness, at a cost set by the bandwidth and not by the number of clients.

Shares in the *background* have a ring of their own. It gets turns while the other ring is empty,
and otherwise so few that no share in it gets more than a small part of another share. The first
turn after a pause is in front and as large as a keep-alive burst: else a short run has no turn.

Small downloads have a ring of their own, one share a network. Beside large ones it gets up to half
of what leaves, together with requests, and all until it is a second of the line ahead of that half:
in a burst the shortest go first. Networks beyond their share, or that fetch again and again
while all such have more than their part together, wait until nothing else wants a turn. What small
downloads have beyond their part while the sockets of large ones are full is kept small.

Paused senders get a few keep-alive bytes before all others, because clients give up when their
socket stays silent (`policies.keep_alive`).

A transfer has exactly one `TransferState`, and only `Pacer.move` changes it. `Pacer.misplaced`
counts transfers that are not where their state says.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, Protocol

from twisted.logger import Logger

from ...policies.keep_alive import BACKGROUND_WEIGHT, KEEP_ALIVE, KeepAliveBudget
from ..http.clock import Clock, cancel
from .request_queue import RequestQueue, network_of

_log = Logger()


@dataclass(frozen=True, slots=True)
class PacerTuning:
    """The pacer's times (seconds), sizes (bytes) and parts."""

    #: The ring is served this often.
    tick_s: float = 0.01
    #: Least length of a turn in a short ring.
    quantum_bytes: int = 16 * 1024
    #: A turn on a fast link is this much of its time, because turns cost CPU.
    quantum_s: float = 0.001
    #: No turn is shorter than a TCP segment of Ethernet.
    packet_bytes: int = 1448
    #: A round of the ring lasts no longer than this while turns can be that short.
    round_s: float = 1.0
    #: No turn takes longer on a slow link.
    longest_turn_s: float = 0.05
    #: The budget of an idle link never exceeds this time's worth. What left in a burst stands
    #: before the line until it is idle again, and all that leaves later waits behind it.
    burst_s: float = 0.02
    #: The least budget while a transfer waits. It is three times the usual time between ticks: a
    #: busy machine ticks late, and its line would be lost. One late tick does not make a burst.
    least_late_s: float = 0.05
    #: The most, however late ticks are, and the most that is given back.
    late_s: float = 0.25
    #: Small downloads and requests may have been given this much of the line beyond their half. A
    #: burst of 51 small and 69 large ones: the small ones take 0.5 instead of 1.2 s in the mean.
    ahead_s: float = 1.0
    #: Bytes that left without a turn are paid back for at most this much of the line's time.
    #: With more, large downloads would wait for a flood that is over.
    most_debt_s: float = 2.0
    #: Small downloads beyond their part have no more than this under way beside large ones. Those
    #: take turns with them before the line while their sockets are full: one address that fetched
    #: small files cost 40 people +10 to +150 %, and costs +15 to +40 %.
    spare_s: float = 0.01
    #: A download that had such a turn is watched for this long: slow readers leave the others a
    #: tenth of the line.
    spare_look_s: float = 0.1
    #: Large downloads want the line if they had this part of it within `large_s`. Slower ones would
    #: not use what small ones leave.
    large_part: float = 1.0 / 16.0
    #: What they had counts for about this long.
    large_s: float = 0.5
    #: A process without a turn keeps its part of the budget for this long.
    claim_s: float = 0.03
    #: Goodput is a mean over about this long.
    goodput_window_s: float = 1.0
    #: Keep-alive bytes that are due within this time of each other leave together.
    together_s: float = 0.05
    #: Most of them in one turn of the loop, about 2 ms; the others leave one tick later.
    at_once: int = 50
    #: A paused sender that could not begin is asked again after this.
    begins_s: float = 0.5
    #: A share whose sender has stood in the ring for this long without a byte gets the next turn: a
    #: download in the background is not silent for longer than a paused one.
    starved_s: float = KEEP_ALIVE.interval_s
    #: Starved shares are looked for this often.
    starved_look_s: float = 0.5


PACING = PacerTuning()


class TransferState(Enum):
    """Where a transfer stands."""

    #: It waits for its header, the disk, a comparison of its file, or its listener.
    HELD_UP = "held up"
    #: It waits for its turn under the cap, in front or in the background.
    RING = "ring"
    #: It waits until its socket takes more.
    SOCKET = "socket"
    #: It sends only keep-alive bytes.
    PAUSED = "paused"
    OVER = "over"


class Paced(Protocol):
    """A body sender as the pacer sees it. `Pacer.move` owns the fields from `state` on."""

    share: Share
    #: When it last sent something.
    sent_at_s: float
    sent_bytes: int
    state: TransferState
    #: Since when.
    state_since_s: float
    #: The share in whose ring entry it waits: of its download, or of its network.
    stands_in: Share | None
    #: The number of its pause; an entry of the keep-alive queue with another number is stale.
    pause_number: int
    #: When it last sent a keep-alive burst, or ended a run that brought as much.
    burst_at_s: float
    #: What it had sent when it began to run last.
    run_from_bytes: int

    def push(self, most_bytes: int) -> int:
        """Send about this many bytes now; returns how many went.

        TLS must be offered again what it could not send, so a little more may go. A sender that
        cannot go on (full socket, paused, over) moves out of the ring before this returns.
        """

    def flying_bytes(self) -> int:
        """How many bytes were sent and not acknowledged."""

    def trickle(self, most_bytes: int) -> int:
        """Send a little although it is paused; returns how many bytes went."""

    def watch_socket(self, *, watches: bool) -> None:
        """Whether to hear that the socket takes more."""

    def uncapped(self) -> None:
        """The cap was lifted while this sender stood in the ring: go on without turns."""


class Others:
    """Other processes that send on the same line; here there are none."""

    def tell(self, sent_bytes_total: int, waiting: int) -> None:
        """What this process has sent, and how many of its downloads the cap holds back."""

    def sent_bytes(self) -> int:
        """What all others have sent."""
        return 0

    def waiting(self) -> int:
        """How many downloads the cap holds back at others."""
        return 0

    def tell_kept(self, paused: int, spent_bytes_total: int) -> None:
        """How many are paused in this process, and what it has spent to keep them alive."""

    def kept(self) -> tuple[int, int]:
        """The same of all others."""
        return 0, 0


class Share:
    """One download's part of what leaves: its connections take turns in it.

    Small downloads have an `address`: all of its network take turns in one share.
    """

    __slots__ = ("__weakref__", "address", "background", "counts_body", "in_ring", "senders")

    def __init__(self, *, counts_body: bool = False, address: str = "") -> None:
        self.address = address
        #: Whether its program is known to count bytes of the body, see `policies.keep_alive`.
        self.counts_body = counts_body
        #: Whether it gets only what others leave. It moves between the rings at the next tick.
        self.background = False
        #: The senders that wait for a turn, in order.
        self.senders: dict[Paced, None] = {}
        self.in_ring = False

    def push(self, most_bytes: int) -> int:
        """Let the senders that wait here send this much together; returns how much went."""
        left = most_bytes
        while left > 0 and self.senders:
            paced = next(iter(self.senders))
            if not self.address:
                # Small ones are done sooner one after the other.
                del self.senders[paced]
                self.senders[paced] = None
            sent = paced.push(left)
            full, left = sent >= left, left - sent
            if not full and paced in self.senders:
                # It may not stay, but another turn is better than a loop.
                break
        return most_bytes - left


class Pacer:
    """Shares `bandwidth_bytes_s` (None: no cap) and measures what leaves.

    Where `others` send under the same cap, each pays from its own budget for what they send too,
    and spends its part by how many downloads wait here and there: nothing is divided beforehand,
    and what one does not use the others have within a few ticks.

    The cap counts HTTP bytes, header and body; TCP/IP headers add about 3 % on a 1 500-byte link.
    """

    def __init__(
        self, reactor: Clock, bandwidth_bytes_s: float | None = None, others: Others | None = None
    ) -> None:
        self._reactor = reactor
        self._others = others if others is not None else Others()
        self._others_sent = self._others.sent_bytes()
        self._bandwidth_bytes_s = bandwidth_bytes_s
        self._ring: deque[Share] = deque()
        self._behind: deque[Share] = deque()
        #: Small downloads by network, those that can send. They have up to half of the line beside
        #: large ones; networks that are beyond their share have what is left.
        self._small: dict[str, Share] = {}
        self._quick: deque[Share] = deque()
        self._quick_due = 0.0
        #: What they and requests may have beyond their half of the line.
        self._ahead_bytes = math.inf
        self._beyond: deque[Share] = deque()
        #: Those that had a turn beyond their part beside large downloads, and when.
        self._spare: dict[Paced, float] = {}
        #: What large downloads had lately.
        self._large_bytes = 0.0
        #: What of a turn the background has come to have by turns of others.
        self._behind_due = 0.0
        self._budget = 0.0
        #: What of it was given back, and what of that is owed, see `give_back`.
        self._given = self._owed = 0.0
        #: What of that may lie in the budget beside what was earned.
        self._returned = 0.0
        #: What of the budget this process may spend: all, or its part where others wait, too.
        self._due = 0.0
        self._last_tick_s = reactor.seconds()
        self._tick_call: Any = None
        #: When the next tick is due, and the mean time between about eight ticks.
        self._tick_due_s, self._tick_s = 0.0, PACING.tick_s
        #: Whether the budget was spent at the last tick while a transfer still stood in the ring.
        self._short = False
        #: Requests whose answers do not ask for turns; see `RequestQueue`.
        self.requests = RequestQueue()
        #: Networks whose large downloads run, are paused or wait in the queue.
        self.waiting_networks = 0
        self.sent_bytes_total = 0
        self._marks: deque[tuple[float, int]] = deque()
        #: Paused senders with the number of their pause, by when their next keep-alive bytes are
        #: due. Stale entries go when they surface.
        self._paused: list[tuple[float, int, Paced]] = []
        #: How many transfers stand where.
        self.states: Counter[TransferState] = Counter()
        #: Transfers that wait for their sockets, by when they began to.
        self._at_sockets: dict[Paced, None] = {}
        #: Shares that got a turn because their senders had starved in the ring.
        self.starved_total = 0
        self._next_starved_s = -math.inf
        self._keep_alive = KeepAliveBudget(reactor.seconds())
        self._kept_total = 0
        self._others_kept = self._others.kept()[1]
        self._pauses = 0
        self._trickle_call: Any = None

    @property
    def capped(self) -> bool:
        return self._bandwidth_bytes_s is not None

    @property
    def bandwidth_bytes_s(self) -> float | None:
        """The cap; None for none."""
        return self._bandwidth_bytes_s

    @property
    def jammed(self) -> bool:
        """Whether several sockets have taken nothing for a while although there is no cap."""
        # Readers on this machine take all within milliseconds.
        oldest, since_s = islice(self._at_sockets, 16), self.now() - 0.05
        return not self.capped and sum(paced.sent_at_s <= since_s for paced in oldest) >= 8

    def set_bandwidth(self, bandwidth_bytes_s: float | None) -> None:
        """Change the cap; running transfers feel it at the next tick."""
        self._bandwidth_bytes_s = bandwidth_bytes_s
        if bandwidth_bytes_s is None:
            self._short, self._given, self._owed, self._returned = False, 0.0, 0.0, 0.0
            self.requests.let_all_go()
            shares = [*self._ring, *self._behind, *self._quick, *self._beyond]
            for ring in (self._ring, self._behind, self._quick, self._beyond):
                ring.clear()
            self._small.clear()
            self._spare.clear()
            freed = [paced for share in shares for paced in share.senders]
            for share in shares:
                share.in_ring = False
            for paced in freed:
                self.move(paced, TransferState.HELD_UP)
            for paced in freed:
                if paced.state is TransferState.HELD_UP:
                    with _log.failuresHandled("A transfer could not go on without a cap"):
                        paced.uncapped()
            self._tell()

    @property
    def link_busy(self) -> bool:
        """Whether the cap holds a transfer back now.

        A transfer in the ring until the next tick is not held back: under a cap far too high there
        is always a transfer whose socket has just taken up again.
        """
        return self._short

    def charge(self, count: int) -> None:
        """Note bytes that left without asking (a packet, a trickle); later ones pay for them."""
        self.sent_bytes_total += count
        rate = self._bandwidth_bytes_s
        if rate is not None:
            self._budget = max(self._budget - count, -PACING.most_debt_s * rate)
            self._due = max(self._due - count, -PACING.most_debt_s * rate)
        self._tell()

    def charge_answers(self, count: int) -> None:
        """The same of answers: requests wait once what left of them is more than is due."""
        self.requests.granted_bytes -= count
        self._ahead_bytes -= count
        self.charge(count)
        if self._budget < 0.0 and not self.requests.busy and self.capped:
            self._earn()
            if self._budget < 0.0:
                self.requests.busy = True
                self._tick_soon()

    def _tick_soon(self) -> None:
        if self._tick_call is None:
            self._tick_due_s = self.now() + PACING.tick_s
            self._tick_call = self._reactor.callLater(PACING.tick_s, self._tick)

    def give_back(self, count: int) -> None:
        """Bytes that were paid for do not leave: their sockets keep them.

        Fewer than none: they have left after all. Nothing is taken that was not given and used
        before. Half of what the line earns pays for it, so that requests do not wait for it.
        """
        rate = self._bandwidth_bytes_s
        if rate is None:
            return
        most, owned = rate * PACING.late_s, self._budget - self._owed
        if count > 0:
            given = min(float(count), max(0.0, most - owned))
        else:
            given = -min(float(-count), self._given, max(0.0, most + owned))
        self._given += given
        free = max(0.0, given - self._owed)
        self._returned += free
        self._owed = max(0.0, self._owed - given)
        self._budget += free
        self._due += free

    def _tell(self) -> None:
        self._others.tell(self.sent_bytes_total, self._waiting)

    @property
    def _waiting(self) -> int:
        """Shares that wait for a turn; all of the background as one, if no other does."""
        front = len(self._ring) + len(self._quick)
        return front or min(1, len(self._behind) + len(self._beyond))

    # -- where transfers stand -----------------------------------------------------------------

    def add(self, paced: Paced) -> None:
        """A transfer that stands still begins; it ends when it is moved to `OVER`."""
        self.states[paced.state] += 1

    def move(self, paced: Paced, to: TransferState) -> None:
        """A transfer stands elsewhere from now on. Harmless when it stands there already."""
        was = paced.state
        if was is to or was is TransferState.OVER:
            return
        match was:
            case TransferState.RING if paced.stands_in is not None:
                del paced.stands_in.senders[paced]
                paced.stands_in = None
            case TransferState.SOCKET:
                del self._at_sockets[paced]
                paced.watch_socket(watches=False)
            case TransferState.PAUSED:
                paced.run_from_bytes = paced.sent_bytes
        paced.state = to
        paced.state_since_s = self.now()
        self.states[was] -= 1
        self.states[to] += 1
        match to:
            case TransferState.RING:
                self._enter_ring(paced)
            case TransferState.SOCKET:
                self._at_sockets[paced] = None
                paced.watch_socket(watches=True)
            case TransferState.PAUSED:
                self._enter_pause(paced)

    def misplaced(self) -> int:
        """How many transfers are not where their state says; 0 unless there is a fault."""
        shares = {*self._ring, *self._behind, *self._quick, *self._beyond}
        waiting = [paced for share in shares for paced in share.senders]
        lost = sum(paced.state is not TransferState.RING for paced in waiting)
        lost += abs(self.states[TransferState.RING] - len(waiting))
        lost += abs(self.states[TransferState.SOCKET] - len(self._at_sockets))
        kept = {paced for _, number, paced in self._paused if _is_current(paced, number)}
        return lost + abs(self.states[TransferState.PAUSED] - len(kept))

    def _enter_ring(self, paced: Paced) -> None:
        share = paced.share
        if share.address:
            if not paced.sent_bytes:
                self.requests.body_begins(share.address)
            share = self._small.setdefault(network_of(share.address), share)
        share.senders[paced] = None
        paced.stands_in = share
        if not share.in_ring:
            share.in_ring = True
            self._enter(share)
        if self._tick_call is None:
            self._earn()
            self._tick_soon()

    def _enter_pause(self, paced: Paced) -> None:
        if paced.sent_bytes - paced.run_from_bytes >= KEEP_ALIVE.burst_bytes:
            paced.burst_at_s = paced.sent_at_s
        due_s = self.now()
        # A sender without bytes is due at once.
        if paced.sent_bytes >= KEEP_ALIVE.burst_bytes:
            due_s = max(paced.sent_at_s + KEEP_ALIVE.interval_s, due_s)
        self._pauses += 1
        paced.pause_number = self._pauses
        heapq.heappush(self._paused, (due_s, self._pauses, paced))
        if self._paused[0][2] is paced:
            self._wake_for_trickle()

    def _enter(self, share: Share) -> None:
        if share.address:
            behind = self.requests.stands_behind(share.address)
            (self._beyond if behind else self._quick).append(share)
        elif not share.background:
            self._ring.append(share)
        elif _begins_run(share) and self._keep_alive.bears_burst:
            self._ring.appendleft(share)
        else:
            self._behind.append(share)

    def _sort_into_rings(self) -> None:
        """Move shares that left or entered the background, or that are within their part again."""
        for ring in (self._beyond, self._behind):
            for _ in range(len(ring)):
                self._enter(ring.popleft())

    def _rescue_starved(self) -> None:
        """Give the next turns to shares whose senders got nothing for too long."""
        now = self._last_tick_s
        if now < self._next_starved_s:
            return
        self._next_starved_s = now + PACING.starved_look_s
        for ring in (self._behind, self._beyond):
            starved = [share for share in ring if _starves(share, now)]
            for share in starved:
                ring.remove(share)
                self._ring.appendleft(share)
            self.starved_total += len(starved)

    def _next(self, rate_bytes_s: float) -> Share | None:
        """Which share has the next turn; None: none just now."""
        ring, behind, quick, beyond = self._ring, self._behind, self._quick, self._beyond
        lent = 0.0 if self.requests else self.requests.granted_bytes
        if quick and (self._quick_due > 0.0 or lent > 0.0):
            return quick.popleft()
        if not (ring or behind):
            small = quick or beyond
            if self._large_take_turns:
                if self._spare_bytes() >= rate_bytes_s * PACING.spare_s:
                    return None
                self._spare.update(dict.fromkeys(islice(small[0].senders, 1), self._last_tick_s))
            return small.popleft()
        if behind and (not ring or self._behind_due >= 1.0):
            self._behind_due = max(0.0, self._behind_due - 1.0)
            return behind.popleft()
        self._behind_due += BACKGROUND_WEIGHT * len(behind) / len(ring)
        return ring.popleft()

    @property
    def _large_take_turns(self) -> bool:
        """Whether large downloads want the line, though the sockets of all may be full just now."""
        rate = self._bandwidth_bytes_s or 0.0
        had = self._large_bytes >= PACING.large_part * rate * PACING.large_s
        return bool(self._ring or self._behind) or had

    def _spare_bytes(self) -> int:
        """What has not arrived of what small downloads were given beyond their part."""
        for paced, at_s in tuple(self._spare.items()):
            if at_s < self._last_tick_s - PACING.spare_look_s or paced.state is TransferState.OVER:
                del self._spare[paced]
        return sum([paced.flying_bytes() for paced in self._spare])

    def now(self) -> float:
        """The reactor's clock, in seconds."""
        return float(self._reactor.seconds())

    def goodput_bytes_s(self) -> float:
        """What left lately, averaged over about a second of calls to this."""
        now = self._reactor.seconds()
        marks = self._marks
        marks.append((now, self.sent_bytes_total))
        while len(marks) > 2 and marks[1][0] <= now - PACING.goodput_window_s:
            marks.popleft()
        elapsed_s = now - marks[0][0]
        return (self.sent_bytes_total - marks[0][1]) / elapsed_s if elapsed_s > 0 else 0.0

    def _earn(self) -> None:
        now = self._reactor.seconds()
        rate = self._bandwidth_bytes_s
        if rate is not None:
            passed_s = max(0.0, now - self._last_tick_s)
            earned = rate * passed_s
            late_s = min(PACING.late_s, max(PACING.least_late_s, 3.0 * self._tick_s))
            held_s = PACING.burst_s if self._tick_call is None else late_s
            self._returned = max(0.0, self._returned - earned)
            most = max(rate * held_s, 2.0 * PACING.quantum_bytes) + self._returned
            self._large_bytes *= max(0.0, 1.0 - passed_s / PACING.large_s)
            sent = self._others.sent_bytes()
            self._budget = min(most, self._budget + earned - (sent - self._others_sent))
            self._others_sent = sent
            waiting, own = self._others.waiting(), self._waiting
            part = own / (own + waiting) if waiting else 1.0
            paid = min(self._owed, 0.5 * part * earned)
            self._owed -= paid
            self._budget -= paid
            # What lies unspent for longer than its owners' next turn is for all. Each process pays
            # for its own from its part: one that was idle has seen no debt, and would use all that
            # the line earns while the others wait to have paid.
            free = self._budget - (rate * PACING.claim_s if waiting else 0.0)
            due = max(self._due + part * earned - paid, free)
            self._due = min(due, most) if waiting else self._budget
            self._grant(part * earned, rate)
        self._last_tick_s = now

    def _grant(self, earned_bytes: float, rate_bytes_s: float) -> None:
        """What requests and small downloads may have: all, or half beside large ones for long."""
        requests, networks = self.requests, max(1, self.requests.networks, len(self._small))
        # By network: else those of one network, alone on the line, would leave its small ones none.
        running = self._large_take_turns
        large = max(running or bool(self._quick), self.waiting_networks)
        # Where many networks ask, large downloads keep their half.
        sharing = max(networks + large, 2 * networks) if large else networks
        requests.earn(earned_bytes, rate_bytes_s, sharing, self._last_tick_s)
        ahead_bytes = max(-PACING.burst_s * rate_bytes_s, self._ahead_bytes + 0.5 * earned_bytes)
        self._ahead_bytes = min(PACING.ahead_s * rate_bytes_s, ahead_bytes)
        if large:
            whole = 1.0 if self._ahead_bytes > 0.0 else 0.5
            most = min(PACING.burst_s * rate_bytes_s, self._due + PACING.burst_s * rate_bytes_s)
            # Requests and small bodies have a part each, else many of one would stop the other.
            part = 0.5 * whole if running and self._quick else whole
            requests.granted_bytes = min(most, requests.granted_bytes + part * earned_bytes)
            self._quick_due = min(most, self._quick_due + (whole - part) * earned_bytes)
        else:
            requests.granted_bytes = self._due

    def _quantum_bytes(self, rate_bytes_s: float) -> int:
        """Short turns keep the round short: of a slow link, and of a long ring."""
        most = max(PACING.quantum_bytes, rate_bytes_s * PACING.quantum_s)
        least = min(PACING.packet_bytes, rate_bytes_s * PACING.longest_turn_s)
        front = max(1, len(self._ring) + len(self._quick))
        return int(max(1.0, least, min(most, rate_bytes_s * PACING.round_s / front)))

    def _tick(self) -> None:
        # A tick that failed and made no other would freeze all that stands in the ring.
        with _log.failuresHandled("A tick of the pacer failed"):
            self._earn()
            took_s = PACING.tick_s + self._last_tick_s - self._tick_due_s
            self._tick_s += (took_s - self._tick_s) / 8.0
        self._tick_call = None
        with _log.failuresHandled("A tick of the pacer failed"):
            self._serve()
        requests, rate = self.requests, self._bandwidth_bytes_s
        self._short = bool(self._ring or self._behind or self._quick or self._beyond or requests)
        requests.busy = rate is not None and (self._short or self._budget < 0.0)
        self._tell()
        if requests.busy:
            self._tick_soon()

    def _serve(self) -> None:
        """Spend the budget: on requests that wait, then on turns."""
        rate = self._bandwidth_bytes_s
        if rate is None:
            return
        self._sort_into_rings()
        self._rescue_starved()
        ring, behind, quick, beyond = self._ring, self._behind, self._quick, self._beyond
        requests = self.requests
        if requests.busy:
            requests.refuse_oldest(self._last_tick_s)
            requests.serve(
                within_share=bool(ring or behind or quick),
                alone=not (ring or behind or quick or self.waiting_networks),
            )
        # No turn is larger than what the budget can hold.
        quantum = min(self._quantum_bytes(rate), int(max(1.0, rate * PACING.longest_turn_s)))
        if self._due < self._budget:
            # However small this process's part is, it must be enough for a turn some day.
            quantum = min(quantum, max(PACING.packet_bytes, int(self._due)))
        while (ring or behind or quick or beyond) and self._due >= quantum:
            share = self._next(rate)
            if share is None:
                return
            first = share.background and _begins_run(share)
            sent = most = KEEP_ALIVE.burst_bytes if first else quantum
            with _log.failuresHandled("A turn of a download failed"):
                sent = share.push(most)
            if first:
                self._spend_keep_alive(sent)
            self._budget -= sent
            self._due -= sent
            self.sent_bytes_total += sent
            if not share.address:
                self._large_bytes += sent
            else:
                requests.charge_body(share.address, sent)
                self._ahead_bytes -= sent
                if self._quick_due > 0.0:
                    self._quick_due -= sent
                elif not requests and self._large_take_turns:
                    requests.granted_bytes -= sent
            if share.senders:
                self._enter(share)
            else:
                share.in_ring = False
                self._small.pop(network_of(share.address), None)

    def _wake_for_trickle(self) -> None:
        if not self._paused:
            return
        due_s = self._paused[0][0] - self.now()
        delay_s = PACING.tick_s if due_s <= 0.0 else max(PACING.together_s, due_s)
        call = self._trickle_call
        if call is not None and call.active() and call.getTime() <= self.now() + delay_s:
            # However many are paused just now, those that are due are not put off.
            return
        cancel(call)
        self._trickle_call = self._reactor.callLater(delay_s, self._trickle)

    def _trickle(self) -> None:
        self._trickle_call = None
        now = self.now()
        rate = self._bandwidth_bytes_s
        keep_alive = self._keep_alive
        paused, kept = self._others.kept()
        # All pay from one bucket: each takes from its own what others have spent.
        keep_alive.spend(kept - self._others_kept)
        keep_alive.fill(math.inf if rate is None else rate, now)
        self._others_kept = kept
        interval_s = keep_alive.interval_s(self.states[TransferState.PAUSED] + paused)
        due: list[tuple[int, Paced]] = []
        while (
            self._paused
            and self._paused[0][0] <= now + PACING.together_s
            and len(due) < PACING.at_once
        ):
            due.append(heapq.heappop(self._paused)[1:])
        for number, paced in due:
            if not _is_current(paced, number):
                continue
            due_s = paced.sent_at_s + interval_s
            if paced.sent_bytes < KEEP_ALIVE.burst_bytes or due_s <= now + PACING.together_s:
                with _log.failuresHandled("The keep-alive bytes of a download failed"):
                    self._send_keep_alive(paced, now)
                # A socket that takes nothing has enough under way. One that has not begun soon can.
                due_s = now + (interval_s if paced.sent_bytes else PACING.begins_s)
            if _is_current(paced, number):
                heapq.heappush(self._paused, (due_s, number, paced))
        self._others.tell_kept(self.states[TransferState.PAUSED], self._kept_total)
        self._wake_for_trickle()

    def _send_keep_alive(self, paced: Paced, now: float) -> None:
        counts = paced.share.counts_body
        sent = paced.trickle(self._keep_alive.share(now - paced.burst_at_s, counts=counts))
        self.charge(sent)
        self._spend_keep_alive(sent)
        if sent >= KEEP_ALIVE.burst_bytes:
            paced.burst_at_s = now

    def _spend_keep_alive(self, count: int) -> None:
        self._keep_alive.spend(count)
        self._kept_total += count


def _is_current(paced: Paced, pause_number: int) -> bool:
    """Whether this is the pause in which the sender is now."""
    return paced.state is TransferState.PAUSED and paced.pause_number == pause_number


def _begins_run(share: Share) -> bool:
    """Whether the first sender of a share has sent nothing since it was paused."""
    first = next(iter(share.senders), None)
    return first is not None and first.sent_bytes == first.run_from_bytes


def _starves(share: Share, now: float) -> bool:
    """Whether the first sender of a share got nothing for too long."""
    first, least_s = next(iter(share.senders), None), now - PACING.starved_s
    return first is not None and max(first.sent_at_s, first.state_since_s) <= least_s
