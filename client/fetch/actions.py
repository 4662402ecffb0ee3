"""What `decide` wants done; the driver does it, in order, until the download is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..net.errors import DownloadFailed
from ..net.urls import Url


class Connect(NamedTuple):
    """Open the lane's connection, unless it is open or may not be."""

    lane: int


class HangUp(NamedTuple):
    """Close it; its blocks become free."""

    lane: int


class LetGo(NamedTuple):
    """Nothing more for this lane: other downloads may use the connection."""

    lane: int


class AskAll(NamedTuple):
    """Ask for whatever there is: the whole file."""

    lane: int


class Wake(NamedTuple):
    """Look after all lanes in a moment."""


class CallAt(NamedTuple):
    """Say `Due` at that time."""

    mirror: int
    until: float


class Tell(NamedTuple):
    """An event for the user."""

    event: str
    data: Mapping[str, object]


class SetUp(NamedTuple):
    """The size is known, or known to be untold: make a place for the bytes, and begin."""

    size_bytes: int


class Settle(NamedTuple):
    """The size was untold, and is known now."""

    size_bytes: int


class Accept(NamedTuple):
    """The answer's bytes are of our file."""


class Steer(NamedTuple):
    """The lane's whole answer gets the block from `start` on."""

    lane: int
    start: int


class AskSample(NamedTuple):
    """Ask for these bytes, to compare them."""

    lane: int
    start: int
    end: int


class FetchMetalink(NamedTuple):
    """Get the Metalink beside the file."""

    url: Url


class UseDigest(NamedTuple):
    """The file should have this digest, if nothing better is known."""

    digest: tuple[str, bytes]


class Distrust(NamedTuple):
    """What the mirror gave and nobody vouches for is missing again."""

    mirror: int


class Mend(NamedTuple):
    """The digest is wrong: look for the culprit."""


class FinishFile(NamedTuple):
    """The file is whole and right: give it its name."""


class StartOver(NamedTuple):
    """Forget everything that arrived, and ask all mirrors afresh."""


class Fail(NamedTuple):
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
    | AskSample
    | FetchMetalink
    | UseDigest
    | Distrust
    | Mend
    | FinishFile
    | StartOver
    | Fail
)
