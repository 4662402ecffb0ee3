"""What happens to a download, as `decide` is told of it. Lanes and mirrors go by number."""

from __future__ import annotations

from dataclasses import dataclass

from client.fetch.breaks import Break
from client.fetch.findings import NOTHING_FOUND, Findings
from client.net.answers import Body
from client.net.retry import Answer


@dataclass(frozen=True, slots=True)
class Started:
    """Begin. `promised_bytes`: the size, where the caller's Metalink says."""

    promised_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The lane's connection stands."""

    lane: int


@dataclass(frozen=True, slots=True)
class BrokeOff:
    """The lane's connection ended by itself."""

    lane: int
    how: Break
    text: str


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing came for so long. `crowded`: its next answer is to a request that was sent behind
    another."""

    lane: int
    silent_s: float
    rtt_s: float
    crowded: bool


@dataclass(frozen=True, slots=True)
class Said:
    """A mirror said no, later, or nothing; or (Granted) yes. `at_s`: when the words arrived."""

    lane: int
    answer: Answer
    at_s: float


@dataclass(frozen=True, slots=True)
class Due:
    """The end of a pause has come."""

    mirror: int
    until: float


@dataclass(frozen=True, slots=True)
class Redirected:
    """The file is elsewhere."""

    lane: int
    location: str


@dataclass(frozen=True, slots=True)
class OutsideFile:
    """What was asked for lies outside the file, which has `size_bytes` (None: not told)."""

    lane: int
    start: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Answered:
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


@dataclass(frozen=True, slots=True)
class Ready:
    """The place for the bytes stands. `vouched`: a digest or pieces will tell what is right."""

    size_bytes: int
    have_bytes: int
    pieces: bool
    vouched: bool


@dataclass(frozen=True, slots=True)
class Vouched:
    """A digest, or pieces, were learnt of."""


@dataclass(frozen=True, slots=True)
class MirrorsFound:
    """A Metalink names them."""

    findings: Findings


@dataclass(frozen=True, slots=True)
class Sampled:
    """A mirror's bytes at the place of a sample."""

    lane: int
    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Passed:
    """A whole answer has come to these bytes, of which some should be compared."""

    lane: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class WholeBegan:
    """On this lane comes the whole file."""

    lane: int


@dataclass(frozen=True, slots=True)
class WholeEnded:
    """What this lane brought is over, or broken off."""

    lane: int


@dataclass(frozen=True, slots=True)
class ShortEnd:
    """An answer of untold length has ended: there ends the file."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class PiecesWrong:
    """Pieces (number, start, end) are wrong, and these mirrors are the culprits as far as known."""

    pieces: tuple[tuple[int, int, int], ...]
    culprits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WrongBytes:
    """The mirror gave wrong bytes."""

    mirror: int
    text: str


@dataclass(frozen=True, slots=True)
class Whole:
    """Every byte is here. `digest` is the name of the one that is wrong, None: all is right.
    `drained`: the reader has everything; `working`: mirrors that are sending something."""

    wrong_digest: str | None
    drained: bool
    working: frozenset[int]


@dataclass(frozen=True, slots=True)
class Doubted:
    """The bytes of this mirror are being replaced; None: nothing is left to try."""

    mirror: int | None


@dataclass(frozen=True, slots=True)
class SessionJoined:
    """The mirror's file comes by multicast."""

    mirror: int


@dataclass(frozen=True, slots=True)
class SessionLeft:
    """It does not any more."""

    mirror: int


@dataclass(frozen=True, slots=True)
class Tick:
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
    | Ready
    | Vouched
    | MirrorsFound
    | Sampled
    | Passed
    | WholeBegan
    | WholeEnded
    | ShortEnd
    | PiecesWrong
    | WrongBytes
    | Whole
    | Doubted
    | SessionJoined
    | SessionLeft
    | Tick
)
