"""The past as the charts want it: the last hour from memory, what is older from the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.admin.charts import RECORDED, SUMS
from server.admin.context import History
from server.store.history import read_binned

if TYPE_CHECKING:
    from server.service import Service

#: Many who look at the same page cost one look at the past. A chart of a week has steps of 42
#: minutes: it may be older than one of an hour.
_FRESH_S, _FRESH_SHARE, _FRESH_MOST_S = 4.0, 1 / 4, 60.0
_KEPT_MOST = 16


class Pasts:
    """What the charts drew lately, and where the rest comes from."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kept: dict[tuple[int, int], tuple[float, History]] = {}

    async def read(self, since_s: float, until_s: float, points: int) -> History:
        """Series on about `points` steps; while the database is ill, what memory has."""
        key = (round(until_s - since_s), points)
        fresh_s = min(_FRESH_MOST_S, max(_FRESH_S, (until_s - since_s) / points * _FRESH_SHARE))
        kept = self._kept.get(key)
        if kept is not None and until_s - kept[0] < fresh_s:
            return kept[1]
        recorder, store = self._service.recorder, self._service.store
        if recorder.recent.reaches(since_s, until_s):
            axis, found = recorder.recorded(RECORDED, since_s, until_s, points)
        else:
            try:
                axis, found = await store.read(
                    lambda session: read_binned(session, RECORDED, since_s, until_s, points)
                )
            except Exception as fault:  # noqa: BLE001 - whatever a database raises
                self._service.log.warn("The history cannot be read: {fault}", fault=str(fault))
                axis, found = recorder.recorded(RECORDED, since_s, until_s, points)
        for name, parts in SUMS.items():
            rows = [found[part] for part in parts]
            found[name] = [
                None if all(v is None for v in row) else sum(v or 0.0 for v in row)
                for row in zip(*rows, strict=True)
            ]
        history = History(tuple(axis), {name: tuple(values) for name, values in found.items()})
        if len(self._kept) > _KEPT_MOST:
            self._kept.clear()
        self._kept[key] = (until_s, history)
        return history
