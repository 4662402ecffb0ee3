"""The file of a download: where its bytes go, what proves them, and the search for wrong ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from ..net.errors import DownloadFailed, LocalProblem
from ..schedule.segments import Segment, SegmentMap
from ..storage.journal import Identity
from ..storage.output import Output
from ..storage.piece_writer import Pieces, PieceWriter
from .events import Event, FirstByte
from .metalink import Metalink
from .state import Mirror, State


class ArrivalHandler(Protocol):
    """What arrived bytes may call for."""

    def handle(self, event: Event) -> bool:
        """Decide and act; True if an answer's bytes were accepted."""

    def fail(self, problem: DownloadFailed) -> None:
        """They cannot be written."""

    def wake(self) -> None:
        """All are here."""

    def check(self) -> None:
        """Pieces can be checked."""

    def break_stopped(self) -> None:
        """Transfers may have become pointless."""

    def took(self, lane: int, block: Segment, count: int, now: float) -> None:
        """`count` bytes of the block were read."""


class BodyReceiver:
    """One writer, one segment map, until the download is over or starts over."""

    def __init__(
        self, state: State, writer: PieceWriter, segments: SegmentMap, handler: ArrivalHandler
    ) -> None:
        self.writer = writer
        self.segments = segments
        self._state = state
        self._handler = handler

    def arrived(self, lane: int, block: Segment, data: memoryview, now: float) -> bool:
        """Bytes at the block's position; False when the download is over because of them."""
        writer, segments, handler = self.writer, self.segments, self._handler
        if not self._write(lane, block.position, data):
            return False
        segments.received(block, len(data), now)
        if writer.pieces is not None and len(writer.checked) < 64 and writer.checks_due:
            # A liar is best found with its first piece. Later ones are checked now and then.
            handler.check()
        handler.took(lane, block, len(data), now)
        if segments.done:
            handler.wake()
        return not self._state.over

    def beside(self, lane: int, position: int, data: memoryview, now: float) -> bool:
        """Bytes of a whole answer that runs beside the one that has the block."""
        if not self._write(lane, position, data):
            return False
        self._filled(position, data)
        self._handler.break_stopped()
        return True

    def fill(self, number: int, position: int, data: memoryview) -> None:
        """Bytes from elsewhere, for which this mirror answers. Raises LocalProblem."""
        self._put(number, position, data)
        self._filled(position, data)

    def distrust(self, number: int) -> None:
        """Bytes of that mirror that no digest has proved are missing again."""
        writer, segments = self.writer, self.segments
        pieces = writer.pieces
        for start, end, giver in writer.sources(0, writer.size_bytes):
            if giver != number:
                continue
            doubtful = [(start, end)]
            if pieces is not None:
                doubtful = [
                    (max(start, a), min(end, b))
                    for index in range(start // pieces.length, -(-end // pieces.length))
                    if index not in writer.checked
                    for a, b in [pieces.span(index, writer.size_bytes)]
                ]
            for a, b in doubtful:
                writer.forget(a, b)
                segments.want(a, b)
        writer.culprits.add(number)

    def _filled(self, position: int, data: memoryview) -> None:
        self.segments.filled(position, position + len(data))
        if self.segments.done:
            self._handler.wake()

    def _write(self, lane: int, position: int, data: memoryview) -> bool:
        mirror = self._state.mirror_of(lane)
        try:
            self._put(mirror.number, position, data)
        except LocalProblem as problem:
            self._handler.fail(problem)
            return False
        mirror.counts.received_bytes += len(data)
        return True

    def _put(self, number: int, position: int, data: memoryview) -> None:
        self.writer.write_at(position, data, number)
        if self._state.first_byte_s is None:
            self._handler.handle(FirstByte())


def make_segment_map(writer: PieceWriter) -> SegmentMap:
    """A segment map for what `writer` misses."""
    piece = writer.pieces.length if writer.pieces is not None else 1
    return SegmentMap(
        writer.missing(),
        # Longer pieces would make blocks too long.
        align=piece if piece <= 1 << 20 else 1,
        first_bytes=max(64 << 10, piece if piece <= 512 << 10 else 0),
    )


Span = tuple[int, int]


class CulpritSearch:
    """Call `next` whenever the digest turned out wrong; it says whose bytes to read again."""

    def __init__(self, mirrors: list[Mirror], writer: PieceWriter) -> None:
        self._mirrors = mirrors
        self._writer = writer
        self._suspect: int | None = None
        shares = self._shares()
        self._samples = deque(sorted(shares, key=lambda n: -sum(b - a for a, b in shares[n])))
        self._steps: deque[int] = deque()
        self._planned = False

    def _shares(self) -> dict[int, list[Span]]:
        found: dict[int, list[Span]] = {}
        for start, end, number in self._writer.sources(0, self._writer.size_bytes):
            if self._mirrors[number].alive:
                found.setdefault(number, []).append((start, end))
        return found

    def next(self, segments: SegmentMap) -> int | None:
        """Prepare the next step: some bytes of one mirror are wanted again, from others; its
        number is returned. None when nothing is left to try."""
        self._suspect = None
        while self._samples:
            number = self._samples.popleft()
            spans = [
                (start, min(end, start + (16 << 10)))
                for start, end in self._spread(self._shares().get(number, []))
            ]
            if self._doubt(segments, number, spans):
                return number
        if not self._planned:
            self._planned = True
            self._plan()
        while self._steps:
            number = self._steps.popleft()
            if self._doubt(segments, number, self._shares().get(number, [])):
                self._suspect = number
                return number
        return None

    def _plan(self) -> None:
        """Those first whose bytes differed from others' when samples were replaced."""
        counts: dict[int, int] = {}
        for pair, times in self._writer.differences.items():
            for number in pair:
                counts[number] = counts.get(number, 0) + times
        self._steps.extend(sorted(counts, key=lambda n: -counts[n]))
        self._steps.extend(number for number in self._shares() if number not in counts)

    @staticmethod
    def _spread(spans: list[Span]) -> list[Span]:
        """Four of them at most."""
        if len(spans) <= 4:
            return spans
        return [spans[round(at * (len(spans) - 1) / 3)] for at in range(4)]

    def _doubt(self, segments: SegmentMap, number: int, spans: list[Span]) -> bool:
        others = any(mirror.alive and mirror.number != number for mirror in self._mirrors)
        if not spans or not others or not self._mirrors[number].alive:
            return False
        for start, end in spans:
            self._writer.doubt(start, end)
            segments.want(start, end)
        return True

    def name_culprit(self) -> None:
        """The digest is right now: the mirror that was being replaced had given the wrong bytes."""
        differing = {old for (old, _), times in self._writer.differences.items() if times}
        if self._suspect is not None:
            self._writer.culprits.add(self._suspect)
        elif len(differing) == 1:
            self._writer.culprits |= differing


def _text(digest: tuple[str, bytes] | None) -> str | None:
    return f"{digest[0]}:{digest[1].hex()}" if digest is not None else None


class DownloadedFile:
    """`checksum` is the caller's own, `metalink` what the caller knows of the file."""

    def __init__(
        self,
        state: State,
        target: Output,
        checksum: tuple[str, bytes] | None,
        metalink: Metalink | None,
    ) -> None:
        self._state = state
        #: Where the file goes.
        self.target = target
        self._checksum = checksum
        self._metalink = metalink
        #: Looks for the mirror whose bytes are wrong, once the digest was.
        self.search: CulpritSearch | None = None
        #: What the digest that is checked comes from, for the report.
        self.digest_from = "checksum" if checksum is not None else "digest"
        self.resumed_bytes = 0

    @property
    def _digest(self) -> tuple[str, bytes] | None:
        return self._checksum or (self._metalink.digest if self._metalink else None)

    def resume(self) -> tuple[int | None, Mapping[int, str | None]]:
        """The size, where an earlier attempt or a Metalink tells it, and the validators that the
        earlier attempt got, by mirror."""
        left = self.target.resumable()
        mirrors = self._state.mirrors
        if left is not None:
            vouched = left.digest is not None and left.digest == _text(self._digest)
            if vouched or any(mirror.url.text in left.validators for mirror in mirrors):
                known = {one.number: left.validators.get(one.url.text) for one in mirrors}
                return left.size_bytes, known
        return self._metalink.size_bytes if self._metalink is not None else None, {}

    def open(self, size_bytes: int) -> PieceWriter:
        """A writer for a file of that size; raises DownloadFailed when there is no place for it."""
        pieces = self._metalink.pieces if self._metalink is not None else None
        if pieces is not None and not pieces.fits(size_bytes):
            pieces = None
        validators = {
            mirror.url.text: mirror.validator
            for mirror in self._state.mirrors
            if mirror.validator is not None
        }
        first_piece = pieces.digests[0].hex() if pieces is not None else None
        identity = Identity(size_bytes, validators, _text(self._digest), first_piece)
        writer = self.target.open(identity)
        checked = sorted(writer.checked)
        if pieces is not None:
            writer.use_pieces(pieces, checked)
        if self._digest is not None and not self._pieces_vouch(pieces):
            writer.use_digest(self._digest)
        self.resumed_bytes = writer.have.total
        return writer

    def start_over(self) -> None:
        """What was written is worth nothing."""
        self.search = None
        self.target.restart()

    def _pieces_vouch(self, pieces: Pieces | None) -> bool:
        """Whether checked pieces make the digest of the whole superfluous: both come from one
        Metalink, and the caller gave no checksum of his own."""
        strong = pieces is not None and pieces.algorithm in ("sha256", "sha384", "sha512")
        return strong and self._checksum is None

    def use_told_digest(self, writer: PieceWriter, digest: tuple[str, bytes]) -> bool:
        """The first mirror told a digest: check it from the first byte on, unless a better proof
        is known. Returns whether it is checked."""
        if writer.digest is not None or self._pieces_vouch(writer.pieces):
            return False
        writer.use_digest(digest)
        self.digest_from = "digest"
        return True

    def use_pieces(self, writer: PieceWriter, metalink: Metalink) -> bool:
        """Piece digests learnt while the download runs; False if it is another file's Metalink."""
        if metalink.size_bytes != writer.size_bytes:
            return False
        wanted, told, pieces = writer.digest, metalink.digest, metalink.pieces
        if wanted is not None and told is not None and wanted[0] == told[0] and wanted != told:
            return False
        if pieces is not None and writer.pieces is None and pieces.fits(writer.size_bytes):
            writer.use_pieces(pieces)
        return True
