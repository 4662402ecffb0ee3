"""What happens to a download, as `decide` is told of it. Lanes and mirrors go by number.

Named tuples are made eight times as fast as data classes, and the first request waits for them.
"""

from __future__ import annotations

from typing import NamedTuple

from ..net.answers import Body
from ..net.errors import NoRoom
from ..net.retry import Answer
from .breaks import Break
from .findings import NOTHING_FOUND, Findings


class Started(NamedTuple):
    """Begin. `promised_bytes`: the size, where the caller's Metalink says."""

    promised_bytes: int | None = None


class Opened(NamedTuple):
    """The lane's connection stands; not `anew`: it stood before, with what was asked for on it."""

    lane: int
    anew: bool = True


class BrokeOff(NamedTuple):
    """The lane's connection ended by itself."""

    lane: int
    how: Break
    text: str


class Silent(NamedTuple):
    """Nothing came for so long. `crowded`: its next answer is to a request that was sent behind
    another."""

    lane: int
    silent_s: float
    rtt_s: float
    crowded: bool


class Said(NamedTuple):
    """A mirror said no, later, or nothing; or (Granted) yes. `at_s`: when the words arrived."""

    lane: int
    answer: Answer
    at_s: float


class Due(NamedTuple):
    """The end of a pause has come."""

    mirror: int
    until: float


class Redirected(NamedTuple):
    """The file is elsewhere."""

    lane: int
    location: str


class OutsideFile(NamedTuple):
    """What was asked for lies outside the file, which has `size_bytes` (None: not told)."""

    lane: int
    start: int | None
    size_bytes: int | None


class Answered(NamedTuple):
    """The head of an answer with bytes of a file, asked for from `start` on (None: all of it).

    `coding` is what it is packed with ("identity": not at all), `says_parts` whether it claims to
    serve ranges, `findings` what else the head tells.
    """

    lane: int
    start: int | None
    body: Body
    at_s: float
    coding: str = "identity"
    says_parts: bool = False
    findings: Findings = NOTHING_FOUND


class PlaceReady(NamedTuple):
    """The place for the bytes stands. `vouched`: a digest or pieces will tell what is right."""

    size_bytes: int
    have_bytes: int
    pieces: bool
    vouched: bool


class Vouched(NamedTuple):
    """A digest, or pieces, were learnt of."""


class MirrorsFound(NamedTuple):
    """A Metalink names them."""

    findings: Findings


class Sampled(NamedTuple):
    """A mirror's bytes at the place of a sample."""

    lane: int
    start: int
    data: bytes


class Passed(NamedTuple):
    """A whole answer has come to these bytes, of which some should be compared."""

    lane: int
    position: int
    data: bytes


class WholeBegan(NamedTuple):
    """On this lane comes the whole file."""

    lane: int


class WholeEnded(NamedTuple):
    """What this lane brought is over, or broken off."""

    lane: int


class ShortEnd(NamedTuple):
    """An answer of untold length has ended: there ends the file."""

    lane: int
    size_bytes: int


class Scanty(NamedTuple):
    """A complete answer brought hardly anything of what was asked for."""

    lane: int


class RoomLacking(NamedTuple):
    """There is no room for a file of that size."""

    size_bytes: int
    problem: NoRoom


class Unfinished(NamedTuple):
    """A connection stands again whose answer of untold length had broken off, and none runs."""

    lane: int


class PiecesWrong(NamedTuple):
    """Pieces (number, start, end) are wrong, and these mirrors are the culprits as far as known."""

    pieces: tuple[tuple[int, int, int], ...]
    culprits: tuple[int, ...]


class WrongBytes(NamedTuple):
    """The mirror gave wrong bytes."""

    mirror: int
    text: str


class Whole(NamedTuple):
    """Every byte is here. `digest` is the name of the one that is wrong, None: all is right.
    `drained`: the reader has everything; `working`: mirrors that are sending something."""

    wrong_digest: str | None
    drained: bool
    working: frozenset[int]


class Doubted(NamedTuple):
    """The bytes of this mirror are being replaced; None: nothing is left to try."""

    mirror: int | None


class SessionJoined(NamedTuple):
    """The mirror's file comes by multicast."""

    mirror: int


class SessionLeft(NamedTuple):
    """It does not any more."""

    mirror: int


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    Started
    | Opened
    | BrokeOff
    | Silent
    | Said
    | Due
    | Redirected
    | OutsideFile
    | Answered
    | PlaceReady
    | Vouched
    | MirrorsFound
    | Sampled
    | Passed
    | WholeBegan
    | WholeEnded
    | ShortEnd
    | Scanty
    | RoomLacking
    | Unfinished
    | PiecesWrong
    | WrongBytes
    | Whole
    | Doubted
    | SessionJoined
    | SessionLeft
    | Tick
)
