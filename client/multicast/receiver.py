"""The receiver's mind: datagrams in, verified blocks out, reports to send. Pure.

Laws:

- Blocks are believed as `client.multicast.blocks` says.
- A datagram that is not of this session, or whose tag is wrong, changes a counter and nothing
  else. Other members can make good tags: which pass it is, that it or the session is over, how
  many datagrams there were, and that the origin still sends is believed of signed marks and of
  blocks that verify only.
- A report names the last datagram seen and what is wanted at that very moment; the sender counts
  from there. During a pass only blocks that are over are asked for, at its end all.

A receiver that is given the same datagrams in any order, any number of times, with any of them
missing or altered, ends with the right blocks or with a list of the missing ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ...protocol.fec import BlockDecoder, scheme_for
from ...protocol.marks import MarkChecker
from ...protocol.packet import (
    HEADER,
    MAGIC,
    PAYLOAD_OFFSET,
    SEALED_HEADER,
    VERSION,
    PacketFlag,
    PacketSealer,
    PacketType,
    newer,
)
from ...protocol.session import Offer, ReceiverReport, ReportAnswer
from .blocks import BlockCollector, Space, Write


class ReportTuning(NamedTuple):
    """When a receiver reports what it lacks, and when it leaves."""

    #: Cohorts that spread reports over more than this let a new pass overtake them.
    suppress_window_s: float = 0.25
    #: Other members' datagrams prove no life; after this many silences blocks must come.
    sure_silences: float = 3.0
    #: Fewer datagrams than this
    likely_datagrams: int = 16
    #: at this many times the offered rate are taken as sent.
    likely_rates: float = 1.5
    #: Towards the end of a pass reports come up to this many times as often.
    most_hurry: int = 8
    #: A session is too fast once this many times the user's limit has come
    limit_slack: float = 1.25
    #: over this time; a busy host reads a second late.
    limit_after_s: float = 4.0
    #: A report stays below the 64 KiB that a server takes;
    most_blocks: int = 3000
    #: the rest follows after the next pass.
    most_digits: int = 40_000


TUNING = ReportTuning()


_SYMBOL_KIND = VERSION << 4 | PacketType.SYMBOL
_MARK_KIND = VERSION << 4 | PacketType.MARK


class MulticastReceiver(BlockCollector):
    """One object on its way in.

    The caller's obligation: call `take_all` for datagrams, `due` whenever `wake_at` is reached,
    `answered` for each answer, and stop when `finished` or `given_up`. It gives up where the
    session is faster than `limit_bytes_s`.
    """

    def __init__(
        self,
        offer: Offer,
        hashes: Sequence[bytes],
        write: Write,
        rng: random.Random,
        now: float,
        space: Space,
        have: Callable[[int], bool] = lambda block: False,
        limit_bytes_s: float = float("inf"),
    ) -> None:
        super().__init__(offer.layout(), scheme_for(offer.fec), hashes, write, have, space)
        self.offer = offer
        self.given_up: str | None = None
        self._rng = rng
        self._fresh_tag = PacketSealer(offer.key).fresh
        self._marks = MarkChecker(offer.mark_key)
        self._session, self._object = offer.session, offer.object
        self._silence_s = offer.silence_s
        self._symbol_bytes = offer.fec.symbol_bytes
        self._k = offer.fec.block_symbols
        self._last_block = self.layout.blocks - 1
        self._last_k = self.layout.k(self._last_block) if self.layout.blocks else 0
        self._window_s = offer.report_window_s
        self._pass = 0
        self._ended_pass = -1
        self._state: str | None = None
        self._state_pass = 0
        self._every_s = offer.report_every_s
        self._ask_at = float("inf")
        #: The highest block whose source was seen: those below it are over.
        self._over_below = 0
        self._report_at = now if offer.report_joined else float("inf")
        if offer.report_joined:
            self._state = "joined"
        self._done_reported = False
        self._last_sequence = 0
        #: The number of datagrams up to a sequence number, that number, and when it came.
        self._counted, self._counted_to, self._counted_at = 0, 0, now
        #: Whether that number was signed.
        self._marked = False
        self._delays = DelayWatch()
        self._lag_us = self._room_us = 0
        #: Of the newest datagram.
        self._sent_us: int | None = None
        self.silent_at = now + offer.start_in_s + offer.silence_s
        #: Until then any datagram counts as a sign of life; moved on by what only the origin sends.
        self._sure_until = now + offer.start_in_s + TUNING.sure_silences * offer.silence_s
        self.has_received = False
        self._received_at = now
        self._limit_bytes_s = limit_bytes_s

    # --- datagrams in -------------------------------------------------------------------------

    def take_all(self, datagrams: Iterable[memoryview], now: float) -> None:
        """Datagrams in the order in which they came. Never raises for what is in them."""
        # The hot path of a receiver: at 1 Gb/s the loop runs 80 000 times a second, so the common
        # case (a good symbol of an open block) is written out with few calls and attributes.
        counters, fresh_tag, opened = self.counters, self._fresh_tag, self._open
        own_session, own_object, size = self._session, self._object, self._symbol_bytes
        last, sent_us, good = self._last_sequence, self._sent_us, 0
        try:
            for datagram in datagrams:
                if len(datagram) < PAYLOAD_OFFSET:
                    counters.malformed += 1
                    continue
                magic, kind, flags, session, obj, number, k, block, symbol, sequence, sent, tag = (
                    SEALED_HEADER.unpack_from(datagram)
                )
                if magic != MAGIC or session != own_session or obj != own_object:
                    counters.foreign += 1
                    continue
                payload = datagram[PAYLOAD_OFFSET:]
                state = fresh_tag()
                state.update(datagram[: HEADER.size])
                state.update(payload)
                if state.digest() != tag:
                    counters.forged += 1
                    continue
                if kind == _MARK_KIND:
                    if not self._take_mark(datagram, number, flags, sequence, now):
                        counters.forged += 1
                        continue
                    # Whatever others wrote into theirs.
                    last = sequence
                elif kind != _SYMBOL_KIND:
                    counters.malformed += 1
                    continue
                if not self.has_received:
                    self._first_received(sequence, now)
                    last = sequence
                good += 1
                if (sequence - last) & MASK < 1 << 31:
                    last, sent_us = sequence, sent
                if kind == _SYMBOL_KIND:
                    decoder = opened.get(block)
                    if (
                        decoder is not None
                        and len(payload) == size
                        and k == (self._k if block != self._last_block else self._last_k)
                    ):
                        if decoder.add(symbol, payload):
                            self._finish_block(block, decoder, now)
                    else:
                        if self._over_below < block <= self._last_block and symbol < k:
                            self._over_below = block
                        self._take_symbol(k, block, symbol, payload, now)
        finally:
            self._last_sequence, self._sent_us = last, sent_us
            counters.datagrams += good
            if good:
                self.silent_at = min(now + self._silence_s, self._sure_until)

    def _first_received(self, sequence: int, now: float) -> None:
        self.has_received, self._received_at = True, now
        self._last_sequence = sequence
        if not self._marked:
            self._counted_to, self._counted_at = (sequence - 1) & MASK, now
        if self._every_s:
            self._ask_at = now + self._every_s * (0.5 + self._rng.random() / 2)

    def sample_delay(self, arrived_us: int | None, now: float) -> None:
        """When the datagram taken last reached this host, by any clock in microseconds."""
        if arrived_us is not None and self._sent_us is not None:
            self._delays.add((arrived_us - self._sent_us) & MASK, now)

    def note_lag(self, waited_us: int, room_us: int) -> None:
        """The newest datagram waited `waited_us` in this host before it was read; it can wait for
        `room_us` before some are lost (0: unknown)."""
        self._lag_us, self._room_us = max(0, waited_us), room_us

    def _finish_block(self, block: int, decoder: BlockDecoder, now: float) -> None:
        left = self._left
        super()._finish_block(block, decoder, now)
        if self._left < left:
            self._sure_until = now + TUNING.sure_silences * self._silence_s

    def _take_mark(
        self,
        datagram: memoryview,
        pass_number: int,
        flags: int,
        sequence: int,
        now: float,
    ) -> bool:
        """Believe a mark that the origin signed; False: it did not, or this is an old one."""
        header, signature = bytes(datagram[: HEADER.size]), bytes(datagram[PAYLOAD_OFFSET:])
        if self._marked and not newer(sequence, self._counted_to, 32):
            return False
        if not self._marks.is_signed(header, signature):
            return False
        sent = (sequence - self._counted_to) & MASK if self.has_received else 1
        self._counted += sent if self._marked else min(sent, self._likely(now))
        self._marked, self._counted_to, self._counted_at = True, sequence, now
        self._sure_until = now + TUNING.sure_silences * self._silence_s
        if newer(pass_number, self._pass, 8):
            self._pass_ended(self._pass, now)
            self._pass = pass_number
        if flags & PacketFlag.LAST_IN_PASS and pass_number == self._pass:
            self._pass_ended(pass_number, now)
        closed = flags & (PacketFlag.CLOSE_OBJECT | PacketFlag.CLOSE_SESSION)
        if closed and self._left and self.given_up is None:
            self.given_up = "the sender closed the session"
        return True

    # --- reports out --------------------------------------------------------------------------

    @property
    def wake_at(self) -> float:
        """When `due` wants to be called at the latest."""
        return min(self._report_at, self._ask_at, self.silent_at if self._left else float("inf"))

    @property
    def report_pending(self) -> bool:
        return self._state is not None

    @property
    def front_bytes(self) -> int:
        """How far the first pass has come."""
        return min(self._over_below * self.layout.block_bytes, self.layout.size_bytes)

    @property
    def pass_left_s(self) -> float:
        """How long the first pass still takes, about."""
        return (self.layout.size_bytes - self.front_bytes) / self.offer.rate_bytes_s

    def due(self, now: float) -> ReceiverReport | None:
        """The report to send now, if any; also notices silence."""
        if now >= self.silent_at and self._left and self.given_up is None:
            what = "stopped" if self.has_received else "never came"
            self.given_up = f"datagrams {what} for {self.offer.silence_s:g} s"
        if self._left and self.given_up is None and self._is_too_fast(now):
            self.given_up = "the session is faster than this receiver's limit"
        if now >= self._report_at and self._state is not None:
            return self._scheduled_report(now)
        if now >= self._ask_at:
            self._ask_at = now + self._pause_s() if self._left else float("inf")
            first = self._done.find(0)
            if 0 <= first < self._over_below:
                return self._make("receiving", now, self._over_below)
        return None

    def _is_too_fast(self, now: float) -> bool:
        """Whether more comes than this receiver said it can take; the others outvoted it."""
        since_s = now - self._received_at
        came_bytes = self.counters.datagrams * self._symbol_bytes
        most_bytes = TUNING.limit_slack * self._limit_bytes_s * since_s
        return self.has_received and since_s >= TUNING.limit_after_s and came_bytes > most_bytes

    def _pause_s(self) -> float:
        """Until the next report during a pass: shorter towards its end, so that little
        is left to request and to decode when all receivers wait."""
        return min(self._every_s, max(self.pass_left_s / 2, self._every_s / TUNING.most_hurry))

    def _scheduled_report(self, now: float) -> ReceiverReport | None:
        state, self._state, self._report_at = self._state, None, float("inf")
        assert state is not None
        if state != "receiving":
            return self._make(state, now)
        if not self._left:
            return None
        if self._window_s > TUNING.suppress_window_s and self._pass != self._state_pass:
            # In a large cohort a new pass already sends at least as much for another receiver:
            # ask again after it.
            self._ended_pass = -1
            return None
        return self._make(state, now, self.layout.blocks)

    def answered(self, answer: ReportAnswer) -> None:
        """The sender's answer to a report."""
        self._window_s = answer.report_window_s
        if answer.action != "continue" and self._left and self.given_up is None:
            why = "the sender closed the session"
            if answer.action == "unicast":
                why = "the sender asked this receiver to use unicast"
            self.given_up = why

    def report_failed(self) -> None:
        """A report did not arrive: the next mark of the same pass asks for it again."""
        self._ended_pass = -1
        if not self._left:
            self._done_reported = False

    def leave(self, now: float) -> ReceiverReport:
        """The report of a receiver that goes on by unicast, or is stopped."""
        return self._make("done" if not self._left else "left", now)

    def _pass_ended(self, pass_number: int, now: float) -> None:
        if pass_number == self._ended_pass or not self._left:
            return
        self._ended_pass = pass_number
        self._over_below = self.layout.blocks
        self._schedule("receiving", now)

    def _complete(self, now: float) -> None:
        if not self._done_reported:
            self._done_reported = True
            self._ask_at = float("inf")
            self._schedule("done", now)

    def _schedule(self, state: str, now: float) -> None:
        self._state, self._state_pass = state, self._pass
        self._report_at = now + self._rng.random() * self._window_s

    def _make(self, state: str, now: float, below: int = 0) -> ReceiverReport:
        """A report of this moment, with the wants of all blocks below `below`."""
        if below:
            self._drop_known()
            if not self._left:
                state = "done"
        counting = self._scheme.counts
        return ReceiverReport(
            self.offer.member,
            state,
            self._pass,
            sequence=self._last_sequence,
            expected=self._expected(now),
            received=self.counters.datagrams,
            overruns=self.counters.overruns,
            queue_ms=self._delays.standing_us() // 1000,
            lag_ms=self._lag_us // 1000,
            room_ms=self._room_us // 1000,
            counts=dict(self._wanted_counts(below)) if below and counting else {},
            symbols=dict(self._wanted_symbols(below)) if below and not counting else {},
        )

    def _expected(self, now: float) -> int:
        """How many datagrams there were: as the marks say, and since the newest as is likely."""
        if not self.has_received:
            return 0
        since = (self._last_sequence - self._counted_to) & MASK
        return self._counted + min(since, self._likely(now))

    def _likely(self, now: float) -> int:
        per_s = self.offer.rate_bytes_s / (self._symbol_bytes + PAYLOAD_OFFSET)
        return TUNING.likely_datagrams + int(TUNING.likely_rates * per_s * (now - self._counted_at))

    def came_elsewhere(self, now: float) -> None:
        """The caller got blocks another way; if that was all, the sender is told."""
        self._drop_known()
        if not self._left:
            self._complete(now)

    def _wanted_counts(self, below: int) -> Iterator[tuple[int, int]]:
        for block in islice(self.missing_blocks(below), TUNING.most_blocks):
            decoder = self._open.get(block)
            yield block, decoder.missing if decoder else self.layout.k(block)

    def _wanted_symbols(self, below: int) -> Iterator[tuple[int, int]]:
        digits = TUNING.most_digits
        for block in self.missing_blocks(below):
            digits -= self.layout.k(block) // 4
            if digits < 0:
                return
            decoder = self._open.get(block)
            yield block, decoder.wanted if decoder else (1 << self.layout.k(block)) - 1


MASK = 0xFFFFFFFF


class DelayWatch:
    """How much longer than the shortest the way has become for all delays of an interval.

    Like CoDel (RFC 8289, 3.1) it takes the least of an interval: bursts and busy receivers raise
    some samples, a full queue raises all; a few tell nothing, and wait for more. The shortest is
    forgotten after a minute at most, since two hosts' clocks drift apart by a few milliseconds in
    that time.
    """

    forget_s = 30.0
    least_samples = 4

    def __init__(self) -> None:
        self._base: list[int | None] = [None, None]
        self._turned_at: float | None = None
        self._least: int | None = None
        self._samples = 0

    def add(self, delay_us: int, now: float) -> None:
        """A sample, modulo 2^32."""
        if self._turned_at is None or now - self._turned_at > self.forget_s:
            self._turned_at = now
            self._base = [self._base[1], None]
        self._base[1] = self._less(self._base[1], delay_us)
        self._least = self._less(self._least, delay_us)
        self._samples += 1

    def standing_us(self) -> int:
        """The growth that all samples show since it was last said; 0 while they are few."""
        if self._samples < self.least_samples:
            return 0
        base, least = self._base[1], self._least
        self._least, self._samples = None, 0
        if base is None or least is None:
            return 0
        if self._base[0] is not None:
            base = self._less(self._base[0], base)
        return (least - base) & MASK

    @staticmethod
    def _less(left: int | None, right: int) -> int:
        return right if left is None or newer(left, right, 32) else left
