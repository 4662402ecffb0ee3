"""The cap on what leaves the server, shared fairly: deficit rounds among downloads that can send.

Downloads that the cap holds back stand in a ring. Each tick adds `rate * elapsed` to a budget, and
the ring is served one quantum at a time until the budget is spent. A quantum goes to a *share*: all
connections of one download, which take turns in it, so many connections get no more than one. A
sender whose peer takes no more leaves its share until its socket is writable again, so slow clients
keep what they can take and the others share the rest: max-min fairness, at a cost set by the
bandwidth and not by the number of clients.

Shares in the *background* stand in a ring of their own. It has its turns when nobody else can send,
and else so few that none of them gets more than a small part of another's share.

Senders that were told to pause get a trickle before all others, because clients give up when their
socket stays silent (`policies.keep_alive`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Any, Protocol

from ...policies.keep_alive import BACKGROUND_WEIGHT, KEEP_ALIVE, KeepAliveBudget
from ..http.clock import Clock, cancel
from .request_queue import RequestQueue, network_of

TICK_S = 0.01
#: What a turn is: at least this on a ring that is short, more on a fast link, where turns cost CPU.
_QUANTUM_BYTES = 16 * 1024
_QUANTUM_S = 0.001
#: No turn is shorter than a packet, and a round of the ring lasts no longer than this if it can be.
_PACKET_BYTES, _ROUND_S = 1448, 1.0
#: The budget never holds more than this much time's worth, so an idle link makes no long burst.
_BURST_S = 0.05
#: or this much while somebody waits: a busy machine ticks late, and the line would be lost.
_LATE_S = 0.25
#: What left without asking is paid back for at most this much of the line's time. More would keep
#: large downloads waiting for a flood that is over.
_MOST_DEBT_S = 2.0
#: What the part of a process is kept for it while it has no turn.
_CLAIM_S = 0.03
_GOODPUT_WINDOW_S = 1.0
#: Trickles that are due within this of each other leave together.
_TOGETHER_S = 0.05
#: A paused sender that could not begin is asked again after this, seconds.
_BEGINS_S = 0.5


class Paced(Protocol):
    """A body sender as the pacer sees it."""

    share: Share
    #: When it last sent something, and how much it has sent.
    sent_at_s: float
    sent_bytes: int

    def push(self, most_bytes: int) -> int:
        """Send about so many bytes now; returns how many went.

        TLS has to offer once more what it could not send, so a little more may go. Fewer than
        asked means that the sender cannot go on now (blocked, paused or over): it leaves the ring
        and calls `Pacer.ready` again when it can.
        """
        ...

    def trickle(self, most_bytes: int) -> int | None:
        """Send a little although it is paused; None, and no more, when it is not paused now."""
        ...

    def uncapped(self) -> None:
        """The cap was lifted while this sender stood in the ring: go on without turns."""
        ...


class Others(Protocol):
    """Other processes that send on the same line."""

    def tell(self, sent_bytes_total: int, waiting: int) -> None:
        """What this process has sent, and how many of its downloads the cap holds back."""
        ...

    def sent_bytes(self) -> int:
        """What all others have sent."""
        ...

    def waiting(self) -> int:
        """How many downloads the cap holds back at others."""
        ...

    def tell_kept(self, paused: int, spent_bytes_total: int) -> None:
        """How many are paused in this process, and what it has spent to keep them alive."""
        ...

    def kept(self) -> tuple[int, int]:
        """The same of all others."""
        ...


class Alone:
    """There are none: `Others` of one process."""

    def tell(self, sent_bytes_total: int, waiting: int) -> None:
        """Nobody hears it."""

    def sent_bytes(self) -> int:
        """Nothing."""
        return 0

    def waiting(self) -> int:
        """Nobody."""
        return 0

    def tell_kept(self, paused: int, spent_bytes_total: int) -> None:
        """Nobody hears it."""

    def kept(self) -> tuple[int, int]:
        """Nobody, and nothing."""
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
        #: Whether it only gets what others leave; one in front has its next turn yet.
        self.background = False
        self.senders: deque[Paced] = deque()
        self.in_ring = False

    def push(self, most_bytes: int) -> int:
        """Let the senders that stand here send so much together; returns how much went."""
        left = most_bytes
        while left > 0 and self.senders:
            paced = self.senders.popleft()
            sent = paced.push(left)
            if sent >= left:
                self.senders.append(paced)
            left -= sent
        return most_bytes - left


class Pacer:
    """Shares `bandwidth_bytes_s` (None: no cap) and measures what leaves.

    Where `others` send under the same cap, each pays from its own budget for what they send too,
    and spends its part by how many downloads wait here and there: nothing is divided beforehand,
    and what one does not use the others have within a few ticks.

    The cap counts HTTP bytes, header and body; TCP/IP headers add about 3 % on a 1 500-byte link.
    """

    def __init__(
        self,
        reactor: Clock,
        bandwidth_bytes_s: float | None = None,
        others: Others | None = None,
    ) -> None:
        self._reactor = reactor
        self._others: Others = others if others is not None else Alone()
        self._others_sent = self._others.sent_bytes()
        self._bandwidth_bytes_s = bandwidth_bytes_s
        self._ring: deque[Share] = deque()
        self._behind: deque[Share] = deque()
        #: Small downloads by network, those that can send; and the shares of networks that are
        #: beyond their share, which have what is left until they are within it again.
        self._small: dict[str, Share] = {}
        self._beyond: deque[Share] = deque()
        #: What of a turn the background has come to have by turns of others.
        self._behind_due = 0.0
        self._budget = 0.0
        #: What of it was given back, see `give_back`.
        self._given = 0.0
        #: What of the budget this process may spend: all, or its part where others wait, too.
        self._due = 0.0
        self._last_tick_s = reactor.seconds()
        self._tick_call: Any = None
        #: Whether the budget was spent at the last tick while somebody still stood in the ring.
        self._short = False
        #: Requests whose answers do not ask for turns; see `RequestQueue`.
        self.requests = RequestQueue()
        #: Large downloads that wait for the line elsewhere: paused, or in the queue.
        self.waiting_downloads = 0
        self.sent_bytes_total = 0
        self._marks: deque[tuple[float, int]] = deque()
        #: Paused senders by when their next trickle is due, with their last burst; one that resumed
        #: goes when it surfaces.
        self._paused: list[tuple[float, int, float, Paced]] = []
        self._keep_alive = KeepAliveBudget(reactor.seconds())
        self._kept_total = 0
        self._others_kept = self._others.kept()[1]
        self._pauses = 0
        self._trickle_call: Any = None

    @property
    def capped(self) -> bool:
        """Whether there is a cap at all."""
        return self._bandwidth_bytes_s is not None

    @property
    def bandwidth_bytes_s(self) -> float | None:
        """The cap; None for none."""
        return self._bandwidth_bytes_s

    def set_bandwidth(self, bandwidth_bytes_s: float | None) -> None:
        """Change the cap; running transfers feel it at the next tick."""
        self._bandwidth_bytes_s = bandwidth_bytes_s
        if bandwidth_bytes_s is None:
            self._short, self._given = False, 0.0
            self.requests.let_all_go()
            ring, self._ring = self._ring + self._behind + self._beyond, deque()
            self._behind.clear()
            self._beyond.clear()
            self._small.clear()
            for share in ring:
                share.in_ring = False
                senders, share.senders = share.senders, deque()
                for paced in senders:
                    paced.uncapped()
            self._tell()

    @property
    def link_busy(self) -> bool:
        """Whether the cap, right now, holds somebody back.

        A transfer in the ring until the next tick is not held back: under a cap far too high there
        is always somebody whose socket has just taken up again.
        """
        return self._short

    def charge(self, count: int) -> None:
        """Note bytes that left without asking (a packet, a trickle); later ones pay for them."""
        self.sent_bytes_total += count
        rate = self._bandwidth_bytes_s
        if rate is not None:
            self._budget = max(self._budget - count, -_MOST_DEBT_S * rate)
        self._tell()

    def charge_answers(self, count: int) -> None:
        """The same of answers: requests wait once what left of them is more than is due."""
        self.requests.granted_bytes -= count
        self.charge(count)
        if self._budget < 0.0 and not self.requests.busy and self.capped:
            self._earn()
            if self._budget < 0.0:
                self.requests.busy = True
                self._tick_soon()

    def _tick_soon(self) -> None:
        if self._tick_call is None:
            self._tick_call = self._reactor.callLater(TICK_S, self._tick)

    def give_back(self, count: int) -> None:
        """So many bytes that were paid for do not leave: their sockets keep them.

        Fewer than none: they have left after all. Nothing is taken that was not given and used
        before, and the line is never silent for long.
        """
        rate = self._bandwidth_bytes_s
        if rate is None:
            return
        most = rate * _LATE_S
        if count > 0:
            given = min(float(count), max(0.0, most - self._budget))
        else:
            given = -min(float(-count), self._given, max(0.0, most + self._budget))
        self._given += given
        self._budget += given

    def _tell(self) -> None:
        self._others.tell(self.sent_bytes_total, self._waiting)

    @property
    def _waiting(self) -> int:
        """Shares that wait for a turn; all of the background as one, if nobody else does."""
        return len(self._ring) or min(1, len(self._behind) + len(self._beyond))

    def ready(self, paced: Paced) -> None:
        """A sender can send: it stands in the ring from now on. Never call twice in a row."""
        share = paced.share
        if share.address:
            share = self._small.setdefault(network_of(share.address), share)
        share.senders.append(paced)
        if not share.in_ring:
            share.in_ring = True
            self._enter(share)
        if self._tick_call is None:
            self._earn()
            self._tick_soon()

    def _enter(self, share: Share) -> None:
        if share.address and self.requests.is_beyond_share(share.address):
            self._beyond.append(share)
        else:
            (self._behind if share.background else self._ring).append(share)

    def _bring_ahead(self) -> None:
        """Shares that are not in the background, or beyond their part, any more stand in front."""
        behind = self._behind
        for _ in range(len(self._beyond)):
            self._enter(self._beyond.popleft())
        for _ in range(len(behind)):
            self._enter(behind.popleft())

    def _next(self) -> Share:
        """Whose turn it is."""
        ring, behind, beyond = self._ring, self._behind, self._beyond
        if beyond and not (ring or behind):
            return beyond.popleft()
        if behind and (not ring or self._behind_due >= 1.0):
            self._behind_due = max(0.0, self._behind_due - 1.0)
            return behind.popleft()
        self._behind_due += BACKGROUND_WEIGHT * len(behind) / len(ring)
        return ring.popleft()

    def paused(self, paced: Paced) -> None:
        """A sender was paused: it trickles until its `trickle` says that it is not any more.

        Never call it again before that.
        """
        # One that has sent nothing yet is due at once; for others the last run was a burst.
        begun = paced.sent_bytes >= KEEP_ALIVE.burst_bytes
        burst_s = paced.sent_at_s if begun else -math.inf
        due_s = max(paced.sent_at_s + KEEP_ALIVE.interval_s, self.now()) if begun else self.now()
        self._pauses += 1
        heapq.heappush(self._paused, (due_s, self._pauses, burst_s, paced))
        if self._paused[0][3] is paced:
            self._wake_for_trickle()

    def now(self) -> float:
        """The reactor's clock, in seconds."""
        return float(self._reactor.seconds())

    def goodput_bytes_s(self) -> float:
        """What left lately, averaged over about a second of calls to this."""
        now = self._reactor.seconds()
        marks = self._marks
        marks.append((now, self.sent_bytes_total))
        while len(marks) > 2 and marks[1][0] <= now - _GOODPUT_WINDOW_S:
            marks.popleft()
        elapsed_s = now - marks[0][0]
        return (self.sent_bytes_total - marks[0][1]) / elapsed_s if elapsed_s > 0 else 0.0

    def _earn(self) -> None:
        now = self._reactor.seconds()
        rate = self._bandwidth_bytes_s
        if rate is not None:
            most = max(
                rate * (_BURST_S if self._tick_call is None else _LATE_S), 2.0 * _QUANTUM_BYTES
            )
            earned = rate * max(0.0, now - self._last_tick_s)
            sent = self._others.sent_bytes()
            self._budget = min(most, self._budget + earned - (sent - self._others_sent))
            self._others_sent = sent
            waiting, own = self._others.waiting(), self._waiting
            part = own / (own + waiting) if waiting else 1.0
            # What lies unspent for longer than its owners' next turn is anybody's.
            free = self._budget - (rate * _CLAIM_S if waiting else 0.0)
            self._due = min(self._budget, max(self._due + part * earned, free))
            self._grant(part * earned, rate)
        self._last_tick_s = now

    def _grant(self, earned_bytes: float, rate_bytes_s: float) -> None:
        """What requests may have: half of the line beside large downloads, else all of it."""
        requests, large = self.requests, len(self._ring) + len(self._behind)
        networks = max(1, requests.networks)
        large = max(large, self.waiting_downloads)
        # Where many networks ask, large downloads keep their half.
        sharing = max(networks + large, 2 * networks) if large else networks
        requests.share_bytes_s = rate_bytes_s / sharing
        requests.shares.earn(earned_bytes / sharing)
        if large:
            most = min(_BURST_S * rate_bytes_s, self._budget + _BURST_S * rate_bytes_s)
            requests.granted_bytes = min(most, requests.granted_bytes + 0.5 * earned_bytes)
        else:
            requests.granted_bytes = self._budget

    def _quantum_bytes(self, rate_bytes_s: float) -> int:
        """Short turns keep the round short: of a slow link, and of a long ring."""
        most = max(_QUANTUM_BYTES, rate_bytes_s * _QUANTUM_S)
        least = min(_PACKET_BYTES, rate_bytes_s * _BURST_S)
        return int(max(1.0, least, min(most, rate_bytes_s * _ROUND_S / max(1, len(self._ring)))))

    def _tick(self) -> None:
        self._earn()
        self._tick_call = None
        self._bring_ahead()
        ring, behind, beyond = self._ring, self._behind, self._beyond
        requests, rate = self.requests, self._bandwidth_bytes_s
        if requests.busy and rate is not None:
            requests.refuse_oldest(self._last_tick_s)
            requests.serve(
                within_share=bool(ring or behind),
                alone=not (ring or behind or self.waiting_downloads),
            )
        if (ring or behind or beyond) and rate is not None:
            # No turn is larger than what the budget can hold.
            quantum = min(self._quantum_bytes(rate), int(max(1.0, rate * _BURST_S)))
            if self._due < self._budget:
                # However small this process's part is, it must be enough for a turn some day.
                quantum = min(quantum, max(_PACKET_BYTES, int(self._due)))
            while (ring or behind or beyond) and self._due >= quantum:
                share = self._next()
                sent = share.push(quantum)
                self._budget -= sent
                self._due -= sent
                self.sent_bytes_total += sent
                if share.address:
                    requests.charge(share.address, sent)
                if share.senders:
                    self._enter(share)
                else:
                    share.in_ring = False
                    self._small.pop(network_of(share.address), None)
        self._short = bool(ring or behind or beyond or requests)
        requests.busy = rate is not None and (self._short or self._budget < 0.0)
        self._tell()
        if requests.busy:
            self._tick_soon()

    def _wake_for_trickle(self) -> None:
        if not self._paused:
            return
        delay_s = max(_TOGETHER_S, self._paused[0][0] - self.now())
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
        interval_s = keep_alive.interval_s(len(self._paused) + paused)
        due: list[tuple[float, Paced]] = []
        while self._paused and self._paused[0][0] <= now + _TOGETHER_S:
            due.append(heapq.heappop(self._paused)[2:])
        for burst_s, paced in due:
            due_s = paced.sent_at_s + interval_s
            if paced.sent_bytes < KEEP_ALIVE.burst_bytes or due_s <= now + _TOGETHER_S:
                most_bytes = keep_alive.share(now - burst_s, counts=paced.share.counts_body)
                sent = paced.trickle(most_bytes)
                if sent is None:
                    continue
                self.charge(sent)
                keep_alive.spend(sent)
                self._kept_total += sent
                if sent >= KEEP_ALIVE.burst_bytes:
                    burst_s = now
                # It may be that its socket takes nothing: then there is enough under way. One that
                # could not begin yet soon can.
                due_s = now + (interval_s if paced.sent_bytes else _BEGINS_S)
            self._pauses += 1
            heapq.heappush(self._paused, (due_s, self._pauses, burst_s, paced))
        self._others.tell_kept(len(self._paused), self._kept_total)
        self._wake_for_trickle()
