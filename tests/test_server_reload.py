"""Which settings follow a reload: those that docs/configuration.md says do, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.admin_site import make_site, stop
from tidegate.server.app.service import Service
from tidegate.server.app.settings import FIXED, ServerConfig

#: Read when the server drains, not when it reloads.
LATER = {"drain_s"}
#: Another value for each setting or section that follows.
OTHERS: dict[str, Any] = {
    "metrics_from": ["192.0.2.0/24"],
    "policy": "fcfs",
    "bandwidth": 1e6,
    "mirrors": ["https://mirror.example/"],
    "clients_per_address": 7,
    "ticket_max_age_s": 61.0,
    "keys_rotate_s": 3601.0,
    "drain_s": 3.0,
    "admission": {"slots": 9},
    "holding": {"most": 5, "unknown": "come-back"},
    "limits": {"idle_timeout_s": 9.0},
    "rules": [{"path": "/secret/", "hidden_until": "2999-01-01T00:00:00Z"}],
}


class Watched(ServerConfig):
    """A configuration that records which of its settings are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in ServerConfig.model_fields:
            READ.add(name)
        return super().__getattribute__(name)

    def needing_restart(self, old: ServerConfig) -> list[str]:
        return []


READ: set[str] = set()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    site = make_site(tmp_path, monkeypatch)
    yield site.service
    stop(site)


def test_a_reload_reads_exactly_the_settings_that_follow_it(service: Service) -> None:
    told = service.config.model_dump()
    watched = Watched.model_validate(told | OTHERS)
    READ.clear()
    service.reload(watched)
    follow = ServerConfig.model_fields.keys() - set(FIXED)
    assert follow == READ | LATER
    assert OTHERS.keys() | {"waiting_pages"} == follow
    assert set(FIXED) <= ServerConfig.model_fields.keys()


def test_what_follows_a_reload_is_in_force_after_it(service: Service, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "waiting.html").write_text("<p>Soon")
    told = service.config.model_dump() | OTHERS | {"waiting_pages": pages}
    before = service.waiting.own
    new = ServerConfig.model_validate(told)
    assert service.reload(new) == []
    terms = service.gate.parts.terms
    assert (terms.holds_most, terms.clients_per_address) == (5, 7)
    assert terms.ticket_max_age_s == 61.0
    assert terms.tools.unknown.manner == "come-back"
    assert (service.gate.policy.name, service.gate.settings.slots) == ("fcfs", 9)
    assert service.gate.settings.bandwidth_bytes_s == 1e6
    assert service.gate.parts.rules.verdict("/secret/a").hidden(0.0)
    assert service.admin.server.may_scrape("192.0.2.9", "files.example", forwarded=False)
    assert [one.url for one in service.site.fields.mirrors] == ["https://mirror.example/"]
    assert service.connections.factory.limits.idle_timeout_s == 9
    assert service.waiting.own is not before


def test_what_does_not_follow_a_reload_is_named(service: Service, tmp_path: Path) -> None:
    new = service.config.model_copy(update={"directory": tmp_path, "tls_hsts_s": 9.0})
    assert service.reload(new) == ["directory", "tls_hsts_s"]
