"""Everything a download has decided and been told: one state, changed by `decide` alone.

The driver (`client.fetch.download`) counts what only it can see: `Counts`, `overhead_bytes`, the
position of a whole answer. The state holds no sockets, files or timers. A *lane* is the number of
a connection to a mirror; it stays when the connection is opened again.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from ..net.errors import NoRoom
from ..net.retry import FailureReason, RetryPolicy, RetryState
from ..net.urls import Url
from ..schedule.model import Path
from ..schedule.segments import UNKNOWN_SIZE, SegmentMap
from .options import Options


class SampleVote:
    """`add` for each mirror; `minority` once more than half of at least three agree.

    `asked` are those that have been asked.
    """

    def __init__(self) -> None:
        self._answers: dict[int, bytes] = {}
        self.asked: set[int] = set()

    @property
    def answered(self) -> set[int]:
        return set(self._answers)

    def add(self, source: int, data: bytes) -> None:
        self._answers[source] = data

    def minority(self) -> list[int]:
        """Mirrors whose bytes differ from those of a clear majority; empty while unclear."""
        if len(self._answers) < 3:
            return []
        (word, votes), *_ = Counter(self._answers.values()).most_common(1)
        if votes * 2 <= len(self._answers):
            return []
        return sorted(source for source, data in self._answers.items() if data != word)

    def differing_from_first(self, among: list[int]) -> list[int]:
        """Mirrors of `among` whose bytes differ from the most common ones; at a tie the mirror with
        the least number is right. For the end, when no more answers come."""
        words = [self._answers[source] for source in sorted(among) if source in self._answers]
        if not words:
            return []
        word = max(words, key=words.count)
        return [source for source in sorted(among) if self._answers.get(source, word) != word]


class MirrorState(enum.Enum):
    """Whether a mirror may be asked, and if not, why."""

    READY = "ready"
    #: It said when to come back, or is left alone after a fault; see `Mirror.pause`.
    WAITING = "waiting"
    #: It would not make the download shorter; it is called in when the plan fails.
    STANDBY = "standby"
    #: Its file comes by multicast.
    RECEIVING = "receiving"
    DROPPED = "dropped"


class Serves(enum.Enum):
    """What a mirror sends."""

    UNKNOWN = "unknown"
    #: Parts: it has sent one, or says that it can.
    PARTS = "parts"
    #: Only ever the whole file.
    WHOLE = "whole"
    #: The same, and it was called back because no other is left.
    LAST_RESORT = "last resort"


class Depth(enum.Enum):
    """How many requests a mirror takes on a connection."""

    UNTRIED = "untried"
    #: It has answered a request that was sent while another was under way.
    SEVERAL = "several"
    #: It closes after each answer, or stalls.
    ONE = "one"


class MirrorPause(NamedTuple):
    """A mirror is left alone until `until`; the rest is what it told, for people."""

    until: float
    text: str
    place: int | None = None
    #: When the server expects the first byte, and the last one.
    starts_at: float | None = None
    done_at: float | None = None


@dataclass(slots=True)
class Counts:
    """What a mirror has done so far. `busy_s`: the time in which it had a request to answer."""

    rtt_s: float = 0.0
    received_bytes: int = 0
    requests: int = 0
    connections: int = 0
    retries: int = 0
    busy_s: float = 0.0

    @property
    def rate_bytes_s(self) -> float:
        return self.received_bytes / self.busy_s if self.busy_s > 0 else 0.0


@dataclass(slots=True, eq=False)
class Mirror:
    """One place that has the file.

    `at` is where redirects have led. `listed`: the user named it, so what it says of digests and
    other mirrors is believed. `remembered` is its rate and round trip in earlier downloads.
    `dropped` is the reason for leaving it out.
    """

    number: int
    url: Url
    visit: RetryState
    at: Url
    listed: bool = True
    remembered: Path | None = None
    state: MirrorState = MirrorState.READY
    serves: Serves = Serves.UNKNOWN
    depth: Depth = Depth.UNTRIED
    pause: MirrorPause | None = None
    dropped: str | None = None
    validator: str | None = None
    #: Its Last-Modified, as told.
    modified: str | None = None
    size_bytes: int | None = None
    #: How often it told another size than before.
    resized: int = 0
    answered: bool = False
    #: Asked for bytes past the end before the size was known.
    beyond: bool = False
    #: How much an answer had brought when the mirror cut one off, and what is safe to ask for.
    cut_bytes: int | None = None
    most_bytes: int | None = None
    #: The missing bytes when a connection of the mirror was lost last, and how often in a row they
    #: had not become fewer.
    missing_at_loss_bytes: int | None = None
    vain_losses: int = 0
    #: Complete answers that brought next to nothing of what was asked for.
    short_answers: int = 0
    redirects: int = 0
    lanes: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    @property
    def host(self) -> str:
        """What the rate database knows it by."""
        return f"{self.url.host}:{self.url.port}"

    @property
    def alive(self) -> bool:
        return self.state is not MirrorState.DROPPED

    @property
    def parts(self) -> bool:
        """Whether it serves parts, or may."""
        return self.serves in (Serves.UNKNOWN, Serves.PARTS)

    @property
    def resting(self) -> bool:
        """Whether there is nothing to ask it for: it sends only the whole file, and has."""
        return self.serves is Serves.WHOLE


class DownloadPhase(enum.Enum):
    """How far the download is."""

    #: The size is not known yet.
    OPENING = "opening"
    FETCHING = "fetching"
    #: The file has its name; a multicast sender may still have to be told.
    CLOSING = "closing"
    OVER = "over"


@dataclass(slots=True)
class Round:
    """One place of the file, asked of every mirror once."""

    start: int
    end: int
    votes: SampleVote = field(default_factory=SampleVote)


@dataclass(slots=True)
class Samples:
    """What is compared. `passing` collects samples out of whole answers, by mirror and start.

    `doubtful` counts further places, because copies bear different dates; `later` are those of
    them that no mirror was asked for yet. A whole file waits for samples until `late_s`, for the
    first mirror until `first_late_s`."""

    rounds: list[Round] = field(default_factory=list)
    passing: dict[tuple[int, int], bytearray] = field(default_factory=dict)
    late_s: float | None = None
    first_late_s: float | None = None
    doubtful: int = 0
    later: list[Round] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class WholeAnswer:
    """A mirror sends the whole file on this lane: `position` is the next byte of it. `steering`:
    it has the block on the segment map; else it writes what the one that has leaves out."""

    lane: int
    began_s: float
    steering: bool
    position: int = 0

    def rate(self, now: float) -> float:
        return self.position / max(0.001, now - self.began_s)


@dataclass(slots=True)
class State:
    """One download. `segments` exists once the size is known, or known to be untold."""

    options: Options
    random: Random
    began_s: float
    #: Where the rates and round trips of earlier downloads are kept.
    remembered: Callable[[str], Path | None]
    #: The reader takes the bytes in order and sets the pace.
    in_order: bool = False
    #: The size in a Metalink that the caller gave.
    promised_bytes: int | None = None
    phase: DownloadPhase = DownloadPhase.OPENING
    mirrors: list[Mirror] = field(default_factory=list)
    lane_mirrors: list[int] = field(default_factory=list)
    segments: SegmentMap | None = None
    size_bytes: int = UNKNOWN_SIZE
    #: False: the only answer ended with its connection, which may have been cut.
    end_marked: bool = True
    #: A digest or pieces will tell whether the bytes are right.
    vouched: bool = False
    first_byte_s: float | None = None
    #: The mirror whose bytes are being replaced, to see whether it was the one that lied.
    suspect: int | None = None
    restarts: int = 0
    #: There was no room for the size that a mirror told, which is left out.
    no_room: NoRoom | None = None
    reasons: list[tuple[FailureReason, str]] = field(default_factory=list)
    wrong_pieces: dict[int, int] = field(default_factory=dict)
    #: Told by the first mirror in its first answer.
    digest: tuple[str, bytes] | None = None
    proposed_name: str | None = None
    metalink_asked: bool = False
    #: Bytes that no mirror's count has: samples, and what came before a new start.
    overhead_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    #: Until when the mirrors in use should be through, by the plan.
    planned_until_s: float | None = None
    #: What was planned and predicted, for people; and the whole time, by the model.
    forecast: list[str] = field(default_factory=list)
    forecast_made: bool = False
    predicted_s: float | None = None
    samples: Samples = field(default_factory=Samples)
    whole: dict[int, WholeAnswer] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be done."""
        return self.phase is DownloadPhase.OVER

    @property
    def ended(self) -> bool:
        """Whether no byte is wanted any more."""
        return self.phase in (DownloadPhase.CLOSING, DownloadPhase.OVER)

    @property
    def alive(self) -> Iterator[Mirror]:
        return (mirror for mirror in self.mirrors if mirror.alive)

    def add(self, url: Url, *, listed: bool) -> Mirror | None:
        """One more mirror with one lane; None when it is known."""
        if any(mirror.url == url for mirror in self.mirrors):
            return None
        options = self.options
        failures = max(1, options.max_failures)
        # A mirror that has answered may fail this many times as often: it may be starting again.
        failures_answered = failures if failures == 1 else 3 * failures
        manners = RetryPolicy(
            max_wait_s=options.max_wait_s,
            max_failures=failures,
            max_failures_answered=failures_answered,
        )
        visit = RetryState(manners, self.random, self.began_s)
        visit.begin()
        mirror = Mirror(len(self.mirrors), url, visit, url, listed)
        mirror.remembered = self.remembered(mirror.host)
        self.mirrors.append(mirror)
        self.lane(mirror)
        return mirror

    def lane(self, mirror: Mirror) -> int:
        """The number of one more connection to a mirror."""
        lane = len(self.lane_mirrors)
        self.lane_mirrors.append(mirror.number)
        mirror.lanes.append(lane)
        return lane

    def mirror_of(self, lane: int) -> Mirror:
        """Whose connection it is, or was."""
        return self.mirrors[self.lane_mirrors[lane]]

    def usable(self, mirror: Mirror) -> bool:
        """Whether the mirror may be asked now."""
        return mirror.state is MirrorState.READY and mirror.number != self.suspect

    def helps(self, mirror: Mirror) -> bool:
        """Whether it can be asked now, or called in."""
        return self.usable(mirror) or mirror.state is MirrorState.STANDBY

    def others(self, mirror: Mirror) -> bool:
        """Whether another mirror can serve parts of the file."""
        return any(other is not mirror and other.parts for other in self.alive)

    def expected_lanes(self) -> int:
        """How many lanes work or may come."""
        return sum(
            len(mirror.lanes)
            for mirror in self.alive
            if mirror.number != self.suspect and mirror.state is not MirrorState.STANDBY
        )

    def received_bytes(self) -> int:
        """What all mirrors have sent of the file."""
        return sum(mirror.counts.received_bytes for mirror in self.mirrors)
