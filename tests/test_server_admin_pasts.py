"""The charts' past comes from the store, and an ill store is no fault of a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail

from tests.admin_site import Site, make_site, operator, stop
from tidegate.server.control.history import RECORDED, Sampler, Series

DAY_S = 86_400.0


class Counted:
    """The store's reads, counted; while `ill` they fail."""

    def __init__(self, site: Site, patch: pytest.MonkeyPatch) -> None:
        self.reads, self.ill = 0, False
        real = site.service.store.read

        def read(work: Any) -> Deferred[Any]:
            self.reads += 1
            return fail(OSError("disk full")) if self.ill else real(work)

        patch.setattr(site.service.store, "read", read)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = make_site(tmp_path, monkeypatch)
    found.settle()
    yield found
    stop(found)


def drawn(site: Site, span_s: float) -> Series:
    return site.run(site.server.history.drawn(span_s, site.server.now(), 240))


def test_a_chart_shows_what_was_sampled(site: Site) -> None:
    for number in range(3):
        site.download(f"203.0.113.{number}")
    site.wait(60.0)
    site.settle()
    found = drawn(site, 3600.0)
    assert len(found.t) == 240
    assert max(value or 0.0 for value in found.series["waiting"]) > 0
    assert set(found.series) == set(RECORDED)


def test_drawn_charts_are_kept_as_long_as_their_steps_bear(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Counted(site, monkeypatch)
    for _ in range(3):
        drawn(site, DAY_S)
        site.reactor.rightNow += 19.0
    assert store.reads == 1
    site.reactor.rightNow += 10.0
    drawn(site, DAY_S)
    assert store.reads == 2


def test_an_ill_database_leaves_the_charts_empty(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.wait(1000.0)
    Counted(site, monkeypatch).ill = True
    found = drawn(site, DAY_S)
    assert found.t == ()
    assert set(found.series) == set(RECORDED)
    assert "People in line" in operator(site).text("/")


def test_a_preview_right_after_the_first_download_knows_of_it(site: Site) -> None:
    def arrived() -> list[str]:
        since_s = site.server.now() - 3600.0
        return sorted(one.file for one in site.run(site.server.history.arrivals(since_s, 100)))

    assert arrived() == []
    site.download("203.0.113.1")
    site.server.gate.served_elsewhere("/README.txt", 2, 2, 2_000)
    assert arrived() == ["/big.iso", "small", "small"]
    site.wait(20.0)
    site.settle()
    assert arrived() == ["/big.iso", "small", "small"], "each once, from the database too"


def test_a_counter_that_fell_was_reset_and_grew_by_nothing() -> None:
    figures = dict.fromkeys(RECORDED, 1.0) | {f"{name}_total": 500 for name in RECORDED}
    vitals: Any = SimpleNamespace(figures=lambda: dict(figures))
    sampler = Sampler(vitals)
    sampler.look(0.0)
    figures["admitted_total"], figures["errors_total"] = 3, 520
    assert (sampler.grown("admitted"), sampler.grown("errors")) == (0, 20)
    found = sampler.look(10.0)
    assert (found["admitted"], found["errors"]) == (0.0, 2.0)
