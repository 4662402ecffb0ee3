"""What a caller may ask of a download, and what comes back."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..net.errors import UsageProblem

OnEvent = Callable[[str, Mapping[str, object]], None]
#: The length of a raw digest by its algorithm.
_DIGEST_BYTES = {"sha256": 32, "sha384": 48, "sha512": 64, "sha1": 20, "md5": 16}


@dataclass(frozen=True, slots=True)
class Options:
    """All optional. Sizes are bytes, rates bytes per second, times seconds.

    `checksum` is the file's expected digest: "sha256:HEX", or (algorithm, raw digest).
    `connections` to each mirror: None means one. `max_wait_s` 0 means: never wait in a queue.
    `client_id` and `data_folder` are found in the user's data folder when None. `window_bytes`
    bounds what is held for in-order output. `peers`: exchange pieces with other clients of the
    file; they are sent at most `upload_bytes_s`. `ca_file` holds certificates (PEM) that are
    trusted beside those of the system; `insecure` trusts any. A mirror is given up after
    `max_failures` in a row; one that has answered before after three times as many, with pauses up
    to a minute.
    """

    checksum: str | tuple[str, bytes] | None = None
    connections: int | None = None
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
    data_folder: str | os.PathLike[str] | None = None
    client_id: str | None = None
    ca_file: str | os.PathLike[str] | None = None
    insecure: bool = False
    environ: Mapping[str, str] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raises UsageProblem for a value that no download can use."""
        _ = self.digest
        positive = {
            "the number of connections": self.connections,
            "the limit of the rate": self.limit_bytes_s,
            "the time-out": self.timeout_s,
        }
        for what, value in positive.items():
            if value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise UsageProblem(f"{what} must be a number, not {value!r}")
            if not value > 0:
                raise UsageProblem(f"{what} must be more than 0")
        for header in self.headers:
            if not _is_header(header):
                raise UsageProblem("headers are pairs of text of one line: ((NAME, VALUE), ...)")
        for what, path in {"data_folder": self.data_folder, "ca_file": self.ca_file}.items():
            if path is not None and not is_path(path):
                raise UsageProblem(f"{what} must be a path, not {path!r}")

    @property
    def digest(self) -> tuple[str, bytes] | None:
        """The expected digest: algorithm and raw bytes."""
        if self.checksum is None:
            return None
        if isinstance(self.checksum, str):
            return read_checksum(self.checksum)
        match self.checksum:
            case (str(name), bytes(raw)) if _DIGEST_BYTES.get(name) == len(raw):
                return name, raw
        raise UsageProblem('the checksum is "sha256:HEX", or (algorithm, raw digest)')


def read_checksum(text: str) -> tuple[str, bytes]:
    """A digest from text such as "sha256:HEX"; SHA-2 needs no name. Raises UsageProblem."""
    name, _, digits = text.strip().rpartition(":")
    name = name.lower().replace("-", "")
    if not name:
        # A digest without a name is of the SHA-2 family.
        name = {32: "sha256", 48: "sha384", 64: "sha512"}.get(len(digits) // 2, "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if _DIGEST_BYTES.get(name) != len(raw):
        raise UsageProblem(f"{text!r} is no digest; write it like sha256:HEX")
    return name, raw


def is_path(path: object) -> bool:
    """Whether a file system can have this path: it has no NUL, and no half of a surrogate pair."""
    try:
        return isinstance(path, str | os.PathLike) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _is_header(header: object) -> bool:
    """A line break in a header would begin another one."""
    match header:
        case (str(name), str(value)):
            return name != "" and not any(c in name + value for c in "\r\n\0")
    return False


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a download stands.

    `done_bytes` are in their place, those of an earlier attempt too. `size_bytes` is None until a
    server tells it. `left_s` is None while the size or the rate is unknown. `rates_bytes_s` has
    the present rate of each source by its URL; peers and multicast count as sources. While a
    server makes the download wait, `place` is its place in the queue and `starts_in_s` the
    expected wait, where the server tells them.
    """

    done_bytes: int
    size_bytes: int | None
    rates_bytes_s: Mapping[str, float]
    place: int | None = None
    starts_in_s: float | None = None

    @property
    def rate_bytes_s(self) -> float:
        """The present rate of all sources together."""
        return sum(self.rates_bytes_s.values())

    @property
    def left_s(self) -> float | None:
        """The time left at the present rate."""
        if self.size_bytes is None or not self.rate_bytes_s:
            return None
        return (self.size_bytes - self.done_bytes) / self.rate_bytes_s

    def fields(self) -> dict[str, object]:
        """The data of the event `progress`."""
        return {
            "bytes": self.done_bytes,
            "size": self.size_bytes,
            "rate": round(self.rate_bytes_s),
            "eta_s": round(self.left_s, 1) if self.left_s is not None else None,
            "mirrors": {url: round(rate) for url, rate in self.rates_bytes_s.items()},
        }


OnProgress = Callable[[Progress], None]


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

    `verified` names what vouches for the bytes: "checksum", "digest", "pieces", "length", or
    "nothing": the server told no length, and closed the connection after the last byte.
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
