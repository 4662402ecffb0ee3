"""The receiver's mind: datagrams in, verified blocks out, reports to send. Pure.

Laws:

- Nothing leaves through `write` that does not hash to what the offer says. A block that does not
  verify is dropped whole, counted, and collected afresh.
- A datagram that is not of this session, or whose tag is wrong, changes a counter and nothing
  else.
- A report names the last datagram seen and what is wanted at that very moment; the sender counts
  from there. During a pass only blocks that are over are asked for, at its end all.

A receiver that is given the same datagrams in any order, any number of times, with any of them
missing or altered, ends with the right blocks or with a list of the missing ones.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from protocol.fec import BlockDecoder, Scheme, scheme_for
from protocol.packet import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PAYLOAD_OFFSET,
    VERSION,
    PacketFlag,
    PacketSealer,
    PacketType,
    newer,
)
from protocol.session import Offer
from protocol.session_report import Report, ReportAnswer

_SYMBOL_KIND = VERSION << 4 | PacketType.SYMBOL
_MARK_KIND = VERSION << 4 | PacketType.MARK
_UNPACK = HEADER.unpack_from
_MASK, _HALF = 0xFFFFFFFF, 1 << 31
#: Cohorts whose reports are spread over more than this let a new pass overtake them.
_SUPPRESS_WINDOW_S = 0.25
#: A report stays below the 64 KiB a server takes; the rest is asked for after the next pass.
_MOST_BLOCKS_A_REPORT = 3000
_MOST_DIGITS_A_REPORT = 40_000

Write = Callable[[int, memoryview], object]


class Space(Protocol):
    """Where blocks are collected."""

    def take(self, size: int) -> memoryview:
        """Zeroed memory of `size` bytes."""

    def give_back(self, memory: memoryview) -> None:
        """The block is done; the memory may be used again."""


@dataclass(slots=True)
class ReceiverCounters:
    """What happened, for reports and `--explain`."""

    datagrams: int = 0
    foreign: int = 0
    forged: int = 0
    malformed: int = 0
    useless: int = 0
    bad_blocks: int = 0
    overruns: int = 0


class DelayWatch:
    """How much longer than the shortest the way has become, lasting, not now and then.

    Like CoDel (RFC 8289, 3.1) it takes the least of an interval: bursts and busy receivers raise
    some samples, a full queue raises all. The shortest is forgotten after a minute at most, since
    two hosts' clocks drift apart by a few milliseconds in that time.
    """

    forget_s = 30.0

    def __init__(self) -> None:
        self._base: list[int | None] = [None, None]
        self._turned_at: float | None = None
        self._least: int | None = None

    def add(self, delay_us: int, now: float) -> None:
        """A sample, modulo 2^32."""
        if self._turned_at is None or now - self._turned_at > self.forget_s:
            self._turned_at = now
            self._base = [self._base[1], None]
        self._base[1] = self._less(self._base[1], delay_us)
        self._least = self._less(self._least, delay_us)

    def standing_us(self) -> int:
        """The growth that all samples since the last call show."""
        base, least = self._base[1], self._least
        self._least = None
        if base is None or least is None:
            return 0
        if self._base[0] is not None:
            base = self._less(self._base[0], base)
        return (least - base) & _MASK

    @staticmethod
    def _less(left: int | None, right: int) -> int:
        return right if left is None or newer(left, right, 32) else left


class HeapSpace:
    """Plain memory, never reused."""

    def take(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def give_back(self, memory: memoryview) -> None:
        del memory


class MulticastReceiver:
    """One object on its way in.

    `write(offset, data)` takes verified bytes; `have(block)` says which blocks the caller already
    holds; `space` gives memory to collect blocks in (the caller may back it by a file). The
    caller's obligation: call `take` for each datagram, `due` whenever `wake_at` is reached,
    `answered` for each answer, and stop when `finished` or `given_up`.
    """

    def __init__(
        self,
        offer: Offer,
        hashes: Sequence[bytes],
        write: Write,
        rng: random.Random,
        now: float,
        have: Callable[[int], bool] = lambda block: False,
        space: Space | None = None,
    ) -> None:
        self.offer = offer
        self.layout = offer.layout()
        self.counters = ReceiverCounters()
        self.given_up: str | None = None
        self._scheme = self.scheme_of(offer)
        self._hashes = hashes
        self._write = write
        self._space: Space = space or HeapSpace()
        self._rng = rng
        self._fresh_tag = PacketSealer(offer.key).fresh
        self._session, self._object = offer.session, offer.object
        self._silence_s = offer.silence_s
        self._symbol_bytes = offer.fec.symbol_bytes
        self._k = offer.fec.block_symbols
        self._last_block = self.layout.blocks - 1
        self._last_k = self.layout.k(self._last_block) if self.layout.blocks else 0
        self._memory: dict[int, memoryview] = {}
        self._open: dict[int, BlockDecoder] = {}
        self._done = bytearray(self.layout.blocks)
        self._left = self.layout.blocks
        self._have = have
        self._drop_known()
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
        self._first_sequence = 0
        self._last_sequence = 0
        self._delays = DelayWatch()
        #: Of the newest datagram; None in a mode that does not say.
        self._sent_us: int | None = None
        self.silent_at = now + offer.start_in_s + offer.silence_s
        self.heard = False

    @staticmethod
    def scheme_of(offer: Offer) -> Scheme:
        """The erasure code of an offer."""
        return scheme_for(offer.fec)

    # --- datagrams in -------------------------------------------------------------------------

    def take(self, datagram: memoryview, now: float) -> None:
        """One datagram as it came. Never raises for what is in it."""
        # The hot path of a receiver: at 1 Gb/s this runs 80 000 times a second, so the common
        # case (a good symbol of an open block) is written out without further calls.
        counters = self.counters
        if len(datagram) < PAYLOAD_OFFSET:
            counters.malformed += 1
            return
        magic, kind, flags, session, obj, pass_number, k, block, symbol, sequence, sent = _UNPACK(
            datagram
        )
        if magic != MAGIC or session != self._session or obj != self._object:
            counters.foreign += 1
            return
        payload = datagram[PAYLOAD_OFFSET:]
        state = self._fresh_tag()
        state.update(datagram[:HEADER_BYTES])
        state.update(payload)
        if state.digest() != datagram[HEADER_BYTES:PAYLOAD_OFFSET]:
            counters.forged += 1
            return
        counters.datagrams += 1
        if (sequence - self._last_sequence) & _MASK < _HALF:
            self._last_sequence = sequence
            self._sent_us = sent
        if not self.heard:
            self._hear(sequence, now)
        self.silent_at = now + self._silence_s
        if pass_number != self._pass and newer(pass_number, self._pass, 8):
            self._pass_ended(self._pass, now)
            self._pass = pass_number
        if kind == _SYMBOL_KIND:
            decoder = self._open.get(block)
            if (
                decoder is not None
                and len(payload) == self._symbol_bytes
                and k == (self._k if block != self._last_block else self._last_k)
            ):
                if decoder.add(symbol, payload):
                    self._finish_block(block, decoder, now)
            else:
                if block > self._over_below and symbol < k:
                    self._over_below = block
                self._take_symbol(k, block, symbol, payload, now)
        elif kind != _MARK_KIND:
            counters.malformed += 1
            return
        if flags:
            self._take_flags(pass_number, flags, now)

    def _hear(self, sequence: int, now: float) -> None:
        self.heard = True
        self._first_sequence = self._last_sequence = sequence
        if self._every_s:
            self._ask_at = now + self._every_s * (0.5 + self._rng.random() / 2)

    def sample_delay(self, arrived_us: int | None, now: float) -> None:
        """When the datagram taken last reached this host, by any clock in microseconds."""
        if arrived_us is not None and self._sent_us is not None:
            self._delays.add((arrived_us - self._sent_us) & _MASK, now)

    def _take_symbol(
        self, k: int, block: int, symbol: int, payload: memoryview, now: float
    ) -> None:
        layout = self.layout
        if block >= layout.blocks or len(payload) != layout.symbol_bytes or k != layout.k(block):
            self.counters.malformed += 1
            return
        if self._done[block]:
            self.counters.useless += 1
            return
        decoder = self._open.get(block)
        if decoder is None:
            space = self._space.take(k * layout.symbol_bytes)
            self._memory[block] = space
            decoder = self._open[block] = self._scheme.decoder(k, layout.symbol_bytes, space)
        if decoder.add(symbol, payload):
            self._finish_block(block, decoder, now)

    def _finish_block(self, block: int, decoder: BlockDecoder, now: float) -> None:
        del self._open[block]
        layout = self.layout
        data = decoder.block()[: layout.length(block)]
        good = hashlib.sha256(data).digest() == self._hashes[block]
        if good:
            self._write(layout.offset(block), data)
            self._done[block] = 1
            self._left -= 1
        else:
            self.counters.bad_blocks += 1
        self._space.give_back(self._memory.pop(block))
        if not good:
            return
        if not self._left:
            self._schedule_done(now)

    def _take_flags(self, pass_number: int, flags: int, now: float) -> None:
        if flags & PacketFlag.LAST_IN_PASS and pass_number == self._pass:
            self._pass_ended(pass_number, now)
        closed = flags & (PacketFlag.CLOSE_OBJECT | PacketFlag.CLOSE_SESSION)
        if closed and self._left and self.given_up is None:
            self.given_up = "the sender closed the session"

    # --- reports out --------------------------------------------------------------------------

    @property
    def wake_at(self) -> float:
        """When `due` wants to be called at the latest."""
        return min(self._report_at, self._ask_at, self.silent_at)

    @property
    def report_pending(self) -> bool:
        """A report is scheduled."""
        return self._state is not None

    @property
    def finished(self) -> bool:
        """Every block was written."""
        return not self._left

    @property
    def front_bytes(self) -> int:
        """How far the first pass has come."""
        return min(self._over_below * self.layout.block_bytes, self.layout.size_bytes)

    def due(self, now: float) -> Report | None:
        """The report to send now, if any; also notices silence."""
        if now >= self.silent_at and self._left and self.given_up is None:
            what = "stopped" if self.heard else "never came"
            self.given_up = f"datagrams {what} for {self.offer.silence_s:g} s"
        if now >= self._report_at and self._state is not None:
            return self._scheduled_report()
        if now >= self._ask_at:
            self._ask_at = now + self._every_s if self._left else float("inf")
            return self._ask_for_blocks_over()
        return None

    def _scheduled_report(self) -> Report | None:
        state, self._state, self._report_at = self._state, None, float("inf")
        assert state is not None
        if state != "receiving":
            return self._make(state)
        if not self._left:
            return None
        if self._window_s > _SUPPRESS_WINDOW_S and self._pass != self._state_pass:
            # In a large cohort a new pass already sends for somebody who wants at least as much:
            # ask again after it.
            self._ended_pass = -1
            return None
        return self._make(state, self.layout.blocks)

    def _ask_for_blocks_over(self) -> Report | None:
        first = self._done.find(0)
        if not 0 <= first < self._over_below:
            return None
        return self._make("receiving", self._over_below)

    def answered(self, answer: ReportAnswer) -> None:
        """What the sender said to a report."""
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

    def leave(self) -> Report:
        """The report of a receiver that goes on by unicast, or is stopped."""
        return self._make("done" if not self._left else "left")

    def _pass_ended(self, pass_number: int, now: float) -> None:
        if pass_number == self._ended_pass or not self._left:
            return
        self._ended_pass = pass_number
        self._over_below = self.layout.blocks
        self._schedule("receiving", now)

    def _schedule_done(self, now: float) -> None:
        if not self._done_reported:
            self._done_reported = True
            self._ask_at = float("inf")
            self._schedule("done", now)

    def _schedule(self, state: str, now: float) -> None:
        self._state, self._state_pass = state, self._pass
        self._report_at = now + self._rng.random() * self._window_s

    def _make(self, state: str, below: int = 0) -> Report:
        """A report of this moment, with the wants of all blocks below `below`."""
        if below:
            self._drop_known()
            if not self._left:
                state = "done"
        expected = 0
        if self.heard:
            expected = ((self._last_sequence - self._first_sequence) & _MASK) + 1
        counting = self._scheme.counts
        return Report(
            self.offer.member,
            state,
            self._pass,
            sequence=self._last_sequence,
            expected=expected,
            received=self.counters.datagrams,
            overruns=self.counters.overruns,
            queue_ms=self._delays.standing_us() // 1000,
            counts=dict(self._wanted_counts(below)) if below and counting else {},
            symbols=dict(self._wanted_symbols(below)) if below and not counting else {},
        )

    def came_elsewhere(self, now: float) -> None:
        """The caller got blocks another way; if that was all, the sender is told."""
        self._drop_known()
        if not self._left:
            self._schedule_done(now)

    def _drop_known(self) -> None:
        """What came another way meanwhile is not asked for."""
        for block in list(self.missing_blocks()):
            if self._have(block):
                self._done[block] = 1
                self._left -= 1
                if self._open.pop(block, None) is not None:
                    self._space.give_back(self._memory.pop(block))

    def _wanted_counts(self, below: int) -> Iterator[tuple[int, int]]:
        for block in islice(self.missing_blocks(below), _MOST_BLOCKS_A_REPORT):
            decoder = self._open.get(block)
            yield block, decoder.missing if decoder else self._whole(block)

    def _whole(self, block: int) -> int:
        return self.layout.k(block)

    def _wanted_symbols(self, below: int) -> Iterator[tuple[int, int]]:
        digits = _MOST_DIGITS_A_REPORT
        for block in self.missing_blocks(below):
            digits -= self.layout.k(block) // 4
            if digits < 0:
                return
            decoder = self._open.get(block)
            yield block, decoder.wanted if decoder else (1 << self.layout.k(block)) - 1

    def missing_blocks(self, below: int | None = None) -> Iterator[int]:
        """The blocks not written yet, ascending."""
        at = self._done.find(0, 0, below)
        while at >= 0:
            yield at
            at = self._done.find(0, at + 1, below)

    def repair_ranges(self) -> list[tuple[int, int]]:
        """What to fetch by unicast so that every block becomes whole: (first, end), ascending.

        Of a block that is partly here only as many symbols are asked for as its code still needs.
        Hand what arrives to `patch`.
        """
        layout = self.layout
        ranges: list[tuple[int, int]] = []
        for block in self.missing_blocks():
            start, length = layout.offset(block), layout.length(block)
            decoder = self._open.get(block)
            if decoder is None:
                _append(ranges, start, start + length)
                continue
            bits = decoder.wanted
            while bits:
                low = bits & -bits
                bits ^= low
                at = (low.bit_length() - 1) * layout.symbol_bytes
                _append(ranges, start + at, start + min(at + layout.symbol_bytes, length))
        return ranges

    def patch(self, offset: int, data: bytes | memoryview, now: float) -> None:
        """Bytes that came by unicast for one of `repair_ranges`, from its start, whole."""
        layout = self.layout
        at = 0
        while at < len(data):
            block, inside = divmod(offset + at, layout.block_bytes)
            symbol = inside // layout.symbol_bytes
            length = min(layout.symbol_bytes, layout.length(block) - symbol * layout.symbol_bytes)
            piece = memoryview(data)[at : at + length]
            if inside % layout.symbol_bytes or len(piece) != length:
                return
            padded = bytes(piece).ljust(layout.symbol_bytes, b"\0")
            self._take_symbol(layout.k(block), block, symbol, memoryview(padded), now)
            at += length

    def missing_ranges(self) -> list[tuple[int, int]]:
        """The byte ranges (first, end) not written yet, joined, ascending."""
        ranges: list[tuple[int, int]] = []
        for block in self.missing_blocks():
            first = self.layout.offset(block)
            end = first + self.layout.length(block)
            _append(ranges, first, end)
        return ranges


def _append(ranges: list[tuple[int, int]], first: int, end: int) -> None:
    if ranges and ranges[-1][1] == first:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((first, end))
