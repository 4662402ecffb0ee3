"""Virtual processor sharing: when each client would be done on a server without admission.

All clients that ask enter a virtual link of the same capacity. It serves them at once, max-min by
their own speeds, as a plain web server does. A client that asks for several files is one flow. Each
download ends at a *mark*, a count of the bytes that its client has asked for. (Related: FSP,
Friedman and Henderson, SIGMETRICS 2003, which serves in the order of these ends. Here they only say
when a download can wait no longer.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .max_min import Flow, SharedLink

#: A speed that differs by less than this part changes nothing.
_SAME_SPEED = 0.05


@dataclass(slots=True)
class _VirtualClient:
    """A client with a flow, or with downloads that are not over in truth."""

    flow: Flow | None = None
    asked_bytes: float = 0.0
    speed_bytes_s: float = 0.0
    downloads: int = 0


class VirtualSharing:
    """One flow a client. Sizes are bytes, times seconds."""

    def __init__(self) -> None:
        self._link: SharedLink | None = None
        self._clients: dict[str, _VirtualClient] = {}
        self._flows = 0

    def __len__(self) -> int:
        """Clients that are not done."""
        return self._flows

    def run_to(self, now: float, capacity_bytes_s: float) -> None:
        """Let time pass; from now on the link carries `capacity_bytes_s` (finite, above 0)."""
        link = self._link
        if link is None:
            self._link = SharedLink(capacity_bytes_s, now)
            return
        while link.next_end() <= now:
            link.run_to(link.next_end())
            flow = link.pop_ended()
            if flow is None:
                break
            self._flow_over(flow.payload)
        link.run_to(now)
        link.set_capacity(capacity_bytes_s)

    def add(self, client: str, size_bytes: int, speed_bytes_s: float) -> float:
        """A client that takes `speed_bytes_s` asks for `size_bytes`; returns the mark of its end.

        Call `run_to` before, once at least.
        """
        assert self._link is not None
        known = self._clients.setdefault(client, _VirtualClient())
        known.speed_bytes_s = max(speed_bytes_s, known.speed_bytes_s)
        if known.flow is not None:
            self._link.change(known.flow, size_bytes, known.speed_bytes_s)
        else:
            known.flow = Flow(known.speed_bytes_s, size_bytes, client)
            self._flows += 1
            self._link.start(known.flow)
        known.downloads += 1
        known.asked_bytes += size_bytes
        return known.asked_bytes

    def set_speeds(self, speeds_bytes_s: Mapping[str, float]) -> None:
        """How fast clients seem by now, each with all that it fetches at once."""
        for client, speed_bytes_s in speeds_bytes_s.items():
            known = self._clients.get(client)
            if known is None or known.flow is None:
                continue
            off = known.speed_bytes_s - speed_bytes_s
            if not -_SAME_SPEED * speed_bytes_s <= off <= _SAME_SPEED * speed_bytes_s:
                assert self._link is not None
                known.speed_bytes_s = speed_bytes_s
                self._link.change(known.flow, 0.0, speed_bytes_s)

    def end(self, client: str, done: bool) -> None:
        """One of the client's downloads is over in truth; a finished one runs on here.

        Nothing would be sent any more to a client that gave its last one up.
        """
        known = self._clients.get(client)
        if known is None:
            return
        known.downloads -= 1
        if known.downloads > 0:
            return
        if known.flow is None:
            del self._clients[client]
        elif not done:
            assert self._link is not None
            self._link.stop(known.flow)
            self._flow_over(client)

    @property
    def level_bytes_s(self) -> float:
        """What a client is given at most, with all that it fetches at once.

        One that takes no more is served as fast as if it were alone.
        """
        assert self._link is not None
        return self._link.level_bytes_s

    def left_s(self, client: str, mark: float) -> float:
        """Seconds until the download that ends at this mark would be done; 0 if it would be now."""
        known = self._clients.get(client)
        if known is None or known.flow is None:
            return 0.0
        assert self._link is not None
        return self._link.until_s(known.flow, known.asked_bytes - mark)

    def _flow_over(self, client: str) -> None:
        known = self._clients[client]
        known.flow = None
        self._flows -= 1
        if known.downloads <= 0:
            del self._clients[client]
