"""A table that keeps the entries used last and forgets the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedTable(OrderedDict[K, V]):
    """At most `capacity` entries, the one used longest ago first.

    Assigning an entry uses it, and so does `use`; reading it does not. `forgotten` is called with
    each value that gives way to another one.
    """

    def __init__(self, capacity: int, forgotten: Callable[[V], None] | None = None) -> None:
        super().__init__()
        self._capacity = capacity
        self._forgotten = forgotten

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._capacity:
            _, old = self.popitem(last=False)
            if self._forgotten is not None:
                self._forgotten(old)

    def use(self, key: K) -> V | None:
        """The entry of `key`, which is now the last one used; None where there is none."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]
