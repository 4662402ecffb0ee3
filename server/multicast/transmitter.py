"""Sends what one carousel decides: datagrams, a token bucket, batches, and timers.

The token bucket counts bytes on the wire: Ethernet, IP and UDP headers included. It is so small
that a late timer cannot cause a burst which the next queue would drop.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from twisted.logger import Logger

from ...protocol.marks import MarkSigner
from ...protocol.packet import (
    HEADER,
    MAGIC,
    VERSION,
    WIRE_OVERHEAD_BYTES,
    PacketSealer,
    PacketType,
)
from ..http.clock import Clock, cancel
from .carousel import Carousel
from .schedule_steps import Mark, Run
from .symbols import ObjectChanged, SymbolSource
from .udp import TUNING as BUFFER

_log = Logger()


class SendTuning(NamedTuple):
    """How datagrams and marks are spaced."""

    #: The interval of sends.
    tick_s: float = 0.002
    #: Datagrams of 1 472 bytes in one call of UDP segmentation offload (65 507 bytes).
    most_batch: int = 44
    #: The interval of marks during a pass ...
    stand_every_s: float = 0.2
    #: ... and of the first ones; it doubles.
    first_stand_s: float = 0.02


TUNING = SendTuning()


class Framer:
    """Makes and numbers the datagrams of one session."""

    #: The pieces of a datagram: header, tag, payload.
    parts = 3

    def __init__(self, session: int, key: bytes, marks: MarkSigner) -> None:
        self._session = session
        self._marks = marks
        self._sealer = PacketSealer(key)
        self.sequence = 0

    def frame(
        self, run: Run, payloads: Sequence[bytes | memoryview], now: float
    ) -> list[bytes | memoryview]:
        """Header, tag and payload of all datagrams in turn, for one sendmsg."""
        sent_us = int(now * 1e6) & 0xFFFFFFFF
        pack, tag = HEADER.pack, self._sealer.tag
        session, k, block = self._session, run.k, run.block
        pass_number, sequence = run.pass_number % 256, self.sequence
        pieces: list[bytes | memoryview] = []
        for symbol, payload in zip(run.symbols, payloads, strict=True):
            header = pack(
                MAGIC,
                VERSION << 4 | PacketType.SYMBOL,
                0,
                session,
                0,  # The object: a session sends one.
                pass_number,
                k,
                block,
                symbol,
                sequence,
                sent_us,
            )
            pieces += (header, tag(header, payload), payload)
            sequence = (sequence + 1) & 0xFFFFFFFF
        self.sequence = sequence
        return pieces

    def mark(self, mark: Mark, now: float) -> bytes:
        header = HEADER.pack(
            MAGIC,
            VERSION << 4 | PacketType.MARK,
            mark.flags,
            self._session,
            0,
            mark.pass_number,
            0,
            0,
            0,
            self.sequence,
            int(now * 1e6) & 0xFFFFFFFF,
        )
        self.sequence = (self.sequence + 1) & 0xFFFFFFFF
        signature = self._marks.signature(header)
        return b"".join((header, self._sealer.tag(header, signature), signature))


class Sender(Protocol):
    """The socket of a session, see `udp.GroupSender`."""

    def waiting_bytes(self) -> float: ...

    def send_one(self, datagram: bytes) -> bool: ...

    def send_equal(self, pieces: list[bytes | memoryview], parts: int, size: int) -> int: ...

    def close(self) -> None: ...


class Transmitter:
    """Sends until the carousel is finished, then closes the socket and calls `ended(reason)` once.

    `rate_bytes_s` may change while it runs. `charge(bytes)` is called for all bytes sent.
    """

    def __init__(
        self,
        reactor: Clock,
        carousel: Carousel,
        source: SymbolSource,
        framer: Framer,
        sender: Sender,
        datagram_bytes: int,
        rate_bytes_s: float,
        ended: Callable[[str], None],
        *,
        extra_overhead_bytes: int = 0,
        charge: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._reactor = reactor
        self._carousel = carousel
        self._source = source
        self._framer = framer
        self._sender = sender
        self._datagram_bytes = datagram_bytes
        self._wire_bytes = datagram_bytes + WIRE_OVERHEAD_BYTES + extra_overhead_bytes
        self.rate_bytes_s = rate_bytes_s
        #: The highest rate so far: an estimate of the rate at which this host's queue drains.
        self._line_bytes_s = rate_bytes_s
        self._ended: Callable[[str], None] | None = ended
        #: The reason for `ended` when the carousel is finished.
        self._reason = "finished"
        self._charge = charge
        self._credit = 0.0
        self._filled_at: float = reactor.seconds()
        self._call: Any = None
        self._unsent: tuple[list[bytes | memoryview], int] | None = None
        self._stand_at, self._stand_gap_s = float("-inf"), TUNING.first_stand_s
        self.sent_bytes = 0
        self.sent_datagrams = 0

    def start(self) -> None:
        """Start sending; as `poke`, look at the carousel at once."""
        if self._ended is None:
            return
        if self._call is not None and self._call.active():
            if self._call.getTime() <= self._reactor.seconds() + TUNING.tick_s:
                return
            self._call.cancel()
        self._call = self._reactor.callLater(0, self._tick)

    poke = start

    def stop(self, reason: str) -> None:
        """End now, with one last mark if possible. It may be called repeatedly."""
        cancel(self._call)
        if self._ended is not None and not self._carousel.finished:
            now = self._reactor.seconds()
            self._carousel.close(now)
            # The network may be down. The answers to reports then announce the end.
            with contextlib.suppress(OSError):
                self._mark(self._carousel.next_step(now, 1), now)
        self._sender.close()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(reason)

    def _tick(self) -> None:
        now = self._reactor.seconds()
        rate = self.rate_bytes_s
        self._line_bytes_s = max(self._line_bytes_s, rate)
        # As much as may wait in the socket.
        most = max(rate * BUFFER.waiting_s, 4.0 * self._wire_bytes)
        self._credit = min(most, self._credit + (now - self._filled_at) * rate)
        self._filled_at = now
        batch = int(max(1, min(TUNING.most_batch, rate * TUNING.tick_s / self._wire_bytes)))
        try:
            wait_s = self._send(now, batch)
        except ObjectChanged as error:
            wait_s = self._wind_up(str(error), now)
        except OSError as error:
            if error.errno != errno.EMSGSIZE or self._reason != "finished":
                self.stop(f"the network refused: {error.strerror}")
                return
            size = self._datagram_bytes
            why = f"datagrams of {size} bytes do not fit the interface's MTU any more"
            wait_s = self._wind_up(why, now)
        except Exception:  # noqa: BLE001 - logged, counted, and the end of this session
            _log.failure("A multicast session failed")
            self.stop("the sender failed")
            return
        if self._carousel.finished:
            self.stop(self._reason)
        else:
            self._call = self._reactor.callLater(wait_s, self._tick)

    def _wind_up(self, reason: str, now: float) -> float:
        """Send nothing but the marks that announce the end."""
        self._reason, self._unsent = reason, None
        self._carousel.close(now)
        return 0.0

    def _send(self, now: float, batch: int) -> float:
        """Send while there is credit. Returns the seconds until the next call."""
        while self._credit > 0:
            if self._unsent is not None:
                if not self._push():
                    return TUNING.tick_s
                continue
            if now >= self._stand_at and (stand := self._carousel.stand()) is not None:
                self._mark(stand, now)
                self._stand_gap_s = min(2.0 * self._stand_gap_s, TUNING.stand_every_s)
                self._stand_at = now + self._stand_gap_s
            step = self._carousel.next_step(now, batch)
            if step is None:
                return max(0.0005, self._carousel.wake_at - now)
            if isinstance(step, Mark):
                self._mark(step, now)
                continue
            payloads = self._source.payloads(step.block, step.symbols, step.until)
            # The send time is when the datagrams leave this host: waits inside it are no queue on
            # the path. It must not be too late either: then the delay without a queue would be
            # measured too short, and all other delays would count as a queue.
            waits = self._sender.waiting_bytes() * self._wire_bytes / self._datagram_bytes
            waits_s = waits / self._line_bytes_s
            leaves = self._reactor.seconds() + waits_s
            self._unsent = (self._framer.frame(step, payloads, leaves), 0)
        return max(TUNING.tick_s, -self._credit / self.rate_bytes_s)

    def _mark(self, step: Run | Mark | None, now: float) -> None:
        if isinstance(step, Mark):
            datagram = self._framer.mark(step, now)
            if self._sender.send_one(datagram):
                self._count(1, len(datagram) + self._wire_bytes - self._datagram_bytes)

    def _push(self) -> bool:
        assert self._unsent is not None
        pieces, done = self._unsent
        parts = self._framer.parts
        rest = pieces[done * parts :] if done else pieces
        took = self._sender.send_equal(rest, parts, self._datagram_bytes)
        self._count(took, took * self._wire_bytes)
        whole = took * parts == len(rest)
        self._unsent = None if whole else (pieces, done + took)
        return whole

    def _count(self, datagrams: int, size: int) -> None:
        self.sent_datagrams += datagrams
        self.sent_bytes += size
        self._credit -= size
        self._charge(size)
