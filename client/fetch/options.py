"""What a caller may ask of a download, and what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..net.errors import UsageProblem

Strategy = Literal["adaptive", "dynamic", "history", "single"]
Emit = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class Options:
    """All optional. Sizes are bytes, rates bytes per second, times seconds.

    `checksum` is (algorithm, raw digest). `connections` per mirror: None means one, which is best
    unless a server limits each connection. `block_bytes` fixes the block size, `blocks` is the B
    of the dynamic strategy. `max_wait_s` 0 means: do not wait at all. `client_id` and
    `data_folder` are found in the user's data folder when None. `window_bytes` bounds what is
    held for in-order output. `peers`: exchange pieces with others who fetch the file; they are
    sent at most `upload_bytes_s`. `ca_file` holds certificates (PEM) that are believed beside
    those of the system; `insecure` believes any. `max_failures` in a row and a mirror is given
    up; one that has answered before is left three times as many, with pauses up to a minute.
    """

    checksum: tuple[str, bytes] | None = None
    strategy: Strategy = "adaptive"
    connections: int | None = None
    block_bytes: int | None = None
    blocks: int = 40
    limit_bytes_s: float | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    pass_token: str | None = field(default=None, repr=False)
    mirrors: bool = True
    multicast: bool = False
    multicast_interface: str | None = None
    peers: bool = False
    upload_bytes_s: float = 1_250_000.0
    timeout_s: float = 30.0
    stall_s: float = 1.0
    max_wait_s: float = math.inf
    max_failures: int = 5
    max_redirects: int = 10
    window_bytes: int = 32 << 20
    data_folder: Path | None = None
    client_id: str | None = None
    ca_file: str | None = None
    insecure: bool = False
    environ: Mapping[str, str] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raises UsageProblem for what no download could end with."""
        needed = {
            "the size of blocks": self.block_bytes,
            "the number of blocks": self.blocks,
            "the number of connections": self.connections,
            "the limit of the rate": self.limit_bytes_s,
            "the time-out": self.timeout_s,
        }
        for what, value in needed.items():
            if value is not None and not value > 0:
                raise UsageProblem(f"{what} must be more than {value:g}")


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What one mirror contributed. `busy_s` is the time in which it was asked for something."""

    url: str
    bytes: int
    rate_bytes_s: float
    rtt_s: float
    requests: int
    connections: int
    retries: int
    waited_s: float
    dropped: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """A download that is done and right. `path` is None for in-order output.

    `verified` names what vouches for the bytes: "checksum", "digest", "pieces" or "length".
    `received_bytes` counts body bytes that arrived, wasted ones too; `resumed_bytes` were there
    before. `first_byte_s` is when the first byte came, `seconds` when all was done, both from the
    start. `predicted_s` is the model's figure where it could make one, `forecast` what
    it is based on.
    """

    path: Path | None
    size_bytes: int
    received_bytes: int
    resumed_bytes: int
    seconds: float
    verified: str
    sources: tuple[SourceReport, ...] = ()
    first_byte_s: float = 0.0
    predicted_s: float | None = None
    culprits: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)
    forecast: tuple[str, ...] = ()

    @property
    def rate_bytes_s(self) -> float | None:
        """Bytes per second from the first byte on, waits in a queue left out; None if too short."""
        span_s = self.seconds - self.first_byte_s
        fetched = self.size_bytes - self.resumed_bytes
        return fetched / span_s if span_s > 0.01 and fetched > 0 else None

    @property
    def wasted_bytes(self) -> int:
        """Bytes received more than were needed."""
        return max(0, self.received_bytes + self.resumed_bytes - self.size_bytes)
