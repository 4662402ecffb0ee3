"""A download's way to other clients of the same file, beside its mirrors.

The file's torrent is asked for first, for a moment only; then the download begins as usual. While
its ticket waits, pieces come from peers; once it is admitted, the mirrors are asked for what
fewest peers have, and what they send is passed on. Every byte goes through the same writer and the
same checks as one from a mirror.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..net.errors import LocalProblem
from ..peers.exchange import BadTorrent, Exchange
from ..schedule.meter import Meter
from ..schedule.segments import UNKNOWN_SIZE
from .content import BodyReceiver
from .options import SourceReport
from .state import Mirror
from .workers import Driver


class PeerJoin:
    """One download's peers. `mirror` gave the torrent; `folder` is where the file goes."""

    def __init__(self, host: Driver, mirror: Mirror, folder: Path, name: str) -> None:
        self._host = host
        self._mirror = mirror
        self._folder = folder / f".{name}.peers"
        self._exchange: Exchange | None = None
        self._torrent: bytes | None = None
        self._over = False
        self._meter = Meter()
        self._began_s = 0.0
        self._told_s = 0.0
        self._sent_bytes = 0
        self.received_bytes = 0

    # -- the torrent ---------------------------------------------------------------------------

    def head_start(self, begin: Callable[[], None]) -> Callable[[bytes | None], None]:
        """Have `begin` called once the torrent is here, or soon in any case.

        Returns what to call with the torrent, or with None when there is none.
        """
        begun = False

        def once() -> None:
            nonlocal begun
            if not begun:
                begun = True
                begin()

        def answered(torrent: bytes | None) -> None:
            if torrent is None:
                self._end("none: the server has no torrent of this file")
            else:
                self._torrent = torrent
            once()

        # The torrent may delay the first request this long; it is used later, too.
        self._host.network.call_later(0.5, once)
        return answered

    def size_bytes(self) -> int | None:
        """The file's size where the torrent tells it before any mirror did."""
        exchange = self._open(None)
        return None if exchange is None else exchange.size_bytes

    def _open(self, size_bytes: int | None) -> Exchange | None:
        """The exchange, as soon as there is a torrent for it."""
        if self._exchange is None and self._torrent is not None and not self._over:
            options = self._host.state.options
            try:
                self._exchange = Exchange(
                    self._torrent,
                    self._folder,
                    size_bytes,
                    server=self._mirror.url.host,
                    upload_bytes_s=options.upload_bytes_s,
                    listen=("0.0.0.0", "[::]"),
                    random=self._host.state.random,
                )
            except (BadTorrent, LocalProblem) as problem:
                self._end(f"not used: {problem}")
        return self._exchange

    # -- pieces --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Take what peers brought, and give them what the mirrors did."""
        intake, size_bytes = self._host.intake, self._host.state.size_bytes
        if self._over or intake is None or size_bytes == UNKNOWN_SIZE:
            return
        exchange = self._open(size_bytes)
        if exchange is None:
            return
        if exchange.size_bytes != size_bytes:
            self._end("not used: the server's torrent is of another file")
            return
        if not self._began_s and not self._begin(exchange, intake, now):
            return
        writer = intake.writer
        for offset, data in exchange.poll():
            # The torrent came from the mirror: should its hashes be wrong, it is the one to blame.
            intake.fill(self._mirror.number, offset, memoryview(data))
            self.received_bytes += len(data)
            self._meter.add(len(data), now)
        exchange.share(writer.have, lambda start, end: writer.backing.read(start, end - start))
        self._host.break_stopped()
        if now - self._told_s >= 2.0:
            self._told_s = now
            figures = exchange.figures()
            self._sent_bytes = figures.sent_bytes
            if figures.peers < 3 and now - self._began_s > 15.0:
                exchange.reach_further()
            if figures.peers:
                text = f"{figures.peers} connected, {figures.sent_bytes} bytes given"
                self._tell("exchanging", text)

    def _begin(self, exchange: Exchange, intake: BodyReceiver, now: float) -> bool:
        try:
            exchange.start()
        except (LocalProblem, RuntimeError) as problem:
            self._end(f"not used: {problem}")
            return False
        self._began_s = now
        self._meter.start(now)
        segments, network = intake.segments, self._host.network
        segments.choose = lambda free: exchange.from_origin(free, network.now())
        # The rest of what is under way goes by rarity.
        segments.shorten(1 << 20)
        rate = self._host.state.options.upload_bytes_s
        self._tell("joined", f"reachable on port {exchange.port}, giving at most {rate:.0f} B/s")
        return True

    def rate_bytes_s(self, now: float) -> float:
        return (self._meter.rate(now) or 0.0) if self._exchange is not None else 0.0

    # -- the end -------------------------------------------------------------------------------

    def stop(self) -> None:
        """The download is over, or begins anew."""
        self._over = True
        exchange, self._exchange = self._exchange, None
        segments = self._host.state.segments
        if segments is not None:
            segments.choose = None
        if exchange is not None and self._began_s:
            self._sent_bytes = exchange.figures().sent_bytes
            exchange.stop()

    def _end(self, text: str) -> None:
        self.stop()
        self._tell("ended", text)

    def _tell(self, state: str, text: str) -> None:
        self._host.emit("peers", {"state": state, "text": text})
        if state == "ended":
            self._host.state.notes.append(f"peers: {text}")

    def report(self) -> tuple[SourceReport, ...]:
        """A line of the result, when something went either way."""
        if not self.received_bytes and not self._sent_bytes:
            return ()
        seconds = self._host.network.now() - self._began_s
        rate = self.received_bytes / seconds if seconds > 0 else 0.0
        given = f"peers (given {self._sent_bytes} bytes)"
        return (SourceReport(given, self.received_bytes, rate, 0.0, 0, 0, 0, 0.0, None),)
