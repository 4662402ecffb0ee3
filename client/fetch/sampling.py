"""Compares a few bytes of all mirrors' copies while they work; see `client.schedule.sample_vote`.

Three or more mirrors are asked for the same few bytes near the start before anything else,
so that one with another copy is found before it has given much, and later for some at a random
place of the file, where a copy that was only begun is still empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from client.schedule.sample_vote import Jury

if TYPE_CHECKING:
    from client.fetch.download import Download
    from client.fetch.workers import Worker

#: So many bytes of each are compared.
SAMPLE_BYTES = 1024
_LEAST_BYTES = 1 << 20
#: How long a download that is whole waits for samples that are still on their way.
_PATIENCE_S = 0.5


@dataclass(slots=True)
class _Round:
    """One place, asked of everybody once."""

    start: int
    end: int
    jury: Jury = field(default_factory=Jury)


class Sampling:
    """Who differs from the majority is convicted."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._rounds: list[_Round] = []
        self._late_s: float | None = None
        self._passing: dict[tuple[int, int], bytearray] = {}

    def asked_early(self, worker: Worker, start: int, end: int) -> None:
        """A mirror is being asked before the size is known."""
        if not self._rounds:
            self._rounds.append(_Round(start, end))
        self._rounds[0].jury.heard.add(worker.source.number)

    def choose(self, size_bytes: int) -> None:
        """The size is known: pick a place."""
        if _LEAST_BYTES <= size_bytes < 1 << 62:
            at = self._download.random.randrange(size_bytes - SAMPLE_BYTES)
            self._rounds.append(_Round(at, at + SAMPLE_BYTES))

    def ask(self, worker: Worker) -> None:
        """The mirror's first connection stands."""
        source = worker.source
        if worker.lane != source.lanes[0] or source.last_resort or not source.parts:
            return
        for one in self._rounds:
            if source.number not in one.jury.heard:
                one.jury.heard.add(source.number)
                worker.sample(one.start, one.end)

    def passed(self, worker: Worker, position: int, data: memoryview) -> None:
        """A mirror that sends the whole file has come to these bytes of it."""
        number = worker.source.number
        for one in list(self._rounds):
            first, last = max(one.start, position), min(one.end, position + len(data))
            if first >= last or number in one.jury.said:
                continue
            found = self._passing.setdefault((number, one.start), bytearray())
            found += data[first - position : last - position]
            if len(found) == one.end - one.start:
                one.jury.heard.add(number)
                self.testified(worker, one.start, bytes(found))

    def testified(self, worker: Worker, start: int, data: bytes) -> None:
        """A mirror's bytes."""
        download = self._download
        for one in self._rounds:
            if one.start != start:
                continue
            one.jury.testify(worker.source.number, data)
            for number in one.jury.liars() or self._second_of_two(one):
                if download.sources[number].dropped is None:
                    download.troubles.convict(
                        download.sources[number], "its copy differs from the others'"
                    )

    def _second_of_two(self, one: _Round) -> list[int]:
        """Where nothing else can tell, the mirror that the user named first is believed."""
        download = self._download
        sink = download.sink
        if sink is None or sink.digest is not None or sink.pieces is not None:
            return []
        if download.sources[0].dropped is not None:
            return []
        if len(download.sources) != 2 or len(one.jury.said) != 2 or not one.jury.split:
            return []
        return [1]

    def awaited(self, now: float) -> bool:
        """Whether a whole file should wait for the rest of the jury, for want of better proof."""
        sink = self._download.sink
        if sink is None or sink.digest is not None or sink.pieces is not None:
            return False
        if not any(self._outstanding(one) for one in self._rounds):
            return False
        if self._late_s is None:
            self._late_s = now + _PATIENCE_S
        return now < self._late_s

    def _outstanding(self, one: _Round) -> bool:
        for number in one.jury.heard - one.jury.said:
            source = self._download.sources[number]
            worker = self._download.workers[source.lanes[0]]
            if source.usable and worker.connection is not None and worker.connection.busy:
                return True
        return False
