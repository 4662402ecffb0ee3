"""The last hour in memory gives the same charts as the database does."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.databases import database, postgres
from tidegate.server.control.history import Recent
from tidegate.server.store import history
from tidegate.server.store.database import Database
from tidegate.server.store.records import SampleRecord

__all__ = ["database", "postgres"]

NAMES = ("waiting", "ready")
#: Quarters: sums are exact, so the two ways may be compared for equality.
VALUES = st.dictionaries(st.sampled_from(NAMES), st.integers(-40, 4000).map(lambda n: n / 4))
MOMENTS = st.dictionaries(st.integers(0, 3700), VALUES, max_size=60)


def samples_of(moments: dict[int, dict[str, float]]) -> list[SampleRecord]:
    return [
        SampleRecord(float(at), name, value, value)
        for at, values in moments.items()
        for name, value in values.items()
    ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moments=MOMENTS, start=st.integers(0, 3700), points=st.integers(121, 300))
def test_memory_and_database_draw_the_same(
    database: Database, moments: dict[int, dict[str, float]], start: int, points: int
) -> None:
    # With fewer points the database answers from its minutes.
    with database.engine.connect() as connection:
        history.write_samples(connection, samples_of(moments))
        by_store = history.read_binned(connection, NAMES, float(start), start + 3600.0, points)
        connection.rollback()
    recent = Recent(1e9, 1000)
    for at in sorted(moments):
        recent.add(float(at), moments[at])
    assert recent.binned(NAMES, float(start), start + 3600.0, points, 5.0) == by_store


@given(moments=MOMENTS, split=st.integers(0, 3700))
def test_what_an_earlier_run_sampled_goes_in_front(
    moments: dict[int, dict[str, float]], split: int
) -> None:
    own = {at: values for at, values in moments.items() if at >= split}
    recent, straight = Recent(1e9, 1000), Recent(1e9, 1000)
    for at in sorted(own):
        recent.add(float(at), own[at])
    assert not recent.reaches(0.0, 10.0)
    # The database has this run's samples too by now, and gives the newest first.
    recent.complete(reversed(samples_of(dict(sorted(moments.items())))))
    assert recent.reaches(0.0, 10.0)
    for at in sorted(moments):
        straight.add(float(at), moments[at])
    wanted = straight.binned(NAMES, 0.0, 3701.0, 100, 5.0)
    assert recent.binned(NAMES, 0.0, 3701.0, 100, 5.0) == wanted


def test_an_hour_is_kept_and_no_more() -> None:
    recent = Recent(3600.0, 721)
    recent.complete(())
    for step in range(2000):
        recent.add(5.0 * step, {"waiting": float(step)})
    _, found = recent.binned(("waiting", "never"), 0.0, 10_000.0, 2000, 5.0)
    assert [value for value in found["waiting"] if value is not None] == list(range(1279, 2000))
    assert set(found["never"]) == {None}
    assert recent.reaches(6_395.0, 9_995.0)
    assert recent.reaches(9_000.0, 9_010.0)
    assert not recent.reaches(6_389.0, 9_995.0), "a beginning that is forgotten"
    assert not recent.reaches(100.0, 200.0), "a short stretch of long ago"


def test_a_full_memory_takes_the_newest_of_the_earlier_ones() -> None:
    recent = Recent(3600.0, 3)
    recent.add(10.0, {"waiting": 10.0})
    recent.complete(SampleRecord(float(at), "waiting", at, at) for at in (9, 8, 7, 6))
    _, found = recent.binned(("waiting",), 0.0, 12.0, 12, 1.0)
    assert [value for value in found["waiting"] if value is not None] == [8.0, 9.0, 10.0]
