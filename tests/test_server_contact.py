"""`/.well-known/security.txt`: there where the operator names a contact."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests
from pydantic import ValidationError

from tests.running import make_release, serving
from tidegate.server.app.settings import ServerConfig

PLACE = "/.well-known/security.txt"


@pytest.mark.e2e
@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_tells_the_contacts_and_expires_within_a_year(tmp_path: Path, workers: str) -> None:
    make_release(tmp_path / "release", a_txt=10)
    contacts = ["mailto:security@example.org", "https://example.org/report"]
    (tmp_path / "tidegate.toml").write_text(f"security_contact = {contacts}\n")
    more = ("--config", str(tmp_path / "tidegate.toml"), "--workers", workers)
    with serving(tmp_path / "release", tmp_path / "state", *more) as server:
        answer = requests.get(server.url + PLACE, timeout=30)
        head = requests.head(server.url + PLACE, timeout=30)
        beside = requests.get(server.url + "/sub" + PLACE, timeout=30)
    assert answer.status_code == head.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert not head.content
    fields = [line.partition(": ")[::2] for line in answer.text.splitlines()]
    assert [value for name, value in fields if name == "Contact"] == contacts
    [expires] = [value for name, value in fields if name == "Expires"]
    left = datetime.fromisoformat(expires) - datetime.now(UTC)
    assert timedelta(days=30) < left < timedelta(days=365)
    assert beside.status_code == 404


@pytest.mark.e2e
def test_without_a_contact_there_is_none(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    with serving(tmp_path / "release", tmp_path / "state") as server:
        assert requests.get(server.url + PLACE, timeout=30).status_code == 404


@pytest.mark.parametrize(
    "contact", ["security@example.org", "http://example.org", "mailto:a\nContact: b", "mailto:"]
)
def test_a_contact_is_a_uri_of_one_line(contact: str) -> None:
    with pytest.raises(ValidationError, match="is not a URI such as"):
        ServerConfig(security_contact=(contact,))
