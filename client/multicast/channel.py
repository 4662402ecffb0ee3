"""What a receiver asks the server that made its offer: reports, hashes and repair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ..net.answers import Reply
from ..net.keep_alive import KeepAliveClient
from ..net.network import Network
from ..net.request_builder import RequestBuilder
from ..net.urls import Url

_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ChannelAnswer:
    """The body of an answer that did what was asked; or a `fault`, and no body."""

    body: bytes = b""
    fault: str | None = None


Done = Callable[[ChannelAnswer], None]


class Channel(Protocol):
    """Requests to the server that made the offer; `path` is what stands in the request line."""

    def get(self, path: str, done: Done) -> None:
        """`done` is called once."""
        ...

    def post(self, path: str, body: bytes, done: Done) -> None:
        """The same with a body."""
        ...

    def close(self) -> None:
        """Let what is under way end, then close."""
        ...


class HttpChannel:
    """Implements `Channel` for the origin of `base`, with the manners of `asking`."""

    def __init__(self, network: Network, asking: RequestBuilder, base: Url) -> None:
        self._asking = asking
        self._base = base
        self._keep_alive = KeepAliveClient(network, *asking.route(base))

    def get(self, path: str, done: Done) -> None:
        """See `Channel`."""
        self._ask("GET", path, b"", done)

    def post(self, path: str, body: bytes, done: Done) -> None:
        """See `Channel`."""
        self._ask("POST", path, body, done)

    def close(self) -> None:
        """See `Channel`."""
        self._keep_alive.close()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return self._keep_alive.idle

    def _ask(self, method: str, path: str, body: bytes, done: Done) -> None:
        def answered(outcome: Reply | str) -> None:
            if isinstance(outcome, str):
                done(ChannelAnswer(fault=outcome))
            elif not outcome.done or len(outcome.body) >= _MOST_BYTES:
                done(ChannelAnswer(fault=f"the server answered {outcome.status}"))
            else:
                done(ChannelAnswer(outcome.body))

        at = replace(self._base, target=path)
        request = self._asking.request(at, at, method=method, body=body)
        self._keep_alive.ask(request, answered, limit_bytes=_MOST_BYTES, silence_s=10.0)
