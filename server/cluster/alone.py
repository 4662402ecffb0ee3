"""What a node does for large downloads while nobody leads: a plain first come, first served.

It gives no tickets, so nothing has to be given back: who started here is told to the next leader as
running, and either keeps going there or waits paused, with a place.
"""

from __future__ import annotations

from collections.abc import Sequence

#: One network has at most this part of the slots, at least one: nobody judges who asks.
_PART = 0.25


def may_start(slots: int, running: Sequence[str], network: str) -> bool:
    """Whether one more from this network may start; `running` are the networks of those who do."""
    most = max(1, int(slots * _PART))
    return len(running) < slots and running.count(network) < most
