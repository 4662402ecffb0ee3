"""Movers that ask before they pass a request on: Envoy's ext_authz, and subrequests like it.

Such a mover takes 200 for a yes and 5xx for a fault of the gate. It hands any other answer to its
client. So every other answer of 2xx and 5xx is told as 4xx, of which the mover's configuration
makes the first one again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from ..http.answers import Header
from ..http.request import Request, RequestConnection
from .movers import FIELDS
from .settings import AUTHORIZE_ROUTE


def told_status(status: int) -> int:
    """What 2xx (450 and more) and 5xx (470 and more) are told as."""
    return {2: 450, 5: 470}.get(status // 100, status // 100 * 100) + status % 100


class AskingConnection:
    """A `RequestConnection` by which a mover asks: only a body that it may send is told as 200."""

    def __init__(self, own: RequestConnection) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def answer(
        self, request: Request, status: int, headers: Iterable[Header], *rest: Any, **more: Any
    ) -> None:
        """See `RequestConnection`, as `begin`."""
        fields = tuple(headers)
        if FIELDS.lease not in dict(fields):
            status = told_status(status)
        self._own.answer(request, status, fields, *rest, **more)

    def begin(self, request: Request, status: int, *rest: Any, **more: Any) -> None:
        self._own.begin(request, told_status(status), *rest, **more)


def asked_about(request: Request) -> bool:
    """Make it the request that its mover asks about; whether there is one."""
    target = request.target[len(AUTHORIZE_ROUTE) :]
    if not target.startswith(b"/") or target.startswith(b"/-/"):
        return False
    request.target = target
    request.path, _, request.query = target.partition(b"?")
    request.connection = cast(RequestConnection, AskingConnection(request.connection))
    return True
