"""Small requests for programs that wait: redirects, queues, proxies and TLS as in a download.

What a follower of a mirror channel and `tidegate admin` ask goes through here, one connection a
request. Large files go through `client.api`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import TypedDict

from .answers import Fields, Redirect, Reply, read
from .errors import NetworkProblem, UsageProblem
from .keep_alive import KeepAliveClient
from .request_builder import RequestBuilder
from .retry import RetryAfter, RetryPolicy, RetryState, WaitUntil
from .sockets import AsyncioNetwork, CertificateTrust, run_blocking
from .urls import BadUrl, Url, parse


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
