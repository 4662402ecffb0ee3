"""What `decide` wants done; the driver does it, in order, until the download is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..net.errors import DownloadFailed
from ..net.urls import Url


class Connect(NamedTuple):
    """Open the lane's connection, unless it is open or may not be."""

    lane: int


class Disconnect(NamedTuple):
    """Close it; its blocks become free."""

    lane: int


class RequestWholeFile(NamedTuple):
    """Ask for whatever there is: the whole file."""

    lane: int


class Wake(NamedTuple):
    """Look after all lanes in a moment."""


class ScheduleRetry(NamedTuple):
    """Say `RetryDue` at that time."""

    mirror: int
    until: float


class Emit(NamedTuple):
    """An event for the user."""

    event: str
    data: Mapping[str, object]


class OpenOutput(NamedTuple):
    """The size is known, or known to be untold: make a place for the bytes, and begin."""

    size_bytes: int


class SetSize(NamedTuple):
    """The size was untold, and is known now."""

    size_bytes: int


class AcceptBody(NamedTuple):
    """The answer's bytes are of our file."""


class AssignFrom(NamedTuple):
    """The lane's whole answer gets the block from `start` on."""

    lane: int
    start: int


class RequestSample(NamedTuple):
    """Ask for these bytes, to compare them."""

    lane: int
    start: int
    end: int


class FetchMetalink(NamedTuple):
    """Get the Metalink beside the file, of which this mirror told."""

    url: Url
    mirror: int


class UseDigest(NamedTuple):
    """The file should have this digest, if nothing better is known."""

    digest: tuple[str, bytes]


class Distrust(NamedTuple):
    """Bytes of the mirror that no digest has proved are missing again."""

    mirror: int


class FindCulprit(NamedTuple):
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
    | Disconnect
    | RequestWholeFile
    | Wake
    | ScheduleRetry
    | Emit
    | OpenOutput
    | SetSize
    | AcceptBody
    | AssignFrom
    | RequestSample
    | FetchMetalink
    | UseDigest
    | Distrust
    | FindCulprit
    | FinishFile
    | StartOver
    | Fail
)
