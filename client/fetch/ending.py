"""What is done about wrong pieces, and once every byte is there. Pure."""

from __future__ import annotations

from ..net.errors import Corrupt
from . import faults, sampling
from .actions import Action, Connect, FinishFile, HangUp, Mend, Wake
from .events import PiecesWrong, Whole
from .state import State


def pieces_wrong(state: State, event: PiecesWrong) -> list[Action]:
    """Wrong pieces are wanted again; the mirror that gave them is dropped."""
    assert state.board is not None
    for index, start, end in event.pieces:
        state.board.want(start, end)
        times = state.wrong_pieces[index] = state.wrong_pieces.get(index, 0) + 1
        if times > 2 * len(state.mirrors) + 1:
            return faults.fail(state, Corrupt(f"piece {index} is wrong on every mirror"))
    actions: list[Action] = []
    for number in event.culprits:
        actions += faults.convict(state, state.mirrors[number], "it gives wrong bytes")
    return actions


def whole(state: State, event: Whole, now: float) -> list[Action]:
    """Every byte is here: mend it, wait a moment, or finish."""
    if event.wrong_digest is not None:
        # A reader of in-order output has not had the last bytes yet, and will not get them.
        return _mend(state, event.wrong_digest)
    if not event.drained:
        return []
    asked = sampling.rest(state)
    if asked or sampling.awaited(state, event.working, now):
        return asked
    return sampling.verdict(state) or [FinishFile()]


def _mend(state: State, digest: str) -> list[Action]:
    if not state.in_order and state.others(state.mirrors[0]):
        return [Mend()]
    several = len(state.mirrors) > 1
    who = "; the mirrors agree on it, so the checksum may be wrong" if several else ""
    names = "the file" if several else state.mirrors[0].url.text
    text = f"{names} arrived whole but does not have the expected {digest}{who}"
    return faults.fail(state, Corrupt(text))


def doubted(state: State, number: int | None) -> list[Action]:
    """That mirror's bytes are being replaced by others'."""
    state.suspect = number
    if number is None:
        text = "the mirrors agree, but the file does not have the expected digest"
        return faults.fail(state, Corrupt(text))
    lanes = [lane for mirror in state.mirrors for lane in mirror.lanes]
    return [
        *(HangUp(lane) for lane in state.mirrors[number].lanes),
        *(Connect(lane) for lane in lanes),
        Wake(),
    ]
