"""What Prometheus reads, and the dashboard that is made of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.admin_site import Site, make_site, stop
from tidegate.server.control.metrics import metrics_text
from tidegate.server.mirror.registry import MirrorStanding

DEPLOY = Path(__file__).parent.parent / "deploy"
DASHBOARD = DEPLOY / "grafana" / "tidegate.json"
ALERTS = DEPLOY / "alerts.yml"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = make_site(tmp_path, monkeypatch, bandwidth=10e6)
    yield found
    stop(found)


def exposition(site: Site) -> str:
    server = site.server
    return metrics_text(server.vitals, server.revisions, server.mirror_states).decode()


def families(site: Site) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(exposition(site))}


def test_names_and_units_follow_the_conventions(site: Site) -> None:
    found = families(site)
    own = {name: family for name, family in found.items() if name.startswith("tidegate_")}
    assert len(own) > 25
    for name, family in own.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert family.documentation, name
        assert not re.search(r"_(ms|millis|kb|mb|percent)$", name), "base units only"
        for sample in family.samples:
            assert sample.name.endswith("_total") is (family.type == "counter")


def test_labels_are_bounded_whatever_clients_and_files_there_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sum(len(family.samples) for family in families(site).values())
    for number in range(120):
        site.download(f"203.0.113.{number}", f"/file-{number % 9}.iso")
    far = [
        MirrorStanding(f"m{n}", "https://m.example/", "stable", 1, "current", "", True, 3.0)
        for n in range(500)
    ]
    registry = SimpleNamespace(standings=lambda _now: far)
    monkeypatch.setattr(site.server, "mirrors", registry)
    after = families(site)
    # The mirrors in one state, and the two bounds of the last one's wait.
    assert sum(len(family.samples) for family in after.values()) == before + 3
    assert after["tidegate_mirrors"].samples[0].value == 500
    text = exposition(site)
    assert "203.0.113." not in text
    assert ".iso" not in text


def test_what_is_not_known_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site(tmp_path, monkeypatch)
    try:
        found = families(site)
    finally:
        stop(site)
    assert found["tidegate_last_wait_seconds"].samples == []
    assert found["tidegate_eta_within_p90_ratio"].samples == []
    assert found["tidegate_capacity_bytes_per_second"].samples == []


def exported(site: Site) -> set[str]:
    for number in range(3):
        site.download(f"203.0.113.{number}")
    found = families(site)
    unknown = {f"tidegate_{n}_within_p90_ratio" for n in ("eta", "end")}
    unknown |= {"tidegate_eta_error_ratio", "tidegate_mirrors", "tidegate_certificate_left_seconds"}
    assert unknown <= set(found)
    return {sample.name for family in found.values() for sample in family.samples} | unknown


def test_alerts_ask_only_for_metrics_that_exist_and_say_what_to_do(site: Site) -> None:
    known = exported(site)
    text = ALERTS.read_text()
    rules = re.findall(r"- alert: (\w+)\n +expr: (.+)", text)
    assert len(rules) >= 8
    assert len({name for name, _ in rules}) == len(rules)
    for _, expression in rules:
        names = re.findall(r"\b(?:tidegate|process)_[a-z0-9_]+", expression)
        assert names
        for name in names:
            assert name in known, name
    assert text.count("summary:") == text.count("description:") == len(rules)
    assert shutil.which("promtool")
    checked = subprocess.run(
        ["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_dashboard_asks_only_for_metrics_that_exist(site: Site) -> None:
    board = json.loads(DASHBOARD.read_text())
    known = exported(site)
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 25
    for expression in asked:
        for name in re.findall(r"\b(?:tidegate|process)_[a-z0-9_]+", expression):
            assert name in known, name
    tiles = [panel for panel in board["panels"] if panel["type"] == "stat"]
    assert "tidegate_loop_lag_seconds" in json.dumps(tiles)
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
