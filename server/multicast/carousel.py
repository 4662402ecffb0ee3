"""The sender's mind: which symbol of which block goes out next, and when the session is over. Pure.

Laws:

- Pass 0 is the source, once, each block followed by the parity the plan asks for. Repair is sent
  on demand only, and as soon as it is asked for: in the middle of pass 0 for the blocks that are
  over, so that receivers decode while they receive and hold few open blocks.
- Among several receivers the worst decides, not the sum: wants of one block are joined by maximum
  (codes that count) or by union (codes that do not). The work does not depend on the number of
  receivers.
- Those who came late (`server.multicast.receivers`) get theirs from what the others leave: their
  wants stand in a queue of their own, which is served while nobody on time wants anything.
- A report says up to which datagram it has seen everything that came. A want is counted from
  there: what was sent later is on its way and is not sent again, however late the report is.
- The line never idles while something wanted is known; with nothing known the sender marks the
  end of its pass, ever more slowly, until every member is done, gone or silent for too long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ...protocol.fec import BlockLayout, Scheme
from ...protocol.packet import PacketFlag
from ...protocol.session_report import ReceiverReport
from .nack_aggregation import NackAggregator, Repair, wants_source
from .proactive_repair import RECENT_S, EndedBlocks, at_least, surely_enough
from .receivers import Receivers
from .schedule_steps import CarouselSettings, Mark, Phase, Run

#: How closely the times of datagrams are kept, and how many: for some seconds.
_SENT_EVERY_S, _MOST_SENT = 0.002, 1000
#: When to look again at symbols that are being made, should nobody say that they are ready.
_MAKING_S = 0.01


class Carousel:
    """One session for one object.

    The caller's obligation: `now` never runs backwards; after every call ask `next_step` until it
    returns None, and again at `wake_at` at the latest. `ready(block, first, count)` says how many
    of those repair symbols can be sent at once; it may begin to make the others.
    """

    def __init__(
        self,
        layout: BlockLayout,
        scheme: Scheme,
        settings: CarouselSettings,
        now: float,
        ready: Callable[[int, int, int], int] = lambda block, first, count: count,
    ) -> None:
        self._layout = layout
        self._scheme = scheme
        self._settings = settings
        self._ready = ready
        self._members = Receivers(settings, now)
        self.phase = Phase.GATHER
        self.pass_number = 0
        #: Not enough want the object yet: they fetch it by unicast meanwhile.
        self.waiting = settings.needed > 0
        #: When pass 0 begins at the latest; while waiting, when that is given up.
        self.starts_at = now + (settings.gather_s if self.waiting else settings.lead_s)
        self.wake_at = self.starts_at
        self._first_pass = self._source_pass()
        self._pending: tuple[int, int, int] | None = None
        #: Datagrams handed out so far; the framer counts alike.
        self._sequence = 0
        self._wants, self._late_wants = NackAggregator(), NackAggregator()
        #: Which datagram was the next at a time, every few milliseconds.
        self._sent_at: deque[tuple[int, float]] = deque(maxlen=_MOST_SENT)
        self._foreseen = False
        self._ended = EndedBlocks(layout.blocks)
        #: The blocks below this one have had their source sent.
        self._out = 0
        self._listen_since = now
        self._mark_at = now
        self._mark_gap_s = settings.mark_every_s
        self._marks_to_close = settings.close_marks
        self._fixed_left = settings.fixed_passes
        #: For those on time, and for the late.
        self._sent_symbols = self._late_symbols = 0
        #: How often sending was begun anew because somebody on time wanted more.
        self._rounds = 0
        self._total_symbols = sum(layout.k(block) for block in range(layout.blocks))

    # --- members -----------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """How many receivers are expected to report."""
        return len(self._members)

    @property
    def worst_loss(self) -> float:
        """The greatest loss that one on time has reported, of those that may stay."""
        return self._members.worst_loss()

    @property
    def done_members(self) -> int:
        """How many said that they have everything."""
        return self._members.done

    def expects(self, member: str) -> bool:
        """Whether a report of this receiver counts."""
        return member in self._members

    def sent_s_ago(self, sequence: int, now: float) -> float | None:
        """How long ago about the datagram with these low 32 bits went out; None if too long."""
        behind = (self._sequence - 1 - sequence) & 0xFFFFFFFF
        at = bisect_right(self._sent_at, (self._sequence - 1 - behind, now))
        return now - self._sent_at[at - 1][1] if at else None

    @property
    def first_pass_left_bytes(self) -> int:
        """What is left of the source's first way out; 0 once it is over."""
        over = self.phase in (Phase.LISTEN, Phase.CLOSED) or self.pass_number > 0
        return 0 if over else max(1, self._layout.size_bytes - self.front_bytes)

    @property
    def front_bytes(self) -> int:
        """How far the source was sent without a gap."""
        return min(self._out * self._layout.block_bytes, self._layout.size_bytes)

    def has_sent(self, block: int) -> bool:
        """Whether the source of this block and of all before it has been sent."""
        return block < self._out

    def join(self, member: str, now: float, address: str = "") -> None:
        """A receiver was given the offer; `address` is what counts as one ("": its name)."""
        if self.phase is Phase.CLOSED:
            raise ValueError("the session is closed")
        late = self.phase is not Phase.GATHER
        self._members.join(member, now, address=address, late=late)
        if self.waiting and self.on_time >= self._settings.needed:
            self.waiting = False
            self.starts_at = now + self._settings.lead_s
            # A waiting receiver leaves off with unicast.
            self._mark_at = self.wake_at = now

    def is_late(self, member: str) -> bool:
        """Whether a receiver came after the first datagram, and has no word on how this goes."""
        return self._members.is_late(member)

    @property
    def on_time(self) -> int:
        """How many receivers are expected to report that are not late."""
        return self._members.on_time

    @property
    def punctual(self) -> Sequence[str]:
        """The receivers that are expected to report and are not late."""
        return self._members.punctual

    def send_away(self, member: str, now: float) -> None:
        """A receiver was told to go to unicast."""
        self._members.send_away(member)
        self._promote()
        self.wake_at = now

    def report(self, report: ReceiverReport, now: float) -> str:
        """Take a report; the action to answer with: continue, unicast or closed."""
        if self.phase is Phase.CLOSED:
            return "closed"
        late = self._members.is_late(report.member)
        action = self._members.report(report, now)
        self.wake_at = now
        if action != "continue":
            self._promote()
        if action == "continue" and report.state == "receiving" and self._settings.repair:
            # One that loses this much may be for unicast soon: the others' first pass goes before.
            first_pass = self.pass_number == 0 and self.phase is Phase.SEND
            if not first_pass or report.loss <= self._settings.worst_loss:
                self._take_wants(report, self._late_wants if late else self._wants)
        return action

    def _promote(self) -> None:
        """With nobody on time left, the late are next."""
        if self._members.promote():
            self._wants, self._late_wants = self._late_wants, NackAggregator()
            self._sent_symbols += self._late_symbols
            self._late_symbols = 0

    def _take_wants(self, report: ReceiverReport, wants: NackAggregator) -> None:
        # The report has the low 32 bits of the last datagram it saw; it cannot be a future one.
        behind = (self._sequence - 1 - report.sequence) & 0xFFFFFFFF
        # Where somebody forged such a one, all that was sent counts as seen.
        seen = self._sequence - 1 - (behind if behind <= self._sequence else 0)
        # Nor can anybody lack what was not sent yet.
        blocks = min(self._layout.blocks, self._out + 1)
        if self._scheme.counts:
            for block, count in report.counts.items():
                if block < blocks and count:
                    self._want_count(wants, block, count, seen, report.loss)
        else:
            for block, bits in report.symbols.items():
                if block < blocks:
                    self._want_symbols(wants, block, bits, seen)

    def _want_count(
        self, wants: NackAggregator, block: int, count: int, seen: int, loss: float
    ) -> None:
        repair, k = self._repair(wants, block), self._layout.k(block)
        repair.want_count(count, seen, loss, k, hasty=self.phase is Phase.LISTEN)
        if repair.goal > repair.sent:
            wants.enqueue(block, later=repair.again is not None and self.pass_number == 0)

    def _want_symbols(self, wants: NackAggregator, block: int, bits: int, seen: int) -> None:
        repair, k = self._repair(wants, block), self._layout.k(block)
        bits &= (1 << k) - 1
        repair.want_symbols(bits, seen)
        if repair.bits:
            later = wants_source(bits.bit_count(), k)
            wants.enqueue(block, later=later and self.pass_number == 0)

    def _repair(self, wants: NackAggregator, block: int) -> Repair:
        """What is known of a block; what was sent of it for the others counts from the start."""
        if block not in wants.repairs:
            other = self._late_wants if wants is self._wants else self._wants
            if block in other.repairs:
                wants.repairs[block] = other.repairs[block].beside()
        return wants.of(block)

    # --- sending -----------------------------------------------------------------------------

    def next_step(self, now: float, limit: int) -> Run | Mark | None:
        """What to send now, at most `limit` symbols; None: nothing before `wake_at`."""
        step = self._next_step(now, limit)
        if step is not None and (not self._sent_at or now - self._sent_at[-1][1] >= _SENT_EVERY_S):
            self._sent_at.append((self._sequence, now))
        if isinstance(step, Run):
            self._sequence += len(step.symbols)
        elif step is not None:
            self._sequence += 1
        return step

    def _next_step(self, now: float, limit: int) -> Run | Mark | None:
        if self.phase is Phase.GATHER and not self._may_start(now) and self.phase is Phase.GATHER:
            return self._gather(now)
        while self.phase is Phase.SEND:
            if self._settings.repair and not self._members:
                # Everybody is served or gone; nobody is there to send the rest to.
                self.close(now)
                break
            run = (
                self._next_repair(self._wants, limit)
                or self._next_first(limit, now)
                or self._next_later(limit)
            )
            if run is not None:
                self._sent_symbols += len(run.symbols)
                return run
            if self._wants:
                self.wake_at = now + _MAKING_S
                return None
            self._end_pass(now)
        if self.phase is Phase.LISTEN:
            return self._listen(now, limit)
        if self.phase is Phase.CLOSED and self._marks_to_close:
            return self._close_mark(now)
        return None

    def stand(self) -> Mark | None:
        """A mark in the middle of a pass, which says how many datagrams there were.

        Members believe no other count; so send one now and then. None: nothing is being sent.
        """
        if self.phase is not Phase.SEND:
            return None
        self._sequence += 1
        return Mark(self.pass_number % 256, 0)

    def _may_start(self, now: float) -> bool:
        ready = self.starts_at if self.waiting else self._members.ready_at(self.starts_at)
        if self.waiting and (now >= ready or not self._members):
            self.close(now)
            return False
        if now < ready:
            self.wake_at = ready
            return False
        if not self._members and self._settings.repair:
            self.close(now)
            return False
        self.phase = Phase.SEND
        return True

    def _gather(self, now: float) -> Mark | None:
        """Until pass 0 begins: members that fetch by unicast are told that they are enough."""
        if self.waiting or not self._settings.needed or now < self._mark_at:
            return None
        self._mark_at = now + self._settings.slowest_mark_s
        return Mark(0, 0)

    def close(self, now: float) -> None:
        """End the session; a few marks still say so."""
        self.phase = Phase.CLOSED
        self._mark_at = now
        self.wake_at = now

    def _source_pass(self) -> Iterator[tuple[int, int, int]]:
        for block in range(self._layout.blocks):
            k = self._layout.k(block)
            yield block, 0, k
            end = self._parity_end(k)
            if end > k:
                yield block, k, end

    def _next_repair(self, wants: NackAggregator, limit: int) -> Run | None:
        for _ in range(len(wants.queue)):
            block = wants.queue[0]
            repair = wants.repairs[block]
            symbols = self._repair_symbols(block, repair, limit)
            if symbols and self._may_go_on(wants):
                k = self._layout.k(block)
                left = max(0, repair.goal - repair.sent)
                until = symbols[-1] + 1 + left if symbols[-1] >= k else 0
                other = self._late_wants if wants is self._wants else self._wants
                if block in other.repairs:
                    other.repairs[block].follow(repair, symbols, self._sequence, k)
                return Run(self.pass_number, block, k, symbols, until=until)
            # Its symbols are still being made, or there are none.
            wants.drop_first(again=repair.goal > repair.sent and self._may_go_on(wants))
        return None

    def _next_later(self, limit: int) -> Run | None:
        self._wants.recall()
        return self._next_repair(self._wants, limit)

    def _next_late(self, limit: int) -> Run | None:
        """Something for those who came late; with all of it sent, they are asked again."""
        if not self._late_wants:
            return None
        self._late_wants.recall()
        run = self._next_repair(self._late_wants, limit)
        if run is not None:
            self._late_symbols += len(run.symbols)
        elif not self._late_wants:
            self.pass_number += 1
            self._mark_gap_s = self._settings.mark_every_s
        return run

    def _fixed(self) -> bool:
        return self._settings.fixed_passes > 1

    def _next_first(self, limit: int, now: float) -> Run | None:
        if self._pending is None:
            self._pending = next(self._first_pass, None)
        if self._pending is None:
            return None
        block, first, end = self._pending
        stop = min(end, first + limit)
        self._pending = (block, stop, end) if stop < end else None
        k = self._layout.k(block)
        if stop == end:
            self._out = max(self._out, block + 1)
        if stop == end and self._ended.add(block, now) and block < self._layout.blocks - 1:
            self._predict(block, sure=True)
        if first == 0:
            self._prepare(block, k)
        return Run(self.pass_number, block, k, range(first, stop), until=end)

    def _prepare(self, block: int, k: int) -> None:
        """Have the repair made that this block will most likely need."""
        loss = self._members.worst_loss()
        if self._foresees and (at_least(k, loss) or block >= self._layout.blocks - 2):
            count = surely_enough(k, loss, self._members.on_time)
            if count:
                self._ready(block, k, count)

    def _repair_symbols(self, block: int, repair: Repair, limit: int) -> Sequence[int]:
        if not self._scheme.counts:
            return repair.named_next(limit, self._sequence)
        k = self._layout.k(block)
        start, ring = self._parity_end(k), k + self._scheme.max_repair(k)
        first, count = repair.next_fresh(k, start, ring)
        if first >= k and count:
            limit = min(limit, self._ready(block, first, count))
        return repair.fresh(limit, k, start, ring, self._sequence)

    def _parity_end(self, k: int) -> int:
        return k + min(self._settings.parity, self._scheme.max_repair(k))

    @property
    def _foresees(self) -> bool:
        return self._settings.repair and self._scheme.counts and self.pass_number == 0

    def _foresee(self, now: float) -> bool:
        """Ask on the receivers' behalf what their reported losses say about the last blocks."""
        self._foreseen = True
        recent = set(self._ended.since(now - RECENT_S))
        for block in range(self._layout.blocks - 1, -1, -1):
            if block not in recent and block in self._wants.repairs:
                break
            self._predict(block, sure=block in recent)
        return bool(self._wants.queue)

    def _predict(self, block: int, *, sure: bool) -> None:
        loss = self._members.worst_loss()
        if not self._foresees or loss <= 0:
            return
        k = self._layout.k(block)
        lacking = surely_enough(k, loss, self._members.on_time) if sure else at_least(k, loss)
        lacking -= self._parity_end(k) - k
        if lacking > 0:
            repair = self._repair(self._wants, block)
            repair.foresee(lacking)
            if repair.goal > repair.sent:
                self._wants.enqueue(block)

    def _end_pass(self, now: float) -> None:
        if self.pass_number == 0 and not self._foreseen and self._foresee(now):
            return
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
        if self._wants and self._may_go_on(self._wants):
            self.pass_number += 1
            self._rounds += 1
            self.phase = Phase.SEND
            return self._next_step(now, limit)
        self._members.forget_silent(self._listen_since, now)
        self._promote()
        if not self._members or not self._settings.repair or self._wants.queue:
            # Without multicast repair the marks still say that the pass is over.
            self.close(now)
            return self._close_mark(now)
        if now < self._mark_at:
            run = self._next_late(limit)
            if run is None:
                self.wake_at = self._mark_at
            return run
        self._mark_at = self.wake_at = now + self._mark_gap_s
        self._mark_gap_s = min(self._mark_gap_s * 1.5, self._settings.slowest_mark_s)
        return Mark(self.pass_number % 256, PacketFlag.LAST_IN_PASS)

    def _may_go_on(self, wants: NackAggregator) -> bool:
        members, total = self._members, self._total_symbols
        if wants is self._late_wants:
            return self._late_symbols < total * (1 + len(members.late_addresses))
        most_symbols = total * (self._settings.most_passes_sent + len(members.addresses))
        return self._rounds + 1 < self._settings.max_passes and self._sent_symbols < most_symbols

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
