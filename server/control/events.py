"""The operator's log, and problems of the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from twisted.logger import ILogObserver, LogLevel
from zope.interface import implementer

from ..store.queries import read_events, write_events
from ..store.records import EventRecord
from ..store.store import Store
from .problems import Problem

T = TypeVar("T")


class StoreSilent(Problem):
    """The database does not answer a query."""

    def __init__(self) -> None:
        text = "The database does not answer. Downloads and the queue go on; try again later."
        super().__init__(503, text, code="store-silent", headers=(("retry-after", "10"),))


class NotStored(Problem):
    """A change is in force but not stored; `headers` are the cookies of its answer."""

    def __init__(self, headers: Sequence[tuple[str, str]]) -> None:
        text = (
            "Done, but not stored yet: the database does not take writes. It holds until the next "
            "start, and is stored as soon as the database takes writes again. A pass or API token "
            "that this made is shown to nobody now: revoke it and make another."
        )
        super().__init__(503, text, code="not-stored", headers=headers)


async def ask(store: Store, work: Callable[[Any], T]) -> T:
    """Run a query; raises StoreSilent for any fault of the database."""
    try:
        return await store.read(work)
    except Exception as fault:
        raise StoreSilent from fault


class EventLog:
    """The log of operators' changes and of events of the server, in the store."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now

    def add(self, kind: str, text: str, level: str = "info", **data: Any) -> None:
        """Append a line; `who` in the data names the person."""
        record = EventRecord(self._now(), kind, text, level, data)
        self._store.note(lambda connection: write_events(connection, [record]))

    async def read(
        self, before: int | None, limit: int, kind: str = "", search: str = ""
    ) -> list[EventRecord]:
        """Lines older than `before`. Raises StoreSilent."""
        return await ask(
            self._store,
            lambda s: read_events(
                s, limit, before_id=before, kind=kind or None, text=search or None
            ),
        )


@implementer(ILogObserver)
class FaultCount:
    """Counts logged errors."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, event: Mapping[str, Any]) -> None:
        level = event.get("log_level")
        if level is not None and level >= LogLevel.error:
            self.total += 1
