"""Clients that took slots and used them for nothing: remembered, within bounds."""

from __future__ import annotations

from collections import OrderedDict

#: So many clients are remembered; who idled longest ago is forgotten first.
_REMEMBERED = 10_000
#: Beyond this many times nothing gets worse.
_MOST = 8


class Idlers:
    """How often each client let a slot idle away lately, having taken hardly anything."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: OrderedDict[str, int] = OrderedDict()

    def times(self, client: str) -> int:
        """How often since its last honest download."""
        return self._times.get(client, 0)

    def idled(self, client: str) -> None:
        """A slot of this client has run out unused."""
        self._times[client] = min(_MOST, self.times(client) + 1)
        self._times.move_to_end(client)
        if len(self._times) > _REMEMBERED:
            self._times.popitem(last=False)

    def used(self, client: str) -> None:
        """The client has finished a download."""
        self._times.pop(client, None)
