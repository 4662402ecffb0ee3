"""What `decide` wants done; the driver does it, in order, until the download is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from client.net.errors import DownloadFailed
from client.net.urls import Url


@dataclass(frozen=True, slots=True)
class Connect:
    """Open the lane's connection, unless it is open or may not be."""

    lane: int


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close it; its blocks become free."""

    lane: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Nothing more for this lane: other downloads may use the connection."""

    lane: int


@dataclass(frozen=True, slots=True)
class AskAll:
    """Ask for whatever there is: the whole file."""

    lane: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Look after all lanes in a moment."""


@dataclass(frozen=True, slots=True)
class CallAt:
    """Say `Due` at that time."""

    mirror: int
    until: float


@dataclass(frozen=True, slots=True)
class Tell:
    """An event for the user."""

    event: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SetUp:
    """The size is known, or known to be untold: make a place for the bytes, and begin."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The size was untold, and is known now."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Accept:
    """The answer's bytes are of our file."""


@dataclass(frozen=True, slots=True)
class Steer:
    """The lane's whole answer gets the block from `start` on."""

    lane: int
    start: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Ask for these bytes, to compare them."""

    lane: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FetchMetalink:
    """Get the Metalink beside the file."""

    url: Url


@dataclass(frozen=True, slots=True)
class UseDigest:
    """The file should have this digest, if nothing better is known."""

    digest: tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Distrust:
    """What the mirror gave and nobody vouches for is missing again."""

    mirror: int


@dataclass(frozen=True, slots=True)
class Mend:
    """The digest is wrong: look for the culprit."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The file is whole and right: give it its name."""


@dataclass(frozen=True, slots=True)
class StartOver:
    """Forget everything that arrived, and ask all mirrors afresh."""


@dataclass(frozen=True, slots=True)
class Fail:
    """It cannot be done."""

    problem: DownloadFailed


Action = (
    Connect
    | HangUp
    | LetGo
    | AskAll
    | Wake
    | CallAt
    | Tell
    | SetUp
    | Settle
    | Accept
    | Steer
    | Sample
    | FetchMetalink
    | UseDigest
    | Distrust
    | Mend
    | Finish
    | StartOver
    | Fail
)
