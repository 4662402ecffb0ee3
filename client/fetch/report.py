"""What a download tells on its way and at its end, and what it remembers for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schedule.segments import UNKNOWN_SIZE
from ..storage.piece_writer import PieceWriter
from .content import DownloadedFile
from .options import Progress, Result, SourceReport
from .rates import Rates
from .state import State

if TYPE_CHECKING:
    from .multicast_join import MulticastJoin
    from .peer_join import PeerJoin

#: A rate is worth remembering after so much of work.
_TELLING_S = 0.05
_TELLING_BYTES = 16 << 10


def remember(state: State, rates: Rates) -> None:
    """Keep the rates that were seen."""
    telling = [
        mirror
        for mirror in state.mirrors
        if mirror.counts.busy_s > _TELLING_S and mirror.counts.received_bytes >= _TELLING_BYTES
    ]
    for mirror in telling:
        counts = mirror.counts
        rates.learn(mirror.host, counts.rate_bytes_s, counts.rtt_s)
    if telling:
        rates.save()


def make_progress(
    state: State,
    sink: PieceWriter | None,
    joining: MulticastJoin | None,
    peering: PeerJoin | None,
    now: float,
) -> Progress:
    """The figures of a download that runs."""
    rates, board = {}, state.board
    if board is not None:
        for mirror in state.mirrors:
            lanes = [board.lanes[n] for n in mirror.lanes if n in board.lanes]
            rates[mirror.url.text] = sum(lane.rate(now) or 0.0 for lane in lanes if lane.blocks)
    others = {"multicast": joining, "peers": peering}
    for name, other in others.items():
        if other is not None and (rate := other.rate_bytes_s(now)):
            rates[name] = rate
    size = sink.size_bytes if sink is not None and sink.size_bytes < UNKNOWN_SIZE else None
    done = sink.have.total if sink is not None else 0
    if state.first_byte_s is not None:
        return Progress(done, size, rates)
    pauses = [mirror.pause for mirror in state.mirrors if mirror.pause is not None]
    queued = [pause for pause in pauses if pause.place is not None]
    starts = [pause.starts_at - now for pause in pauses if pause.starts_at is not None]
    return Progress(
        done,
        size,
        rates,
        place=min((pause.place for pause in queued if pause.place is not None), default=None),
        starts_in_s=max(0.0, min(starts)) if starts else None,
    )


def make_result(
    state: State,
    content: DownloadedFile,
    sink: PieceWriter,
    joining: MulticastJoin | None,
    peering: PeerJoin | None,
    now: float,
) -> Result:
    """The figures of a download that is right."""
    joined_bytes = joining.received_bytes if joining is not None else 0
    peer_bytes = peering.received_bytes if peering is not None else 0
    verified = "length"
    if sink.digest is not None:
        verified = content.digest_from
    elif sink.pieces is not None or (joining is not None and joined_bytes == sink.size_bytes):
        # Every block of a multicast session was checked before it was written.
        verified = "pieces"
    return Result(
        content.target.path,
        sink.size_bytes,
        state.received_bytes() + state.overhead_bytes + joined_bytes + peer_bytes,
        content.resumed_bytes,
        now - state.began_s,
        verified,
        (
            *(joining.report() if joining is not None else ()),
            *(peering.report() if peering is not None else ()),
            *_sources(state),
        ),
        (state.first_byte_s or state.began_s) - state.began_s,
        state.predicted.seconds,
        tuple(state.mirrors[number].url.text for number in sorted(sink.culprits)),
        tuple(state.notes),
        (*state.planned.lines, *state.predicted.lines, *state.widened.lines),
    )


def _sources(state: State) -> tuple[SourceReport, ...]:
    return tuple(
        SourceReport(
            mirror.url.text,
            mirror.counts.received_bytes,
            mirror.counts.received_bytes / mirror.counts.busy_s
            if mirror.counts.busy_s > 0
            else 0.0,
            mirror.counts.rtt_s,
            mirror.counts.requests,
            mirror.counts.connections,
            mirror.counts.retries,
            mirror.visit.waited_s,
            mirror.dropped,
        )
        for mirror in state.mirrors
    )
