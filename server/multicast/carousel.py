"""The sender's mind: which symbol of which block goes out next, and when the session is over. Pure.

Laws:

- Pass 0 is the source, once, each block followed by the parity the plan asks for. Every later pass
  sends only what reports about the pass before asked for.
- Among several receivers the worst decides, not the sum: wants of one block are joined by maximum
  (codes that count) or by union (codes that do not). The work per pass does not depend on the
  number of receivers.
- A report about pass p speaks of the moment p ended, so it is exact even when pass p+1 already
  runs: a want that grows puts only the difference behind what was sent.
- The line never idles while something wanted is known; with nothing known the sender marks the
  end of its pass, ever more slowly, until every member is done, gone or silent for too long.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol.fec import BlockLayout, Scheme
from protocol.packet import PacketFlag
from protocol.session_report import Report

#: A want of this share of a block is met by its source: a late joiner then never decodes.
_SOURCE_AGAIN = 0.75


class Phase(enum.Enum):
    """Where a session stands."""

    GATHER = "gather"
    SEND = "send"
    LISTEN = "listen"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CarouselSettings:
    """How patient a session is. Times are seconds.

    `lead_s` is the longest wait for joins before pass 0, `repair` says whether wants are answered
    by multicast, `worst_loss` is the loss above which a receiver is told to go to unicast.
    """

    lead_s: float = 0.15
    #: With everybody joined, still wait so long for more of the same cohort; inf: never early.
    settle_s: float = 0.03
    parity: int = 0
    repair: bool = True
    max_passes: int = 60
    fixed_passes: int = 1
    mark_every_s: float = 0.02
    slowest_mark_s: float = 0.25
    member_timeout_s: float = 3.0
    worst_loss: float = 0.6
    judge_after_datagrams: int = 500
    close_marks: int = 3
    #: What a session may send, in source passes: this much, and as much again for every receiver
    #: that ever joined. One member that never has enough cannot keep the line busy for ever.
    most_passes_sent: float = 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """Symbols of one block to send back to back; `symbols` is ascending, never empty.

    `until`: symbols below it will follow soon.
    """

    pass_number: int
    block: int
    k: int
    symbols: Sequence[int]
    flags: int = 0
    until: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A datagram without payload that says where the sender stands."""

    pass_number: int
    flags: int


@dataclass(slots=True)
class _Member:
    joined: bool = False
    heard_at: float = 0.0
    reported_pass: int = -1
    loss: float = 0.0
    declared_bytes_s: float = float("inf")


class _Pass:
    """What one pass has to send: per block a target, and what of it is sent."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.sent_counts: dict[int, int] = {}
        self.bits: dict[int, int] = {}
        self.sent_bits: dict[int, int] = {}
        self.queue: deque[int] = deque()
        self.queued: set[int] = set()

    def enqueue(self, block: int) -> None:
        if block not in self.queued:
            self.queued.add(block)
            self.queue.append(block)


class Carousel:
    """One session for one object.

    The caller's obligation: `now` never runs backwards; after every call ask `next_step` until it
    returns None, and again at `wake_at` at the latest.
    """

    def __init__(
        self, layout: BlockLayout, scheme: Scheme, settings: CarouselSettings, now: float
    ) -> None:
        self._layout = layout
        self._scheme = scheme
        self._settings = settings
        self._members: dict[str, _Member] = {}
        self.phase = Phase.GATHER
        self.pass_number = 0
        self.starts_at = now + settings.lead_s
        self.wake_at = self.starts_at
        self._first_pass = self._source_pass()
        self._pending: tuple[int, int, int] | None = None
        self._current = _Pass()
        self._next = _Pass()
        self._reopened = False
        self._cursor: dict[int, int] = {}
        self._listen_since = now
        self._mark_at = now
        self._mark_gap_s = settings.mark_every_s
        self._marks_to_close = settings.close_marks
        self._fixed_left = settings.fixed_passes
        self.done_members = 0
        self.lost_members = 0
        self._joins = 0
        self._last_join = now
        self._sent_symbols = 0
        self._total_symbols = sum(layout.k(block) for block in range(layout.blocks))

    # --- members -----------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """How many receivers are expected to report."""
        return len(self._members)

    def join(self, member: str, now: float, declared_bytes_s: float = float("inf")) -> None:
        """A receiver was given the offer."""
        if self.phase is Phase.CLOSED:
            raise ValueError("the session is closed")
        self._joins += 1
        self._last_join = now
        self._members[member] = _Member(heard_at=now, declared_bytes_s=declared_bytes_s)

    def leave(self, member: str, now: float) -> None:
        """A receiver is known to be gone."""
        self._members.pop(member, None)
        self.wake_at = now

    def slowest_declared_bytes_s(self) -> float:
        """The least rate a member said it can take."""
        return min((m.declared_bytes_s for m in self._members.values()), default=float("inf"))

    def losses(self) -> list[float]:
        """The last loss each member reported."""
        return [m.loss for m in self._members.values()]

    def report(self, report: Report, now: float) -> str:
        """Take a report; the action to answer with: continue, unicast or closed."""
        member = self._members.get(report.member)
        if member is None or self.phase is Phase.CLOSED:
            return "closed"
        member.heard_at = now
        member.joined = True
        member.loss = report.loss
        self.wake_at = now
        if report.state in ("done", "left"):
            del self._members[report.member]
            self.done_members += report.state == "done"
            return "closed"
        if self._too_lossy(report):
            del self._members[report.member]
            self.lost_members += 1
            return "unicast"
        if report.state == "receiving" and self._settings.repair:
            self._take_wants(member, report)
        return "continue"

    def _too_lossy(self, report: Report) -> bool:
        settings = self._settings
        return (
            report.expected >= settings.judge_after_datagrams and report.loss > settings.worst_loss
        )

    def _take_wants(self, member: _Member, report: Report) -> None:
        # Pass numbers travel modulo 256; only the pass that just ended, or is just being
        # followed up, can be meant.
        age = (self.pass_number - report.pass_number) % 256
        if age == 0 and self.phase is Phase.LISTEN:
            target = self._next
        elif age == 1 and self.phase in (Phase.SEND, Phase.LISTEN) and self.pass_number > 0:
            target = self._current
        else:
            return
        member.reported_pass = self.pass_number - age
        blocks = self._layout.blocks
        follow_up = member.reported_pass + 1
        for block, count in report.counts.items():
            if block < blocks and self._scheme.counts:
                count += self._margin(count, member.loss, follow_up)
                if count > target.counts.get(block, 0):
                    target.counts[block] = count
                    target.enqueue(block)
        for block, bits in report.symbols.items():
            if block < blocks and not self._scheme.counts:
                bits &= (1 << self._layout.k(block)) - 1
                if bits & ~target.bits.get(block, 0):
                    target.bits[block] = target.bits.get(block, 0) | bits
                    target.enqueue(block)
        if target is self._current and target.queue and self.phase is Phase.LISTEN:
            self.phase = Phase.SEND
            self._reopened = True

    @staticmethod
    def _margin(count: int, loss: float, pass_number: int) -> int:
        """What to add to a want because repair is lost, too.

        Nothing at first, when receivers still differ and the worst decides anyway; later, when a
        pass is a handful of symbols and mostly waiting, the expected loss rounded, then rounded up.
        """
        if pass_number < 2:
            return 0
        expected = count * min(loss, 0.5)
        return math.ceil(expected) if pass_number > 2 else round(expected)

    # --- sending -----------------------------------------------------------------------------

    def next_step(self, now: float, limit: int) -> Run | Mark | None:
        """What to send now, at most `limit` symbols; None: nothing before `wake_at`."""
        if self.phase is Phase.GATHER and not self._may_start(now):
            return None
        while self.phase is Phase.SEND:
            if self._settings.repair and not self._members:
                # Everybody is served or gone; nobody is there to send the rest to.
                self.close(now)
                break
            run = self._next_run(limit)
            if run is not None:
                self._sent_symbols += len(run.symbols)
                return run
            self._end_pass(now)
        if self.phase is Phase.LISTEN:
            return self._listen(now, limit)
        if self.phase is Phase.CLOSED and self._marks_to_close:
            return self._close_mark(now)
        return None

    def _may_start(self, now: float) -> bool:
        members = self._members.values()
        early = self.starts_at
        if members and all(m.joined for m in members):
            early = min(early, self._last_join + self._settings.settle_s)
        if now < early:
            self.wake_at = early
            return False
        if not members and self._settings.repair:
            self.close(now)
            return False
        self.phase = Phase.SEND
        return True

    def close(self, now: float) -> None:
        """End the session; a few marks still say so."""
        self.phase = Phase.CLOSED
        self._mark_at = now
        self.wake_at = now

    def _source_pass(self) -> Iterator[tuple[int, int, int]]:
        for block in range(self._layout.blocks):
            k = self._layout.k(block)
            yield block, 0, k
            parity = min(self._settings.parity, self._scheme.max_repair(k))
            if parity:
                self._cursor[block] = k + parity
                yield block, k, k + parity

    def _next_run(self, limit: int) -> Run | None:
        if self.pass_number == 0 or self._fixed():
            return self._next_first(limit)
        current = self._current
        while current.queue:
            block = current.queue[0]
            symbols = (
                self._fresh(block, limit) if self._scheme.counts else self._named(block, limit)
            )
            if symbols:
                k = self._layout.k(block)
                left = current.counts.get(block, 0) - current.sent_counts.get(block, 0)
                until = symbols[-1] + 1 + max(0, left) if symbols[-1] >= k else 0
                return Run(self.pass_number, block, k, symbols, until=until)
            current.queue.popleft()
            current.queued.discard(block)
        return None

    def _fixed(self) -> bool:
        return self._settings.fixed_passes > 1

    def _next_first(self, limit: int) -> Run | None:
        if self._pending is None:
            self._pending = next(self._first_pass, None)
        if self._pending is None:
            return None
        block, first, end = self._pending
        stop = min(end, first + limit)
        self._pending = (block, stop, end) if stop < end else None
        return Run(self.pass_number, block, self._layout.k(block), range(first, stop), until=end)

    def _fresh(self, block: int, limit: int) -> Sequence[int]:
        """The next symbols of the ring source + repair that nobody has seen for longest."""
        current = self._current
        k = self._layout.k(block)
        sent = current.sent_counts.get(block, 0)
        target = current.counts[block]
        if target >= _SOURCE_AGAIN * k:
            target = max(target, k)
            if sent < k:
                stop = min(k, sent + limit)
                current.sent_counts[block] = stop
                return range(sent, stop)
        count = min(limit, target - sent)
        if count <= 0:
            return ()
        ring = k + self._scheme.max_repair(k)
        first = self._cursor.get(block, k) % ring
        count = min(count, ring - first)
        self._cursor[block] = first + count
        current.sent_counts[block] = sent + count
        if self._reopened:
            # Others have already counted this pass as over: what goes out now serves them, too.
            ahead = self._next.sent_counts
            ahead[block] = ahead.get(block, 0) + count
        return range(first, first + count)

    def _named(self, block: int, limit: int) -> Sequence[int]:
        current = self._current
        sent = current.sent_bits.get(block, 0)
        bits = current.bits[block] & ~sent
        symbols: list[int] = []
        while bits and len(symbols) < limit:
            low = bits & -bits
            symbols.append(low.bit_length() - 1)
            bits ^= low
            sent |= low
        current.sent_bits[block] = sent
        return symbols

    def _end_pass(self, now: float) -> None:
        self._fixed_left -= 1
        if self._fixed() and self._fixed_left > 0:
            self.pass_number += 1
            self._first_pass = self._source_pass()
            return
        self.phase = Phase.LISTEN
        self._listen_since = now
        self._mark_gap_s = self._settings.mark_every_s
        self._mark_at = now

    def _listen(self, now: float, limit: int) -> Run | Mark | None:
        if self._next.queue and self._may_go_on():
            self.pass_number += 1
            self._current, self._next = self._next, _Pass()
            self._reopened = False
            self.phase = Phase.SEND
            return self.next_step(now, limit)
        self._forget_silent(now)
        if not self._members or not self._settings.repair or self._next.queue:
            # Without multicast repair the marks still say that the pass is over.
            self.close(now)
            return self._close_mark(now)
        if now < self._mark_at:
            self.wake_at = self._mark_at
            return None
        self._mark_at = self.wake_at = now + self._mark_gap_s
        self._mark_gap_s = min(self._mark_gap_s * 1.5, self._settings.slowest_mark_s)
        return Mark(self.pass_number % 256, PacketFlag.LAST_IN_PASS)

    def _may_go_on(self) -> bool:
        settings = self._settings
        most_symbols = self._total_symbols * (settings.most_passes_sent + self._joins)
        return self.pass_number + 1 < settings.max_passes and self._sent_symbols < most_symbols

    def _forget_silent(self, now: float) -> None:
        timeout = self._settings.member_timeout_s
        silent = [
            name
            for name, member in self._members.items()
            if now - max(member.heard_at, self._listen_since) > timeout
        ]
        for name in silent:
            del self._members[name]
            self.lost_members += 1

    def _close_mark(self, now: float) -> Mark | None:
        if now < self._mark_at:
            self.wake_at = self._mark_at
            return None
        self._marks_to_close -= 1
        self._mark_at = self.wake_at = now + self._settings.mark_every_s
        flags = PacketFlag.LAST_IN_PASS | PacketFlag.CLOSE_OBJECT | PacketFlag.CLOSE_SESSION
        return Mark(self.pass_number % 256, flags)

    @property
    def finished(self) -> bool:
        """Whether nothing will ever be sent again."""
        return self.phase is Phase.CLOSED and not self._marks_to_close
