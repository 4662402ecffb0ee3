"""What a server that is alone counts of its connections and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from server.admin.vitals import NodeFigures
from server.app.listeners import Listener
from server.files.pacer import Pacer
from server.http.factory import HttpFactory


class OwnTotals:
    """One process serves."""

    def __init__(self, pacer: Pacer, factory: HttpFactory, listeners: Sequence[Listener]) -> None:
        self._pacer = pacer
        self._factory = factory
        self._listeners = listeners

    @property
    def urls(self) -> Sequence[str]:
        """See `Totals`."""
        return [listener.url for listener in self._listeners]

    @property
    def connections(self) -> int:
        """See `Totals`."""
        return len(self._factory.connections)

    @property
    def connections_total(self) -> int:
        """See `Totals`."""
        return self._factory.accepted_total

    @property
    def sent_bytes_total(self) -> int:
        """See `Totals`."""
        return self._pacer.sent_bytes_total

    def goodput_bytes_s(self) -> float:
        """See `Totals`."""
        return self._pacer.goodput_bytes_s()

    def nodes(self) -> Sequence[NodeFigures]:
        """See `Totals`."""
        return ()

    @property
    def epoch(self) -> int:
        """See `Totals`."""
        return 0

    def fault(self) -> str:
        """See `Totals`."""
        return ""
