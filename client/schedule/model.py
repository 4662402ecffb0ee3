"""Predicts how long a download in blocks takes, and picks the mirrors that are worth it. Pure.

After the model of paper C: per block one response header (the next block is asked for before the
last one ends, so no round trip is lost); per connection a handshake and slow start. Rates are
goodput (bytes of files per second), so headers of TCP and IP are in them already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class ModelTuning(NamedTuple):
    """The model's sizes, and what counts as a gain."""

    #: The head of one of our requests.
    request_bytes: int = 300
    #: The head of a usual answer.
    response_bytes: int = 256
    #: TCP's payload on Ethernet, with timestamps.
    segment_bytes: int = 1448
    #: The first window of a connection, in segments (RFC 6928).
    first_window: int = 10
    #: A further mirror must shorten the download by this share.
    worth: float = 0.01
    #: Headers may take up to this share of a block.
    header_share: float = 0.02


TUNING = ModelTuning()


@dataclass(frozen=True, slots=True)
class Path:
    """The way to one mirror."""

    rtt_s: float
    rate_bytes_s: float


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """`mirrors` are indices into what was given, the most useful first."""

    mirrors: tuple[int, ...]
    seconds: float


def ramp_s(path: Path) -> float:
    """What slow start costs: how much later the bytes are there than at full rate at once."""
    if path.rtt_s <= 0:
        return 0.0
    full = max(1, math.ceil(path.rtt_s * path.rate_bytes_s / TUNING.segment_bytes))
    window, lost_s = TUNING.first_window, 0.0
    while window < full:
        lost_s += path.rtt_s - window * TUNING.segment_bytes / path.rate_bytes_s
        window *= 2
    return lost_s


def head_s(path: Path) -> float:
    """From the decision to fetch until bytes flow at full rate: handshake, request, slow start."""
    return 2 * path.rtt_s + ramp_s(path)


def predict_s(
    size_bytes: int, paths: Sequence[Path], block_bytes: int, *, standing: bool = False
) -> float:
    """Seconds for the whole download, all mirrors ending together; infinite without mirrors.

    `standing`: the connections are open and up to speed.
    """
    # What of a rate is not taken by response headers.
    share = block_bytes / (block_bytes + TUNING.response_bytes)
    ways = sorted(
        (0.0 if standing else head_s(path), share * path.rate_bytes_s)
        for path in paths
        if path.rate_bytes_s > 0
    )
    # Before `end_s` of one mirror's head it brings nothing, afterwards its effective rate.
    rate, brought = 0.0, 0.0
    for place, (begin_s, effective) in enumerate(ways):
        if place and brought + rate * (begin_s - ways[place - 1][0]) >= size_bytes:
            return ways[place - 1][0] + (size_bytes - brought) / rate
        if place:
            brought += rate * (begin_s - ways[place - 1][0])
        rate += effective
    return math.inf if rate <= 0 else ways[-1][0] + max(0.0, size_bytes - brought) / rate


def least_block(path: Path) -> int:
    """The smallest block that is not mostly headers, and longer than what is under way."""
    headers = (TUNING.request_bytes + TUNING.response_bytes) / TUNING.header_share
    return int(max(headers, path.rtt_s * path.rate_bytes_s))


def choose(size_bytes: int, paths: Sequence[Path], block_bytes: int) -> MirrorPlan:
    """The fewest mirrors that come within 1 % of the best.

    Equal blocks end raggedly: half a block of the slowest mirror is added for that.
    """
    order = sorted(range(len(paths)), key=lambda n: -paths[n].rate_bytes_s)
    best: MirrorPlan | None = None
    for count in range(1, len(order) + 1):
        used = [paths[n] for n in order[:count]]
        seconds = predict_s(size_bytes, used, block_bytes)
        if count > 1:
            seconds += block_bytes / 2 / sum(p.rate_bytes_s for p in used)
        if best is None or seconds < best.seconds * (1 - TUNING.worth):
            best = MirrorPlan(tuple(order[:count]), seconds)
    if best is None:
        raise ValueError("no mirrors")
    return best
