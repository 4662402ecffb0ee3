"""What a receiver asks the server that made its offer: reports, hashes and repair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..net.answers import Reply
from ..net.keep_alive import KeepAliveClient
from ..net.network import Network
from ..net.request_builder import RequestBuilder
from ..net.urls import Url

_MOST_BYTES = 64 << 20
#: Called once: with the body of an answer that did what was asked, or with a sentence why not.
Done = Callable[[bytes | str], None]


class HttpChannel:
    """Requests to the origin of `base`, with the manners of `asking`; `path` is what stands in the
    request line."""

    def __init__(self, network: Network, asking: RequestBuilder, base: Url) -> None:
        self._asking = asking
        self._base = base
        self._keep_alive = KeepAliveClient(network, *asking.route(base))

    def get(self, path: str, done: Done) -> None:
        self._ask("GET", path, b"", done)

    def post(self, path: str, body: bytes, done: Done) -> None:
        self._ask("POST", path, body, done)

    def _ask(self, method: str, path: str, body: bytes, done: Done) -> None:
        def answered(outcome: Reply | str) -> None:
            if isinstance(outcome, str):
                done(outcome)
            elif not outcome.done or len(outcome.body) >= _MOST_BYTES:
                done(f"the server answered {outcome.status}")
            else:
                done(outcome.body)

        at = replace(self._base, target=path)
        request = self._asking.request(at, at, method=method, body=body)
        self._keep_alive.ask(request, answered, limit_bytes=_MOST_BYTES, silence_s=10.0)
