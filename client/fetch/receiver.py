"""The way of the bytes: from an answer to their place in the file, and to the board."""

from __future__ import annotations

from typing import Protocol

from ..net.errors import LocalProblem
from ..schedule.segments import Segment, SegmentMap
from ..storage.piece_writer import PieceWriter
from .state import State

#: The first pieces are checked the moment they are there, later ones a few times a second.
_NEW_PIECES = 64


class Upkeep(Protocol):
    """What arrived bytes may call for."""

    def fail(self, problem: LocalProblem) -> None:
        """They cannot be written."""

    def wake(self) -> None:
        """All are here."""

    def check(self) -> None:
        """Pieces can be checked."""

    def break_stopped(self) -> None:
        """Transfers may have become pointless."""

    def took(self, lane: int, block: Segment, count: int, now: float) -> None:
        """So many bytes were read."""


class BodyReceiver:
    """One sink, one board, until the download is over or starts over."""

    def __init__(self, state: State, sink: PieceWriter, board: SegmentMap, upkeep: Upkeep) -> None:
        self.sink = sink
        self.board = board
        self._state = state
        self._upkeep = upkeep

    def arrived(self, lane: int, block: Segment, data: memoryview, now: float) -> bool:
        """Bytes at the block's position; False when the download is over because of them."""
        sink, board, upkeep = self.sink, self.board, self._upkeep
        if not self._write(lane, block.position, data, now):
            return False
        board.received(block, len(data), now)
        if sink.pieces is not None and len(sink.checked) < _NEW_PIECES and sink.checks_due:
            # A liar is best found with its first piece.
            upkeep.check()
        upkeep.took(lane, block, len(data), now)
        if board.done:
            upkeep.wake()
        return not self._state.over

    def beside(self, lane: int, position: int, data: memoryview, now: float) -> bool:
        """Bytes of a whole answer that runs beside the one that has the block."""
        if not self._write(lane, position, data, now):
            return False
        self.board.filled(position, position + len(data))
        self._upkeep.break_stopped()
        if self.board.done:
            self._upkeep.wake()
        return True

    def _write(self, lane: int, position: int, data: memoryview, now: float) -> bool:
        state = self._state
        mirror = state.mirror_of(lane)
        try:
            self.sink.write_at(position, data, mirror.number)
        except LocalProblem as problem:
            self._upkeep.fail(problem)
            return False
        if state.first_byte_s is None:
            state.first_byte_s = now
        mirror.counts.received_bytes += len(data)
        return True
