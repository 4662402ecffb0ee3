"""What Prometheus reads, and the dashboard that is made of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from server.admin.context import Row
from server.metrics import Metrics
from tests.fakes_admin import FakeContext, busy_context

DASHBOARD = Path(__file__).parent.parent / "deploy" / "grafana" / "tidegate.json"


def families(context: FakeContext) -> dict[str, Any]:
    text = Metrics(context).text().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_names_and_units_follow_the_conventions() -> None:
    found = families(busy_context())
    own = {name: family for name, family in found.items() if name.startswith("tidegate_")}
    assert len(own) > 25
    for name, family in own.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert family.documentation, name
        assert not re.search(r"_(ms|millis|kb|mb|percent)$", name), "base units only"
        for sample in family.samples:
            assert sample.name.endswith("_total") is (family.type == "counter")


def test_labels_are_bounded_whatever_clients_and_files_there_are() -> None:
    context = busy_context()
    before = sum(len(family.samples) for family in families(context).values())
    context.running *= 50
    context.line *= 50
    context.served *= 50
    context.mirror_rows += [Row(f"https://m{n}.example/", "current") for n in range(500)]
    after = families(context)
    assert sum(len(family.samples) for family in after.values()) == before
    text = Metrics(context).text().decode()
    assert "198.51.100." not in text
    assert ".iso" not in text


def test_what_is_not_known_is_left_out() -> None:
    context = FakeContext()
    context.state = replace(context.state, last_wait=None, eta_within_p90=None)
    context.body = replace(context.body, capacity_bytes_s=None)
    found = families(context)
    assert found["tidegate_last_wait_seconds"].samples == []
    assert found["tidegate_eta_within_p90_ratio"].samples == []
    assert "tidegate_capacity_bytes_per_second" not in found


def test_the_dashboard_asks_only_for_metrics_that_exist() -> None:
    board = json.loads(DASHBOARD.read_text())
    exported = {
        sample.name for family in families(busy_context()).values() for sample in family.samples
    }
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 25
    for expression in asked:
        for name in re.findall(r"\b(?:tidegate|process)_[a-z0-9_]+", expression):
            assert name in exported, name
    places = [panel["gridPos"] for panel in board["panels"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "no panel lies over another"
    assert max(x for x, _ in cells) < 24
