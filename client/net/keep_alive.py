"""Small requests over one keep-alive connection, one at a time, each answer whole in memory.

A lost connection is opened again by the next request; a GET that finds the connection gone is sent
once more. Works on any `client.net.network.Network`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .answers import Fields, Reply
from .http import Connection
from .network import Cancellable, Endpoint, Network

Done = Callable[[Reply | str], None]


@dataclass(slots=True, eq=False)
class _PendingRequest:
    request: bytes
    done: Done
    limit_bytes: int
    silence_s: float
    total_s: float
    again: bool
    began_s: float = 0.0


class KeepAliveClient:
    """One origin's small requests; `tunnel` as in `Connection`."""

    def __init__(
        self, network: Network, endpoint: Endpoint, tunnel: tuple[str, str, bytes] | None
    ) -> None:
        self._network = network
        self._endpoint = endpoint
        self._tunnel = tunnel
        self._queue: deque[_PendingRequest] = deque()
        self._current: _PendingRequest | None = None
        self._connection: Connection | None = None
        self._status = 0
        self._fields = Fields([])
        self._body = bytearray()
        self._timer: Cancellable | None = None

    def ask(
        self,
        request: bytes,
        done: Done,
        *,
        limit_bytes: int,
        silence_s: float,
        total_s: float | None = None,
    ) -> None:
        """Send a request. `done` is called once, with the answer (its body cut at `limit_bytes`),
        or with a sentence that says why there is none.

        An answer may be silent for `silence_s` at a time, and take `total_s` in all.
        """
        again = not request.startswith(b"POST ")
        whole_s = silence_s if total_s is None else total_s
        self._queue.append(_PendingRequest(request, done, limit_bytes, silence_s, whole_s, again))
        self._next()

    def _next(self) -> None:
        if self._current is None and self._queue:
            self._current = self._queue.popleft()
            self._current.began_s = self._network.now()
            self._begin(self._current)

    def _begin(self, pending: _PendingRequest) -> None:
        self._status, self._fields = 0, Fields([])
        self._body.clear()
        self._watch()
        if self._connection is None:
            self._connection = Connection(
                self._network, self._endpoint, self, pending.silence_s, self._tunnel
            )
        elif self._connection.open:
            self._send(pending)

    def _send(self, pending: _PendingRequest) -> None:
        assert self._connection is not None
        bodiless = pending.request.startswith(b"HEAD ")
        self._connection.send(pending.request, self, bodiless=bodiless)

    # -- from the connection -------------------------------------------------------------------

    def opened(self, rtt_s: float) -> None:
        if self._current is not None:
            self._send(self._current)

    def closed(self, text: str, permanent: bool, crowded: bool) -> None:
        served = self._connection.served if self._connection is not None else 0
        self._connection = None
        pending = self._current
        if pending is None:
            return
        if served and pending.again and not self._status:
            pending.again = False
            self._begin(pending)
        else:
            self._tell("the answer ended early" if self._status else text)

    def head(self, status: int, fields: Fields) -> None:
        self._status, self._fields = status, fields

    def body(self, data: memoryview) -> None:
        pending = self._current
        if pending is None:
            return
        self._body += data[: pending.limit_bytes - len(self._body)]
        if len(self._body) >= pending.limit_bytes:
            self._drop()
            self.end()

    def end(self) -> None:
        self._tell(Reply(self._status, self._fields.as_dict(), bytes(self._body)))

    # -- the rest ------------------------------------------------------------------------------

    def _watch(self) -> None:
        pending, connection = self._current, self._connection
        if pending is None:
            return
        now = self._network.now()
        received_s = max(pending.began_s, connection.last_s if connection is not None else 0.0)
        until_s = min(received_s + pending.silence_s, pending.began_s + pending.total_s)
        if now < until_s:
            self._timer = self._network.call_later(until_s - now, self._watch)
            return
        self._drop()
        slow = self._status and pending.total_s > pending.silence_s
        self._tell("the answer drips too slowly" if slow else "no answer in time")

    def _tell(self, outcome: Reply | str) -> None:
        pending, self._current = self._current, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pending is not None:
            pending.done(outcome)
        self._next()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
