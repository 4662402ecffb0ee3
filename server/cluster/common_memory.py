"""What the processes of one machine count together, in memory that all of them see.

The parent makes it before it forks. Each process writes in a row of its own only, so there is no
lock and no message: who sends on the machine's line how much, who waits for it, and how many
connections come from which address. A process that is started again goes on in the row of the one
before.
"""

from __future__ import annotations

import enum
import mmap

from ..files.pacer import Others
from ..http.factory import AddressCounts


class _Field(enum.IntEnum):
    """The fields of a process."""

    #: The bytes that it has sent.
    SENT = 0
    #: Its downloads that the cap holds back.
    WAITING = 1
    #: Its paused downloads.
    PAUSED = 2
    #: The bytes that it has spent on keeping these alive.
    KEPT = 3


#: The width of a row: a power of two.
_FIELDS = 8
#: The cells of each of two tables that count addresses by independent parts of their hash;
#: the smaller of the two counts holds. With ten thousand addresses one in fifty counts too high.
_CELLS = 1 << 16


class CommonMemory:
    """The memory of a number of processes. Make it before the fork, then take a row of it."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        sums = processes * _FIELDS * 8
        self._memory = mmap.mmap(-1, sums + processes * 2 * _CELLS * 4)
        view = memoryview(self._memory)
        self.sums = view[:sums].cast("q")
        self.counts = view[sums:].cast("I")


class CommonLine(Others):
    """The line that the processes of one machine share."""

    def __init__(self, memory: CommonMemory, row: int) -> None:
        self._sums = memory.sums
        self._own = row * _FIELDS
        self._others = [one * _FIELDS for one in range(memory.processes) if one != row]
        #: What the process before this one in the row had sent, and spent on paused downloads.
        self._before = self._sums[self._own + _Field.SENT]
        self._kept_before = self._sums[self._own + _Field.KEPT]
        self._sums[self._own + _Field.WAITING] = self._sums[self._own + _Field.PAUSED] = 0

    def tell(self, sent_bytes_total: int, waiting: int) -> None:
        self._sums[self._own + _Field.SENT] = self._before + sent_bytes_total
        self._sums[self._own + _Field.WAITING] = waiting

    def sent_bytes(self) -> int:
        return sum(self._sums[one + _Field.SENT] for one in self._others)

    def waiting(self) -> int:
        return sum(self._sums[one + _Field.WAITING] for one in self._others)

    def tell_kept(self, paused: int, spent_bytes_total: int) -> None:
        self._sums[self._own + _Field.PAUSED] = paused
        self._sums[self._own + _Field.KEPT] = self._kept_before + spent_bytes_total

    def kept(self) -> tuple[int, int]:
        paused = sum(self._sums[one + _Field.PAUSED] for one in self._others)
        return paused, sum(self._sums[one + _Field.KEPT] for one in self._others)


class CommonCounts(AddressCounts):
    """Connections by address over all processes."""

    def __init__(self, memory: CommonMemory, row: int) -> None:
        self._counts = memory.counts
        self._own = row * 2 * _CELLS
        self._rows = [one * 2 * _CELLS for one in range(memory.processes)]
        # What the process before this one had open is closed.
        for cell in range(self._own, self._own + 2 * _CELLS):
            if self._counts[cell]:
                self._counts[cell] = 0

    def add(self, address: str) -> None:
        for cell in _cells(address):
            self._counts[self._own + cell] += 1

    def remove(self, address: str) -> None:
        for cell in _cells(address):
            self._counts[self._own + cell] -= 1

    def of(self, address: str) -> int:
        """See `AddressCounts`; seldom more than there are, never fewer."""
        counts = self._counts
        return min(sum(counts[row + cell] for row in self._rows) for cell in _cells(address))


def _cells(address: str) -> tuple[int, int]:
    """Where this address is counted: forks have one hash, which no client can foresee."""
    found = hash(address)
    return found & (_CELLS - 1), _CELLS + (found >> 24 & (_CELLS - 1))
