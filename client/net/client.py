"""Small requests for programs that wait: redirects, queues, proxies and TLS as in a download.

What a follower of a mirror channel and `tidegate admin` ask goes through here, one connection a
request. Large files go through `client.api`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypedDict

from .answers import Fields, Redirect, Reply, read
from .errors import NetworkProblem, UsageProblem
from .http import Connection
from .network import Cancellable, Endpoint, Network
from .request_builder import RequestBuilder
from .retry import RetryAfter, RetryPolicy, RetryState, WaitUntil
from .sockets import AsyncioNetwork, CertificateTrust, run_blocking
from .urls import BadUrl, Url, parse

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
    """One origin's small requests, one at a time, each answer whole in memory.

    A lost connection is opened again by the next request; a GET that finds it gone is sent once
    more. `tunnel` as in `Connection`.
    """

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


class RequestParts(TypedDict, total=False):
    """What `HttpClient.request` takes beside method and URL."""

    headers: Mapping[str, str] | None
    body: bytes
    limit_bytes: int
    timeout_s: float


class HttpClient:
    """Blocking requests of one user.

    `environ` names the proxies and the netrc file (None: the process's own), `agent` is the
    User-Agent. A server that queues is waited for as it says, with the ticket it gave, for
    `manners.max_wait_s` in all; `sleep` waits, `clock` never runs backwards.
    """

    def __init__(
        self,
        *,
        trust: CertificateTrust | None,
        environ: Mapping[str, str] | None = None,
        agent: str | None = None,
        pass_token: str | None = None,
        manners: RetryPolicy,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        redirects: bool = True,
    ) -> None:
        fields = (("User-Agent", agent),) if agent is not None else ()
        self._asking = RequestBuilder(environ, fields, pass_token=pass_token)
        self._trust = trust
        self._manners = manners
        self._sleep = sleep
        self._clock = clock
        self._redirects = redirects
        self._random = Random()

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit_bytes: int = 1 << 20,
        timeout_s: float = 30.0,
    ) -> Reply:
        """One exchange; a body longer than `limit_bytes` is cut there.

        Raises NetworkProblem when there is no answer, or a redirect that is not followed, and
        UsageProblem for what is no URL. Whatever the server says else is an answer.
        """
        try:
            origin = at = parse(url)
        except BadUrl as error:
            raise UsageProblem(str(error)) from None
        visit = RetryState(self._manners, self._random, self._clock())
        redirects = 0
        while True:
            fields = [*visit.headers(), *(headers or {}).items()]
            reply = self._once(method, at, origin, fields, body, limit_bytes, timeout_s)
            meaning = read(reply.status, Fields.of(reply.headers), reply.body, time.time())
            if isinstance(meaning, Redirect) and self._redirects:
                redirects += 1
                at = self._follow(method, at, meaning.location, redirects)
                continue
            if not isinstance(meaning, RetryAfter) or meaning.retry_after_s is None:
                return reply
            now = self._clock()
            action = visit.answered(now, meaning)
            if not isinstance(action, WaitUntil):
                return reply
            # However soon a server says: not more often than once a second.
            self._sleep(max(1.0, action.at - now))

    @staticmethod
    def _follow(method: str, at: Url, location: str, count: int) -> Url:
        try:
            # A longer chain is a circle.
            aim = at.redirected(location, count, 10)
            if method not in ("GET", "HEAD"):
                raise BadUrl("give that URL instead")
        except BadUrl as error:
            raise NetworkProblem(f"{at.text} redirects to {location!r}: {error}") from None
        return aim

    def _once(
        self,
        method: str,
        at: Url,
        origin: Url,
        fields: list[tuple[str, str]],
        body: bytes,
        limit_bytes: int,
        timeout_s: float,
    ) -> Reply:
        request = self._asking.request(at, origin, fields, method=method, body=body)
        endpoint, tunnel = self._asking.route(at)

        async def ask() -> Reply | str:
            network = AsyncioNetwork(self._trust)
            answer: asyncio.Future[Reply | str] = asyncio.get_running_loop().create_future()
            try:
                KeepAliveClient(network, endpoint, tunnel).ask(
                    request,
                    answer.set_result,
                    limit_bytes=limit_bytes,
                    silence_s=timeout_s,
                    # A slow answer may drip.
                    total_s=4 * timeout_s,
                )
                return await answer
            finally:
                await network.close()

        outcome = run_blocking(ask)
        if isinstance(outcome, str):
            raise NetworkProblem(f"{at.text}: {outcome}")
        return outcome
