"""Decides which symbol of which block is sent next, and when the session ends. Pure.

Laws:

- Pass 0 is the source, each block with its parity. Repair is sent on demand, as soon as it is
  requested. For blocks that have been sent this is during pass 0, so that receivers decode while
  they receive and have few incomplete blocks.
- Requests of several receivers for one block are joined by maximum (codes that count) or by union
  (codes that do not): the worst receiver decides, not the sum.
- Requests of late receivers (`server.multicast.receivers`) have a queue of their own. It is served
  while no receiver on time wants anything.
- A report names the last datagram that its receiver saw. Symbols sent later are on their way and
  are not sent again.
- The sender never idles while a request is open. With none it sends marks at growing intervals,
  until all members are done, gone or silent for too long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

from ...protocol.fec import BlockLayout, Scheme
from ...protocol.packet import PacketFlag
from ...protocol.session import Action, ReceiverReport
from .receivers import Receivers
from .repair import (
    TUNING,
    EndedBlocks,
    NackAggregator,
    Repair,
    at_least,
    surely_enough,
    wants_source,
)
from .schedule_steps import CarouselSettings, Mark, Phase, Run


class Carousel:
    """The schedule of one session for one object.

    `now` must not run backwards. After each call, call `next_step` until it returns None, and again
    at `wake_at`.
    """

    def __init__(
        self,
        layout: BlockLayout,
        scheme: Scheme,
        settings: CarouselSettings,
        now: float,
    ) -> None:
        self._layout = layout
        self._scheme = scheme
        self._settings = settings
        #: Read-only for others: they join, report and are sent away by the carousel.
        self.receivers = Receivers(settings, now)
        self.phase = Phase.GATHER
        self.pass_number = 0
        #: There are fewer members than `needed`: they fetch the object by unicast meanwhile.
        self.waiting = settings.needed > 0
        #: The latest start of pass 0; while `waiting`, the time at which the session is given up.
        self.starts_at = now + (settings.gather_s if self.waiting else settings.lead_s)
        self.wake_at = self.starts_at
        self._first_pass = self._source_pass()
        self._pending: tuple[int, int, int] | None = None
        #: The number of the next datagram, as in the framer.
        self._sequence = 0
        self._wants, self._late_wants = NackAggregator(), NackAggregator()
        #: (number of the next datagram, time) every `_SENT_EVERY_S`, kept for 2 s.
        self._sent_at: deque[tuple[int, float]] = deque(maxlen=1000)
        self._has_predicted = False
        self._ended = EndedBlocks(layout.blocks)
        #: The source of all blocks below this one was sent.
        self._out = 0
        self._listen_since = now
        self._mark_at = now
        self._mark_gap_s = settings.mark_every_s
        self._marks_to_close = settings.close_marks
        self._fixed_left = settings.fixed_passes
        #: Symbols sent for receivers on time, and for late ones.
        self._sent_symbols = self._late_symbols = 0
        #: How often a receiver on time requested more after the end of a pass.
        self._rounds = 0
        self._total_symbols = sum(layout.k(block) for block in range(layout.blocks))

    # --- members -----------------------------------------------------------------------------

    def sent_s_ago(self, sequence: int, now: float) -> float | None:
        """The approximate age of the datagram with these low 32 bits; None if it is too old."""
        behind = (self._sequence - 1 - sequence) & 0xFFFFFFFF
        at = bisect_right(self._sent_at, (self._sequence - 1 - behind, now))
        return now - self._sent_at[at - 1][1] if at else None

    @property
    def first_pass_left_bytes(self) -> int:
        """The bytes of pass 0 that are left; 0 once it is over."""
        over = self.phase in (Phase.LISTEN, Phase.CLOSED) or self.pass_number > 0
        return 0 if over else max(1, self._layout.size_bytes - self.front_bytes)

    @property
    def front_bytes(self) -> int:
        """The bytes of the source that were sent without a gap."""
        return min(self._out * self._layout.block_bytes, self._layout.size_bytes)

    def has_sent(self, block: int) -> bool:
        """Whether the source of this block and of all before it has been sent."""
        return block < self._out

    def join(self, member: str, now: float, address: str = "") -> None:
        """Add a receiver that got the offer. `address` is what counts as one ("": its name)."""
        if self.phase is Phase.CLOSED:
            raise ValueError("the session is closed")
        late = self.phase is not Phase.GATHER
        self.receivers.join(member, now, address=address, late=late)
        if self.waiting and self.receivers.on_time >= self._settings.needed:
            self.waiting = False
            self.starts_at = now + self._settings.lead_s
            # A mark tells the members to stop their unicast downloads.
            self._mark_at = self.wake_at = now

    def send_away(self, member: str, now: float) -> None:
        """Remove a receiver that was told to use unicast."""
        self.receivers.send_away(member)
        self._promote()
        self.wake_at = now

    def report(self, report: ReceiverReport, now: float) -> Action:
        """Add a report. Returns the answer's action."""
        if self.phase is Phase.CLOSED:
            return "closed"
        late = self.receivers.is_late(report.member)
        action = self.receivers.report(report, now)
        self.wake_at = now
        if action != "continue":
            self._promote()
        if action == "continue" and report.state == "receiving" and self._settings.repair:
            # A receiver with more loss may be sent to unicast soon: the first pass goes before it.
            first_pass = self.pass_number == 0 and self.phase is Phase.SEND
            if not first_pass or report.loss <= self._settings.worst_loss:
                self._add_wants(report, self._late_wants if late else self._wants)
        return action

    def _promote(self) -> None:
        """If no receiver on time is left, the late ones count as on time."""
        if self.receivers.promote():
            self._wants, self._late_wants = self._late_wants, NackAggregator()
            self._sent_symbols += self._late_symbols
            self._late_symbols = 0

    def _add_wants(self, report: ReceiverReport, wants: NackAggregator) -> None:
        # `report.sequence` has the low 32 bits of the last datagram that the receiver saw.
        behind = (self._sequence - 1 - report.sequence) & 0xFFFFFFFF
        # After a forged future number all datagrams count as seen.
        seen = self._sequence - 1 - (behind if behind <= self._sequence else 0)
        # Wants for blocks that were not sent yet are ignored.
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
        """The repair state of a block. Symbols sent for the other group count from the start."""
        if block not in wants.repairs:
            other = self._late_wants if wants is self._wants else self._wants
            if block in other.repairs:
                wants.repairs[block] = other.repairs[block].copy_sent()
        return wants.of(block)

    # --- sending -----------------------------------------------------------------------------

    def next_step(self, now: float, limit: int) -> Run | Mark | None:
        """The next symbols to send, at most `limit`, or a mark; None: nothing before `wake_at`."""
        step = self._next_step(now, limit)
        # The times of datagrams are recorded at this interval, for `sent_s_ago`.
        if step is not None and (not self._sent_at or now - self._sent_at[-1][1] >= 0.002):
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
            if self._settings.repair and not self.receivers:
                # All receivers are done or gone.
                self.close(now)
                break
            run = self._next_repair(self._wants, limit) or self._next_first(limit, now)
            if run is None:
                self._wants.recall()
                run = self._next_repair(self._wants, limit)
            if run is not None:
                self._sent_symbols += len(run.symbols)
                return run
            if self._wants:
                self.wake_at = now + 0.01
                return None
            self._end_pass(now)
        if self.phase is Phase.LISTEN:
            return self._listen(now, limit)
        if self.phase is Phase.CLOSED and self._marks_to_close:
            return self._close_mark(now)
        return None

    def stand(self) -> Mark | None:
        """A mark in the middle of a pass, with the number of datagrams so far.

        Receivers trust this number only in marks. None: no pass is being sent.
        """
        if self.phase is not Phase.SEND:
            return None
        self._sequence += 1
        return Mark(self.pass_number % 256, 0)

    def _may_start(self, now: float) -> bool:
        ready = self.starts_at if self.waiting else self.receivers.ready_at(self.starts_at)
        if self.waiting and (now >= ready or not self.receivers):
            self.close(now)
            return False
        if now < ready:
            self.wake_at = ready
            return False
        if not self.receivers and self._settings.repair:
            self.close(now)
            return False
        self.phase = Phase.SEND
        return True

    def _gather(self, now: float) -> Mark | None:
        """Before pass 0, a mark that ends the unicast downloads of the members; None: not now."""
        if self.waiting or not self._settings.needed or now < self._mark_at:
            return None
        self._mark_at = now + self._settings.slowest_mark_s
        return Mark(0, 0)

    def close(self, now: float) -> None:
        """End the session. A few marks then announce the end."""
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
                    other.repairs[block].add_sent(repair, symbols, self._sequence, k)
                return Run(self.pass_number, block, k, symbols, until=until)
            # There are none, or it has had enough.
            wants.drop_first(again=repair.goal > repair.sent and self._may_go_on(wants))
        return None

    def _next_late(self, limit: int) -> Run | None:
        """The next symbols for late receivers. After the last of them a new pass number follows."""
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

    def _next_first(self, limit: int, now: float) -> Run | None:
        self._pending = self._pending or next(self._first_pass, None)
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
        return Run(self.pass_number, block, k, range(first, stop), until=end)

    def _repair_symbols(self, block: int, repair: Repair, limit: int) -> Sequence[int]:
        if not self._scheme.counts:
            return repair.named_next(limit, self._sequence)
        k = self._layout.k(block)
        start, ring = self._parity_end(k), k + self._scheme.max_repair(k)
        return repair.fresh(limit, k, start, ring, self._sequence)

    def _parity_end(self, k: int) -> int:
        return k + min(self._settings.parity, self._scheme.max_repair(k))

    def _predict_last(self, now: float) -> bool:
        """Request repair for the last blocks by the losses that receivers reported."""
        self._has_predicted = True
        recent = set(self._ended.since(now - TUNING.recent_s))
        for block in range(self._layout.blocks - 1, -1, -1):
            if block not in recent and block in self._wants.repairs:
                break
            self._predict(block, sure=block in recent)
        return bool(self._wants.queue)

    def _predict(self, block: int, *, sure: bool) -> None:
        loss = self.receivers.worst_loss()
        predicts = self._settings.repair and self._scheme.counts and self.pass_number == 0
        if not predicts or loss <= 0:
            return
        k = self._layout.k(block)
        lacking = surely_enough(k, loss, self.receivers.on_time) if sure else at_least(k, loss)
        lacking -= self._parity_end(k) - k
        if lacking > 0:
            repair = self._repair(self._wants, block)
            repair.predict(lacking)
            if repair.goal > repair.sent:
                self._wants.enqueue(block)

    def _end_pass(self, now: float) -> None:
        if self.pass_number == 0 and not self._has_predicted and self._predict_last(now):
            return
        self._fixed_left -= 1
        if self._fixed_left > 0:
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
        self.receivers.forget_silent(self._listen_since, now)
        self._promote()
        if not self.receivers or not self._settings.repair or self._wants.queue:
            # Without multicast repair the marks announce the end of the pass.
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
        members, total = self.receivers, self._total_symbols
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
        """Whether nothing will be sent any more."""
        return self.phase is Phase.CLOSED and not self._marks_to_close
