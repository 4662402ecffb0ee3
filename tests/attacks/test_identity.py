"""Who is one person: a crowd behind one address, and one who would be a crowd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.attacks.server import occupy, one_slot
from tests.running import RunningServer

pytestmark = pytest.mark.e2e

CHROME = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/142.0.0.0 Safari/537.36",
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with one_slot(tmp_path) as running:
        yield running


def test_thirty_equal_browsers_behind_one_address_each_have_place_and_time(
    server: RunningServer,
) -> None:
    with occupy(server):
        browsers = [requests.Session() for _ in range(30)]
        places = []
        for browser in browsers:
            browser.headers.update(CHROME)
            answer = browser.get(f"{server.url}/big.iso", timeout=20)
            assert answer.status_code == 503
            assert "Tidegate-Wait-Expected" in answer.headers
            assert "Refresh" in answer.headers
            assert "tidegate-visitor" in browser.cookies
            places.append(int(answer.headers["Tidegate-Place"]))
        assert places == list(range(1, 31))
        for browser, place in zip(browsers, places, strict=True):
            again = browser.get(f"{server.url}/big.iso", timeout=20)
            assert int(again.headers["Tidegate-Place"]) == place


def test_a_browser_is_known_from_the_first_page_it_sees(server: RunningServer) -> None:
    browser = requests.Session()
    browser.headers.update(CHROME)
    browser.get(f"{server.url}/", timeout=20)
    first = browser.cookies["tidegate-visitor"]
    assert re.fullmatch(r"v1\.[\w-]+\.[\w-]+\.[\w-]+", first)
    browser.get(f"{server.url}/", timeout=20)
    assert browser.cookies["tidegate-visitor"] == first
    assert "Set-Cookie" not in requests.get(f"{server.url}/", timeout=20).headers


def test_many_names_of_one_address_end_in_few_shared_places(tmp_path: Path) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text("clients_per_address = 20\n")
    with one_slot(tmp_path, "--config", str(config)) as server, occupy(server):
        places = set()
        for number in range(40):
            answer = requests.get(
                f"{server.url}/big.iso",
                headers={"Tidegate-Client": f"name-{number}", "Tidegate-Wait": "ticket"},
                timeout=20,
            )
            assert "Tidegate-Wait-Expected" in answer.headers
            places.add(int(answer.headers["Tidegate-Place"]))
        assert len(places) <= 20 + 8
