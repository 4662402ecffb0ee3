"""Faults as the pages see them: how many were logged, and a database that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from twisted.logger import ILogObserver, LogLevel
from zope.interface import implementer

from server.admin.context import StoreSilent
from server.store.store import Store

T = TypeVar("T")


@implementer(ILogObserver)
class FaultCount:
    """Counts what is logged as an error."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, event: Mapping[str, Any]) -> None:
        level = event.get("log_level")
        if level is not None and level >= LogLevel.error:
            self.total += 1


async def ask(store: Store, work: Callable[[Any], T]) -> T:
    """Run a query; raises StoreSilent whatever the database raises."""
    try:
        return await store.read(work)
    except Exception as fault:
        raise StoreSilent(str(fault)) from fault
