"""Which ticket numbers are over, and below which mark numbers may have been issued.

Finished tickets are bits, in pages that exist only where numbers were used: a million of them cost
125 KB. They tell a used ticket from one that was lost in a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...policies.contract import ELSEWHERE

_PAGE_BITS = 1 << 13
#: The store gets a new mark once for a block of numbers. A crash skips the rest of a block.
BLOCK = 1_000_000


class Numbers:
    """The high-water mark and the finished numbers. `promise` stores the next mark."""

    def __init__(
        self, next_number: int, over: Iterable[int], promise: Callable[[int], None]
    ) -> None:
        self._pages: dict[int, bytearray] = {}
        self._promise = promise
        #: Numbers from here on are issued only after the next call of `promise`.
        self.promised = next_number
        self.first = next_number
        self.highest = next_number - 1
        for number in over:
            self.end(number)
        self._reach(next_number)

    def issued(self, number: int) -> None:
        """A number was issued; the mark counts numbers of leaders only."""
        if self.highest < number and (number < ELSEWHERE or self.first >= ELSEWHERE):
            self.highest = number
            self._reach(number)

    def end(self, number: int) -> None:
        """A ticket is over: done, expired or withdrawn."""
        page = self._pages.get(number // _PAGE_BITS)
        if page is None:
            page = self._pages[number // _PAGE_BITS] = bytearray(_PAGE_BITS // 8)
        bit = number % _PAGE_BITS
        page[bit >> 3] |= 1 << (bit & 7)

    def is_over(self, number: int) -> bool:
        """Whether a ticket with this number was used up."""
        page = self._pages.get(number // _PAGE_BITS)
        bit = number % _PAGE_BITS
        return page is not None and bool(page[bit >> 3] & (1 << (bit & 7)))

    def _reach(self, number: int) -> None:
        if number >= self.promised - BLOCK // 2:
            self.promised = number + BLOCK
            self._promise(self.promised)
