"""What a download tells on its way and at its end, and what it remembers for the next one."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from typing import TYPE_CHECKING

from ..schedule.model import Path
from ..schedule.segments import UNKNOWN_SIZE
from ..storage.piece_writer import PieceWriter
from .content import DownloadedFile
from .options import Progress, Result, SourceReport
from .state import State


class Rates:
    """The rate database of paper B: bytes per second by `host:port`, refreshed by each download."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._path = folder / "rates.json"
        self._rows: dict[str, list[float]] = {}
        rows: object = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            rows = json.loads(self._path.read_text())
        for host, row in rows.items() if isinstance(rows, dict) else ():
            with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError):
                rate, rtt_s = float(row[0]), float(row[1])
                # Another program may have written the file.
                if 1.0 <= rate <= 1e12 and 0 <= rtt_s <= 60.0:
                    self._rows[str(host)] = [rate, rtt_s]

    def path(self, host: str) -> Path | None:
        """The way to a host as it was last time, or None for a stranger."""
        row = self._rows.get(host)
        return Path(row[1], row[0]) if row else None

    def learn(self, host: str, rate_bytes_s: float, rtt_s: float) -> None:
        """A new measurement; half of the old one stays."""
        old = self._rows.pop(host, None)
        if old is not None:
            rate_bytes_s = (old[0] + rate_bytes_s) / 2
        self._rows[host] = [round(rate_bytes_s, 1), round(rtt_s, 6)]

    def save(self) -> None:
        """Write it back; the most recently used hosts stay."""
        # That many take below 30 kB.
        rows = dict(list(self._rows.items())[-500:])
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(rows))
            fresh.replace(self._path)


if TYPE_CHECKING:
    from .multicast_join import MulticastJoin
    from .peer_join import PeerJoin


def remember(state: State, rates: Rates) -> None:
    """Keep the rates that were seen; a short measurement tells nothing."""
    telling = [
        mirror
        for mirror in state.mirrors
        if mirror.counts.busy_s > 0.05 and mirror.counts.received_bytes >= 16 << 10
    ]
    for mirror in telling:
        counts = mirror.counts
        rates.learn(mirror.host, counts.rate_bytes_s, counts.rtt_s)
    if telling:
        rates.save()


def make_progress(
    state: State,
    writer: PieceWriter | None,
    joining: MulticastJoin | None,
    peering: PeerJoin | None,
    now: float,
) -> Progress:
    """The figures of a download that runs."""
    rates, segments = {}, state.segments
    if segments is not None:
        for mirror in state.mirrors:
            lanes = [segments.lanes[n] for n in mirror.lanes if n in segments.lanes]
            rates[mirror.url.text] = sum(lane.rate(now) or 0.0 for lane in lanes if lane.blocks)
    others = {"multicast": joining, "peers": peering}
    for name, other in others.items():
        if other is not None and (rate := other.rate_bytes_s(now)):
            rates[name] = rate
    size = writer.size_bytes if writer is not None and writer.size_bytes < UNKNOWN_SIZE else None
    done = writer.have.total if writer is not None else 0
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
    writer: PieceWriter,
    joining: MulticastJoin | None,
    peering: PeerJoin | None,
    now: float,
) -> Result:
    """The figures of a download that is right."""
    joined_bytes = joining.received_bytes if joining is not None else 0
    peer_bytes = peering.received_bytes if peering is not None else 0
    verified = "length" if state.end_marked else "nothing"
    if writer.digest is not None:
        verified = content.digest_from
    elif writer.pieces is not None or 0 < joined_bytes + peer_bytes == writer.size_bytes:
        # Every block of a multicast session, and every piece from a peer, was checked before.
        verified = "pieces"
    return Result(
        content.target.path,
        writer.size_bytes,
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
        state.predicted_s,
        tuple(state.mirrors[number].url.text for number in sorted(writer.culprits)),
        tuple(state.notes),
        tuple(state.forecast),
    )


def _sources(state: State) -> tuple[SourceReport, ...]:
    return tuple(
        SourceReport(
            mirror.url.text,
            mirror.counts.received_bytes,
            mirror.counts.rate_bytes_s,
            mirror.counts.rtt_s,
            mirror.counts.requests,
            mirror.counts.connections,
            mirror.counts.retries,
            mirror.visit.waited_s,
            mirror.dropped,
        )
        for mirror in state.mirrors
    )
