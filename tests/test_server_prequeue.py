"""The draw before a release: committed beforehand, fair, auditable, and safe over a restart."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import representation
from tidegate.server.admission.draw import DRAWS, Draw, DrawEntry, Prequeue

OPENS_S = 2_000.0


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def enter(draw: Draw, client: str, network: tuple[str, ...] = ()) -> DrawEntry:
    found = draw.enter(client, representation(), network)
    assert found is not None
    return found


def make() -> tuple[Prequeue, dict[str, Any]]:
    kept: dict[str, Any] = {}
    prequeue = Prequeue(lambda name, body: kept.update({name: json.loads(json.dumps(body))}))
    prequeue.plan([(OPENS_S, "/43/*")], 1_000.0)
    return prequeue, kept


def test_the_seed_is_committed_before_anybody_registers_and_published_after_the_draw() -> None:
    prequeue, _ = make()
    draw = prequeue.draw(OPENS_S)
    before = draw.document(1_500.0)
    assert set(before) == {"opens_s", "commitment_sha256", "entered", "rule"}
    entries = [enter(draw, f"192.0.2.{n}#0") for n in range(40)]
    assert prequeue.due(OPENS_S - 1) == []
    seated = [entry.ident for entry in prequeue.due(OPENS_S)]
    after = draw.document(OPENS_S)
    assert after["commitment_sha256"] == before["commitment_sha256"] == sha(after["seed"])
    assert after["order"] == seated
    assert seated == sorted((e.ident for e in entries), key=lambda i: sha(after["seed"] + i))


def test_registering_again_finds_the_same_entry() -> None:
    prequeue, _ = make()
    draw = prequeue.draw(OPENS_S)
    first = draw.enter("192.0.2.1#0", representation())
    assert draw.enter("192.0.2.1#0", representation()) is first
    other = replace(representation(), url_path="/43/other.iso")
    assert draw.enter("192.0.2.1#0", other) is not first


def test_coming_early_gives_nothing() -> None:
    first = Counter[int]()
    for _ in range(400):
        prequeue, _ = make()
        draw = prequeue.draw(OPENS_S)
        idents = [enter(draw, f"192.0.2.{n}#0").ident for n in range(4)]
        first[idents.index(prequeue.due(OPENS_S)[0].ident)] += 1
    # Four equal chances in 400 draws: 100 each, standard deviation 8.7; six of them off is news.
    assert all(48 < first[n] < 152 for n in range(4))


def test_who_comes_while_the_drawn_are_seated_comes_after_them() -> None:
    prequeue, _ = make()
    draw = prequeue.draw(OPENS_S)
    for n in range(600):
        draw.enter(f"client-{n}", representation())
    seated = prequeue.due(OPENS_S)
    assert len(seated) == 500
    assert prequeue.holds_back(OPENS_S)
    late = enter(draw, "late")
    seated += prequeue.due(OPENS_S)
    assert len(seated) == 601
    assert seated[-1].ident == late.ident
    assert not prequeue.holds_back(OPENS_S)


@given(st.booleans(), st.integers(0, 30))
def test_a_restart_keeps_seed_entries_and_order(drawn: bool, count: int) -> None:
    prequeue, kept = make()
    draw = prequeue.draw(OPENS_S)
    for n in range(count):
        draw.enter(f"client-{n}", representation())
    # As now and then while it runs.
    prequeue.save()
    if drawn:
        prequeue.due(OPENS_S)
    prequeue.save()
    again = Prequeue(lambda name, body: None)
    again.load(kept.values(), OPENS_S)
    assert again.draw(OPENS_S).document(OPENS_S) == draw.document(OPENS_S)
    assert (again.due(OPENS_S) == []) is (drawn or count == 0)


def test_one_network_has_only_so_many_entries_and_each_is_written_once() -> None:
    prequeue, kept = make()
    draw = prequeue.draw(OPENS_S)
    for number in range(3000):
        network = (f"2001:db8:0:{number:x}::/64", "2001:db8::/56", "2001:db8::/48")
        draw.enter(f"{network[0]}#0", representation(), network)
    assert draw.entered == DRAWS.most_of_network
    for number in range(3000):
        draw.enter(f"192.0.2.1#{number}", representation(), ("192.0.2.1", "192.0.2.0/24"))
    assert draw.entered == DRAWS.most_of_network + DRAWS.most_of_address
    enter(draw, "198.51.100.1#0", ("198.51.100.1", "198.51.100.0/24"))
    rows = [name for name in kept if name.startswith(f"{draw.name} ")]
    assert len(rows) == draw.entered
    prequeue.save()
    assert len(json.dumps(kept[draw.name])) < 1000


def test_a_draw_that_is_full_takes_nobody_new_and_knows_who_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = replace(DRAWS, most_entries=2)
    monkeypatch.setattr("tidegate.server.admission.draw.DRAWS", bounds)
    draw = make()[0].draw(OPENS_S)
    first = enter(draw, "a")
    enter(draw, "b")
    assert draw.enter("c", representation()) is None
    assert enter(draw, "a") is first


def test_what_was_seated_is_forgotten_at_the_next_start() -> None:
    prequeue, kept = make()
    draw = prequeue.draw(OPENS_S)
    idents = [enter(draw, f"client-{n}").ident for n in range(5)]
    prequeue.due(OPENS_S)
    prequeue.save()
    dropped: list[str] = []
    again = Prequeue(lambda name, body: None, dropped.append)
    again.load(kept.values(), OPENS_S + 60.0)
    again.save()
    assert sorted(dropped) == sorted(f"{draw.name} {ident}" for ident in idents)
    assert again.draw(OPENS_S).document(OPENS_S + 60.0)["entered"] == 5
    late = Prequeue(lambda name, body: None, dropped.append)
    late.load(kept.values(), OPENS_S + 8 * 86_400.0)
    late.save()
    assert draw.name in dropped
