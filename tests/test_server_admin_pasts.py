"""Where the charts' past comes from: memory for the last hour, the store beyond, never a fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger

from server.admin.charts import RECORDED, SUMS
from server.admin.context import History
from server.admin.pasts import Pasts
from server.history import SAMPLE_S
from server.recent import Recent


class FakeRecorder:
    def __init__(self) -> None:
        self.recent = Recent(3600.0, 721)

    def recorded(self, series: Any, since_s: float, until_s: float, points: int) -> Any:
        return self.recent.binned(series, since_s, until_s, points, SAMPLE_S)


class FakeStore:
    """Counts the reads; `ill` fails them."""

    def __init__(self) -> None:
        self.reads = 0
        self.ill = False

    def read(self, _work: Any) -> Deferred[Any]:
        self.reads += 1
        if self.ill:
            return fail(OSError("disk full"))
        return succeed(([0.5], {name: [7.0] for name in RECORDED}))


def pasts() -> tuple[Pasts, FakeStore, Recent]:
    store, recorder = FakeStore(), FakeRecorder()
    service: Any = SimpleNamespace(store=store, recorder=recorder, log=Logger())
    return Pasts(service), store, recorder.recent


def read(past: Pasts, since_s: float, until_s: float, points: int) -> History:
    found: list[History] = []
    Deferred.fromCoroutine(past.read(since_s, until_s, points)).addCallback(found.append)
    return found[0]


def test_the_last_hour_asks_no_database_once_it_is_whole() -> None:
    past, store, recent = pasts()
    recent.add(3590.0, {"waiting": 3.0, "admitted_small": 1.0, "admitted_large": 0.5})
    assert read(past, 0.0, 3600.0, 240).series["waiting"] == (7.0,)
    recent.complete(())
    found = read(past, 5.0, 3605.0, 240)
    assert [value for value in found.series["waiting"] if value is not None] == [3.0]
    assert [value for value in found.series["admitted"] if value is not None] == [1.5]
    assert store.reads == 1


def test_older_times_come_from_the_store_and_are_kept_as_long_as_their_steps_bear() -> None:
    past, store, recent = pasts()
    recent.complete(())
    day = 86_400.0
    for later_s in (0.0, 30.0, 59.0):
        assert read(past, later_s, later_s + day, 240).series["admitted"] == (14.0,)
    assert store.reads == 1
    read(past, 61.0, 61.0 + day, 240)
    assert store.reads == 2


def test_an_ill_database_leaves_what_memory_has() -> None:
    past, store, recent = pasts()
    store.ill = True
    recent.add(86_000.0, {"waiting": 3.0})
    found = read(past, 0.0, 86_400.0, 240)
    assert [value for value in found.series["waiting"] if value is not None] == [3.0]
    assert set(found.series) == {*RECORDED, *SUMS}
    assert len(found.t) == len(found.series["waiting"]) == 240
