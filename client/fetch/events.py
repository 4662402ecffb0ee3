"""What happens to a download, as `decide` is told of it. Lanes and mirrors go by number.

Named tuples are made eight times as fast as data classes, and the first request waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..net.answers import Body
from ..net.errors import NoRoom
from ..net.retry import Answer
from ..net.urls import Url
from ..schedule.segments import SegmentMap


class Break(NamedTuple):
    """How a connection ended.

    `served` answers were complete. `brought_bytes` of the file came in all, `answer_bytes` of them
    in the answer that did not end. `crowded`: a request had been sent while another was under way.
    `permanent`: asking again is pointless. `announced`: an answer had said that the server closes.
    """

    served: int
    brought_bytes: int
    answer_bytes: int
    crowded: bool
    permanent: bool
    announced: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """`mirrors` in order of preference (RFC 6249), `metalink` of type metalink4, the digest
    of the whole file (RFC 9530), the name that the server proposes, and the Last-Modified."""

    mirrors: tuple[Url, ...] = ()
    metalink: Url | None = None
    digest: tuple[str, bytes] | None = None
    name: str | None = None
    modified: str | None = None


NOTHING_FOUND = Findings()


class Started(NamedTuple):
    """Begin. `promised_bytes`: the size, where the caller's Metalink says."""

    promised_bytes: int | None = None


class ConnectionOpened(NamedTuple):
    """The lane's connection stands; not `anew`: it stood before, with what was asked for on it."""

    lane: int
    anew: bool = True


class ConnectionLost(NamedTuple):
    """The lane's connection ended by itself."""

    lane: int
    how: Break
    text: str


class ConnectionSilent(NamedTuple):
    """Nothing came for `silent_s`. `crowded`: its next answer is to a request that was sent behind
    another."""

    lane: int
    silent_s: float
    rtt_s: float
    crowded: bool


class StatusReceived(NamedTuple):
    """A mirror refuses, defers, fails, or (Granted) starts a lease. `at_s`: when that arrived."""

    lane: int
    answer: Answer
    at_s: float


class RetryDue(NamedTuple):
    """The end of a pause has come."""

    mirror: int
    until: float


class Redirected(NamedTuple):
    """The file is elsewhere."""

    lane: int
    location: str


class RangeOutsideFile(NamedTuple):
    """What was asked for lies outside the file, which has `size_bytes` (None: not told)."""

    lane: int
    start: int | None
    size_bytes: int | None


class AnswerReceived(NamedTuple):
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


class OutputReady(NamedTuple):
    """The place for the bytes stands. `vouched`: a digest or pieces will tell what is right."""

    size_bytes: int
    have_bytes: int
    pieces: bool
    vouched: bool
    segments: SegmentMap | None = None


class DigestKnown(NamedTuple):
    """A digest, or pieces, were learnt of."""


class MirrorsFound(NamedTuple):
    """A Metalink names them."""

    findings: Findings


class SampleReceived(NamedTuple):
    """A mirror's bytes at the place of a sample."""

    lane: int
    start: int
    data: bytes


class SamplePassed(NamedTuple):
    """A whole answer has come to these bytes; some of them are to be compared."""

    lane: int
    position: int
    data: bytes


class WholeAnswerBegan(NamedTuple):
    """On this lane comes the whole file."""

    lane: int


class WholeAnswerEnded(NamedTuple):
    """What this lane brought is over, or broken off."""

    lane: int


class UnsizedAnswerEnded(NamedTuple):
    """An answer of untold length has ended: there ends the file.

    Not `marked`: the connection ended, which may have been a cut.
    """

    lane: int
    size_bytes: int
    marked: bool = True


class ShortAnswer(NamedTuple):
    """A complete answer brought less than 16 KiB of a longer range."""

    lane: int


class FileTooLarge(NamedTuple):
    """There is no room for a file of that size."""

    size_bytes: int
    problem: NoRoom


class UnsizedAnswerLost(NamedTuple):
    """The lane is connected again after its answer without a length was lost, and no other runs."""

    lane: int


class PiecesWrong(NamedTuple):
    """Pieces (number, start, end) are wrong, and these mirrors are the known culprits."""

    pieces: tuple[tuple[int, int, int], ...]
    culprits: tuple[int, ...]


class BytesComplete(NamedTuple):
    """Every byte is here. `digest` is the name of the one that is wrong, None: all is right.
    `drained`: the reader has everything; `working`: mirrors that are sending something."""

    wrong_digest: str | None
    drained: bool
    working: frozenset[int]


class ReplacementStarted(NamedTuple):
    """The bytes of this mirror are being replaced; None: nothing is left to try."""

    mirror: int | None


class SessionJoined(NamedTuple):
    """The mirror's file comes by multicast."""

    mirror: int


class SessionLeft(NamedTuple):
    """It does not any more."""

    mirror: int


class ValidatorsKnown(NamedTuple):
    """The validators of mirrors (by number) in an earlier attempt, or in a multicast offer of a
    file of `size_bytes`."""

    validators: Mapping[int, str | None]
    size_bytes: int | None = None


class FirstByte(NamedTuple):
    """The first byte of the file is here."""


class PipelineAnswered(NamedTuple):
    """The lane's mirror answered a request that was sent behind another."""

    lane: int


class FileNamed(NamedTuple):
    """The file has its name; a multicast sender may still wait for a word."""


class DownloadOver(NamedTuple):
    """Nothing more is to be done."""


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    Started
    | ConnectionOpened
    | ConnectionLost
    | ConnectionSilent
    | StatusReceived
    | RetryDue
    | Redirected
    | RangeOutsideFile
    | AnswerReceived
    | OutputReady
    | DigestKnown
    | MirrorsFound
    | SampleReceived
    | SamplePassed
    | WholeAnswerBegan
    | WholeAnswerEnded
    | UnsizedAnswerEnded
    | ShortAnswer
    | FileTooLarge
    | UnsizedAnswerLost
    | PiecesWrong
    | BytesComplete
    | ReplacementStarted
    | SessionJoined
    | SessionLeft
    | ValidatorsKnown
    | FirstByte
    | PipelineAnswered
    | FileNamed
    | DownloadOver
    | Tick
)
